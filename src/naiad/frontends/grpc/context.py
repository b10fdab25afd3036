"""What the connections of one gRPC server share."""

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from naiad.frontends.byte_budget import ByteBudget
from naiad.frontends.grpc.h2 import Http2Limits
from naiad.frontends.grpc.methods import Method
from naiad.frontends.grpc.options import GrpcOptions
from naiad.frontends.open_connections import OpenConnections

if TYPE_CHECKING:
    from naiad.frontends.grpc.connection import Connection

# One read of the kernel's; HTTP/2 copies out of it what it keeps.
_SCRATCH_BYTES: Final = 256 << 10


class ConnectionContext(OpenConnections["Connection"]):
    """Shared by all connections; lives on their event loop.

    Attributes:
        options: of the server.
        limits: of HTTP/2.
        methods: by path.
        budget: of bytes received and not yet answered.
        is_stopping: the server takes no new calls.
        scratch: what one read puts there is handled in the same callback.
    """

    __slots__ = (
        "_unflushed",
        "budget",
        "is_stopping",
        "limits",
        "methods",
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
        super().__init__(loop, now_ns)
        self.options = options
        self.limits = limits
        self.methods = methods
        self.budget = budget
        self.is_stopping = False
        self.scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._unflushed: list[Connection] = []

    def flush_soon(self, connection: "Connection") -> None:
        """Send what a connection has, together with all others that have something by then."""
        if not self._unflushed:
            self.loop.call_soon(self._flush)
        self._unflushed.append(connection)

    def _flush(self) -> None:
        unflushed, self._unflushed = self._unflushed, []
        for connection in unflushed:
            connection.flush()
