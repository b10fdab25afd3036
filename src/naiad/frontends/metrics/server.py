"""The metrics server: ``GET /metrics``.

Scrapers come seldom and ask for one page, so this is a plain loop over asyncio's streams. As on
Triton's port, every other path answers 200 without a body, and another method than GET 405.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from naiad.frontends.listening import check_port, listen_error

_MAX_HEAD_BYTES = 16 << 10


@dataclass(frozen=True, slots=True)
class MetricsOptions:
    """Where the server listens.

    Attributes:
        address: to listen on.
        port: 0 takes a free one.
        read_timeout_s: how long a connection may wait between requests and in one.
    """

    address: str = "0.0.0.0"  # noqa: S104 - scrapers come from other machines
    port: int = 8002
    read_timeout_s: float = 120.0


class MetricsServer:
    """Serves what ``render`` returns, in the Prometheus text format."""

    def __init__(self, render: Callable[[], bytes], options: MetricsOptions) -> None:
        self._render = render
        self._options = options
        self._port = options.port
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    def check_port(self) -> None:
        """See whether the port can be listened on, before anything is loaded.

        Raises:
            UnavailableError: it can not be.
        """
        options = self._options
        check_port(options.address, options.port)

    async def start(self) -> None:
        """Listen; returns when connections are accepted.

        Raises:
            UnavailableError: the address can not be listened on.
        """
        options = self._options
        try:
            self._server = await asyncio.start_server(
                self._serve, options.address, options.port, limit=_MAX_HEAD_BYTES
            )
        except OSError as error:
            raise listen_error(options.address, options.port, error) from error
        self._port = self._server.sockets[0].getsockname()[1]

    @property
    def address(self) -> str:
        """What it listens on."""
        return self._options.address

    @property
    def port(self) -> int:
        """The port; the one that was taken where the options left it open."""
        return self._port

    async def close(self) -> None:
        """Stop listening and close all connections."""
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)
        try:
            while await self._answer_one(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
            pass  # the scraper went away, or does not speak HTTP
        finally:
            writer.close()

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; returns whether another may follow."""
        timeout_s = self._options.read_timeout_s
        raw = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), timeout_s)
        request_line, _, rest = raw.partition(b"\r\n")
        method, _, target = request_line.partition(b" ")
        path = target.partition(b" ")[0].partition(b"?")[0]
        headers = rest.lower()
        # A body would have to be skipped; closing is simpler, and no scraper sends one.
        keep_alive = (
            target.endswith(b"HTTP/1.1")
            and method == b"GET"
            and b"\r\nconnection: close\r\n" not in b"\r\n" + headers
            and b"content-length:" not in headers
            and b"transfer-encoding:" not in headers
        )
        status = b"200 OK"
        body = b""
        if method != b"GET":
            status = b"405 Not Allowed"
        elif path in {b"/metrics", b"/metrics/"}:
            body = self._render()
        writer.write(
            b"HTTP/1.1 %b\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\n%b"
            b"\r\n%b" % (status, len(body), b"" if keep_alive else b"Connection: close\r\n", body)
        )
        await asyncio.wait_for(writer.drain(), timeout_s)
        return keep_alive
