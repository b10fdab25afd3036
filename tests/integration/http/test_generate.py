"""The generate routes on a real socket."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from tests.support.fake_engine import FakeEngine, FakeModel, identity_model

from naiad.errors import InternalError, NaiadError, UnavailableError
from naiad.frontends.byte_budget import ByteBudget
from naiad.frontends.http.options import HttpOptions
from naiad.frontends.http.server import HttpServer
from naiad.inference.datatypes import BYTES, INT32
from naiad.inference.response import InferResponse
from naiad.inference.tensor import Tensor
from naiad.model_config.signature import ModelSignature, TensorSpec

TIMEOUT_S = 60
EVENTS = "text/event-stream; charset=utf-8"
WRONG_COUNT = (
    b'{"error":"generate expects model to produce exactly 1 response, use generate stream for '
    b'model that generates various number of responses"}'
)


def repeat_model() -> FakeModel:
    """A decoupled model; the tests give its responses."""
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
    """A server whose model holds every request until the test answers it."""

    def __init__(self, server: HttpServer, engine: FakeEngine, budget: ByteBudget) -> None:
        self.server = server
        self.engine = engine
        self.budget = budget
        self.writers: list[asyncio.StreamWriter] = []

    async def connect(self, limit: int = 1 << 16) -> "Client":
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port, limit=limit)
        self.writers.append(writer)
        return Client(reader, writer)

    async def arrival(self) -> Callable[..., None]:
        """The next request; returns what answers it."""
        await asyncio.wait_for(self.engine.arrived.wait(), TIMEOUT_S)
        self.engine.arrived.clear()
        _, request = self.engine.held.pop()

        def respond(
            value: int | bytes | None = None,
            *,
            error: NaiadError | None = None,
            is_final: bool = False,
        ) -> None:
            outputs = [] if value is None else [_tensor(value)]
            response = InferResponse("repeat", 1, request.request_id, outputs, error)
            response.is_final = is_final
            request.on_response(response)

        return respond


def _tensor(value: int | bytes) -> Tensor:
    if isinstance(value, int):
        return Tensor("OUT", INT32, (1,), np.array([value], np.int32))
    data = np.empty(1, np.object_)
    data[0] = value
    return Tensor("OUT", BYTES, (1,), data)


class Client:
    """One connection, spoken by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def post(self, path: str, body: bytes, *headers: str, version: str = "1.1") -> None:
        lines = [f"POST {path} HTTP/{version}", "Host: h", *headers, f"Content-Length: {len(body)}"]
        self.writer.write("\r\n".join([*lines, "", ""]).encode() + body)

    async def head(self) -> tuple[int, dict[str, str]]:
        raw = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), TIMEOUT_S)
        status_line, *lines = raw.decode().rstrip("\r\n").split("\r\n")
        return int(status_line.split(" ")[1]), dict(line.split(": ", 1) for line in lines)

    async def chunk(self) -> bytes:
        size = int(await asyncio.wait_for(self.reader.readuntil(b"\r\n"), TIMEOUT_S), 16)
        data = await asyncio.wait_for(self.reader.readexactly(size + 2), TIMEOUT_S)
        assert data.endswith(b"\r\n")
        return data[:-2]

    async def rest(self) -> bytes:
        parts = []
        while part := await self.chunk():
            parts.append(part)
        return b"".join(parts)

    async def answer(self) -> tuple[int, str, bytes]:
        status, headers = await self.head()
        if headers.get("Transfer-Encoding") == "chunked":
            return status, headers["Content-Type"], await self.rest()
        body = await self.reader.readexactly(int(headers["Content-Length"]))
        return status, headers["Content-Type"], body


