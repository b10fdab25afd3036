"""The HTTP server on a real socket, with an engine that a test controls."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from tests.support.fake_engine import FakeEngine, FakeModel, identity_model

from naiad.errors import InternalError, InvalidArgumentError, NaiadError, UnavailableError
from naiad.frontends.byte_budget import ByteBudget
from naiad.frontends.http.options import HttpOptions
from naiad.frontends.http.server import HttpServer
from naiad.inference.datatypes import FP32
from naiad.model_config.signature import ModelSignature, TensorSpec

TIMEOUT_S = 60
SECOND = 10**9


class Client:
    """One connection, spoken by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def request(
        self, method: str, path: str, body: bytes | None = None, *headers: str, version: str = "1.1"
    ) -> None:
        lines = [f"{method} {path} HTTP/{version}", "Host: h", *headers]
        if body is not None:
            lines.append(f"Content-Length: {len(body)}")
        self.send("\r\n".join([*lines, "", ""]).encode() + (body or b""))

    async def head(self) -> tuple[int, dict[str, str]]:
        raw = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), TIMEOUT_S)
        status_line, *lines = raw.decode().rstrip("\r\n").split("\r\n")
        return int(status_line.split(" ")[1]), dict(line.split(": ", 1) for line in lines)

    async def answer(self, *, is_head: bool = False) -> tuple[int, dict[str, str], bytes]:
        status, headers = await self.head()
        size = 0 if is_head else int(headers["Content-Length"])
        body = await asyncio.wait_for(self.reader.readexactly(size), TIMEOUT_S)
        return status, headers, body

    async def closed(self) -> bool:
        """Whether the server closes the connection, and sends nothing more before."""
        try:
            return await asyncio.wait_for(self.reader.read(1), TIMEOUT_S) == b""
        except ConnectionError:
            return True

    async def close(self) -> None:
        self.writer.close()


class Running:
    """A server, its engine and its budget."""

    def __init__(self, server: HttpServer, engine: FakeEngine, budget: ByteBudget) -> None:
        self.server = server
        self.engine = engine
        self.budget = budget
        self.clients: list[Client] = []

    async def connect(self, limit: int = 1 << 16) -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port, limit=limit)
        client = Client(reader, writer)
        self.clients.append(client)
        return client

    async def ask(self, method: str, path: str, body: bytes | None = None, *headers: str) -> Any:
        client = await self.connect()
        client.request(method, path, body, *headers)
        status, answered, content = await client.answer()
        await client.close()
        return status, answered["Content-Type"], content


@asynccontextmanager
async def running(
    *models: FakeModel, budget_bytes: int = 1 << 30, **options: Any
) -> AsyncIterator[Running]:
    engine = FakeEngine(*(models or (identity_model(), identity_model("BYTES"))))
    budget = ByteBudget(budget_bytes)
    server = HttpServer(engine, HttpOptions(address="127.0.0.1", port=0, **options), budget)
    await server.start()
    run = Running(server, engine, budget)
    try:
        yield run
    finally:
        server.close()
        for client in run.clients:
            await client.close()
        assert await server.drain(TIMEOUT_S)
        assert budget.reserved_bytes == 0


def infer_body(*values: float, **members: Any) -> bytes:
    entry = {"name": "IN", "datatype": "FP32", "shape": [1, len(values)], "data": list(values)}
    return json.dumps({"inputs": [entry], **members}).encode()


def answered(*values: float) -> bytes:
    return (
        b'{"model_name":"id_fp32","model_version":"1","outputs":[{"name":"OUT","datatype":"FP32",'
        b'"shape":[1,%d],"data":[%b]}]}' % (len(values), ",".join(map(str, values)).encode())
    )


