"""Any bytes at all to the HTTP server: each connection is answered or closed, and nothing grows.

Requests that are right are damaged: bits, bytes and pieces of heads, chunk framing, JSON, binary
tails and compressed bodies. The server shares the process, so what it allocates can be seen.
"""

import asyncio
import gzip
import json
import resource
import zlib
from collections.abc import Sequence
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.fake_engine import FakeEngine, identity_model

from naiad.frontends.byte_budget import ByteBudget
from naiad.frontends.http.options import HttpOptions
from naiad.frontends.http.server import HttpServer

pytestmark = pytest.mark.slow

TIMEOUT_S: Final = 60.0
BUDGET_BYTES: Final = 64 << 20
# What the process may grow by while a batch of hostile clients is served.
MAX_GROWTH_BYTES: Final = 256 << 20
HEALTH: Final = b"GET /v2/health/live HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"


def post(path: str, body: bytes, *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: h", *headers, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


def chunked(path: str, body: bytes, size: int, *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: h", *headers, "Transfer-Encoding: chunked", "", ""]
    chunks = [body[start : start + size] for start in range(0, len(body), size)]
    framed = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    return "\r\n".join(lines).encode() + framed + b"0\r\n\r\n"


FP32: Final = "/v2/models/id_fp32/infer"
BYTES: Final = "/v2/models/id_bytes/infer"
JSON: Final = json.dumps(
    {
        "id": "a",
        "inputs": [
            {"name": "IN", "datatype": "FP32", "shape": [2, 2], "data": [[1, 2.5], [-3e-9, 4]]}
        ],
        "outputs": [{"name": "OUT", "parameters": {"binary_data": False}}],
        "parameters": {"priority": 1, "timeout": 1000, "own": "x"},
    }
).encode()
WORDS: Final = json.dumps(
    {"inputs": [{"name": "IN", "datatype": "BYTES", "shape": [1, 3], "data": ["", "é", "\0:"]}]}
).encode()
HEADER: Final = json.dumps(
    {
        "inputs": [
            {
                "name": "IN",
                "datatype": "BYTES",
                "shape": [1, 2],
                "parameters": {"binary_data_size": 11},
            }
        ],
        "parameters": {"binary_data_output": True},
    }
).encode()
TAIL: Final = b"\x01\0\0\0a\x02\0\0\0bc"
LENGTH: Final = f"Inference-Header-Content-Length: {len(HEADER)}"
LARGE: Final = JSON.replace(b'"own": "x"', b'"own": "x"' + b" " * 70_000)

REQUESTS: Final[Sequence[bytes]] = (
    post(FP32, JSON),
    post(FP32, JSON, "Accept-Encoding: gzip;q=0.5, deflate"),
    post(BYTES, WORDS),
    post(BYTES, HEADER + TAIL, LENGTH),
    post(FP32, b"\0\0\x80?" * 4, "Inference-Header-Content-Length: 0"),
    post(FP32, gzip.compress(JSON), "Content-Encoding: gzip"),
    post(BYTES, zlib.compress(HEADER + TAIL), LENGTH, "Content-Encoding: deflate"),
    chunked(FP32, JSON, 7),
    chunked(BYTES, HEADER + TAIL, 100, LENGTH),
    post(FP32, JSON, "Expect: 100-continue"),
    post(FP32, JSON) + post(BYTES, WORDS) + HEALTH,
    b"GET /v2/models/id_fp32/config HTTP/1.0\r\n\r\n",
    b"HEAD /v2 HTTP/1.1\r\nhost: h\r\n\r\n",
    post("/v2/repository/index", b'{"ready":true}'),
    post("/v2/repository/models/m/load", b'{"parameters":{"file:1/x":"AAAA"}}'),
    post("/v2/models/id_bytes/generate", b'{"IN":"a","parameters":{}}'),
)
LARGE_REQUESTS: Final = (
    post(FP32, LARGE),
    post(FP32, gzip.compress(LARGE), "Content-Encoding: gzip"),
)

# What is worth putting somewhere: numbers at the edges, framing, brackets, halves of characters.
PIECES: Final = st.one_of(
    st.sampled_from(
        (
            b"", b"\0", b"\r\n", b"\r\n\r\n", b"\n", b" ", b":", b",", b'"', b"[", b"]", b"{", b"}",
            b"\\u0000", b"\\ud800", b"\xff", b"\xc3", b"NaN", b"-Infinity", b"1e999", b"null",
            b"-1", b"0", b"255", b"65536", b"4294967296", b"9223372036854775808", b"1" * 400,
            b"[" * 2000, b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n",
            b"Content-Encoding: gzip\r\n", b"Connection: close\r\n", b"Expect: 100-continue\r\n",
            b"ffffffffffffffff\r\n", b"0\r\n\r\n", b"\x1f\x8b", b"\xff\xff\xff\xff",
            b'"binary_data_size":9,', b'"data":[1],',
        )
    ),
    st.binary(max_size=8),
)  # fmt: skip


@st.composite
def damaged(draw: st.DrawFn, content: st.SearchStrategy[bytes]) -> bytes:
    """The content with up to four places changed, and perhaps cut off."""
    data = bytearray(draw(content))
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.sampled_from((0, 0, 1, 1, 2, 8, 40))))
        data[start:end] = draw(PIECES)
    if draw(st.integers(0, 3)) == 3:
        del data[draw(st.integers(0, len(data))) :]
    return bytes(data)


