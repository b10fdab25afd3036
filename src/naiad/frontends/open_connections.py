"""The open connections of one server, and the wait for the last of them."""

import asyncio
from typing import Generic, TypeVar

ConnectionT = TypeVar("ConnectionT")


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