def binary_request(count: int) -> tuple[bytes, int]:
    text = json.dumps(
        {
            "inputs": [
                {
                    "name": "IN",
                    "datatype": "FP32",
                    "shape": [1, count],
                    "parameters": {"binary_data_size": 4 * count},
                }
            ],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    return text + np.arange(count, dtype=np.float32).tobytes(), len(text)


INFER = "/v2/models/id_fp32/infer"


# --- routes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "status", "content_type", "body"),
    [
        ("GET", "/v2/health/live", 200, "text/plain", b""),
        ("GET", "/v2/health/ready", 200, "text/plain", b""),
        ("GET", "/v2/health/live?x=1", 200, "text/plain", b""),
        ("GET", "http://a/v2/health/live", 200, "text/plain", b""),
        ("GET", "/v2/models/id_fp32/ready", 200, "text/plain", b""),
        ("GET", "/v2/models/id_fp32/versions/1/ready", 200, "text/plain", b""),
        (
            "GET",
            "/v2/models/nope/ready",
            404,
            "text/plain",
            b'{"error":"Request for unknown model: \'nope\' is not found"}',
        ),
        (
            "GET",
            "/v2/models/id_fp32/versions/99999999999999999999/ready",
            400,
            "text/plain",
            b'{"error":"failed to get model version from specified version string '
            b"'99999999999999999999' (details: stol), version should be an integral value > 0\"}",
        ),
        (
            "GET",
            "/v2",
            200,
            "application/json",
            b'{"name":"triton","version":"0.0","extensions":["classification","binary_tensor_data"]}',
        ),
        (
            "GET",
            "/v2/models/id_fp32",
            200,
            "application/json",
            b'{"name":"id_fp32","versions":["1"],"platform":"fake","inputs":[{"name":"IN",'
            b'"datatype":"FP32","shape":[-1,-1]}],"outputs":[{"name":"OUT","datatype":"FP32",'
            b'"shape":[-1,-1]}]}',
        ),
        (
            "GET",
            "/v2/models/nope",
            404,
            "application/json",
            b'{"error":"Request for unknown model: \'nope\' is not found"}',
        ),
        (
            "GET",
            "/v2/models/nope/config",
            404,
            "application/json",
            b'{"error":"Request for unknown model: \'nope\' is not found"}',
        ),
        (
            "GET",
            "/v2/models/nope/stats",
            400,
            "application/json",
            b'{"error":"requested model \'nope\' is not available"}',
        ),
        (
            "POST",
            "/v2/models/nope/infer",
            404,
            "text/plain",
            b'{"error":"Request for unknown model: \'nope\' is not found"}',
        ),
        (
            "POST",
            "/v2/repository/index",
            200,
            "application/json",
            b'[{"name":"id_fp32","version":"1","state":"READY"},{"name":"id_bytes","version":"1",'
            b'"state":"READY"},{"name":"sleeping"}]',
        ),
        (
            "POST",
            "/v2/repository/r/models/m/load",
            501,
            "application/json",
            b'{"error":"\'repository_name\' specification is not supported"}',
        ),
    ],
)
async def test_routes(method: str, path: str, status: int, content_type: str, body: bytes) -> None:
    async with running() as run:
        got = await run.ask(method, path, b"" if method == "POST" else None)
        assert got == (status, content_type, body)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v2/",
        "/v2/models",
        "/v2/health/live/",
        "/v2/health/live%20",
        "/V2/health/live",
        "//v2/health/live",
        "/v2/models/m/nope",
        "/v2/models//infer",
        "/v2/models/m/infer/",
        "/v2/models/m/versions/abc/infer",
        "/v2/models/m/versions/infer",
        "/v2/repository/models/a/b/load",
    ],
)
async def test_paths_that_are_none(path: str) -> None:
    async with running() as run:
        got = await run.ask("POST", path, b"")
        assert got == (404, "text/plain", b'{"error":"Not Found"}')


@pytest.mark.parametrize(
    ("method", "path", "content_type"),
    [
        ("GET", INFER, "text/plain"),
        ("POST", "/v2/health/live", "text/plain"),
        ("POST", "/v2/models/id_fp32/ready", "text/plain"),
        ("DELETE", "/v2", "application/json"),
        ("OPTIONS", "/v2", "application/json"),
        ("POST", "/v2/models/id_fp32/config", "application/json"),
        ("GET", "/v2/repository/index", "application/json"),
        ("GET", "/v2/repository/models/m/load", "application/json"),
    ],
)
async def test_methods_that_are_not_allowed(method: str, path: str, content_type: str) -> None:
    async with running() as run:
        got = await run.ask(method, path)
        assert got == (405, content_type, b'{"error":"Method Not Allowed"}')


