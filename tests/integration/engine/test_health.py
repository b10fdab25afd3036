"""The truth table of docs/reference/health.md, row by row, over HTTP and gRPC on a real engine."""

import asyncio
import os
import shutil
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.support.python_models import write_model
from tests.support.repository_builder import RepositoryBuilder
from tests.support.requests import make_request, tensor
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc as pb_grpc

from naiad.backends.base import Backend, Instance, ModelSource
from naiad.backends.registry import BackendRegistry
from naiad.clock import SystemClock
from naiad.engine.engine import Engine, EngineOptions, ModelControlMode
from naiad.engine.loader import Loader, LoaderOptions
from naiad.errors import InternalError, NaiadError
from naiad.frontends.byte_budget import ByteBudget
from naiad.frontends.grpc.options import GrpcOptions
from naiad.frontends.grpc.server import GrpcServer
from naiad.frontends.http.options import HttpOptions
from naiad.frontends.http.server import HttpServer
from naiad.inference.datatypes import FP32
from naiad.inference.response import InferResponse
from naiad.inference.tensor import Tensor

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "health.md"
CONFIG = """backend: "gated" max_batch_size: 8
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""


PYTHON = """
import os, pathlib

class TritonPythonModel:
    def initialize(self, args):
        pid = pathlib.Path({pid!r})
        if pid.exists() and not {may_return}:
            raise RuntimeError("never again")
        pid.write_text(str(os.getpid()))

    def execute(self, requests):
        return [None for _ in requests]
"""
Ask = Callable[[], Awaitable[list[bool]]]


class GatedBackend:
    """Loads and executes when the test lets it."""

    def __init__(self) -> None:
        self.may_load = threading.Event()
        self.may_execute = threading.Event()
        self.loads = threading.Event()
        self.fails = False
        self.may_load.set()
        self.may_execute.set()

    def complete_config(self, source: ModelSource) -> None:
        """All is written."""

    def load(self, source: ModelSource) -> "GatedBackend":
        self.loads.set()
        assert self.may_load.wait(300)
        if self.fails:
            raise InternalError("broken")
        return self

    def create_instance(self, index: int) -> Instance:
        return self

    def execute(
        self, inputs: Mapping[str, npt.NDArray[Any]], output_names: Sequence[str]
    ) -> Sequence[Tensor]:
        assert self.may_execute.wait(300)
        return [Tensor("OUT", FP32, inputs["IN"].shape, inputs["IN"])]

    def close(self) -> None:
        """Nothing is held."""


class OneMoreBackend(BackendRegistry):
    def __init__(self, backend: Backend) -> None:
        super().__init__()
        self._backend = backend

    def get(self, name: str) -> Backend:
        return self._backend if name == "gated" else super().get(name)


class Stage:
    """An engine over a repository with the model ``m``, and what the test may do to it."""

    def __init__(self, path: Path, mode: ModelControlMode, *, is_strict: bool) -> None:
        self.builder = RepositoryBuilder(path)
        self.builder.add_model("m", CONFIG)
        self.backend = GatedBackend()
        self.engine = Engine(
            EngineOptions("naiad", "1", mode, is_readiness_strict=is_strict),
            Loader(LoaderOptions((path,)), OneMoreBackend(self.backend)),
            SystemClock(),
        )
        self._tasks: list[asyncio.Task[Any]] = []

    async def load(self, name: str = "m") -> None:
        await self.engine.load_model(name, None, {})

    async def fail_to_load(self, name: str = "m") -> None:
        with pytest.raises(NaiadError):
            await self.load(name)

    async def unload(self) -> None:
        await self.engine.unload_model("m", unload_dependents=False)

    def change(self, config: str = CONFIG) -> None:
        """Something else in the model's folder, so that a load has something to do."""
        self.builder.add_model("m", config, {f"1/{len(list(self.builder.path.rglob('*')))}": "x"})

    async def begin(self, work: Awaitable[Any]) -> None:
        """Start something whose load is held."""
        self.backend.loads.clear()
        self.backend.may_load.clear()
        self._tasks.append(asyncio.ensure_future(work))
        assert await asyncio.to_thread(self.backend.loads.wait, 300)

    async def send(self) -> None:
        """A request that is in the model until the end of the test."""
        self.backend.may_execute.clear()
        answer: asyncio.Future[InferResponse] = asyncio.get_running_loop().create_future()
        request = make_request(
            tensor("IN", np.zeros((1, 1), np.float32)), on_response=answer.set_result
        )
        self.engine.infer(self.engine.find("m"), request)
        self._tasks.append(asyncio.ensure_future(answer))

    async def finish(self) -> None:
        self.backend.may_load.set()
        self.backend.may_execute.set()
        await asyncio.gather(*self._tasks)


