"""The HTTP server: a listening socket and its connections."""

import asyncio
from typing import Any

from naiad.frontends.byte_budget import ByteBudget
from naiad.frontends.http.connection import Connection
from naiad.frontends.http.context import ConnectionContext
from naiad.frontends.http.head import HeadParser
from naiad.frontends.http.options import HttpOptions
from naiad.frontends.listening import check_port, listen_error
from naiad.frontends.rest.api import build_routes
from naiad.frontends.rest.long_work import LongWork
from naiad.frontends.rest.router import Router
from naiad.frontends.serving import ServingEngine
from naiad.frontends.tls import build_context


class HttpServer:
    """Serves the v2 protocol over HTTP/1.1 on one port; lives on one event loop."""

    def __init__(
        self, engine: ServingEngine[Any], options: HttpOptions, budget: ByteBudget
    ) -> None:
        self._engine = engine
        self._options = options
        self._budget = budget
        self._long_work = LongWork(options.max_input_bytes)
        self._server: asyncio.Server | None = None
        self._port = options.port
        self._context: ConnectionContext | None = None

    def check_port(self) -> None:
        """See whether the port can be listened on, before anything is loaded.

        Raises:
            UnavailableError: it can not be.
        """
        options = self._options
        check_port(options.address, options.port, reuse_port=options.reuse_port)

    async def start(self) -> None:
        """Listen; returns when connections are accepted.

        Raises:
            UnavailableError: the address can not be listened on.
            InvalidArgumentError: the files of TLS can not be used.
        """
        options = self._options
        engine = self._engine
        loop = asyncio.get_running_loop()
        router = Router(build_routes(engine, options, self._long_work), options.restrictions)
        context = ConnectionContext(
            loop, options, HeadParser(router, options), self._budget, engine.now_ns
        )
        tls = build_context(options.tls, "http/1.1") if options.tls is not None else None
        try:
            self._server = await loop.create_server(
                lambda: Connection(context),
                options.address,
                options.port,
                backlog=options.backlog,
                reuse_port=options.reuse_port or None,
                ssl=tls,
            )
        except OSError as error:
            raise listen_error(options.address, options.port, error) from error
        self._port = self._server.sockets[0].getsockname()[1]
        self._context = context
        context.begin_checks()

    @property
    def address(self) -> str:
        """What it listens on."""
        return self._options.address

    @property
    def port(self) -> int:
        """The port; the one that was taken where the options left it open."""
        return self._port

    @property
    def connection_count(self) -> int:
        """Connections that are open."""
        return 0 if self._context is None else len(self._context.connections)

    async def drain(self, timeout_s: float) -> bool:
        """Accept nothing more, finish what is under way, close idle connections.

        Returns:
            Whether every connection was done in time; the others stay open until ``close``.
        """
        if self._server is None or self._context is None:
            return True
        self._server.close()
        return await self._context.drain(timeout_s)

    def close(self) -> None:
        """Close everything at once."""
        if self._server is not None:
            self._server.close()
        if self._context is not None:
            self._context.abort()
        self._long_work.close()
