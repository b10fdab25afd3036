"""Traces of real executions, and the files that they end in."""

import asyncio
import json
import os
import resource
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.support.requests import make_request, tensor

from naiad.clock import SystemClock
from naiad.engine.executor import Executor
from naiad.engine.trace import TraceSettings
from naiad.engine.trace_file import TraceWriter
from naiad.errors import InvalidArgumentError
from naiad.inference.datatypes import FP32
from naiad.inference.request import InferRequest
from naiad.inference.response import InferResponse
from naiad.inference.tensor import Tensor
from naiad.inference.trace import Trace, TraceLevel, TraceSubject
from naiad.model_config.signature import ModelSignature, TensorSpec
from naiad.protocol.trace_setting import TraceSettingUpdate, TraceSettingValues
from naiad.scheduling.dynamic import BatcherRules, DynamicBatcher

STAGES = [
    "HTTP_RECV_START",
    "REQUEST_START",
    "QUEUE_START",
    "COMPUTE_START",
    "COMPUTE_INPUT_END",
    "COMPUTE_OUTPUT_START",
    "COMPUTE_END",
    "INFER_RESPONSE_COMPLETE",
    "REQUEST_END",
    "HTTP_SEND_END",
]
SIGNATURE = ModelSignature(
    "double", 8, [TensorSpec("IN", FP32, (1,))], [TensorSpec("OUT", FP32, (1,))]
)


class DoublingInstance:
    """Doubles its input and refuses negative numbers."""

    def execute(
        self, inputs: Mapping[str, npt.NDArray[Any]], output_names: Sequence[str]
    ) -> Sequence[Tensor]:
        data = inputs["IN"]
        if (data < 0).any():
            raise InvalidArgumentError("no such number")
        return [Tensor("OUT", FP32, data.shape, data * 2)]

    def close(self) -> None:
        pass


class Server:
    """An executor, and what a front end does around it."""

    def __init__(self, values: TraceSettingValues) -> None:
        self.settings = TraceSettings(values, lambda name: name == "double")
        self.clock = SystemClock()
        self.executor = Executor(
            1, SIGNATURE, DynamicBatcher(BatcherRules(8)), [DoublingInstance()], self.clock
        )

    async def infer(self, *values: float, request_id: str = "") -> InferResponse:
        answer: asyncio.Future[InferResponse] = asyncio.get_running_loop().create_future()
        request = self.request(values, request_id, answer)
        self.executor.submit(request)
        response = await answer
        if request.trace is not None:
            request.trace.stamp("HTTP_SEND_END", self.clock.now_ns())
            request.trace.finish()
        return response

    def request(
        self, values: Sequence[float], request_id: str, answer: asyncio.Future[InferResponse]
    ) -> InferRequest:
        data = np.array(values, np.float32).reshape(-1, 1)
        request = make_request(
            tensor("IN", data), request_id=request_id, on_response=answer.set_result
        )
        request.batch_size = len(data)
        if self.settings.is_active:
            request.trace = self.settings.sample("double", 1, request_id)
        if request.trace is not None:
            request.trace.stamp("HTTP_RECV_START", self.clock.now_ns())
        return request

    async def close(self) -> None:
        await self.executor.drain()
        await self.executor.close()
        await self.settings.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.json"


def on(path: Path, **changes: Any) -> TraceSettingValues:
    return TraceSettingValues(TraceLevel.TIMESTAMPS, trace_file=str(path), **{"rate": 1, **changes})


def read(path: Path) -> list[dict[str, Any]]:
    records = json.loads(path.read_text())
    assert isinstance(records, list)
    return records


def exists(path: Path) -> bool:
    return path.exists()


def trace_ids(path: Path) -> list[int]:
    return [record["id"] for record in read(path) if "model_name" in record]


async def test_the_stages_of_a_request_are_in_the_file(path: Path) -> None:
    server = Server(on(path))
    await server.infer(1, 2, request_id='my "request"')
    await server.close()
    head, *stamps = read(path)
    assert head == {
        "id": 1,
        "model_name": "double",
        "model_version": 1,
        "request_id": 'my "request"',
    }
    assert all(stamp["id"] == 1 for stamp in stamps)
    (names, times) = zip(
        *((stamp["timestamps"][0]["name"], stamp["timestamps"][0]["ns"]) for stamp in stamps),
        strict=True,
    )
    assert list(names) == STAGES
    assert list(times) == sorted(times)


async def test_the_stages_of_a_failure_are_in_the_file(path: Path) -> None:
    server = Server(on(path))
    assert (await server.infer(-1)).error is not None
    await server.close()
    stamps = read(path)[1:]
    assert [stamp["timestamps"][0]["name"] for stamp in stamps] == STAGES
    times = [stamp["timestamps"][0]["ns"] for stamp in stamps]
    assert times == sorted(times)


async def test_each_request_of_a_batch_has_its_own_tensors(path: Path) -> None:
    values = on(path)
    server = Server(TraceSettingValues(TraceLevel.TENSORS, 1, trace_file=values.trace_file))
    await asyncio.gather(server.infer(1, 2), server.infer(3))
    await server.close()
    tensors = [
        (r["id"], r["activity"], r["tensor"]["name"], r["tensor"]["data"], r["tensor"]["shape"])
        for r in read(path)
        if "activity" in r
    ]
    assert tensors == [
        (1, "TENSOR_QUEUE_INPUT", "IN", "1,2", "2,1"),
        (1, "TENSOR_BACKEND_INPUT", "IN", "1,2", "2,1"),
        (1, "TENSOR_BACKEND_OUTPUT", "OUT", "2,4", "2,1"),
        (2, "TENSOR_QUEUE_INPUT", "IN", "3", "1,1"),
        (2, "TENSOR_BACKEND_INPUT", "IN", "3", "1,1"),
        (2, "TENSOR_BACKEND_OUTPUT", "OUT", "6", "1,1"),
    ]


