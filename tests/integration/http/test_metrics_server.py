import asyncio
from collections.abc import AsyncIterator

import pytest

from naiad.errors import UnavailableError
from naiad.frontends.metrics.server import MetricsOptions, MetricsServer

PAGE = b"# HELP a b\na 1\n"
TIMEOUT_S = 60


@pytest.fixture
async def server() -> AsyncIterator[MetricsServer]:
    server = MetricsServer(lambda: PAGE, MetricsOptions("127.0.0.1", 0))
    await server.start()
    yield server
    await server.close()


async def ask(server: MetricsServer, *requests: bytes) -> bytes:
    """Everything that the server answers until it closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"".join(requests))
    answer = await asyncio.wait_for(reader.read(), TIMEOUT_S)
    writer.close()
    return answer


def get(path: str, *headers: str) -> bytes:
    lines = [f"GET {path} HTTP/1.1", *headers]
    return "\r\n".join([*lines, "", ""]).encode()


@pytest.mark.parametrize("path", ["/metrics", "/metrics/", "/metrics?x=1"])
async def test_the_page(server: MetricsServer, path: str) -> None:
    assert await ask(server, get(path, "Connection: close")) == (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\n"
        b"Connection: close\r\n\r\n%b" % (len(PAGE), PAGE)
    )


async def test_other_paths_are_empty(server: MetricsServer) -> None:
    answer = await ask(server, get("/", "Connection: close"))
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Content-Length: 0\r\n" in answer


async def test_other_methods_are_not_allowed(server: MetricsServer) -> None:
    answer = await ask(server, b"POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc")
    assert answer.startswith(b"HTTP/1.1 405 Not Allowed\r\n")


async def test_a_connection_serves_many_scrapes(server: MetricsServer) -> None:
    answer = await ask(server, get("/metrics") * 3, b"GET /metrics HTTP/1.0\r\n\r\n")
    assert answer.count(PAGE) == 4


@pytest.mark.parametrize("data", [b"nonsense\r\n\r\n", b"x" * 100_000])
async def test_what_is_not_http_is_closed(server: MetricsServer, data: bytes) -> None:
    try:
        answer = await ask(server, data)
    except ConnectionResetError:
        answer = b""
    assert PAGE not in answer


async def test_an_open_connection_does_not_hold_up_the_end(server: MetricsServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(get("/metrics"))
    await asyncio.wait_for(reader.readuntil(PAGE), TIMEOUT_S)
    await asyncio.wait_for(server.close(), TIMEOUT_S)
    assert await asyncio.wait_for(reader.read(), TIMEOUT_S) == b""
    writer.close()


async def test_a_port_that_is_taken(server: MetricsServer) -> None:
    other = MetricsServer(lambda: PAGE, MetricsOptions("127.0.0.1", server.port))
    with pytest.raises(UnavailableError, match=f"Socket '127.0.0.1:{server.port}' already in use"):
        await other.start()
    elsewhere = MetricsServer(lambda: PAGE, MetricsOptions("192.0.2.1", 0))
    with pytest.raises(UnavailableError, match=r"Socket '192.0.2.1:0' can not be listened on: "):
        await elsewhere.start()
