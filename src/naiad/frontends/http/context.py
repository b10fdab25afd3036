"""What the connections of one HTTP server share."""

import asyncio
from collections.abc import Callable
from typing import Final

from naiad.frontends.byte_budget import ByteBudget
from naiad.frontends.http.connection import Connection
from naiad.frontends.http.head import HeadParser
from naiad.frontends.http.options import HttpOptions
from naiad.frontends.open_connections import OpenConnections

# One read of the kernel's; most requests fit, head and body.
_SCRATCH_BYTES: Final = 64 << 10


class ConnectionContext(OpenConnections[Connection]):
    """Shared by all connections; lives on their event loop.

    Attributes:
        options: of the server.
        heads: parser and memory of request heads.
        budget: of bytes received and not yet answered.
        scratch: what one read puts there belongs to that connection until it has handled it, in
            the same callback; no connection may keep a view of it.
        scratch_view: the same.
    """

    __slots__ = (
        "budget",
        "heads",
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
        super().__init__(loop, now_ns)
        self.options = options
        self.heads = heads
        self.budget = budget
        self.scratch = bytearray(_SCRATCH_BYTES)
        self.scratch_view = memoryview(self.scratch)