async def test_head_has_no_body_and_the_connection_goes_on() -> None:
    async with running() as run:
        client = await run.connect()
        client.request("HEAD", "/v2")
        assert (await client.answer(is_head=True))[0] == 405
        client.request("GET", "/v2/health/live")
        assert (await client.answer())[0] == 200


async def test_health_follows_the_engine() -> None:
    async with running() as run:
        run.engine.live = run.engine.ready = False
        assert (await run.ask("GET", "/v2/health/live"))[0] == 400
        assert (await run.ask("GET", "/v2/health/ready")) == (400, "text/plain", b"")


async def test_a_model_without_an_instance_that_can_run_is_not_ready() -> None:
    async with running() as run:
        run.engine.stuck.add("id_fp32")
        assert await run.ask("GET", "/v2/models/id_fp32/ready") == (
            400,
            "text/plain",
            b'{"error":"Model version not ready"}',
        )


async def test_config_and_statistics() -> None:
    async with running() as run:
        _, _, body = await run.ask("GET", "/v2/models/id_fp32/config")
        assert json.loads(body)["max_batch_size"] == 8
        _, _, body = await run.ask("GET", "/v2/models/stats")
        assert [m["name"] for m in json.loads(body)["model_stats"]] == ["id_fp32", "id_bytes"]
        _, _, body = await run.ask("GET", "/v2/models/id_fp32/versions/1/stats")
        assert [m["name"] for m in json.loads(body)["model_stats"]] == ["id_fp32"]


async def test_load_and_unload() -> None:
    async with running(max_input_bytes=64) as run:
        override = {"parameters": {"config": "{}", "file:1/model.onnx": "QUJD" * 100}}
        body = json.dumps(override).encode()
        got = await run.ask("POST", "/v2/repository/models/m/load", body)
        assert got == (200, "application/json", b"")
        assert run.engine.loads == [("m", "{}", {"1/model.onnx": b"ABC" * 100})]
        body = b'{"parameters":{"unload_dependents":true}}'
        assert (await run.ask("POST", "/v2/repository/models/m/unload", body))[0] == 200
        assert (await run.ask("POST", "/v2/repository/models/n/unload", b""))[0] == 200
        assert run.engine.unloads == [("m", True), ("n", False)]
        status, _, body = await run.ask("POST", "/v2/repository/models/m/load", b"hello")
        assert (status, b"Invalid value. at 0" in body) == (400, True)
        run.engine.failure = InternalError("failed to load 'm'")
        got = await run.ask("POST", "/v2/repository/models/m/load", b"")
        assert got == (500, "application/json", b'{"error":"failed to load \'m\'"}')


# --- inference -----------------------------------------------------------------------------------


async def test_json_in_and_out() -> None:
    async with running() as run:
        got = await run.ask("POST", INFER, infer_body(1.0, 2.5))
        assert got == (200, "application/json", answered(1.0, 2.5))


@pytest.mark.parametrize("count", [1, 3, 10_000, 300_000])
async def test_binary_in_and_out(count: int) -> None:
    body, header_length = binary_request(count)
    async with running() as run:
        client = await run.connect()
        for _ in range(2):
            client.request("POST", INFER, body, f"Inference-Header-Content-Length: {header_length}")
            status, headers, answer = await client.answer()
            assert (status, headers["Content-Type"]) == (200, "application/octet-stream")
            length = int(headers["Inference-Header-Content-Length"])
            assert answer[length:] == body[header_length:]
            assert json.loads(answer[:length])["outputs"][0]["shape"] == [1, count]
        for request in run.engine.requests:
            data = request.inputs["IN"].data
            assert data.flags.aligned
            assert not data.flags.owndata