async def starting(stage: Stage) -> None:
    await stage.begin(stage.engine.start())


async def serving(stage: Stage) -> None:
    await stage.engine.start()
    await stage.load()


async def nothing_loaded(stage: Stage) -> None:
    await stage.engine.start()


async def without_repository(stage: Stage) -> None:
    shutil.rmtree(stage.builder.path)
    with pytest.raises(InternalError, match="failed to stat file"):
        await stage.engine.start()


async def loading(stage: Stage) -> None:
    await stage.engine.start()
    await stage.begin(stage.load())


async def reloading(stage: Stage) -> None:
    await serving(stage)
    stage.change()
    await stage.begin(stage.load())


async def failed(stage: Stage) -> None:
    await stage.engine.start()
    stage.backend.fails = True
    await stage.fail_to_load()


async def unreadable(stage: Stage) -> None:
    await stage.engine.start()
    stage.change("max_batch_sise: 8")
    await stage.fail_to_load()


async def without_version(stage: Stage) -> None:
    await stage.engine.start()
    stage.change(CONFIG + "version_policy { specific { versions: 7 } }")
    await stage.fail_to_load()


async def unknown(stage: Stage) -> None:
    await stage.engine.start()
    await stage.fail_to_load("nope")


async def failed_reload(stage: Stage) -> None:
    await serving(stage)
    stage.change("max_batch_sise: 8")
    await stage.fail_to_load()
    stage.change()
    stage.backend.fails = True
    await stage.fail_to_load()


async def failed_and_unloaded(stage: Stage) -> None:
    await failed(stage)
    await stage.unload()


async def failed_and_mended(stage: Stage) -> None:
    await failed(stage)
    stage.backend.fails = False
    await stage.load()


async def unloading(stage: Stage) -> None:
    await serving(stage)
    await stage.send()
    await stage.unload()


async def unloaded(stage: Stage) -> None:
    await serving(stage)
    await stage.unload()
    # The retirement is some turns of the loop and a thread away; each index takes some, too.
    while (await stage.engine.index(ready_only=False))[0].reason != "unloaded":
        pass


async def draining(stage: Stage) -> None:
    await serving(stage)
    await stage.send()
    stage.engine.announce_stop()


async def killed(stage: Stage, *, may_return: bool) -> None:
    """The process of a Python model is gone, and perhaps there is another one."""
    pid = stage.builder.path.parent / f"{stage.builder.path.name}.pid"
    write_model(
        stage.builder.path,
        "m",
        PYTHON.format(pid=str(pid), may_return=may_return),
        extra='parameters { key: "RESTART_LIMIT" value { string_value: "1" } }',
    )
    await serving(stage)
    assert stage.engine.is_model_ready("m")
    before = pid.read_text()
    os.kill(int(before), signal.SIGKILL)
    # Each index takes some turns of the loop and a thread.
    while stage.engine.is_model_ready("m") and pid.read_text() == before:
        await stage.engine.index(ready_only=False)
    while may_return and not stage.engine.is_model_ready("m"):
        await stage.engine.index(ready_only=False)


async def process_died(stage: Stage) -> None:
    await killed(stage, may_return=False)


async def process_is_back(stage: Stage) -> None:
    await killed(stage, may_return=True)


async def stopping(stage: Stage) -> None:
    await serving(stage)
    await stage.engine.stop()


