"""The gRPC server: a listening socket and its connections."""

import asyncio
import ssl
from typing import Any, Final

from naiad.frontends.byte_budget import ByteBudget
from naiad.frontends.grpc.connection import Connection
from naiad.frontends.grpc.context import ConnectionContext
from naiad.frontends.grpc.h2 import Http2Limits
from naiad.frontends.grpc.health import HealthHandlers
from naiad.frontends.grpc.infer import InferHandler, InferProtocol
from naiad.frontends.grpc.log_settings import LogSettingsHandlers
from naiad.frontends.grpc.messages import Tasks
from naiad.frontends.grpc.metadata import MetadataHandlers
from naiad.frontends.grpc.methods import Method, index_methods
from naiad.frontends.grpc.options import GrpcOptions
from naiad.frontends.grpc.reflection import ReflectionHandlers
from naiad.frontends.grpc.repository import RepositoryHandlers
from naiad.frontends.grpc.shared_memory import SharedMemoryHandlers
from naiad.frontends.grpc.stream_infer import StreamInferHandler
from naiad.frontends.grpc.trace_setting import TraceSettingHandlers
from naiad.frontends.listening import check_port, listen_error
from naiad.frontends.serving import ServingEngine
from naiad.frontends.tls import build_context

_WATCH_INTERVAL_S: Final = 1.0
_UNIX_PREFIX: Final = "unix:"

# What one call may send ahead of being read, and all calls of a connection together.
_STREAM_WINDOW_BYTES: Final = 4 << 20
_CONNECTION_WINDOW_BYTES: Final = 16 << 20
_MAX_FRAME_BYTES: Final = 64 << 10
_MAX_HEADER_BYTES: Final = 64 << 10


class GrpcServer:
    """Serves the v2 protocol over gRPC on one port; lives on one event loop."""

    def __init__(
        self, engine: ServingEngine[Any], options: GrpcOptions, budget: ByteBudget
    ) -> None:
        self._engine = engine
        self._options = options
        self._budget = budget
        self._health = HealthHandlers(engine)
        self._server: asyncio.Server | None = None
        self._context: ConnectionContext | None = None
        self._watching: asyncio.TimerHandle | None = None

    def check_port(self) -> None:
        """See whether the port can be listened on, before anything is loaded.

        Raises:
            UnavailableError: it can not be.
        """
        options = self._options
        if not options.address.startswith(_UNIX_PREFIX):
            check_port(options.address, options.port, reuse_port=options.reuse_port)

    async def start(self) -> None:
        """Listen; returns when connections are accepted.

        Raises:
            UnavailableError: the address can not be listened on.
            InvalidArgumentError: the files of TLS can not be used.
        """
        options = self._options
        loop = asyncio.get_running_loop()
        limits = Http2Limits(
            max_concurrent_streams=options.max_concurrent_streams,
            stream_window_bytes=_STREAM_WINDOW_BYTES,
            connection_window_bytes=_CONNECTION_WINDOW_BYTES,
            max_frame_bytes=_MAX_FRAME_BYTES,
            max_header_bytes=_MAX_HEADER_BYTES,
        )
        methods = index_methods(self._methods(), options.restrictions)
        context = ConnectionContext(
            loop, options, limits, methods, self._budget, self._engine.now_ns
        )
        tls = build_context(options.tls, "h2") if options.tls is not None else None
        try:
            self._server = await self._listen(loop, context, tls)
        except OSError as error:
            raise listen_error(options.address, options.port, error) from error
        self._context = context
        context.begin_checks()
        self._tell_watches(loop)

    def _methods(self) -> list[Method]:
        engine = self._engine
        options = self._options
        protocol = InferProtocol(engine, options.header_forward_pattern)
        return [
            *InferHandler(protocol).methods(),
            *StreamInferHandler(protocol, options.max_stream_requests).methods(),
            *self._health.methods(),
            *MetadataHandlers(engine).methods(),
            *RepositoryHandlers(engine, Tasks()).methods(),
            *SharedMemoryHandlers(engine).methods(),
            *TraceSettingHandlers(engine).methods(),
            *LogSettingsHandlers(engine).methods(),
            *ReflectionHandlers().methods(),
        ]

    async def _listen(
        self,
        loop: asyncio.AbstractEventLoop,
        context: ConnectionContext,
        tls: ssl.SSLContext | None,
    ) -> asyncio.Server:
        options = self._options
        if options.address.startswith(_UNIX_PREFIX):
            path = options.address.removeprefix(_UNIX_PREFIX)
            return await loop.create_unix_server(
                lambda: Connection(context), path, backlog=options.backlog, ssl=tls
            )
        return await loop.create_server(
            lambda: Connection(context),
            options.address,
            options.port,
            backlog=options.backlog,
            reuse_port=options.reuse_port or None,
            ssl=tls,
        )

    @property
    def address(self) -> str:
        """What it listens on."""
        return self._options.address

    @property
    def port(self) -> int:
        """The port; the one that was taken where the options left it open."""
        if self._server is None or self._options.address.startswith(_UNIX_PREFIX):
            return self._options.port
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def connection_count(self) -> int:
        """Connections that are open."""
        return 0 if self._context is None else len(self._context.connections)

    async def drain(self, timeout_s: float) -> bool:
        """Accept nothing more, finish the calls under way, close idle connections.

        Returns:
            Whether every connection was done in time; the others stay open until ``close``.
        """
        if self._server is None or self._context is None:
            return True
        self._server.close()
        self._context.is_stopping = True
        return await self._context.drain(timeout_s)

    def close(self) -> None:
        """Close everything at once."""
        if self._watching is not None:
            self._watching.cancel()
        if self._server is not None:
            self._server.close()
        if self._context is not None:
            self._context.abort()

    def _tell_watches(self, loop: asyncio.AbstractEventLoop) -> None:
        """Tell those who watch health what has changed, now and then."""
        self._health.tell_watches()
        self._watching = loop.call_later(_WATCH_INTERVAL_S, self._tell_watches, loop)
