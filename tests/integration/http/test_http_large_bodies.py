"""Large and compressed bodies on a real socket: right answers, in order, within the limits."""

import asyncio
import base64
import gzip
import json
import mmap
import os
import resource
import signal
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.integration.http.test_http_server import (
    INFER,
    answered,
    binary_request,
    infer_body,
    running,
)
from tests.support.fake_engine import identity_model

from naiad.errors import InternalError, InvalidArgumentError, UnavailableError
from naiad.frontends.rest.json_decoder import JsonDecoder

pytestmark = pytest.mark.slow

COUNT = 40_000
MODULE = b"naiad.frontends.rest.json_process"


def large_body(count: int = COUNT) -> bytes:
    return infer_body(*range(count))


def values_of(body: bytes) -> Any:
    return json.loads(body)["outputs"][0]["data"]


def json_processes() -> list[int]:
    """The processes that parse JSON for this one."""
    children = [
        pid
        for task in Path("/proc/self/task").iterdir()
        for pid in (task / "children").read_text().split()
    ]
    return [int(pid) for pid in children if MODULE in Path(f"/proc/{pid}/cmdline").read_bytes()]


def address_space(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * mmap.PAGESIZE


@asynccontextmanager
async def decoding(
    timeout_s: float = 60.0, max_input_bytes: int = 1 << 20
) -> AsyncIterator[JsonDecoder]:
    decoder = JsonDecoder(max_input_bytes, timeout_s)
    try:
        yield decoder
    finally:
        decoder.close()
        assert json_processes() == []


# --- JSON ----------------------------------------------------------------------------------------


async def test_large_json_in_and_out() -> None:
    async with running() as run:
        status, _, body = await run.ask("POST", INFER, large_body())
        assert status == 200
        assert values_of(body) == list(range(COUNT))
        assert len(json_processes()) == 1
    assert json_processes() == []


async def test_small_json_starts_no_process() -> None:
    async with running() as run:
        assert (await run.ask("POST", INFER, infer_body(1.5)))[2] == answered(1.5)
        assert json_processes() == []


async def test_answers_stay_in_order() -> None:
    async with running() as run:
        client = await run.connect()
        client.request("POST", INFER, large_body())
        client.request("POST", INFER, infer_body(1.5))
        assert values_of((await client.answer())[2]) == list(range(COUNT))
        assert (await client.answer())[2] == answered(1.5)


async def test_others_are_answered_meanwhile() -> None:
    async with running() as run:
        large = await run.connect()
        large.request("POST", INFER, large_body(1_000_000))
        small = await run.connect()
        for _ in range(20):
            small.request("POST", INFER, infer_body(1.5))
            assert (await small.answer())[2] == answered(1.5)
        assert values_of((await large.answer())[2])[-1] == 999_999


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"{" + b" " * 100_000, "Missing a name for object member"),
        (b'{"inputs":' + b"[" * 100_000, "JSON nesting depth exceeds"),
        (large_body().replace(b"39999", b"3999x"), "Missing a comma or ]"),
        (large_body().replace(b'"IN"', b'"NO"'), None),
        (large_body().replace(b"[1, 40000]", b"[1, 1099511627776]"), "exceeds the maximum"),
        (
            large_body().replace(b"[1, 40000]", b"[1, 39999]"),
            "has 39999 elements, 'data' has 40000",
        ),
    ],
)
async def test_errors(body: bytes, error: str | None) -> None:
    async with running() as run:
        status, _, text = await run.ask("POST", INFER, body)
        if error is None:  # the fake engine takes any name
            assert status == 200
        else:
            assert status == 400
            assert error in json.loads(text)["error"]
        assert (await run.ask("POST", INFER, infer_body(1.5)))[2] == answered(1.5)


async def test_many_strings_in_json_and_in_the_tail() -> None:
    words = [f"é{number}" for number in range(COUNT)]
    entry: dict[str, Any] = {"name": "IN", "datatype": "BYTES", "shape": [1, COUNT]}
    async with running() as run:
        body = json.dumps({"inputs": [{**entry, "data": words}]}).encode()
        status, _, answer = await run.ask("POST", "/v2/models/id_bytes/infer", body)
        assert status == 200
        assert values_of(answer) == words
        tail = b"".join(len(w.encode()).to_bytes(4, "little") + w.encode() for w in words)
        entry["parameters"] = {"binary_data_size": len(tail)}
        text = json.dumps({"inputs": [entry], "parameters": {"binary_data_output": True}}).encode()
        client = await run.connect()
        length = f"Inference-Header-Content-Length: {len(text)}"
        client.request("POST", "/v2/models/id_bytes/infer", text + tail, length)
        status, headers, answer = await client.answer()
        assert status == 200
        assert answer[int(headers["Inference-Header-Content-Length"]) :] == tail


