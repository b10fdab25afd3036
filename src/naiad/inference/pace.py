"""Holding up whoever sends responses faster than they can be used."""

from collections import deque
from collections.abc import Callable


class ResponsePace:
    """Between a model that sends many responses and the ensemble that takes them.

    The sender, in any thread, gives a callback with each response before it posts it, and sends no
    more until that was called. The ensemble, on the loop, lets as many go on as it has taken.
    Nothing is locked: both ends of a deque may be used at once, and whoever finds a callback is the
    only one to call it.
    """

    __slots__ = ("_is_open", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_open = False

    def wait(self, go_on: Callable[[], None]) -> None:
        """Have ``go_on`` called, by any thread, when the next response may be sent."""
        self._waiting.append(go_on)
        if self._is_open:
            self._call(1)

    def go_on(self, count: int) -> None:
        """``count`` more responses were taken, and there is room for others."""
        self._call(count)

    def open(self) -> None:
        """Nothing is to be held up any more, neither who waits nor who would."""
        self._is_open = True
        self._call(len(self._waiting))

    def _call(self, count: int) -> None:
        waiting = self._waiting
        for _ in range(count):
            try:
                go_on = waiting.popleft()
            except IndexError:
                return  # a sender that is not to be held up, or the other thread was faster
            go_on()
