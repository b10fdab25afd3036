"""The open connections of one server: their limits of time, and the wait for the last of them."""

import asyncio
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

DEFAULT_MAX_CONNECTIONS: Final = 10_000
DEFAULT_MAX_IDLE_MS: Final = 3_600_000
_CHECK_INTERVAL_S: Final = 1.0


class OpenConnection(Protocol):
    """What a server does with each of its connections."""

    def check_time(self, now_ns: int) -> None:
        """Give up what takes too long; called about once a second."""
        ...

    def drain(self) -> None:
        """Close as soon as nothing is under way."""
        ...

    def abort(self) -> None:
        """Close at once."""
        ...


ConnectionT = TypeVar("ConnectionT", bound=OpenConnection)


class OpenConnections(Generic[ConnectionT]):
    """Base of what the connections of a server share; lives on their event loop.

    Attributes:
        loop: theirs.
        now_ns: monotonic time.
        connections: those that are open.
    """

    __slots__ = ("_check", "_waiters", "connections", "loop", "now_ns")

    def __init__(self, loop: asyncio.AbstractEventLoop, now_ns: Callable[[], int]) -> None:
        self.loop = loop
        self.now_ns = now_ns
        self.connections: set[ConnectionT] = set()
        self._waiters: list[asyncio.Future[None]] = []
        self._check: asyncio.TimerHandle | None = None

    def add(self, connection: ConnectionT, limit: int) -> bool:
        """A connection is made; returns whether there may be so many, of which 0 sets no limit."""
        self.connections.add(connection)
        return not limit or len(self.connections) <= limit

    def remove(self, connection: ConnectionT) -> None:
        """A connection is closed."""
        self.connections.discard(connection)
        if not self.connections:
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self._waiters.clear()

    def begin_checks(self) -> None:
        """Hold every connection against its limits of time, now and then until ``abort``."""
        self._check = self.loop.call_later(_CHECK_INTERVAL_S, self._check_times)

    def _check_times(self) -> None:
        now_ns = self.now_ns()
        for connection in tuple(self.connections):
            connection.check_time(now_ns)
        self.begin_checks()

    async def drain(self, timeout_s: float) -> bool:
        """Close all connections, each as soon as nothing is under way.

        Returns:
            Whether every connection was done in time; the others stay open until ``abort``.
        """
        for connection in tuple(self.connections):
            connection.drain()
        try:
            await asyncio.wait_for(self._all_closed(), timeout_s)
        except TimeoutError:
            return False
        return True

    def _all_closed(self) -> asyncio.Future[None]:
        """Done when no connection is open."""
        waiter = self.loop.create_future()
        if self.connections:
            self._waiters.append(waiter)
        else:
            waiter.set_result(None)
        return waiter

    def abort(self) -> None:
        """Close everything at once."""
        if self._check is not None:
            self._check.cancel()
        for connection in tuple(self.connections):
            connection.abort()