@asynccontextmanager
async def running(
    *models: FakeModel, budget_bytes: int = 1 << 30, holds: bool = True, **options: Any
) -> AsyncIterator[Running]:
    engine = FakeEngine(*(models or (repeat_model(),)))
    engine.holds = holds
    budget = ByteBudget(budget_bytes)
    server = HttpServer(engine, HttpOptions(address="127.0.0.1", port=0, **options), budget)
    await server.start()
    run = Running(server, engine, budget)
    try:
        yield run
    finally:
        server.close()
        for writer in run.writers:
            writer.close()
        assert await server.drain(TIMEOUT_S)
        assert budget.reserved_bytes == 0


def event(value: int) -> bytes:
    return b'data: {"OUT":%d,"model_name":"repeat","model_version":"1"}\n\n' % value


ONE = "/v2/models/repeat/generate"
STREAM = "/v2/models/repeat/generate_stream"
BODY = b'{"N": 3}'
DEEP = b'{"N":' + b"[" * 300_000 + b"]" * 300_000 + b"}"


async def test_events_come_when_they_are_made_and_the_connection_is_kept() -> None:
    async with running() as run:
        client = await run.connect()
        for _ in range(2):
            client.post(STREAM, BODY)
            respond = await run.arrival()
            respond(0)
            assert await client.head() == (
                200,
                {"Content-Type": EVENTS, "Transfer-Encoding": "chunked"},
            )
            assert await client.chunk() == event(0)
            respond(1)
            assert await client.chunk() == event(1)
            respond(is_final=True)
            assert await client.chunk() == b""


async def test_a_response_that_is_the_last() -> None:
    async with running() as run:
        client = await run.connect()
        client.post(STREAM, BODY)
        (await run.arrival())(5, is_final=True)
        assert await client.answer() == (200, EVENTS, event(5))


async def test_no_response() -> None:
    async with running() as run:
        client = await run.connect()
        client.post(STREAM, BODY)
        (await run.arrival())(is_final=True)
        assert await client.answer() == (200, EVENTS, b"")


async def test_an_error_in_the_stream() -> None:
    async with running() as run:
        client = await run.connect()
        client.post(STREAM, BODY)
        respond = await run.arrival()
        respond(0)
        respond(error=InternalError("stopped"), is_final=True)
        assert await client.answer() == (200, EVENTS, event(0) + b'data: {"error":"stopped"}\n\n')


async def test_an_error_as_the_first_response_gives_the_status() -> None:
    async with running() as run:
        client = await run.connect()
        client.post(STREAM, BODY)
        (await run.arrival())(error=UnavailableError("not now"), is_final=True)
        assert await client.answer() == (400, EVENTS, b'data: {"error":"not now"}\n\n')


async def test_generate_waits_for_the_only_response() -> None:
    async with running() as run:
        client = await run.connect()
        client.post(ONE, BODY)
        respond = await run.arrival()
        respond(4)
        respond(is_final=True)
        assert await client.answer() == (200, "application/json", event(4)[6:-2])
        client.post(ONE, BODY)
        (await run.arrival())(error=InternalError("broken"), is_final=True)
        assert await client.answer() == (400, "application/json", b'{"error":"broken"}')


@pytest.mark.parametrize("values", [(), (0, 1, 2)])
async def test_generate_with_another_number_of_responses(values: tuple[int, ...]) -> None:
    async with running() as run:
        client = await run.connect()
        client.post(ONE, BODY)
        respond = await run.arrival()
        for value in values:
            respond(value)
        respond(is_final=True)
        assert await client.answer() == (200, "application/json", WRONG_COUNT)


async def test_a_model_of_one_response() -> None:
    async with running(identity_model("BYTES"), holds=False) as run:
        client = await run.connect()
        flat = b'{"OUT":"hi","id":"q","model_name":"id_bytes","model_version":"1"}'
        client.post("/v2/models/id_bytes/generate", b'{"IN":"hi","id":"q"}')
        assert await client.answer() == (200, "application/json", flat)
        client.post("/v2/models/id_bytes/versions/1/generate_stream", b'{"IN":"hi","id":"q"}')
        assert await client.answer() == (200, EVENTS, b"data: %b\n\n" % flat)
        assert [r.inputs["IN"].data.tolist() for r in run.engine.requests] == [[[b"hi"]]] * 2


