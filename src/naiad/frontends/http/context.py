"""What the connections of one HTTP server share."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from naiad.frontends.byte_budget import ByteBudget
from naiad.frontends.http.head import HeadParser
from naiad.frontends.http.options import HttpOptions

if TYPE_CHECKING:
    from naiad.frontends.http.connection import Connection

# One read of the kernel's; most requests fit, head and body.
_SCRATCH_BYTES: Final = 64 << 10


class ConnectionContext:
    """Shared by all connections; lives on their event loop.

    Attributes:
        loop: theirs.
        options: of the server.
        heads: parser and memory of request heads.
        budget: of bytes received and not yet answered.
        now_ns: monotonic time.
        connections: those that are open.
        scratch: what one read puts there belongs to that connection until it has handled it, in
            the same callback; no connection may keep a view of it.
        scratch_view: the same.
    """

    __slots__ = (
        "_waiters",
        "budget",
        "connections",
        "heads",
        "loop",
        "now_ns",
        "options",
        "scratch",
        "scratch_view",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        options: HttpOptions,
        heads: HeadParser,
        budget: ByteBudget,
        now_ns: Callable[[], int],
    ) -> None:
        self.loop = loop
        self.options = options
        self.heads = heads
        self.budget = budget
        self.now_ns = now_ns
        self.connections: set[Connection] = set()
        self._waiters: list[asyncio.Future[None]] = []
        self.scratch = bytearray(_SCRATCH_BYTES)
        self.scratch_view = memoryview(self.scratch)

    def remove(self, connection: "Connection") -> None:
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