async def test_a_client_that_leaves_while_its_json_is_parsed() -> None:
    async with running() as run:
        client = await run.connect()
        client.request("POST", INFER, large_body(500_000))
        await client.writer.drain()
        assert (await run.ask("GET", "/v2/health/live"))[0] == 200
        client.writer.transport.abort()
        assert (await run.ask("POST", INFER, infer_body(1.5)))[2] == answered(1.5)
        # `running` sees at its end that the budget got everything back.


async def test_tensors_count_against_the_budget() -> None:
    # The text alone fits, its tensor does not fit beside it.
    body = infer_body(*[0] * COUNT)
    async with running(identity_model("FP64"), budget_bytes=len(body) + COUNT) as run:
        status, _, text = await run.ask(
            "POST", "/v2/models/id_fp64/infer", body.replace(b"FP32", b"FP64")
        )
        assert status == 503
        assert "have reached its limit of" in json.loads(text)["error"]


async def test_a_process_that_was_killed_is_replaced() -> None:
    async with decoding() as decoder:
        assert await decoder.parse(b"{}") == {}
        (pid,) = json_processes()
        os.kill(pid, signal.SIGSTOP)
        waiting = asyncio.ensure_future(decoder.parse(b"{}"))
        await asyncio.to_thread(os.kill, pid, signal.SIGKILL)
        outcomes = await asyncio.gather(waiting, return_exceptions=True)
        outcome: Any = outcomes[0]
        # Whether the request was there first or the signal is the kernel's affair.
        if outcome != {}:
            assert isinstance(outcome, InternalError)
            assert "the process that reads large JSON ended (exit code -9)" in outcome.message
        assert await decoder.parse(b'{"id":"a"}') == {"id": "a"}
        assert json_processes() != [pid]


async def test_a_text_that_takes_too_long() -> None:
    async with decoding(timeout_s=0.5) as decoder:
        assert await decoder.parse(b"{}") == {}
        (pid,) = json_processes()
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(UnavailableError, match="could not be read within"):
            await decoder.parse(b"{}")
        assert await decoder.parse(b"{}") == {}


async def test_a_text_whose_values_take_too_much_memory() -> None:
    async with decoding() as decoder:
        assert await decoder.parse(b"{}") == {}
        (pid,) = json_processes()
        size = 16 << 20
        resource.prlimit(pid, resource.RLIMIT_AS, (address_space(pid) + size,) * 2)
        with pytest.raises(InvalidArgumentError, match="has so many values that they take more"):
            await decoder.parse(b"[%b1]" % (b"[]," * 300_000))
        assert await decoder.parse(b"{}") == {}
        assert json_processes() == [pid]


async def test_millions_of_empty_strings() -> None:
    count = 1_000_000
    entry = b'{"name":"a","datatype":"BYTES","shape":[%d],"data":[%b""]}' % (
        count,
        b'"",' * (count - 1),
    )
    async with decoding(max_input_bytes=16 << 20) as decoder:
        document = await decoder.parse(b'{"inputs":[%b]}' % entry)
        assert document["inputs"][0]["data"].content == bytes(4 * count)


async def test_a_text_too_large() -> None:
    async with decoding() as decoder:
        with pytest.raises(InvalidArgumentError, match="exceeds the maximum allowed input size"):
            await decoder.parse(b" " * ((1 << 20) + 1))


# --- load requests -------------------------------------------------------------------------------


async def test_large_files_of_a_load_request() -> None:
    async with running() as run:
        file = bytes(range(256)) * 1000
        parameters = {"config": "{}", "file:1/model.onnx": base64.b64encode(file).decode()}
        body = json.dumps({"parameters": parameters}).encode()
        got = await run.ask("POST", "/v2/repository/models/m/load", body)
        assert got == (200, "application/json", b"")
        assert run.engine.loads == [("m", "{}", {"1/model.onnx": file})]
        assert len(json_processes()) == 1
        parameters["file:1/model.onnx"] += "?"
        body = json.dumps({"parameters": parameters}).encode()
        status, _, text = await run.ask("POST", "/v2/repository/models/m/load", body)
        assert (status, b"is not base64" in text) == (400, True)
    assert json_processes() == []