@pytest.mark.parametrize("path", ["generate", "generate_stream"])
@pytest.mark.parametrize(
    ("model", "body", "headers", "status", "text"),
    [
        ("repeat", b"hello", (), 400, "failed to parse the request JSON buffer: Invalid value."),
        ("repeat", b"[]", (), 400, "attempt to get members for non-object"),
        ("repeat", b'{"N":[1,2]}', (), 400, "The schema can not convert input 'N'"),
        ("nope", BODY, (), 404, "Request for unknown model: 'nope' is not found"),
        (
            "repeat",
            BODY,
            ("Content-Encoding: gzip",),
            400,
            "Unsupported content-encoding, only 'identity' is supported.",
        ),
        (
            "repeat",
            b'{"N":' + b"[" * 300_000 + b"]" * 300_000 + b"}",
            (),
            400,
            "JSON nesting depth",
        ),
    ],
)
async def test_what_is_wrong_before_the_start_is_plain_json(
    path: str, model: str, body: bytes, headers: tuple[str, ...], status: int, text: str
) -> None:
    async with running() as run:
        client = await run.connect()
        client.post(f"/v2/models/{model}/{path}", body, *headers)
        answered, content_type, content = await client.answer()
        assert (answered, content_type) == (status, "application/json")
        assert json.loads(content)["error"].startswith(text)
        assert run.engine.requests == []


async def test_what_the_engine_refuses() -> None:
    async with running() as run:
        run.engine.refusal = UnavailableError("full")
        client = await run.connect()
        client.post(STREAM, BODY)
        assert await client.answer() == (503, "application/json", b'{"error":"full"}')


async def test_only_post() -> None:
    async with running() as run:
        client = await run.connect()
        client.writer.write(b"GET /v2/models/repeat/generate HTTP/1.1\r\nHost: h\r\n\r\n")
        assert await client.answer() == (
            405,
            "application/json",
            b'{"error":"Method Not Allowed"}',
        )


async def test_an_older_client_gets_no_chunks_and_the_end_of_the_connection() -> None:
    async with running() as run:
        client = await run.connect()
        client.post(STREAM, BODY, version="1.0")
        respond = await run.arrival()
        respond(0)
        respond(1)
        respond(is_final=True)
        status, headers = await client.head()
        assert status == 200
        assert headers == {"Content-Type": EVENTS, "Connection": "close"}
        assert await asyncio.wait_for(client.reader.read(), TIMEOUT_S) == event(0) + event(1)


@pytest.mark.parametrize("count", [0, 2])
async def test_a_client_that_leaves_cancels(count: int) -> None:
    async with running() as run:
        client = await run.connect()
        client.post(STREAM, BODY)
        respond = await run.arrival()
        for value in range(count):
            respond(value)
        if count:
            await client.head()
        client.writer.transport.abort()
        await asyncio.wait_for(run.engine.cancel_seen.wait(), TIMEOUT_S)
        assert run.engine.cancelled == run.engine.requests
        respond(7)  # one that was on its way has no effect


async def test_a_client_that_closes_its_half_still_gets_the_stream() -> None:
    async with running() as run:
        client = await run.connect()
        client.post(STREAM, BODY)
        respond = await run.arrival()
        respond(0)
        await client.head()
        assert await client.chunk() == event(0)
        client.writer.write_eof()
        # The server asks whether it is still there, in a way that clients of events skip.
        assert await client.chunk() == b":\n\n"
        respond(1)
        respond(is_final=True)
        assert (await client.rest()).replace(b":\n\n", b"") == event(1)
        assert run.engine.cancelled == []


