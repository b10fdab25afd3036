"""A client that leaves, with the real engine: its request is dropped and counted as cancelled."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.integration.http.test_http_server import TIMEOUT_S, Client
from tests.support.python_models import write_model

from naiad.clock import SystemClock
from naiad.inference.statistics import FailureReason, ModelStatistics
from naiad.server.build import Server, build_server
from naiad.server.settings import Settings

pytestmark = pytest.mark.slow

# Each execution waits until somebody opens and closes the gate.
MODEL = """
class TritonPythonModel:
    def execute(self, requests):
        with open({gate!r}) as gate:
            gate.read()
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", r.inputs()[0].as_numpy())])
            for r in requests
        ]
"""
IN_PROCESS = 'parameters { key: "IN_PROCESS" value { string_value: "true" } }\n'
INFER = "/v2/models/slow/infer"


def body(value: float) -> bytes:
    entry = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [value]}
    return json.dumps({"inputs": [entry]}).encode()


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Server]:
    gate = folder / "gate"
    os.mkfifo(gate)
    write_model(
        folder / "models",
        "slow",
        MODEL.format(gate=str(gate)),
        extra=IN_PROCESS,
        max_batch_size=8,
        inputs=("INPUT0",),
        outputs=("OUTPUT0",),
    )
    settings = Settings(
        model_repository=(folder / "models",),
        http_address="127.0.0.1",
        http_port=0,
        allow_grpc=False,
        allow_metrics=False,
    )
    server = build_server(settings, SystemClock(), lambda values: None)
    assert server.http is not None
    assert await server.engine.start() == {}
    await server.http.start()
    try:
        yield server
    finally:
        assert await server.http.drain(TIMEOUT_S)
        server.http.close()
        await server.engine.stop()


async def connect(server: Server) -> Client:
    assert server.http is not None
    return Client(*await asyncio.open_connection("127.0.0.1", server.http.port))


def statistics_of(server: Server) -> ModelStatistics:
    (model,) = server.engine.statistics("slow")
    return model.statistics


async def until(server: Server, condition: Callable[[], bool]) -> None:
    """Wait for the server to notice something, a round trip at a time."""
    client = await connect(server)

    async def ask() -> None:
        while not condition():
            client.request("GET", "/v2/health/live")
            await client.answer()

    await asyncio.wait_for(ask(), TIMEOUT_S)
    await client.close()


async def open_gate(folder: Path) -> None:
    """Let the execution under way, or else the next one, go on."""
    await asyncio.to_thread((folder / "gate").write_bytes, b"")


async def settle(server: Server) -> None:
    """Let the server handle what was sent: it shares this loop, and what was sent is there."""
    rounds = iter((False, False, True))
    await until(server, lambda: next(rounds))


async def test_a_queued_request_is_dropped_at_once(tmp_path: Path) -> None:
    async with running(tmp_path) as server:
        statistics = statistics_of(server)
        first, leaving, last = [await connect(server) for _ in range(3)]
        first.request("POST", INFER, body(1))
        await settle(server)
        assert statistics.pending_count == 0
        leaving.request("POST", INFER, body(2))
        last.request("POST", INFER, body(3))
        await until(server, lambda: statistics.pending_count == 2)
        leaving.writer.transport.abort()
        await until(server, lambda: statistics.pending_count == 1)
        # At once: the first is still being worked on.
        assert statistics.success.count == 0
        assert statistics.failures[FailureReason.CANCELED] == 1
        assert statistics.fail.count == 1
        for client, value in ((first, 1), (last, 3)):
            await open_gate(tmp_path)
            status, _, answer = await client.answer()
            assert status == 200
            assert json.loads(answer)["outputs"][0]["data"] == [value]
            await client.close()
        assert statistics.success.count == 2
        assert statistics.execution_count == 2


async def test_a_request_under_way_counts_as_cancelled_too(tmp_path: Path) -> None:
    async with running(tmp_path) as server:
        statistics = statistics_of(server)
        leaving = await connect(server)
        leaving.request("POST", INFER, body(1))
        await settle(server)
        assert statistics.pending_count == 0
        leaving.writer.transport.abort()
        http = server.http
        assert http is not None
        # Of whoever is connected, only the one that asks is left.
        await until(server, lambda: http.connection_count == 1)
        await open_gate(tmp_path)
        await until(server, lambda: statistics.failures[FailureReason.CANCELED] == 1)
        assert statistics.success.count == 0
        client = await connect(server)
        client.request("POST", INFER, body(2))
        await open_gate(tmp_path)
        assert (await client.answer())[0] == 200
        await client.close()