async def test_without_tracing_there_is_no_file_and_no_thread(path: Path) -> None:
    server = Server(TraceSettingValues(trace_file=str(path)))
    await server.infer(1)
    assert not any(t.name.startswith("trace_writer") for t in threading.enumerate())
    await server.close()
    assert not exists(path)


async def finish(settings: TraceSettings, count: int) -> None:
    for _ in range(count):
        trace = settings.sample("double", 1, "")
        assert trace is not None
        trace.finish()


def make(values: TraceSettingValues) -> TraceSettings:
    return TraceSettings(values, lambda name: name == "double")


async def test_a_frequency_numbers_the_files(path: Path) -> None:
    settings = make(on(path, log_frequency=2))
    await finish(settings, 5)
    await settings.close()
    assert not exists(path)
    assert [trace_ids(path.with_name(f"trace.json.{i}")) for i in range(3)] == [[1, 2], [3, 4], [5]]


async def test_a_large_frequency_does_not_keep_traces_in_memory(path: Path) -> None:
    settings = make(on(path, log_frequency=700))
    await finish(settings, 1000)
    await settings.close()
    assert trace_ids(path.with_name("trace.json.0")) == list(range(1, 701))
    assert trace_ids(path.with_name("trace.json.1")) == list(range(701, 1001))


async def test_many_traces_end_in_one_file_that_is_always_whole(path: Path) -> None:
    settings = make(on(path))
    await finish(settings, 600)
    settings.update("", TraceSettingUpdate(rate=1))
    await finish(settings, 3)
    await settings.close()
    assert trace_ids(path) == list(range(1, 604))


async def test_a_count_that_is_used_up_ends_a_numbered_file(path: Path) -> None:
    settings = make(on(path, count=3))
    await finish(settings, 3)
    assert settings.sample("double", 1, "") is None
    await settings.close()
    assert trace_ids(path.with_name("trace.json.0")) == [1, 2, 3]
    assert not exists(path)


async def test_a_count_that_is_not_used_up_is_in_the_plain_file(path: Path) -> None:
    settings = make(on(path, count=3))
    await finish(settings, 2)
    await settings.close()
    assert trace_ids(path) == [1, 2]


async def test_a_trace_that_outlives_its_setting_is_written(path: Path) -> None:
    settings = make(on(path))
    late = settings.sample("double", 1, "late")
    assert late is not None
    settings.update("", TraceSettingUpdate(level=TraceLevel.OFF))
    assert not settings.is_active
    late.finish()
    await settings.close()
    assert read(path) == [
        {"id": 1, "model_name": "double", "model_version": 1, "request_id": "late"}
    ]


async def test_a_trace_that_ends_after_the_server_is_lost_quietly(path: Path) -> None:
    settings = make(on(path))
    late = settings.sample("double", 1, "")
    assert late is not None
    await settings.close()
    assert settings.sample("double", 1, "") is None
    late.finish()
    assert not exists(path)


@pytest.fixture
def old_path(path: Path) -> Path:
    path.write_text("from another run")
    return path


async def test_an_old_file_is_replaced(old_path: Path) -> None:
    settings = make(on(old_path))
    await finish(settings, 1)
    await settings.close()
    assert trace_ids(old_path) == [1]


async def test_a_file_that_can_not_be_written_is_logged(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = make(on(path.with_name("missing") / "trace.json"))
    await finish(settings, 1)
    await settings.close()
    assert "failed creating trace file" in caplog.text


@contextmanager
def disk_of(room_bytes: int) -> Iterator[None]:
    """No file of this process gets larger meanwhile, which is told as a full disk is."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def make_traces(first: int, count: int) -> list[Trace]:
    subject = TraceSubject("double", 1, "")
    return [Trace(first + n, TraceLevel.TIMESTAMPS, subject, None) for n in range(count)]


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_full_disk_leaves_an_array_that_goes_on_where_it_ended(
    path: Path, caplog: pytest.LogCaptureFixture, *, has_begun: bool
) -> None:
    writer = TraceWriter(path)
    with disk_of(4096):
        for traces in (*([make_traces(1, 1)] if has_begun else []), make_traces(100, 1000)):
            writer.write(traces, is_numbered=False, ends_file=False)
        writer.write(make_traces(2, 2), is_numbered=False, ends_file=False)
        writer.close()
    assert caplog.text.count("failed creating trace file") == 1
    assert trace_ids(path) == ([1, 2, 3] if has_begun else [2, 3])


async def test_a_slow_disk_does_not_fill_the_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)  # opening it for writing waits for a reader
    settings = make(on(pipe))
    taken: list[Trace] = []
    while (trace := settings.sample("double", 1, "")) is not None:
        trace.finish()
        taken.append(trace)
        assert len(taken) < 100_000
    reader = asyncio.create_task(asyncio.to_thread(pipe.read_bytes))
    await settings.close()
    await reader
    assert len(taken) == 16 * 256
    assert "requests are not traced until the trace file has caught up" in caplog.text