async def test_a_request_that_was_sent_ahead_waits_for_the_end_of_the_stream() -> None:
    async with running() as run:
        client = await run.connect()
        client.post(STREAM, BODY)
        client.post(ONE, BODY)
        respond = await run.arrival()
        respond(0)
        respond(1)
        respond(is_final=True)
        assert await client.answer() == (200, EVENTS, event(0) + event(1))
        (await run.arrival())(2, is_final=True)
        assert await client.answer() == (200, "application/json", event(2)[6:-2])


@pytest.mark.parametrize(
    ("max_unsent_bytes", "budget_bytes"), [(1 << 20, 1 << 30), (1 << 30, 1 << 20)]
)
async def test_a_client_that_does_not_read_is_cut_off_and_told(
    max_unsent_bytes: int, budget_bytes: int
) -> None:
    async with running(max_unsent_bytes=max_unsent_bytes, budget_bytes=budget_bytes) as run:
        client = await run.connect(limit=1 << 10)
        client.post(STREAM, BODY)
        respond = await run.arrival()
        piece = b"x" * (64 << 10)
        sent = 0
        while not run.engine.cancelled:
            respond(piece)
            sent += 1
            # Sockets and the client's own buffer take some megabytes before the server holds any.
            assert sent < 1000
            await asyncio.sleep(0)
        status, content_type, body = await client.answer()
        assert (status, content_type) == (200, EVENTS)
        events = body.split(b"\n\n")
        assert len(events) == sent + 2
        assert b"the client reads slower than the model answers" in events[-2]
        client.post(ONE, BODY)
        (await run.arrival())(1, is_final=True)
        assert (await client.answer())[0] == 200


async def test_a_client_that_reads_in_time_gets_any_length() -> None:
    async with running(max_unsent_bytes=1 << 20, budget_bytes=4 << 20) as run:
        client = await run.connect()
        client.post(STREAM, BODY)
        respond = await run.arrival()
        respond(0)
        await client.head()
        await client.chunk()
        piece = b"x" * (256 << 10)
        for _ in range(40):
            respond(piece)
            assert piece in await client.chunk()
        respond(is_final=True)
        assert await client.chunk() == b""
        assert run.engine.cancelled == []


async def test_a_draining_server_finishes_the_stream() -> None:
    async with running() as run:
        client = await run.connect()
        client.post(STREAM, BODY)
        respond = await run.arrival()
        respond(0)
        await client.head()
        draining = asyncio.ensure_future(run.server.drain(TIMEOUT_S))
        await asyncio.sleep(0)
        respond(1)
        respond(is_final=True)
        assert await client.rest() == event(0) + event(1)
        assert await asyncio.wait_for(client.reader.read(), TIMEOUT_S) == b""
        assert await draining


@pytest.mark.slow
async def test_a_large_request_is_read_elsewhere() -> None:
    async with running(identity_model("BYTES"), identity_model(), holds=False) as run:
        client = await run.connect()
        texts = [f"word {index}" for index in range(20_000)]
        body = json.dumps({"IN": texts, "id": "q", "temperature": 0.5, "priority": 9}).encode()
        client.post("/v2/models/id_bytes/generate", body)
        status, _, content = await client.answer()
        assert (status, json.loads(content)["OUT"]) == (200, texts)
        (request,) = run.engine.requests
        assert request.parameters == {"temperature": 0.5, "priority": 9}
        assert request.request_id == "q"

        numbers = [float(index) for index in range(20_000)]
        client.post("/v2/models/id_fp32/generate_stream", json.dumps({"IN": numbers}).encode())
        status, _, content = await client.answer()
        assert (status, json.loads(content[6:])["OUT"]) == (200, numbers)

        client.post("/v2/models/id_fp32/generate", b'{"IN":"%b"}' % (b"x" * 100_000))
        status, content_type, content = await client.answer()
        assert (status, content_type) == (400, "application/json")
        assert b"non-number as double" in content
