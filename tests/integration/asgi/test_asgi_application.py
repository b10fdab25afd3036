"""The ASGI application, with an engine that a test controls."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from tests.support.asgi_driver import TIMEOUT_S, Lifespan, ask
from tests.support.fake_engine import FakeEngine, FakeModel, identity_model

from naiad.errors import InternalError
from naiad.frontends.asgi.application import AsgiApplication
from naiad.frontends.byte_budget import ByteBudget
from naiad.frontends.http.options import HttpOptions
from naiad.frontends.http.server import HttpServer
from naiad.frontends.rest.options import RestOptions
from naiad.inference.datatypes import INT32
from naiad.inference.response import InferResponse
from naiad.inference.tensor import Tensor
from naiad.model_config.signature import ModelSignature, TensorSpec
from naiad.protocol.forwarded_headers import compile_forward_pattern


def repeat_model() -> FakeModel:
    return FakeModel(
        ModelSignature(
            "repeat",
            0,
            [TensorSpec("N", INT32, (1,))],
            [TensorSpec("OUT", INT32, (1,))],
            is_decoupled=True,
        )
    )


class Running:
    def __init__(self, budget_bytes: int, options: RestOptions) -> None:
        self.engine = FakeEngine(
            identity_model(), identity_model("BYTES"), identity_model(name="50%"), repeat_model()
        )
        self.budget = ByteBudget(budget_bytes)
        self.application = AsgiApplication(self.engine, options, self.budget)

    async def ask(self, *args: Any, **kwargs: Any) -> tuple[int, dict[str, str], bytes]:
        return await ask(self.application, *args, **kwargs).answer()

    def respond(self, value: int | None, *, is_final: bool) -> None:
        _, request = self.engine.held[-1]
        outputs = [] if value is None else [Tensor("OUT", INT32, (1,), np.array([value], np.int32))]
        response = InferResponse("repeat", 1, "", outputs)
        response.is_final = is_final
        request.on_response(response)


@asynccontextmanager
async def running(
    budget_bytes: int = 1 << 30, *, holds: bool = False, **options: Any
) -> AsyncIterator[Running]:
    run = Running(budget_bytes, RestOptions(**options))
    run.engine.holds = holds
    yield run
    await run.application.close()
    assert run.budget.reserved_bytes == 0


INFER = "/v2/models/id_fp32/infer"
STREAM = "/v2/models/repeat/generate_stream"
EVENTS = "text/event-stream; charset=utf-8"


def infer_body(count: int = 1, **members: Any) -> bytes:
    data = [float(value) for value in range(count)]
    entry = {"name": "IN", "datatype": "FP32", "shape": [1, count], "data": data}
    return json.dumps({"inputs": [entry], **members}).encode()


def binary_body(count: int) -> tuple[bytes, int]:
    entry = {
        "name": "IN",
        "datatype": "FP32",
        "shape": [1, count],
        "parameters": {"binary_data_size": 4 * count},
    }
    parameters = {"binary_data_output": True}
    text = json.dumps({"inputs": [entry], "parameters": parameters}).encode()
    return text + np.arange(count, dtype=np.float32).tobytes(), len(text)


def event(value: int) -> bytes:
    return b'data: {"OUT":%d,"model_name":"repeat","model_version":"1"}\n\n' % value


BINARY, BINARY_LENGTH = binary_body(300)
SAME = [
    ("GET", "/v2", b"", {}),
    ("GET", "/v2/health/live", b"", {}),
    ("HEAD", "/v2/health/live", b"", {}),
    ("GET", "/v2/models/id_fp32", b"", {}),
    ("GET", "/v2/models/id_fp32/versions/1/config", b"", {}),
    ("GET", "/v2/models/stats", b"", {}),
    ("GET", "/v2/models/nope/ready", b"", {}),
    ("GET", "/v2/models/50%/ready", b"", {}),
    ("GET", "/v2/models/50%25/ready", b"", {}),
    ("GET", "/v2/openapi.json", b"", {}),
    ("GET", "/nowhere", b"", {}),
    ("GET", "/v2/", b"", {}),
    ("DELETE", INFER, b"", {}),
    ("POST", INFER, infer_body(), {}),
    ("POST", INFER, infer_body(id="q"), {"Content-Type": "application/json"}),
    ("POST", INFER, b"{", {}),
    ("POST", INFER, infer_body(40), {"Accept-Encoding": "gzip"}),
    ("POST", INFER, BINARY, {"Inference-Header-Content-Length": str(BINARY_LENGTH)}),
    ("POST", INFER, BINARY, {"Inference-Header-Content-Length": "x"}),
    ("POST", INFER, BINARY, {"Inference-Header-Content-Length": "99999"}),
    ("POST", INFER, BINARY, {"Inference-Header-Content-Length": "-1"}),
    ("POST", INFER, b" " * 5000, {}),
    ("POST", INFER, b" " * 9000, {"Inference-Header-Content-Length": "1"}),
    ("POST", "/v2/models/id_bytes/generate", b'{"IN":"x"}', {}),
    ("POST", "/v2/models/id_bytes/generate_stream", b'{"IN":"x"}', {}),
    ("POST", "/v2/repository/index", b"", {}),
    ("GET", "/v2/logging", b"", {}),
    ("GET", "/v2/trace/setting", b"", {}),
    ("GET", "/v2/systemsharedmemory/status", b"", {}),
]


@pytest.mark.parametrize(("method", "path", "body", "headers"), SAME)
async def test_its_answers_are_those_of_the_server(
    method: str, path: str, body: bytes, headers: dict[str, str]
) -> None:
    limits: dict[str, Any] = {"max_input_bytes": 4096, "max_body_bytes": 8192}
    async with running(**limits) as run:
        mine = await run.ask(method, path, body, headers=headers)
        server = HttpServer(
            run.engine, HttpOptions(address="127.0.0.1", port=0, **limits), run.budget
        )
        await server.start()
        try:
            theirs = await _ask_server(server.port, method, path, body, headers)
        finally:
            server.close()
            await server.drain(TIMEOUT_S)
        assert mine[0] == theirs[0]
        assert mine[2] == theirs[2]
        framing = {"connection", "transfer-encoding", "content-length"}
        assert mine[1].keys() - framing == theirs[1].keys() - framing
        for name in mine[1].keys() - framing:
            assert mine[1][name] == theirs[1][name]
        if "content-length" in theirs[1]:
            assert mine[1]["content-length"] == theirs[1]["content-length"]


async def _ask_server(
    port: int, method: str, path: str, body: bytes, headers: dict[str, str]
) -> tuple[int, dict[str, str], bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = [f"{method} {path} HTTP/1.1", "Host: h", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if method == "POST":
        lines.append(f"Content-Length: {len(body)}")
    writer.write("\r\n".join([*lines, "", ""]).encode() + body)
    raw = await asyncio.wait_for(reader.read(), TIMEOUT_S)
    writer.close()
    head, _, content = raw.partition(b"\r\n\r\n")
    status_line, *rest = head.decode().split("\r\n")
    found = dict(line.lower().split(": ", 1) for line in rest)
    if found.get("transfer-encoding") == "chunked":
        size, _, content = content.partition(b"\r\n")
        content = content[: int(size, 16)]
    return int(status_line.split(" ")[1]), found, content


@pytest.mark.parametrize(
    ("path", "root_path", "has_raw_path"),
    [
        ("/models/v2/health/live", "/models", True),
        ("/models/v2/health/live", "/models/", True),
        ("/models/v2/health/live", "/models", False),
        ("/v2/health/live", "/models", True),
        ("/a%20b/v2/health/live", "/a b", True),
    ],
)
async def test_mounting(path: str, root_path: str, has_raw_path: bool) -> None:
    async with running() as run:
        status, _, _ = await run.ask("GET", path, root_path=root_path, has_raw_path=has_raw_path)
        assert status == 200


async def test_a_body_in_pieces_of_unknown_length() -> None:
    body = infer_body()
    async with running() as run:
        status, _, content = await run.ask(
            "POST", INFER, [body[:9], b"", body[9:]], has_length=False
        )
        assert (status, json.loads(content)["outputs"][0]["data"]) == (200, [0.0])


async def test_a_body_of_unknown_length_is_limited_while_it_comes() -> None:
    async with running(max_input_bytes=100) as run:
        pieces = [b" " * 60] * 2
        status, _, content = await run.ask("POST", INFER, pieces, has_length=False, ends=False)
        assert (status, content) == (
            413,
            b'{"error":"request body exceeds the maximum of 100 bytes"}',
        )
        headers = {"Inference-Header-Content-Length": "119"}
        status, _, content = await run.ask(
            "POST", INFER, [b" " * 60, b"{}"], has_length=False, headers=headers
        )
        assert status == 400
        assert b"inference header size should be in range (0, 62), got: 119" in content


async def test_a_body_over_the_budget() -> None:
    async with running(budget_bytes=100) as run:
        status, _, content = await run.ask("POST", INFER, infer_body(50))
        assert status == 503
        assert b"reached its limit of 100 bytes" in content


async def test_a_length_that_is_none() -> None:
    async with running() as run:
        headers = {"Content-Length": "x"}
        status, _, _ = await run.ask("POST", INFER, b"", headers=headers, has_length=False)
        assert status == 400


async def test_forwarded_headers() -> None:
    async with running(header_forward_pattern=compile_forward_pattern("x-.*")) as run:
        await run.ask("POST", INFER, infer_body(), headers={"X-User": "u"})
        assert run.engine.requests[0].parameters == {"x-user": "u"}


async def test_a_stream() -> None:
    async with running(holds=True) as run:
        call = ask(run.application, "POST", STREAM, b'{"N":1}')
        await asyncio.wait_for(run.engine.arrived.wait(), TIMEOUT_S)
        run.respond(0, is_final=False)
        assert (await call.message(1))["body"] == event(0)
        run.respond(1, is_final=False)
        assert (await call.message(2))["body"] == event(1)
        run.respond(None, is_final=True)
        status, headers, body = await call.answer()
        assert (status, headers) == (200, {"content-type": EVENTS})
        assert body == event(0) + event(1)


@pytest.mark.parametrize("path", [STREAM, "/v2/models/repeat/generate"])
async def test_a_client_that_leaves_cancels(path: str) -> None:
    async with running(holds=True) as run:
        call = ask(run.application, "POST", path, b'{"N":1}')
        await asyncio.wait_for(run.engine.arrived.wait(), TIMEOUT_S)
        run.respond(0, is_final=False)
        call.disconnect()
        await asyncio.wait_for(call.done, TIMEOUT_S)
        assert run.engine.cancelled == run.engine.requests
        run.respond(1, is_final=True)  # what was on its way has no effect


async def test_a_client_that_leaves_before_its_body_is_there() -> None:
    async with running() as run:
        call = ask(run.application, "POST", INFER, [b"{"], ends=False)
        call.disconnect()
        await asyncio.wait_for(call.done, TIMEOUT_S)
        assert call.sent == []


async def test_a_host_that_gives_up() -> None:
    async with running(holds=True) as run:
        call = ask(run.application, "POST", INFER, infer_body())
        await asyncio.wait_for(run.engine.arrived.wait(), TIMEOUT_S)
        call.done.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call.done
        assert run.engine.cancelled == run.engine.requests


async def test_a_host_whose_send_fails() -> None:
    async with running(holds=True) as run:

        async def receive() -> dict[str, Any]:
            if run.engine.requests:
                await asyncio.Event().wait()
            return {"type": "http.request", "body": b'{"N":1}'}

        async def send(message: Any) -> None:
            raise OSError("gone")

        scope = {"type": "http", "method": "POST", "path": STREAM, "headers": []}
        done = asyncio.ensure_future(run.application(scope, receive, send))
        await asyncio.wait_for(run.engine.arrived.wait(), TIMEOUT_S)
        run.respond(0, is_final=False)
        await asyncio.wait_for(done, TIMEOUT_S)
        assert run.engine.cancelled == run.engine.requests


@pytest.mark.parametrize(("max_unsent_bytes", "budget_bytes"), [(1000, 1 << 30), (1 << 30, 1000)])
async def test_a_client_that_does_not_read_is_cut_off_and_told(
    max_unsent_bytes: int, budget_bytes: int
) -> None:
    async with running(budget_bytes, holds=True, max_unsent_bytes=max_unsent_bytes) as run:
        call = ask(run.application, "POST", STREAM, b'{"N":1}')
        await asyncio.wait_for(run.engine.arrived.wait(), TIMEOUT_S)
        call.takes.clear()
        sent = 0
        while not run.engine.cancelled:
            run.respond(sent, is_final=False)
            sent += 1
            assert sent < 100
        call.takes.set()
        _, _, body = await call.answer()
        events = body.split(b"\n\n")
        assert len(events) == sent + 2
        assert b"the client reads slower than the model answers" in events[-2]


async def test_a_client_that_reads_in_time_gets_any_length() -> None:
    async with running(1000, holds=True, max_unsent_bytes=1000) as run:
        call = ask(run.application, "POST", STREAM, b'{"N":1}')
        await asyncio.wait_for(run.engine.arrived.wait(), TIMEOUT_S)
        for value in range(100):
            run.respond(value, is_final=False)
            await call.message(value + 1)
        run.respond(None, is_final=True)
        assert len((await call.answer())[2].split(b"\n\n")) == 101


async def test_a_handler_with_a_fault(caplog: pytest.LogCaptureFixture) -> None:
    async with running() as run:
        run.engine.refusal = KeyError("bug")  # type: ignore[assignment]
        status, _, content = await run.ask("POST", INFER, infer_body())
        assert (status, content) == (
            500,
            b'{"error":"internal error; the server\'s log says more"}',
        )
        assert "handler failed" in caplog.text


async def test_an_error_of_the_model() -> None:
    async with running() as run:
        run.engine.failure = InternalError("broken")
        status, _, content = await run.ask("POST", INFER, infer_body())
        assert (status, content) == (500, b'{"error":"broken"}')


async def test_over_a_running_engine_its_life_is_the_hosts() -> None:
    async with running() as run:
        life = Lifespan(run.application)
        assert await life.startup() == {"type": "lifespan.startup.complete"}
        assert await life.shutdown() == {"type": "lifespan.shutdown.complete"}


async def test_another_protocol() -> None:
    async with running() as run:
        with pytest.raises(ValueError, match="no websocket"):
            await run.application({"type": "websocket"}, None, None)  # type: ignore[arg-type]