async def test_a_large_tensor_starts_at_a_cache_line() -> None:
    body, header_length = binary_request(100_000)
    async with running() as run:
        await run.ask("POST", INFER, body, f"Inference-Header-Content-Length: {header_length}")
        assert run.engine.requests[0].inputs["IN"].data.ctypes.data % 64 == 0


async def test_an_empty_body_is_a_raw_request() -> None:
    async with running() as run:
        assert (await run.ask("POST", INFER, b""))[0] == 200
        assert run.engine.requests[0].inputs["IN"].data.shape == (1, 0)
        # No length is no body.
        assert (await run.ask("POST", INFER))[0] == 200


async def test_a_raw_request_is_answered_in_binary() -> None:
    async with running() as run:
        data = np.array([1, 2], np.float32).tobytes()
        status, content_type, body = await run.ask(
            "POST", INFER, data, "Inference-Header-Content-Length: 0"
        )
        assert (status, content_type) == (200, "application/octet-stream")
        assert body.endswith(data)


async def test_the_id_comes_back() -> None:
    async with running() as run:
        _, _, body = await run.ask("POST", INFER, infer_body(1.0, id="q-1"))
        assert body.startswith(b'{"id":"q-1","model_name"')


@pytest.mark.parametrize(
    ("error", "status"), [(InvalidArgumentError("no"), 400), (UnavailableError("no"), 503)]
)
async def test_a_request_that_the_engine_refuses(error: NaiadError, status: int) -> None:
    async with running() as run:
        run.engine.refusal = error
        got = await run.ask("POST", INFER, infer_body(1.0))
        assert got == (status, "application/json", b'{"error":"no"}')


async def test_a_request_that_fails_later_is_answered_as_text() -> None:
    async with running() as run:
        run.engine.failure = InternalError("broken")
        got = await run.ask("POST", INFER, infer_body(1.0))
        assert got == (500, "text/plain", b'{"error":"broken"}')


async def test_bytes_that_json_does_not_carry_are_refused_late() -> None:
    body = (
        b'{"inputs":[{"name":"IN","datatype":"BYTES","shape":[1,1],'
        b'"parameters":{"binary_data_size":6}}]}'
    )
    async with running() as run:
        status, content_type, text = await run.ask(
            "POST",
            "/v2/models/id_bytes/infer",
            body + b"\2\0\0\0\xff\xfe",
            f"Inference-Header-Content-Length: {len(body)}",
        )
        assert (status, content_type) == (400, "text/plain")
        assert b"binary data format" in text


async def test_a_decoupled_model_is_refused() -> None:
    signature = ModelSignature(
        "d", 0, [TensorSpec("IN", FP32, (-1,))], [TensorSpec("OUT", FP32, (-1,))], is_decoupled=True
    )
    async with running(FakeModel(signature)) as run:
        got = await run.ask("POST", "/v2/models/d/infer", infer_body(1.0))
        assert got == (
            501,
            "text/plain",
            b'{"error":"HTTP end point doesn\'t support models with decoupled transaction policy"}',
        )


async def test_an_encoding_that_is_not_spoken() -> None:
    async with running() as run:
        got = await run.ask("POST", INFER, infer_body(1.0), "Content-Encoding: br")
        assert got == (501, "text/plain", b'{"error":"Unsupported compression type"}')
        got = await run.ask("POST", INFER, infer_body(1.0), "Content-Encoding: identity")
        assert got[0] == 200


async def test_a_fault_in_a_handler_is_answered_and_the_server_goes_on() -> None:
    async with running() as run:
        run.engine.models["id_fp32", 1].signature = None  # type: ignore[assignment]
        status, _, _ = await run.ask("POST", INFER, infer_body(1.0))
        assert status == 500
        assert (await run.ask("GET", "/v2/health/live"))[0] == 200


