"""Shared memory, trace, logging, restricted APIs and forwarded headers, over a real socket."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.fake_engine import FakeEngine, identity_model

from naiad.access.restricted_apis import Api, RestrictedApis, RestrictedGroup
from naiad.engine.shared_memory import SharedMemoryRegions
from naiad.engine.trace import TraceSettings
from naiad.errors import UnavailableError
from naiad.frontends.byte_budget import ByteBudget
from naiad.frontends.http.options import HttpOptions
from naiad.frontends.http.server import HttpServer
from naiad.inference.tensor import SharedTensor
from naiad.inference.trace import TraceLevel
from naiad.protocol.forwarded_headers import compile_forward_pattern
from naiad.protocol.log_settings import LogSettingValues
from naiad.protocol.trace_setting import TraceSettingValues

TIMEOUT_S = 60
INFER = "/v2/models/id_fp32/infer"


class Running:
    """A server with an engine that the test controls."""

    def __init__(self, server: HttpServer, engine: FakeEngine) -> None:
        self.server = server
        self.engine = engine

    async def open(
        self, method: str, path: str, body: Any = None, *headers: str
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Send one request, ``body`` as JSON unless it is bytes; the answer is to be read."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        if body is None:
            content = b""
        lines = [f"{method} {path} HTTP/1.1", f"Content-Length: {len(content)}", *headers]
        writer.write("\r\n".join([*lines, "Connection: close", "", ""]).encode() + content)
        return reader, writer

    async def ask(self, method: str, path: str, body: Any = None, *headers: str) -> Any:
        """Status, content type, and the body, as JSON where there is one."""
        reader, writer = await self.open(method, path, body, *headers)
        return await read_answer(reader, writer)


async def read_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Any:
    raw = await asyncio.wait_for(reader.read(), TIMEOUT_S)
    writer.close()
    head, _, content = raw.partition(b"\r\n\r\n")
    status_line, *lines = head.decode().split("\r\n")
    fields = dict(line.split(": ", 1) for line in lines)
    answer = json.loads(content) if content else None
    return int(status_line.split(" ")[1]), fields["Content-Type"], answer


@asynccontextmanager
async def running(engine: FakeEngine | None = None, **options: Any) -> AsyncIterator[Running]:
    engine = engine or FakeEngine(identity_model(), identity_model("BYTES"))
    options = {"address": "127.0.0.1", "port": 0, **options}
    server = HttpServer(engine, HttpOptions(**options), ByteBudget(1 << 30))
    await server.start()
    try:
        yield Running(server, engine)
    finally:
        server.close()
        assert await server.drain(TIMEOUT_S)


def infer_body(*values: float) -> dict[str, Any]:
    entry = {"name": "IN", "datatype": "FP32", "shape": [1, len(values)], "data": list(values)}
    return {"inputs": [entry]}


# --- shared memory -------------------------------------------------------------------------------


def part(region: str, byte_size: int, offset: int = 0) -> dict[str, Any]:
    return {
        "parameters": {
            "shared_memory_region": region,
            "shared_memory_byte_size": byte_size,
            "shared_memory_offset": offset,
        }
    }


def shared_input(count: int, region: str = "in") -> dict[str, Any]:
    return {"name": "IN", "datatype": "FP32", "shape": [1, count], **part(region, 4 * count)}


class Shared:
    """A server with two registered regions, and the files that they lie in."""

    def __init__(self, run: Running, folder: Path) -> None:
        self.run = run
        self.inputs = folder / "in"
        self.outputs = folder / "out"

    async def infer(self, model: str, *inputs: Any, outputs: Any = ()) -> Any:
        body = {"inputs": inputs, **({"outputs": outputs} if outputs else {})}
        return await self.run.ask("POST", f"/v2/models/{model}/infer", body)


@pytest.fixture
async def shared(tmp_path: Path) -> AsyncIterator[Shared]:
    (tmp_path / "in").write_bytes(np.arange(1024, dtype=np.float32).tobytes())
    (tmp_path / "out").write_bytes(bytes(4096))
    engine = FakeEngine(identity_model(), identity_model("BYTES"))
    engine.shared_memory = SharedMemoryRegions(is_client_use_allowed=True, objects=tmp_path)
    async with running(engine) as run:
        for name in ("in", "out"):
            body = {"key": f"/{name}", "byte_size": 4096}
            path = f"/v2/systemsharedmemory/region/{name}/register"
            assert await run.ask("POST", path, body) == (200, "application/json", None)
        yield Shared(run, tmp_path)


async def test_regions_come_and_go(shared: Shared) -> None:
    ask = shared.run.ask
    root = "/v2/systemsharedmemory"
    both = [
        {"name": name, "key": f"/{name}", "offset": 0, "byte_size": 4096} for name in ("in", "out")
    ]
    assert await ask("GET", f"{root}/status") == (200, "application/json", both)
    assert await ask("GET", f"{root}/region/out/status") == (200, "application/json", both[1:])
    assert await ask("POST", f"{root}/region/out/unregister") == (200, "application/json", None)
    assert (await ask("GET", f"{root}/status"))[2] == both[:1]
    assert await ask("GET", f"{root}/region/out/status") == (
        404,
        "application/json",
        {"error": "Unable to find system shared memory region: 'out'"},
    )
    assert await ask("POST", f"{root}/unregister") == (200, "application/json", None)
    assert (await ask("GET", f"{root}/status"))[2] == []


async def test_bad_registrations(shared: Shared) -> None:
    path = "/v2/systemsharedmemory/region/in/register"
    taken = await shared.run.ask("POST", path, {"key": "/x", "byte_size": 8})
    assert taken == (
        400,
        "application/json",
        {"error": "shared memory region 'in' already in manager"},
    )
    status, _, answer = await shared.run.ask("POST", path, b"x")
    assert status == 400
    assert answer["error"].startswith("failed to parse the request JSON buffer: Invalid value.")


async def test_cuda_regions_are_refused_cleanly(shared: Shared) -> None:
    ask = shared.run.ask
    root = "/v2/cudasharedmemory"
    handle = {"raw_handle": {"b64": "A" * 86 + "=="}, "device_id": 0, "byte_size": 64}
    assert await ask("GET", f"{root}/status") == (200, "application/json", [])
    assert await ask("POST", f"{root}/region/x/register", handle) == (
        400,
        "application/json",
        {"error": "failed to register shared memory region: invalid args"},
    )
    assert await ask("GET", f"{root}/region/x/status") == (
        404,
        "application/json",
        {"error": "Unable to find cuda shared memory region: 'x'"},
    )
    for path in (f"{root}/unregister", f"{root}/region/x/unregister"):
        assert await ask("POST", path) == (200, "application/json", None)


async def test_tensors_in_shared_memory(shared: Shared) -> None:
    status, content_type, answer = await shared.infer(
        "id_fp32", shared_input(3), outputs=[{"name": "OUT", **part("out", 16, 8)}]
    )
    assert (status, content_type) == (200, "application/json")
    assert answer["outputs"] == [{"name": "OUT", "datatype": "FP32", "shape": [1, 3]}]
    written = np.frombuffer(shared.outputs.read_bytes(), np.float32)
    assert written[:6].tolist() == [0, 0, 0, 1, 2, 0]
    tensor = shared.run.engine.requests[-1].inputs["IN"]
    assert type(tensor) is SharedTensor
    assert not tensor.data.flags.writeable


async def test_strings_into_shared_memory(shared: Shared) -> None:
    entry = {"name": "IN", "datatype": "BYTES", "shape": [1, 1], "data": ["hey"]}
    answer = await shared.infer("id_bytes", entry, outputs=[{"name": "OUT", **part("out", 7)}])
    assert answer[2]["outputs"] == [{"name": "OUT", "datatype": "BYTES", "shape": [1, 1]}]
    assert shared.outputs.read_bytes().startswith(b"\3\0\0\0hey\0")


async def test_strings_from_shared_memory_are_as_many_as_the_shape_says(shared: Shared) -> None:
    entry = {"name": "IN", "datatype": "BYTES", "shape": [1, 2], **part("out", 4096)}
    assert await shared.infer("id_bytes", entry) == (
        400,
        "application/json",
        {
            "error": "[request id: <id_unknown>] unexpected number of string elements 3 for "
            "inference input 'IN' for model 'id_bytes', expecting 2"
        },
    )


async def test_a_region_that_the_answer_does_not_fit(shared: Shared) -> None:
    outputs = [{"name": "OUT", **part("out", 8)}]
    assert await shared.infer("id_fp32", shared_input(3), outputs=outputs) == (
        500,
        "text/plain",
        {
            "error": "shared memory size specified with the request for output 'OUT' (8 bytes) "
            "should be at least 12 bytes to hold the results"
        },
    )


@pytest.mark.parametrize(
    ("where", "status", "text"),
    [
        (part("zzz", 4), 404, "Unable to find shared memory region: 'zzz'"),
        (part("in", 4, 4096), 400, "Invalid offset for shared memory region: 'in'"),
        (part("in", 8, 4092), 400, "Invalid offset + byte size for shared memory region: 'in'"),
        (
            {"parameters": {"shared_memory_region": "in"}},
            400,
            "Invalid offset + byte size for shared memory region: 'in': the parameters do not say "
            "its 'shared_memory_byte_size'",
        ),
    ],
)
@pytest.mark.parametrize("is_output", [False, True])
async def test_parts_that_are_not_there(
    where: dict[str, Any], status: int, text: str, shared: Shared, *, is_output: bool
) -> None:
    entry = {"name": "IN", "datatype": "FP32", "shape": [1, 1]}
    if is_output:
        answer = await shared.infer(
            "id_fp32", {**entry, "data": [1]}, outputs=[{"name": "OUT", **where}]
        )
    else:
        answer = await shared.infer("id_fp32", {**entry, **where})
    assert answer == (status, "application/json", {"error": text})


async def test_a_region_lives_as_long_as_the_request_that_uses_it(shared: Shared) -> None:
    engine = shared.run.engine
    engine.holds = True
    body = {"inputs": [shared_input(2)], "outputs": [{"name": "OUT", **part("out", 8)}]}
    pending = await shared.run.open("POST", INFER, body)
    await asyncio.wait_for(engine.arrived.wait(), TIMEOUT_S)
    await shared.run.ask("POST", "/v2/systemsharedmemory/unregister")
    engine.release()
    assert (await read_answer(*pending))[0] == 200
    assert np.frombuffer(shared.outputs.read_bytes(), np.float32)[:2].tolist() == [0, 1]


async def test_shared_memory_is_off_where_it_was_not_allowed() -> None:
    engine = FakeEngine(identity_model())
    engine.shared_memory = SharedMemoryRegions(is_client_use_allowed=False)
    error = {
        "error": "Client shared memory is disabled. Start the server with "
        "'--allow-client-shm=true' to enable."
    }
    async with running(engine) as run:
        path = "/v2/systemsharedmemory/region/a/register"
        answer = await run.ask("POST", path, {"key": "/a", "byte_size": 8})
        assert answer == (501, "application/json", error)
        answer = await run.ask("POST", INFER, {"inputs": [shared_input(1)]})
        assert answer == (501, "application/json", error)


# --- trace ---------------------------------------------------------------------------------------


class Traced:
    """A server that traces every request, and its trace file."""

    def __init__(self, run: Running, file: Path) -> None:
        self.run = run
        self._file = file

    async def records(self) -> list[Any]:
        """What was traced; nothing is traced any more."""
        await self.run.engine.traces.close()
        records: list[Any] = json.loads(self._file.read_text())
        return records

    async def stamps(self) -> list[tuple[str, int]]:
        return [
            (record["timestamps"][0]["name"], record["timestamps"][0]["ns"])
            for record in await self.records()
            if "timestamps" in record
        ]


@pytest.fixture
async def traced(tmp_path: Path) -> AsyncIterator[Traced]:
    engine = FakeEngine(identity_model())
    values = TraceSettingValues(TraceLevel.TIMESTAMPS, 1, trace_file=str(tmp_path / "trace"))
    engine.traces = TraceSettings(values, engine.is_model_ready)
    async with running(engine) as run:
        yield Traced(run, tmp_path / "trace")


async def test_trace_settings_are_shown_and_changed(traced: Traced) -> None:
    ask = traced.run.ask
    status, content_type, values = await ask("GET", "/v2/trace/setting")
    assert (status, content_type) == (200, "application/json")
    assert values["trace_level"] == ["TIMESTAMPS"]
    path = "/v2/models/id_fp32/trace/setting"
    changed = {**values, "trace_rate": "7"}
    assert await ask("POST", path, {"trace_rate": "7"}) == (200, "application/json", changed)
    assert (await ask("GET", path))[2] == changed
    assert (await ask("GET", "/v2/trace/setting"))[2] == values


async def test_trace_settings_that_there_are_not(traced: Traced) -> None:
    error = {"error": "Request for unknown model : nope"}
    for method in ("GET", "POST"):
        body = {"trace_file": "elsewhere"}  # refused too, but later
        answer = await traced.run.ask(method, "/v2/models/nope/trace/setting", body)
        assert answer == (400, "application/json", error)
    path = "/v2/models/id_fp32/versions/1/trace/setting"
    assert (await traced.run.ask("GET", path))[:2] == (404, "text/plain")


async def test_a_trace_has_the_times_of_the_http_side(traced: Traced) -> None:
    traced.run.engine.now = 5
    assert (await traced.run.ask("POST", INFER, {"id": "rq", **infer_body(1)}))[0] == 200
    head, *_ = records = await traced.records()
    assert head == {"id": 1, "model_name": "id_fp32", "model_version": 1, "request_id": "rq"}
    assert [record["timestamps"][0] for record in records[1:]] == [
        {"name": name, "ns": 5}
        for name in ("HTTP_RECV_START", "HTTP_RECV_END", "HTTP_SEND_START", "HTTP_SEND_END")
    ]


async def test_receiving_begins_with_the_first_byte(traced: Traced) -> None:
    engine = traced.run.engine
    body = json.dumps(infer_body(1)).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", traced.run.server.port)
    engine.now = 3
    writer.write(
        f"POST {INFER} HTTP/1.1\r\nContent-Length: {len(body)}\r\nExpect: 100-continue\r\n"
        "Connection: close\r\n\r\n".encode()
    )
    assert await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), TIMEOUT_S)
    engine.now = 9
    writer.write(body)
    assert (await read_answer(reader, writer))[0] == 200
    assert (await traced.stamps())[:2] == [("HTTP_RECV_START", 3), ("HTTP_RECV_END", 9)]


async def test_a_refused_request_leaves_a_trace(traced: Traced) -> None:
    traced.run.engine.refusal = UnavailableError("full")
    assert (await traced.run.ask("POST", INFER, infer_body(1)))[0] == 503
    assert [name for name, _ in await traced.stamps()][-1] == "HTTP_SEND_END"


async def test_a_cancelled_request_leaves_a_trace(traced: Traced) -> None:
    engine = traced.run.engine
    engine.holds = True
    _, writer = await traced.run.open("POST", INFER, infer_body(1))
    await asyncio.wait_for(engine.arrived.wait(), TIMEOUT_S)
    writer.transport.abort()
    await asyncio.wait_for(engine.cancel_seen.wait(), TIMEOUT_S)
    assert [name for name, _ in await traced.stamps()] == ["HTTP_RECV_START", "HTTP_RECV_END"]


# --- logging -------------------------------------------------------------------------------------


async def test_log_settings_are_shown_and_changed() -> None:
    async with running() as run:
        status, content_type, values = await run.ask("GET", "/v2/logging")
        assert (status, content_type) == (200, "application/json")
        assert values["log_verbose_level"] == 0
        changed = {**values, "log_verbose_level": 2}
        answer = await run.ask("POST", "/v2/logging", {"log_verbose_level": 2})
        assert answer == (200, "application/json", changed)
        assert (await run.ask("GET", "/v2/logging"))[2] == changed
        assert run.engine.applied_log_settings == [LogSettingValues(log_verbose_level=2)]
        assert await run.ask("POST", "/v2/logging", {"log_file": "x"}) == (
            501,
            "application/json",
            {"error": "log file location can not be updated through network protocol"},
        )


# --- who may do what -----------------------------------------------------------------------------

PATHS = {
    Api.HEALTH: ["/v2/health/live", "/v2/health/ready", "/v2/models/id_fp32/ready"],
    Api.METADATA: ["/v2", "/v2/models/id_fp32", "/v2/models/id_fp32/versions/1"],
    Api.INFERENCE: [INFER, "/v2/models/m/generate", "/v2/models/m/generate_stream"],
    Api.SHARED_MEMORY: [
        "/v2/systemsharedmemory/status",
        "/v2/systemsharedmemory/region/a/register",
        "/v2/systemsharedmemory/unregister",
        "/v2/cudasharedmemory/region/a/status",
        "/v2/cudasharedmemory/region/a/register",
        "/v2/cudasharedmemory/region/a/unregister",
    ],
    Api.MODEL_CONFIG: ["/v2/models/id_fp32/config"],
    Api.MODEL_REPOSITORY: [
        "/v2/repository/index",
        "/v2/repository/models/m/load",
        "/v2/repository/models/m/unload",
        "/v2/repository/r/models/m/load",
    ],
    Api.STATISTICS: ["/v2/models/stats", "/v2/models/id_fp32/stats"],
    Api.TRACE: ["/v2/trace/setting", "/v2/models/id_fp32/trace/setting"],
    Api.LOGGING: ["/v2/logging"],
}
DENIED = (403, "text/plain", {"error": "This API is restricted, expecting header 'Admin-Key'"})


@pytest.mark.parametrize("api", list(Api))
async def test_a_restriction_holds_for_its_own_routes_only(api: Api) -> None:
    restrictions = RestrictedApis([RestrictedGroup((api,), "Admin-Key", "sesame")])
    async with running(restrictions=restrictions) as run:
        for other, paths in PATHS.items():
            for path in paths:
                answer = await run.ask("GET", path, {})
                assert (answer == DENIED) == (other is api), path
        for path in PATHS[api]:
            assert await run.ask("GET", path, {}, "admin-key: sesame") != DENIED


async def test_a_known_head_stays_denied_and_a_connection_usable() -> None:
    restrictions = RestrictedApis([RestrictedGroup((Api.INFERENCE,), "k", "v")])
    body = json.dumps(infer_body(1)).encode()
    head = f"POST {INFER} HTTP/1.1\r\nContent-Length: {len(body)}\r\n"
    async with running(restrictions=restrictions) as run:
        reader, writer = await asyncio.open_connection("127.0.0.1", run.server.port)
        for extra, status in (("", b"403"), ("k: v\r\n", b"200"), ("", b"403")):
            writer.write(f"{head}{extra}\r\n".encode() + body)
            answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), TIMEOUT_S)
            assert answer.split(b" ")[1] == status
            size = int(answer.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            await asyncio.wait_for(reader.readexactly(size), TIMEOUT_S)
        writer.close()
        assert len(run.engine.requests) == 1


async def test_a_denied_body_is_not_waited_for() -> None:
    restrictions = RestrictedApis([RestrictedGroup((Api.INFERENCE,), "Admin-Key", "sesame")])
    async with running(restrictions=restrictions) as run:
        reader, writer = await asyncio.open_connection("127.0.0.1", run.server.port)
        writer.write(f"POST {INFER} HTTP/1.1\r\nContent-Length: 1000000000\r\n\r\n".encode())
        assert await read_answer(reader, writer) == DENIED


async def test_headers_become_parameters() -> None:
    pattern = compile_forward_pattern("^x-|timeout")
    async with running(header_forward_pattern=pattern) as run:
        body = {**infer_body(1), "parameters": {"own": 1}}
        assert (await run.ask("POST", INFER, body, "X-Tenant: a", "Other: b"))[0] == 200
        assert run.engine.requests[-1].parameters == {"own": 1, "X-Tenant": "a"}
        assert await run.ask("POST", INFER, body, "Timeout: 5") == (
            400,
            "application/json",
            {"error": "Header 'Timeout' is reserved for Triton usage and cannot be forwarded."},
        )
