"""What a request took is freed when it is answered, not when the garbage collector comes by."""

import asyncio
import gc
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.support.repository_builder import RepositoryBuilder, add_model

from naiad.backends.registry import BackendRegistry
from naiad.clock import SystemClock
from naiad.engine.engine import Engine, EngineOptions
from naiad.engine.loader import Loader, LoaderOptions
from naiad.engine.shared_memory import SharedMemoryRegions
from naiad.frontends.byte_budget import ByteBudget
from naiad.frontends.http.options import HttpOptions
from naiad.frontends.http.server import HttpServer

CONFIG = """
backend: "identity" max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
"""
FAILING_CONFIG = """
backend: "onnxruntime" max_batch_size: 8
input [ { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 3 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
"""
BODY = json.dumps(
    {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}
).encode()
TO_REGION = BODY[:-1] + (
    b',"outputs":[{"name":"OUTPUT0","parameters":{"shared_memory_region":"region",'
    b'"shared_memory_byte_size":4}}]}'
)
INFER = "POST /v2/models/m/infer"
FAILING = "POST /v2/models/fails/infer"


@asynccontextmanager
async def serving(path: Path) -> AsyncIterator[int]:
    builder = RepositoryBuilder(path / "repository")
    builder.add_model("m", CONFIG)
    builder.add_onnx("fails", add_model((1, 2, 3)), FAILING_CONFIG)
    objects = path / "objects"
    objects.mkdir()
    (objects / "shared").write_bytes(bytes(64))
    loader = Loader(LoaderOptions((path / "repository",)), BackendRegistry())
    options = EngineOptions("triton", "1", is_client_shared_memory_allowed=True)
    engine = Engine(options, loader, SystemClock())
    assert await engine.start() == {}
    engine.shared_memory = SharedMemoryRegions(is_client_use_allowed=True, objects=objects)
    engine.shared_memory.register_system("region", "/shared", 0, 64)
    server = HttpServer(engine, HttpOptions(address="127.0.0.1", port=0), ByteBudget(1 << 30))
    await server.start()
    try:
        yield server.port
    finally:
        server.close()
        await engine.stop()


def with_length(line: str, body: bytes) -> bytes:
    return f"{line} HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def in_chunks(line: str, body: bytes) -> bytes:
    head = f"{line} HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n{len(body):x}\r\n".encode()
    return head + body + b"\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (with_length(INFER, BODY), 200),
        (in_chunks(INFER, BODY), 200),
        (with_length(INFER, BODY.replace(b"FP32", b"INT32")), 400),
        (with_length(INFER, b"{}"), 400),
        (with_length(INFER, TO_REGION), 500),
        (with_length(FAILING, BODY.replace(b"INPUT0", b"IN")), 500),
        (with_length("POST /v2/models/m/generate", b'{"INPUT0": [1, 2]}'), 200),
        (with_length("GET /v2/models/m/config", b""), 200),
        (b"get / HTTP/1.1\r\n\r\n", 400),
    ],
    ids=[
        "infer",
        "chunked",
        "refused",
        "incomplete",
        "does not fit",
        "fails",
        "generate",
        "config",
        "no HTTP",
    ],
)
async def test_nothing_is_left_to_the_garbage_collector(
    request_: bytes, status: int, tmp_path: Path
) -> None:
    async with serving(tmp_path) as port:

        async def ask() -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request_)
            line = await reader.readline()
            assert line.startswith(b"HTTP/1.1 %d " % status)
            writer.close()
            await writer.wait_closed()

        await ask()  # what the first request of its kind leaves for good
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            await ask()
            gc.collect()
            left = {type(each).__module__ for each in gc.garbage}
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
        assert not [module for module in left if module.startswith("naiad")]