# --- compression ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("encoding", "pack", "unpack"),
    [
        ("gzip", gzip.compress, gzip.decompress),
        ("deflate", zlib.compress, zlib.decompress),
    ],
)
@pytest.mark.parametrize("count", [1, COUNT])
async def test_compressed_both_ways(
    encoding: str, pack: Callable[[bytes], bytes], unpack: Callable[[bytes], bytes], count: int
) -> None:
    headers = (f"Content-Encoding: {encoding}", f"Accept-Encoding: {encoding}")
    async with running() as run:
        client = await run.connect()
        client.request("POST", INFER, pack(infer_body(*range(count))), *headers)
        status, answered_headers, body = await client.answer()
        assert status == 200
        assert answered_headers["Content-Encoding"] == encoding
        assert answered_headers["Content-Type"] == "application/json"
        assert values_of(unpack(body)) == list(range(count))


async def test_a_compressed_binary_tail() -> None:
    body, length = binary_request(COUNT)
    header = f"Inference-Header-Content-Length: {length}"
    async with running() as run:
        client = await run.connect()
        client.request(
            "POST", INFER, gzip.compress(body), header, "Content-Encoding: gzip",
            "Accept-Encoding: gzip",
        )  # fmt: skip
        status, headers, answer = await client.answer()
        assert status == 200
        # The length is of the content, as in Triton.
        tail = gzip.decompress(answer)[int(headers["Inference-Header-Content-Length"]) :]
        np.testing.assert_array_equal(np.frombuffer(tail, np.float32), np.arange(COUNT))


async def test_a_header_length_beyond_the_content() -> None:
    async with running() as run:
        status, content_type, body = await run.ask(
            "POST", INFER, gzip.compress(b"{}"), "Content-Encoding: gzip",
            "Inference-Header-Content-Length: 3",
        )  # fmt: skip
        assert (status, content_type) == (400, "text/plain")
        assert body == b'{"error":"inference header size should be in range (0, 2), got: 3"}'


async def test_chunks_of_a_compressed_body() -> None:
    body = gzip.compress(infer_body(1.5))
    async with running() as run:
        client = await run.connect()
        client.request("POST", INFER, None, "Content-Encoding: gzip", "Transfer-Encoding: chunked")
        for byte in body:
            client.send(b"1\r\n%c\r\n" % byte)
        client.send(b"0\r\n\r\n")
        assert (await client.answer())[2] == answered(1.5)


async def test_an_encoding_that_is_not_known() -> None:
    async with running() as run:
        client = await run.connect()
        client.request("POST", INFER, infer_body(1), "Content-Encoding: br")
        status, headers, body = await client.answer()
        assert status == 501
        assert headers["Content-Type"] == "text/plain"
        assert headers["Accept-Encoding"] == "gzip, deflate"
        assert body == b'{"error":"Unsupported compression type"}'
        client.request("POST", INFER, infer_body(1.5))
        assert (await client.answer())[2] == answered(1.5)


async def test_a_bomb() -> None:
    bomb = gzip.compress(bytes(1 << 24))
    async with running(max_input_bytes=1 << 20) as run:
        status, _, body = await run.ask("POST", INFER, bomb, "Content-Encoding: gzip")
        assert status == 400
        assert json.loads(body)["error"].startswith("Decompressed data size exceeds")


async def test_what_is_decompressed_counts_against_the_budget() -> None:
    bomb = gzip.compress(bytes(1 << 24))
    async with running(budget_bytes=4 << 20) as run:
        status, _, body = await run.ask("POST", INFER, bomb, "Content-Encoding: gzip")
        assert status == 503
        assert "have reached its limit of" in json.loads(body)["error"]


@pytest.mark.parametrize(
    "body",
    [infer_body(1), gzip.compress(infer_body(1))[:-3], gzip.compress(infer_body(1)) + b"{}"],
    # gzip notes the time, and the workers of one run must agree on the names.
    ids=["plain", "cut off", "more behind"],
)
async def test_a_body_that_is_not_what_its_header_says(body: bytes) -> None:
    async with running() as run:
        status, _, text = await run.ask("POST", INFER, body, "Content-Encoding: gzip")
        assert status == 400
        assert json.loads(text)["error"].startswith("failed to decompress the request body")
        assert run.engine.requests == []


async def test_errors_are_not_compressed() -> None:
    async with running() as run:
        client = await run.connect()
        client.request("POST", INFER, b"{}", "Accept-Encoding: gzip")
        status, headers, body = await client.answer()
        assert status == 400
        assert "Content-Encoding" not in headers
        assert b"inputs" in body
