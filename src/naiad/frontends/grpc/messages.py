"""Handlers for methods that protobuf reads and writes: all but inference."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from google.protobuf.message import DecodeError, Message

from naiad.errors import InternalError, NaiadError

if TYPE_CHECKING:
    from naiad.frontends.grpc.call import Call
    from naiad.frontends.grpc.methods import UnaryHandler

_LOGGER: Final = logging.getLogger(__name__)

RequestT = TypeVar("RequestT", bound=Message)


def parse(request_class: type[RequestT], data: bytes | memoryview, start: int) -> RequestT:
    """The message that fills ``data`` from ``start`` on.

    Raises:
        InternalError: it is none; Triton's class and text for that.
    """
    try:
        return request_class.FromString(bytes(data[start:]))
    except DecodeError:
        raise InternalError("Unable to parse request") from None


def answered_by(
    request_class: type[RequestT], answer: Callable[[RequestT], Message]
) -> "UnaryHandler":
    """A handler that answers at once with what ``answer`` returns, or the error that it raises."""

    def handle(call: "Call", data: bytes | memoryview, start: int) -> None:
        try:
            response = answer(parse(request_class, data, start))
        except NaiadError as error:
            call.fail_with(error)
        else:
            respond(call, response)

    return handle


class Tasks:
    """Handlers that take long: each call has a task; a client that goes away does not stop it."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def answered_by(
        self, request_class: type[RequestT], answer: Callable[[RequestT], Awaitable[Message]]
    ) -> "UnaryHandler":
        """A handler that answers with what ``answer`` returns in the end, or its error."""
        return self.answered(lambda data, start: answer(parse(request_class, data, start)))

    def answered(
        self, begin: Callable[[bytes | memoryview, int], Awaitable[Message]]
    ) -> "UnaryHandler":
        """The same for an ``answer`` that is begun with the bytes of the request."""

        def handle(call: "Call", data: bytes | memoryview, start: int) -> None:
            try:
                work = begin(data, start)
            except NaiadError as error:
                call.fail_with(error)
                return
            task = asyncio.ensure_future(_answer(call, work))
            self._tasks.add(task)  # the loop itself holds tasks only weakly
            task.add_done_callback(self._tasks.discard)

        return handle


async def _answer(call: "Call", work: Awaitable[Message]) -> None:
    try:
        response = await work
    except NaiadError as error:
        call.fail_with(error)
    except Exception:
        _LOGGER.exception("handler failed")
        call.fail_unexpectedly()
    else:
        respond(call, response)


def respond(call: "Call", response: Any) -> None:
    """Answer a unary call with a message."""
    data: bytes = response.SerializeToString()
    call.respond((data,), len(data))