SITUATIONS: Mapping[str, Callable[[Stage], Awaitable[None]]] = {
    "Models load at the start": starting,
    "All models serve": serving,
    "Explicit control, nothing loaded": nothing_loaded,
    "A repository is not there, with `--exit-on-error=false`": without_repository,
    "A model loads for the first time": loading,
    "A model reloads": reloading,
    "A load failed, nothing of the model serves": failed,
    "A config can't be read, nothing of the model serves": unreadable,
    "A model without a version that its policy wants": without_version,
    "A load of a model that no repository has": unknown,
    "A reload failed, the old version serves": failed_reload,
    "A failed model was unloaded": failed_and_unloaded,
    "A failed model was mended and loaded": failed_and_mended,
    "The process of a Python model died, and no other can be started": process_died,
    "The process of a Python model died, and another was started": process_is_back,
    "A model is unloaded, requests are still in it": unloading,
    "A model is unloaded": unloaded,
    "The server drains: it was told to stop, requests are under way": draining,
    "The server stops: all is answered, models are unloaded": stopping,
}


def read_table() -> dict[str, list[str]]:
    """The rows of the page's truth table by situation."""
    rows = [line.strip("|").split("|") for line in PAGE.read_text().splitlines() if "|" in line]
    cells = [[cell.strip() for cell in row] for row in rows]
    return {row[0]: row[1:] for row in cells if len(row) == 5 and row[1] in {"yes", "no"}}


@asynccontextmanager
async def in_situation(path: Path, situation: str, *, is_strict: bool) -> AsyncIterator[Stage]:
    mode = ModelControlMode.NONE if situation.endswith("start") else ModelControlMode.EXPLICIT
    stage = Stage(path, mode, is_strict=is_strict)
    await SITUATIONS[situation](stage)
    yield stage
    await stage.finish()
    await stage.engine.stop()


def test_the_page_has_every_situation() -> None:
    assert list(read_table()) == list(SITUATIONS)


@asynccontextmanager
async def answering(engine: Engine) -> AsyncIterator[Ask]:
    """What asks the engine's health over HTTP and gRPC; each must say what the engine says."""
    budget = ByteBudget(1 << 20)
    http = HttpServer(engine, HttpOptions(address="127.0.0.1", port=0), budget)
    grpc = GrpcServer(engine, GrpcOptions(address="127.0.0.1", port=0), budget)
    await http.start()
    await grpc.start()
    async with aio.insecure_channel(f"127.0.0.1:{grpc.port}") as channel:
        stub = pb_grpc.GRPCInferenceServiceStub(channel)
        health = health_pb2_grpc.HealthStub(channel)

        async def ask() -> list[bool]:
            serving = await health.Check(health_pb2.HealthCheckRequest())
            over_grpc = [
                (await stub.ServerLive(pb.ServerLiveRequest())).live,
                (await stub.ServerReady(pb.ServerReadyRequest())).ready,
                (await stub.ModelReady(pb.ModelReadyRequest(name="m"))).ready,
            ]
            assert (serving.status == health_pb2.HealthCheckResponse.SERVING) == over_grpc[1]
            over_http = [
                await is_ok(http.port, path)
                for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/m/ready")
            ]
            own = [engine.is_live(), engine.is_ready(), engine.is_model_ready("m")]
            assert own == over_http == over_grpc
            return own

        yield ask
    http.close()
    grpc.close()


async def is_ok(port: int, path: str) -> bool:
    """Whether a GET is answered with 200."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n".encode())
    status = (await reader.readline()).split()[1]
    writer.close()
    await writer.wait_closed()
    assert status in {b"200", b"400", b"404"}
    return status == b"200"


@pytest.mark.parametrize(
    "situation",
    [
        pytest.param(situation, marks=pytest.mark.slow if "process" in situation else ())
        for situation in SITUATIONS
    ],
)
async def test_health(tmp_path: Path, situation: str) -> None:
    answers = []
    async with (
        in_situation(tmp_path / "strict", situation, is_strict=True) as stage,
        answering(stage.engine) as ask,
    ):
        answers += await ask()
    async with (
        in_situation(tmp_path / "lax", situation, is_strict=False) as stage,
        answering(stage.engine) as ask,
    ):
        answers.insert(2, (await ask())[1])
    assert ["yes" if answer else "no" for answer in answers] == read_table()[situation]