def framed(bodies: st.SearchStrategy[bytes], *headers: str) -> st.SearchStrategy[bytes]:
    """Requests whose framing is right, whatever their body is."""
    zipped = (*headers, "Content-Encoding: gzip")
    return st.one_of(
        bodies.map(lambda body: post(FP32, body, *headers)),
        bodies.map(lambda body: post(BYTES, body, *headers)),
        bodies.map(lambda body: chunked(FP32, body, 90, *headers)),
        bodies.map(lambda body: post(FP32, gzip.compress(body), *zipped)),
        damaged(bodies.map(gzip.compress)).map(lambda body: post(FP32, body, *zipped)),
    )


SMALL_CLIENTS: Final = st.one_of(
    damaged(st.sampled_from(REQUESTS)),
    framed(damaged(st.sampled_from((JSON, WORDS)))),
    framed(damaged(st.just(TAIL)).map(lambda tail: HEADER + tail), LENGTH),
)
LARGE_CLIENTS: Final = st.one_of(
    damaged(st.sampled_from(LARGE_REQUESTS)), framed(damaged(st.just(LARGE)))
)


async def talk(port: int, data: bytes, cut: int) -> bytes:
    """Send in two parts, say that it was all, and read to the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for part in (data[:cut], data[cut:]):
            writer.write(part)
            await writer.drain()
        writer.write_eof()
        return await reader.read()
    except ConnectionError:
        return b""  # closed on us, which is an answer too
    finally:
        writer.close()


async def serve_batch(batch: Sequence[tuple[bytes, int]]) -> None:
    """A server for one batch of clients; fails if one of them waits, or if something is left."""
    budget = ByteBudget(BUDGET_BYTES)
    engine = FakeEngine(identity_model(), identity_model("BYTES"))
    options = HttpOptions(address="127.0.0.1", port=0, max_input_bytes=1 << 20)
    server = HttpServer(engine, options, budget)
    await server.start()
    try:
        answers = await asyncio.wait_for(
            asyncio.gather(*(talk(server.port, data, cut) for data, cut in batch)), TIMEOUT_S
        )
        for answer in answers:
            assert answer == b"" or answer.startswith(b"HTTP/1.1 "), answer
            assert b"internal error" not in answer
        assert (await talk(server.port, HEALTH, 10)).startswith(b"HTTP/1.1 200 OK\r\n")
    finally:
        await server.drain(TIMEOUT_S)
        server.close()
    assert budget.reserved_bytes == 0


def run_batch(data: Sequence[bytes], cuts: Sequence[int]) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    batch = [(item, cut % (len(item) + 1)) for item, cut in zip(data, cuts, strict=False)]
    asyncio.run(serve_batch(batch))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < MAX_GROWTH_BYTES


CUTS: Final = st.lists(st.integers(0, 1 << 20), min_size=16, max_size=16)
BATCHES: Final = st.lists(SMALL_CLIENTS, min_size=1, max_size=16)
COMMON: Final = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@settings(COMMON, max_examples=200)
@given(BATCHES, CUTS)
def test_damaged_requests(data: list[bytes], cuts: list[int]) -> None:
    run_batch(data, cuts)


@settings(COMMON, max_examples=8)
@given(st.lists(LARGE_CLIENTS, min_size=1, max_size=4), CUTS)
def test_damaged_large_requests(data: list[bytes], cuts: list[int]) -> None:
    run_batch(data, cuts)


@settings(COMMON, max_examples=50)
@given(st.lists(st.binary(max_size=300), min_size=1, max_size=16), CUTS)
def test_noise(data: list[bytes], cuts: list[int]) -> None:
    run_batch(data, cuts)


@pytest.mark.full
@pytest.mark.timeout(900)
@settings(COMMON, max_examples=3000)
@given(st.lists(SMALL_CLIENTS | LARGE_CLIENTS, min_size=1, max_size=16), CUTS)
def test_damaged_requests_for_long(data: list[bytes], cuts: list[int]) -> None:
    run_batch(data, cuts)
