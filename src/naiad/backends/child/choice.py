"""In the server's process or in one of its own: each model of a backend as its config says."""

import threading
from collections.abc import Callable
from typing import Final

from naiad.backends.base import Backend, LoadedModel, ModelSource
from naiad.backends.parameters import IN_PROCESS, read_boolean, read_text
from naiad.backends.python.options import PROCESS_ONLY
from naiad.backends.settings import read_boolean_setting
from naiad.errors import InvalidArgumentError

_SETTING: Final = "in-process"


class ProcessChoice:
    """A backend that is imported into the server when the first model needs it there.

    Args:
        make_in_process: makes the backend itself.
        child: runs it in processes.
    """

    def __init__(self, make_in_process: Callable[[], Backend], child: Backend) -> None:
        self._make_in_process = make_in_process
        self._in_process: Backend | None = None
        self._child = child
        # Models load side by side in threads.
        self._lock = threading.Lock()

    def complete_config(self, source: ModelSource) -> None:
        """See `Backend`."""
        self._choose(source).complete_config(source)

    def load(self, source: ModelSource) -> LoadedModel:
        """See `Backend`."""
        return self._choose(source).load(source)

    def _choose(self, source: ModelSource) -> Backend:
        if not runs_in_process(source):
            return self._child
        for key in PROCESS_ONLY:
            if read_text(source.config, key):
                raise InvalidArgumentError(
                    f"model '{source.name}': parameter '{key}' needs a process of its own; remove "
                    f"it, or set parameter '{IN_PROCESS}' to 'false'"
                )
        with self._lock:
            if self._in_process is None:
                self._in_process = self._make_in_process()
            return self._in_process


def runs_in_process(source: ModelSource) -> bool:
    """Whether a model runs in the server's process; it does where nobody says otherwise.

    Raises:
        InvalidArgumentError: the parameter or the setting is no boolean.
    """
    asked = read_boolean(source.config, IN_PROCESS)
    return read_boolean_setting(source, _SETTING, default=True) if asked is None else asked
