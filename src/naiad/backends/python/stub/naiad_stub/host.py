"""What the objects of `pb_utils` need from whoever runs the model."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from . import wire


class Host:
    """The server, as a model sees it. One for each model instance.

    Attributes:
        model_name: of the model.
        instance_name: of the instance.
        model_directory: the folder of the version.
        is_decoupled: a request may have any number of responses.
        can_infer: other models may be asked: after ``initialize`` and before ``finalize``.
    """

    model_name = ""
    instance_name = ""
    model_directory = ""
    is_decoupled = False
    can_infer = False

    def respond(self, key: int, response: wire.WireResponse, *, is_final: bool) -> None:
        """Answer the request that came with ``key``."""
        raise NotImplementedError

    def infer(
        self,
        request: wire.WireRequest,
        on_response: Callable[[wire.WireResponse, bool], None],
        *,
        is_decoupled: bool,
    ) -> int:
        """Ask another model, which is done only while ``can_infer``.

        Args:
            request: what is asked.
            on_response: called by another thread with each response, and whether it is the last.
            is_decoupled: the caller takes any number of responses.

        Returns:
            A number to cancel it by.
        """
        raise NotImplementedError

    def cancel_infer(self, key: int) -> None:
        """The answers of `infer` are not wanted any more."""
        raise NotImplementedError

    def call(
        self, name: str, arguments: Mapping[str, Any], files: Mapping[str, bytes | memoryview]
    ) -> Any:
        """Ask the server for something else, and wait for its answer.

        Raises:
            HostError: it can't be done; the text is the server's.
        """
        raise NotImplementedError

    def tell(self, name: str, arguments: Mapping[str, Any]) -> None:
        """Tell the server something that has no answer."""
        raise NotImplementedError

    def log(self, level: int, text: str) -> None:
        """Write a line to the server's log."""
        raise NotImplementedError


class HostError(Exception):
    """The server refused a call."""


class Binding:
    """Which host the functions of `pb_utils` speak to.

    In a process of its own there is one. Where models share a process, a thread that runs one
    speaks to that model's, and a thread that a model has started to the last one's.
    """

    def __init__(self) -> None:
        self._default: Host | None = None
        self._of_thread = threading.local()

    def set_default(self, host: Host) -> None:
        """For threads that have none of their own."""
        self._default = host

    def set_for_thread(self, host: Host) -> None:
        """For the calling thread."""
        self._of_thread.host = host
        self._default = host

    def get(self) -> Host:
        """The host of the calling thread."""
        host = getattr(self._of_thread, "host", None) or self._default
        if host is None:
            raise HostError("there is no server to ask here")
        return host


binding = Binding()