# --- framing -------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_request_byte_by_byte() -> None:
    body = infer_body(1.0)
    async with running() as run:
        client = await run.connect()
        raw = b"POST %b HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (
            INFER.encode(),
            len(body),
            body,
        )
        for byte in raw:
            client.send(bytes([byte]))
            # Answered on another connection, so this byte has been read.
            await run.ask("GET", "/v2/health/live")
        assert (await client.answer())[2] == answered(1.0)


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with running() as run:
        client = await run.connect()
        for value in range(100):
            client.request("POST", INFER, infer_body(float(value)))
            client.request("GET", "/v2/health/live")
        for value in range(100):
            assert (await client.answer())[2] == answered(float(value))
            assert (await client.answer())[2] == b""


@pytest.mark.slow
async def test_a_client_that_runs_far_ahead_is_slowed_and_answered() -> None:
    count = 3000
    async with running() as run:
        run.engine.holds = True
        client = await run.connect()
        for value in range(count):
            client.request("POST", INFER, infer_body(float(value)))
        await asyncio.wait_for(run.engine.arrived.wait(), TIMEOUT_S)
        run.engine.holds = False
        run.engine.release()
        for value in range(count):
            assert (await client.answer())[2] == answered(float(value))


async def test_large_bodies_one_after_the_other_in_one_stream() -> None:
    body, header_length = binary_request(50_000)
    async with running() as run:
        client = await run.connect()
        for _ in range(3):
            client.request("POST", INFER, body, f"Inference-Header-Content-Length: {header_length}")
        client.request("GET", "/v2/health/live")
        for _ in range(3):
            assert (await client.answer())[2].endswith(body[header_length:])
        assert (await client.answer())[2] == b""


@pytest.mark.parametrize("size", [1, 10, 1000])
async def test_chunked_bodies(size: int) -> None:
    body, header_length = binary_request(100)
    chunks = [body[i : i + size] for i in range(0, len(body), size)]
    async with running() as run:
        client = await run.connect()
        client.request(
            "POST",
            INFER,
            None,
            "Transfer-Encoding: chunked",
            f"Inference-Header-Content-Length: {header_length}",
        )
        client.send(b"".join(b"%x\r\n%b\r\n" % (len(c), c) for c in chunks) + b"0\r\n\r\n")
        client.request("GET", "/v2/health/live")
        assert (await client.answer())[2].endswith(body[header_length:])
        assert (await client.answer())[2] == b""


async def test_a_chunked_json_body_in_one_write_with_the_next_request() -> None:
    body = infer_body(4.0)
    async with running() as run:
        client = await run.connect()
        chunked = b"POST %b HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (
            INFER.encode(),
            len(body),
            body,
        )
        client.send(chunked * 2 + b"GET /v2/health/live HTTP/1.1\r\n\r\n")
        assert (await client.answer())[2] == answered(4.0)
        assert (await client.answer())[2] == answered(4.0)
        assert (await client.answer())[2] == b""


async def test_too_many_chunks() -> None:
    async with running(max_chunks=10) as run:
        client = await run.connect()
        client.request("POST", INFER, None, "Transfer-Encoding: chunked")
        client.send(b"1\r\n \r\n" * 11)
        status, _, body = await client.answer()
        assert (status, b"exceeds maximum of 10 non-empty chunks" in body) == (400, True)
        assert await client.closed()


async def test_a_header_length_beyond_a_chunked_body() -> None:
    async with running() as run:
        client = await run.connect()
        client.request(
            "POST", INFER, None, "Transfer-Encoding: chunked", "Inference-Header-Content-Length: 5"
        )
        client.send(b"1\r\n{\r\n0\r\n\r\n")
        status, _, body = await client.answer()
        assert (status, b"in range (0, 1), got: 5" in body) == (400, True)


async def test_expect_continue() -> None:
    body = infer_body(1.0)
    async with running() as run:
        client = await run.connect()
        head = b"POST %b HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
        client.send(head % (INFER.encode(), len(body)))
        assert await client.head() == (100, {})
        client.send(body)
        assert (await client.answer())[2] == answered(1.0)


