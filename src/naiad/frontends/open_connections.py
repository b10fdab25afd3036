"""The open connections of one server, and the wait for the last of them."""

import asyncio
from typing import Final, Generic, TypeVar

ConnectionT = TypeVar("ConnectionT")

DEFAULT_MAX_CONNECTIONS: Final = 10_000
DEFAULT_MAX_IDLE_MS: Final = 3_600_000


class OpenConnections(Generic[ConnectionT]):
    """Base of what the connections of a server share; lives on their event loop.

    Attributes:
        loop: theirs.
        connections: those that are open.
    """

    __slots__ = ("_waiters", "connections", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.connections: set[ConnectionT] = set()
        self._waiters: list[asyncio.Future[None]] = []

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

    def all_closed(self) -> asyncio.Future[None]:
        """Done when no connection is open."""
        waiter = self.loop.create_future()
        if self.connections:
            self._waiters.append(waiter)
        else:
            waiter.set_result(None)
        return waiter
