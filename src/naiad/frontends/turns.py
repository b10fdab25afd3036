"""Long work on the event loop, a millisecond at a time."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Final, Generic, TypeVar

from naiad.errors import InternalError, NaiadError

_LOGGER: Final = logging.getLogger(__name__)

T = TypeVar("T")


class Work(Generic[T]):
    """Steps to do and whom to tell; the steps stop when the work is dropped.

    Attributes:
        is_dropped: nobody waits for it any more.
    """

    __slots__ = ("_on_end", "_on_error", "_steps", "is_dropped")

    def __init__(
        self,
        steps: Generator[None, None, T],
        on_end: Callable[[T], None],
        on_error: Callable[[NaiadError], None],
    ) -> None:
        self._steps = steps
        self._on_end = on_end
        self._on_error = on_error
        self.is_dropped = False

    def step(self) -> bool:
        """Do one step; returns whether there is more to do."""
        if self.is_dropped:
            return False
        try:
            next(self._steps)
        except StopIteration as end:
            self._on_end(end.value)
            return False
        except NaiadError as error:
            self._on_error(error)
            return False
        except Exception:
            # A fault in one work must neither leave its caller without an answer nor stop the rest.
            _LOGGER.exception("work in steps failed")
            self._on_error(InternalError("internal error; the server's log says more"))
            return False
        return True


class Turns:
    """Does one step of one work in each pass of the loop, in turns, so that all else goes on.

    Many large requests hold the loop no longer than one.
    """

    def __init__(self) -> None:
        self._waiting: deque[Work[Any]] = deque()

    def start(
        self,
        steps: Generator[None, None, T],
        on_end: Callable[[T], None],
        on_error: Callable[[NaiadError], None],
    ) -> Work[T]:
        """Begin with ``steps``; one of the functions is called with what comes of them."""
        work = Work(steps, on_end, on_error)
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._turn)
        self._waiting.append(work)
        return work

    async def run(self, steps: Generator[None, None, T]) -> T:
        """The same for a coroutine: what comes of ``steps``, which stop if it is cancelled.

        Raises:
            NaiadError: as ``steps``.
        """
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        # A task that is cancelled has cancelled the future before it comes to its end here.
        def end(value: T) -> None:
            if not result.done():
                result.set_result(value)

        def fail(error: NaiadError) -> None:
            if not result.done():
                result.set_exception(error)

        work = self.start(steps, end, fail)
        try:
            return await result
        finally:
            work.is_dropped = True

    def _turn(self) -> None:
        work = self._waiting[0]
        if work.step():
            self._waiting.rotate(-1)
        else:
            self._waiting.popleft()
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._turn)