async def test_expect_continue_of_a_body_that_is_too_large() -> None:
    async with running(max_body_bytes=10, max_input_bytes=10) as run:
        client = await run.connect()
        head = b"POST %b HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 11\r\n\r\n"
        client.send(head % INFER.encode())
        assert (await client.answer())[0] == 413
        assert await client.closed()


async def test_a_refused_body_that_is_sent_all_the_same_does_not_lose_the_answer() -> None:
    async with running(max_body_bytes=1000) as run:
        client = await run.connect()
        client.request("POST", INFER, b" " * 5_000_000)
        status, headers, _ = await client.answer()
        assert (status, headers["Connection"]) == (413, "close")
        assert await client.closed()


@pytest.mark.parametrize(
    ("version", "headers", "stays"),
    [
        ("1.1", [], True),
        ("1.1", ["Connection: close"], False),
        ("1.0", [], False),
        ("1.0", ["Connection: keep-alive"], True),
    ],
)
async def test_keep_alive(version: str, headers: list[str], *, stays: bool) -> None:
    async with running() as run:
        client = await run.connect()
        client.request("POST", INFER, infer_body(1.0), *headers, version=version)
        _, got, body = await client.answer()
        assert body == answered(1.0)
        if stays:
            assert got.get("Connection", "keep-alive") == "keep-alive"
            client.request("GET", "/v2/health/live")
            assert (await client.answer())[0] == 200
        else:
            assert got["Connection"] == "close"
            assert await client.closed()


async def test_an_error_keeps_the_connection() -> None:
    async with running() as run:
        client = await run.connect()
        client.request("POST", INFER, b"{}")
        assert (await client.answer())[0] == 400
        client.request("POST", INFER, infer_body(1.0))
        assert (await client.answer())[2] == answered(1.0)


