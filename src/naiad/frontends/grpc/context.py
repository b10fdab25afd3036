"""What the connections of one gRPC server share."""

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from naiad.frontends.byte_budget import ByteBudget
from naiad.frontends.grpc.h2 import Http2Limits
from naiad.frontends.grpc.methods import Method
from naiad.frontends.grpc.options import GrpcOptions

if TYPE_CHECKING:
    from naiad.frontends.grpc.connection import Connection

# One read of the kernel's; HTTP/2 copies out of it what it keeps.
_SCRATCH_BYTES: Final = 256 << 10


class ConnectionContext:
    """Shared by all connections; lives on their event loop.

    Attributes:
        loop: theirs.
        options: of the server.
        limits: of HTTP/2.
        methods: by path.
        budget: of bytes received and not yet answered.
        now_ns: monotonic time.
        is_stopping: the server takes no new calls.
        connections: those that are open.
        scratch: what one read puts there is handled in the same callback.
    """

    __slots__ = (
        "_unflushed",
        "_waiters",
        "budget",
        "connections",
        "is_stopping",
        "limits",
        "loop",
        "methods",
        "now_ns",
        "options",
        "scratch",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        options: GrpcOptions,
        limits: Http2Limits,
        methods: Mapping[bytes, Method],
        budget: ByteBudget,
        now_ns: Callable[[], int],
    ) -> None:
        self.loop = loop
        self.options = options
        self.limits = limits
        self.methods = methods
        self.budget = budget
        self.now_ns = now_ns
        self.is_stopping = False
        self.connections: set[Connection] = set()
        self.scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._unflushed: list[Connection] = []
        self._waiters: list[asyncio.Future[None]] = []

    def flush_soon(self, connection: "Connection") -> None:
        """Send what a connection has, together with all others that have something by then."""
        if not self._unflushed:
            self.loop.call_soon(self._flush)
        self._unflushed.append(connection)

    def _flush(self) -> None:
        unflushed, self._unflushed = self._unflushed, []
        for connection in unflushed:
            connection.flush()

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