@pytest.mark.parametrize(
    "raw",
    [
        b"nonsense\r\n\r\n",
        b"GET /v2 x HTTP/1.1\r\n\r\n",
        b"POST /v2 HTTP/1.1\r\nContent-Length: abc\r\n\r\n",
        b"POST /v2 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
async def test_what_is_not_http_is_answered_and_closed(raw: bytes) -> None:
    async with running() as run:
        client = await run.connect()
        client.send(raw)
        status, headers, _ = await client.answer()
        assert (status, headers["Connection"]) == (400, "close")
        assert await client.closed()


async def test_a_head_that_does_not_end() -> None:
    async with running(max_head_bytes=1000) as run:
        client = await run.connect()
        client.send(b"GET /v2 HTTP/1.1\r\nX: " + b"x" * 1000)
        assert (await client.answer())[0] == 431
        assert await client.closed()


async def test_the_budget_of_bytes_in_flight() -> None:
    body = infer_body(1.0)
    large, header_length = binary_request(100_000)
    async with running(budget_bytes=len(body) + 10) as run:
        run.engine.holds = True
        first = await run.connect()
        first.request("POST", INFER, body)
        await asyncio.wait_for(run.engine.arrived.wait(), TIMEOUT_S)
        for content, length in ((body, len(body)), (large, header_length)):
            status, _, text = await run.ask(
                "POST", INFER, content, f"Inference-Header-Content-Length: {length}"
            )
            assert (status, b"limit" in text) == (503, True)
        run.engine.release()
        assert (await first.answer())[2] == answered(1.0)
        run.engine.holds = False
        assert (await run.ask("POST", INFER, body))[0] == 200


async def test_the_budget_counts_the_elements_of_bytes() -> None:
    count = 30_000
    tail = (2).to_bytes(4, "little") + b"ab"
    text = json.dumps(
        {
            "inputs": [
                {
                    "name": "IN",
                    "datatype": "BYTES",
                    "shape": [1, count],
                    "parameters": {"binary_data_size": len(tail) * count},
                }
            ]
        }
    ).encode()
    for budget_bytes, expected in ((1_000_000, 503), (2_000_000, 200)):
        async with running(budget_bytes=budget_bytes) as run:
            for _ in range(3):
                status, _, _ = await run.ask(
                    "POST",
                    "/v2/models/id_bytes/infer",
                    text + tail * count,
                    f"Inference-Header-Content-Length: {len(text)}",
                )
                assert status == expected


# --- clients that go away, or are slow -----------------------------------------------------------


async def held_request(run: Running) -> Client:
    run.engine.holds = True
    client = await run.connect()
    client.request("POST", INFER, infer_body(1.0))
    await asyncio.wait_for(run.engine.arrived.wait(), TIMEOUT_S)
    return client


@pytest.mark.slow
async def test_a_client_that_goes_away_cancels_its_request() -> None:
    async with running() as run:
        client = await held_request(run)
        await client.close()
        await asyncio.wait_for(run.engine.cancel_seen.wait(), TIMEOUT_S)
        assert run.engine.cancelled == run.engine.requests
        assert run.budget.reserved_bytes == 0


@pytest.mark.slow
async def test_a_client_that_resets_cancels_its_request() -> None:
    async with running() as run:
        client = await held_request(run)
        client.writer.transport.abort()
        await asyncio.wait_for(run.engine.cancel_seen.wait(), TIMEOUT_S)


async def test_a_client_that_closed_its_sending_half_gets_its_answer() -> None:
    async with running() as run:
        client = await held_request(run)
        client.writer.write_eof()
        assert await client.head() == (100, {})  # the server asks whether anybody listens
        run.engine.release()
        status, headers, body = await client.answer()
        assert (status, headers["Connection"], body) == (200, "close", answered(1.0))
        assert await client.closed()
        assert not run.engine.cancelled


@pytest.mark.parametrize(
    "rest", [b"", b"GET /v2 HT", b"POST /v2 HTTP/1.1\r\nContent-Length: 9\r\n\r\n"]
)
async def test_what_was_sent_ahead_of_a_closed_half_is_answered(rest: bytes) -> None:
    async with running() as run:
        client = await held_request(run)
        client.request("POST", INFER, infer_body(2.0))
        client.request("GET", "/v2/health/live")
        client.request("POST", INFER, infer_body(3.0))
        client.send(rest)
        client.writer.write_eof()
        assert await client.head() == (100, {})  # so the end of its half has been seen
        run.engine.holds = False
        run.engine.release()
        assert (await client.answer())[2] == answered(1.0)
        assert (await client.answer())[2] == answered(2.0)
        assert (await client.answer())[2] == b""
        assert (await client.answer())[2] == answered(3.0)
        assert await client.closed()


async def test_a_long_pipeline_and_a_closed_half() -> None:
    count = 1000
    async with running() as run:
        client = await run.connect()
        for _ in range(count):
            client.request("GET", "/v2/health/live")
        client.writer.write_eof()
        for _ in range(count):
            assert (await client.answer())[0] == 200
        assert await client.closed()


async def test_a_length_of_nothing_but_zeros() -> None:
    async with running() as run:
        client = await run.connect()
        client.send(b"GET /v2/health/live HTTP/1.1\r\nContent-Length: %b\r\n\r\n" % (b"0" * 5000))
        client.request("GET", "/v2/health/live")
        for _ in range(2):
            assert (await client.answer())[0] == 200


@pytest.mark.slow
async def test_an_answer_that_comes_after_the_client_went_away_is_dropped() -> None:
    async with running() as run:
        client = await held_request(run)
        held = list(run.engine.held)
        client.writer.transport.abort()
        await asyncio.wait_for(run.engine.cancel_seen.wait(), TIMEOUT_S)
        run.engine.cancelled.clear()
        run.engine.held = held
        run.engine.release()
        assert (await run.ask("GET", "/v2/health/live"))[0] == 200


@pytest.mark.slow
@pytest.mark.parametrize(
    "sent",
    [
        b"GET /v2 HT",
        b"POST /v2/models/id_fp32/infer HTTP/1.1\r\nContent-Length: 5\r\n\r\n{",
        b"POST /v2/models/id_fp32/infer HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{",
    ],
)
async def test_a_request_that_does_not_arrive_in_time(sent: bytes) -> None:
    async with running(read_timeout_s=5) as run:
        client = await run.connect()
        client.send(sent)
        # Answered on another connection, so what was sent before has been read.
        assert (await run.ask("GET", "/v2/health/live"))[0] == 200
        run.engine.now += 6 * SECOND
        status, headers, _ = await client.answer()
        assert (status, headers["Connection"]) == (408, "close")
        assert await client.closed()


@pytest.mark.slow
async def test_a_connection_that_is_idle_for_long_is_closed() -> None:
    async with running(max_idle_ms=60_000) as run:
        run.engine.holds = True
        busy = await run.connect()
        busy.request("POST", INFER, infer_body(1.5))
        idle = await run.connect()
        idle.request("GET", "/v2/health/live")
        await idle.answer()
        new = await run.connect()
        # Connections are accepted in their order.
        assert (await run.ask("GET", "/v2/health/live"))[0] == 200
        run.engine.now += 61 * SECOND
        assert await idle.closed()
        assert await new.closed()
        run.engine.release()
        assert (await busy.answer())[0] == 200


async def test_one_connection_too_many() -> None:
    async with running(max_connections=1) as run:
        first = await run.connect()
        first.request("GET", "/v2/health/live")
        assert (await first.answer())[0] == 200
        second = await run.connect()
        status, headers, body = await second.answer()
        assert (status, headers["Connection"]) == (503, "close")
        assert b"the server has 1 connections, the most that it takes" in body
        assert await second.closed()
        first.request("GET", "/v2/health/live")
        assert (await first.answer())[0] == 200


@pytest.mark.slow
async def test_an_idle_connection_is_kept() -> None:
    async with running(read_timeout_s=5) as run:
        client = await run.connect()
        client.request("GET", "/v2/health/live")
        await client.answer()
        slow = await run.connect()
        slow.send(b"GET /")
        assert (await run.ask("GET", "/v2/health/live"))[0] == 200
        run.engine.now += 6 * SECOND
        assert (await slow.answer())[0] == 408
        client.request("GET", "/v2/health/live")
        assert (await client.answer())[0] == 200


@pytest.mark.slow
async def test_a_client_that_does_not_read_stops_being_read() -> None:
    body, header_length = binary_request(200_000)
    async with running() as run:
        client = await run.connect(limit=1 << 10)
        for _ in range(100):
            client.request("POST", INFER, body, f"Inference-Header-Content-Length: {header_length}")
        await asyncio.wait_for(run.engine.arrived.wait(), TIMEOUT_S)
        before = -1
        while len(run.engine.requests) != before:
            before = len(run.engine.requests)
            for _ in range(20):
                await run.ask("GET", "/v2/health/live")
        assert before < 100
        for _ in range(100):
            assert (await client.answer())[2].endswith(body[header_length:])


# --- life of the server --------------------------------------------------------------------------


async def test_drain_finishes_what_is_under_way_and_closes_what_is_idle() -> None:
    async with running() as run:
        idle = await run.connect()
        idle.request("GET", "/v2/health/live")
        await idle.answer()
        busy = await held_request(run)
        draining = asyncio.ensure_future(run.server.drain(TIMEOUT_S))
        assert await idle.closed()
        with pytest.raises(OSError, match="Connect"):
            await run.connect()
        assert not draining.done()
        run.engine.release()
        status, headers, body = await busy.answer()
        assert (status, headers["Connection"], body) == (200, "close", answered(1.0))
        assert await busy.closed()
        assert await draining


async def test_drain_gives_up_in_time_and_close_cuts_off() -> None:
    async with running() as run:
        client = await held_request(run)
        assert not await run.server.drain(0.01)
        run.server.close()
        assert await client.closed()
        await asyncio.wait_for(run.engine.cancel_seen.wait(), TIMEOUT_S)


async def test_a_port_that_is_taken() -> None:
    async with running() as run:
        options = HttpOptions(address="127.0.0.1", port=run.server.port)
        other = HttpServer(run.engine, options, run.budget)
        with pytest.raises(UnavailableError, match=f"127.0.0.1:{run.server.port}"):
            await other.start()
