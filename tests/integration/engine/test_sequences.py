"""Sequences: an executor with fake instances, and models of a repository on disk."""

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from onnx import TensorProto, helper
from tests.support.repository_builder import RepositoryBuilder
from tests.support.requests import make_request, tensor

from naiad.backends.registry import BackendRegistry
from naiad.clock import SystemClock
from naiad.engine.engine import Engine, EngineOptions, ModelControlMode
from naiad.engine.executor import Executor
from naiad.engine.instances import TensorAdapters
from naiad.engine.loader import Loader, LoaderOptions
from naiad.engine.reshape import Reshaper
from naiad.engine.schedulers import make_scheduler
from naiad.engine.sequence_tensors import SequenceTensors
from naiad.errors import (
    CancelledError,
    InvalidArgumentError,
    NaiadError,
    UnavailableError,
)
from naiad.inference.datatypes import INT32
from naiad.inference.request import InferRequest
from naiad.inference.response import InferResponse
from naiad.inference.statistics import FailureReason
from naiad.inference.tensor import Tensor
from naiad.model_config.normalize import fill_defaults
from naiad.model_config.schema import ModelConfig
from naiad.model_config.signature import ModelSignature
from naiad.model_config.text_format import parse_config

CONTROLS = """
  control_input {
    name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] }
  }
  control_input {
    name: "READY" control { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] }
  }
  control_input { name: "ID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_INT32 } }
"""
STATE = 'state { input_name: "SUM_IN" output_name: "SUM_OUT" data_type: TYPE_INT32 dims: [ 1 ] }'


def config_of(batching: str, max_batch_size: int = 4, dims: int = 1) -> ModelConfig:
    config = parse_config(
        f'name: "sum" max_batch_size: {max_batch_size} '
        f'input {{ name: "IN" data_type: TYPE_INT32 dims: [ {dims} ] }} '
        f'output {{ name: "OUT" data_type: TYPE_INT32 dims: [ {dims} ] }} '
        f"sequence_batching {{ {batching} {CONTROLS} {STATE} }}",
        "text",
    )
    fill_defaults(config)
    return config


class SumInstance:
    """Adds its input to the state; waits for the gate, and fails on -1."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.started = threading.Semaphore(0)
        self.batches: list[dict[str, list[int]]] = []

    def execute(
        self, inputs: Mapping[str, npt.NDArray[Any]], output_names: Sequence[str]
    ) -> Sequence[Tensor]:
        self.batches.append({name: data.ravel().tolist() for name, data in inputs.items()})
        self.started.release()
        assert self.gate.wait(60)
        if (inputs["IN"] == -1).any():
            raise InvalidArgumentError("no such number")
        total = inputs["SUM_IN"] + inputs["IN"]
        return [Tensor(name, INT32, total.shape, total.copy()) for name in output_names]

    def close(self) -> None:
        """Nothing is held."""


class Harness:
    """An executor of a sequence model whose requests can be awaited."""

    def __init__(self, batching: str, count: int = 1, max_batch_size: int = 4) -> None:
        config = config_of(batching, max_batch_size)
        self.instances = [SumInstance() for _ in range(count)]
        self.executor = Executor(
            1,
            ModelSignature.from_config(config),
            make_scheduler(config, instance_count=count),
            self.instances,
            SystemClock(),
            TensorAdapters(
                Reshaper(ModelSignature.from_config(config)),
                SequenceTensors.from_config(config, Path()),
            ),
        )

    def send(
        self, key: int | str, value: int, flags: str = "", timeout_us: int = 0
    ) -> tuple[InferRequest, asyncio.Future[InferResponse]]:
        answer: asyncio.Future[InferResponse] = asyncio.get_running_loop().create_future()
        request = make_request(
            tensor("IN", np.array([[value]], np.int32)), on_response=answer.set_result
        )
        request.correlation_id, request.timeout_us = key, timeout_us
        request.sequence_start, request.sequence_end = "s" in flags, "e" in flags
        self.executor.submit(request)
        return request, answer

    async def infer(self, key: int | str, value: int, flags: str = "") -> int:
        return result(await self.send(key, value, flags)[1])

    async def close(self) -> None:
        for instance in self.instances:
            instance.gate.set()
        await self.executor.drain()
        await self.executor.close()


def result(response: InferResponse) -> int:
    assert response.error is None
    [output] = response.outputs
    assert output.name == "OUT"
    assert output.shape == (1, 1)
    return int(output.data[0, 0])


async def error(answer: asyncio.Future[InferResponse]) -> NaiadError:
    response = await answer
    assert response.error is not None
    return response.error


async def started(instance: SumInstance) -> None:
    assert await asyncio.to_thread(instance.started.acquire, timeout=60)


both = pytest.mark.parametrize("strategy", ["direct { }", "oldest { max_candidate_sequences: 4 }"])


@both
async def test_sequences_add_up_beside_each_other(strategy: str) -> None:
    harness = Harness(strategy, count=2)
    keys: list[int | str] = [1, 2, "1", 4, 5, 6]
    totals = dict.fromkeys(keys, 0)
    for step, flags in enumerate("s---e"):
        answers = {key: harness.send(key, step * 10 + i, flags)[1] for i, key in enumerate(keys)}
        for i, key in enumerate(keys):
            totals[key] += step * 10 + i
            assert result(await answers[key]) == totals[key]
    # Each stays where it began.
    homes = [
        {key for batch in instance.batches for key in batch["ID"] if key}
        for instance in harness.instances
    ]
    assert homes[0].isdisjoint(homes[1])
    await harness.close()


async def test_rows_of_slots_without_a_request_are_blank() -> None:
    harness = Harness("direct { }")
    await asyncio.gather(*(harness.infer(key, key * 10, "s") for key in (1, 2, 3)))
    assert await harness.infer(3, 5) == 35

    assert harness.instances[0].batches == [
        {
            "IN": [10, 20, 30],
            "START": [1, 1, 1],
            "READY": [1, 1, 1],
            "ID": [1, 2, 3],
            "SUM_IN": [0, 0, 0],
        },
        {
            "IN": [0, 0, 5],
            "START": [0, 0, 0],
            "READY": [0, 0, 1],
            "ID": [0, 0, 3],
            "SUM_IN": [0, 0, 30],
        },
    ]
    # The rows of an execution are counted with the blank ones, the answered requests without.
    statistics = harness.executor.statistics
    assert {size: batch.compute_infer.count for size, batch in statistics.batches.items()} == {3: 2}
    assert (statistics.inference_count, statistics.execution_count) == (4, 2)
    await harness.close()


async def test_a_failed_step_leaves_the_state_as_it_was() -> None:
    harness = Harness("oldest { max_candidate_sequences: 4 }")
    assert await harness.infer(1, 5, "s") == 5
    assert isinstance(await error(harness.send(1, -1)[1]), InvalidArgumentError)
    assert await harness.infer(1, 2) == 7
    await harness.close()


async def test_a_start_forgets_what_was() -> None:
    harness = Harness("direct { }")
    assert [await harness.infer(1, 5, "s"), await harness.infer(1, 6, "s")] == [5, 6]
    await harness.close()


async def test_a_cancelled_step_takes_the_later_ones_along() -> None:
    harness = Harness("direct { }")
    [instance] = harness.instances
    instance.gate.clear()
    first = harness.send(1, 5, "s")[1]
    await started(instance)
    cancelled, _ = harness.send(1, 6)
    later = harness.send(1, 7)[1]
    harness.executor.cancel(cancelled)
    assert isinstance(await error(later), CancelledError)
    instance.gate.set()
    assert result(await first) == 5
    with pytest.raises(InvalidArgumentError, match="START"):
        harness.send(1, 8)
    assert harness.executor.statistics.failures[FailureReason.CANCELED] == 2
    assert harness.executor.statistics.pending_count == 0
    await harness.close()


async def test_a_cancelled_sequence_gives_its_slot_to_one_of_the_backlog() -> None:
    harness = Harness("direct { }", max_batch_size=1)
    await harness.infer(1, 5, "s")
    [instance] = harness.instances
    instance.gate.clear()
    running = harness.send(1, 5)[1]
    await started(instance)
    await started(instance)
    waiting, _ = harness.send(1, 6)
    other = harness.send(2, 7, "s")[1]
    instance.gate.set()
    harness.executor.cancel(waiting)
    assert result(await other) == 7
    assert result(await running) == 10
    await harness.close()


async def test_a_sequence_without_a_slot_waits_as_long_as_it_says() -> None:
    harness = Harness("direct { } max_sequence_idle_microseconds: 60000000", max_batch_size=1)
    await harness.infer(1, 5, "s")
    refusal = await error(harness.send(2, 7, "s", timeout_us=2000)[1])
    assert isinstance(refusal, UnavailableError)
    assert refusal.message == "timeout of the corresponding sequence has been expired"
    assert harness.executor.statistics.failures[FailureReason.REJECTED] == 1
    await harness.close()


@both
async def test_an_idle_sequence_makes_room(strategy: str) -> None:
    harness = Harness(
        f"{strategy.replace('4', '1')} max_sequence_idle_microseconds: 20000", max_batch_size=1
    )
    assert await harness.infer(1, 5, "s") == 5
    assert await harness.infer(2, 7, "s") == 7
    with pytest.raises(InvalidArgumentError, match="START"):
        harness.send(1, 8)
    await harness.close()


Dims = Sequence[int | str]


def sequence_model(shape: Dims, state_shape: Dims, *, is_list: bool = False) -> bytes:
    """``OUT`` and ``SUM_OUT`` are the state and ``IN``, added, or one behind the other."""

    def value(name: str, dims: Dims) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.INT32, list(dims))

    join = (
        helper.make_node("Concat", ["SUM_IN", "IN"], ["SUM_OUT"], axis=-1)
        if is_list
        else helper.make_node("Add", ["SUM_IN", "IN"], ["SUM_OUT"])
    )
    # Every input must have a use.
    nodes = [
        join,
        helper.make_node("Sub", ["START", "START"], ["nothing"]),
        helper.make_node("Add", ["SUM_OUT", "nothing"], ["OUT"]),
    ]
    inputs = [value("IN", shape), value("SUM_IN", state_shape), value("START", shape)]
    outputs = [value("OUT", state_shape), value("SUM_OUT", state_shape)]
    graph = helper.make_graph(nodes, "graph", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    content: bytes = model.SerializeToString()
    return content


def repository_config(
    batching: str, *, state: str = STATE, max_batch_size: int = 4, dims: int = 1, extra: str = ""
) -> str:
    return (
        f'backend: "onnxruntime" max_batch_size: {max_batch_size} '
        'input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } '
        f'output {{ name: "OUT" data_type: TYPE_INT32 dims: [ {dims} ] }} {extra} '
        "instance_group { kind: KIND_CPU count: 1 } "
        f'sequence_batching {{ {batching} {state} control_input {{ name: "START" control {{ '
        "kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } } }"
    )


BATCHED = sequence_model(["n", 1], ["n", 1])


@pytest.fixture
def repository(tmp_path: Path) -> RepositoryBuilder:
    return RepositoryBuilder(tmp_path / "repository")


@pytest.fixture
async def engine(repository: RepositoryBuilder) -> AsyncIterator[Engine]:
    loader = Loader(LoaderOptions((repository.path,)), BackendRegistry())
    made = Engine(EngineOptions("naiad", "1", ModelControlMode.EXPLICIT), loader, SystemClock())
    await made.start()
    yield made
    await made.stop()


async def infer(engine: Engine, name: str, value: int, flags: str = "", key: int = 1) -> list[int]:
    """The output of one request, as a list; the engine must answer well."""
    answer: asyncio.Future[InferResponse] = asyncio.get_running_loop().create_future()
    model = engine.find(name)
    shape = (1, 1) if model.signature.max_batch_size else (1,)
    request = make_request(
        tensor("IN", np.full(shape, value, np.int32)), on_response=answer.set_result
    )
    request.correlation_id = key
    request.sequence_start, request.sequence_end = "s" in flags, "e" in flags
    engine.infer(model, request)
    response = await answer
    assert response.error is None, response.error
    assert [output.name for output in response.outputs] == ["OUT"]
    values: list[int] = response.outputs[0].data.ravel().tolist()
    return values


async def test_a_drain_answers_the_backlog_although_no_slot_is_given_up() -> None:
    # Idle for an hour before a slot is free.
    harness = Harness("direct { } max_sequence_idle_microseconds: 3600000000", max_batch_size=1)
    assert await harness.infer(1, 5, "s") == 5
    waiting = [harness.send(2, 3, "s")[1], harness.send(2, 4)[1], harness.send(3, 9, "s")[1]]
    await asyncio.wait_for(harness.executor.drain(), 60)
    assert [result(await answer) for answer in waiting] == [3, 7, 9]
    with pytest.raises(UnavailableError, match="stopped accepting"):
        harness.send(1, 1)
    await harness.executor.close()


async def test_a_reload_ends_the_sequences_of_the_model(
    repository: RepositoryBuilder, engine: Engine
) -> None:
    repository.add_onnx("sum", BATCHED, repository_config("direct { }"))
    await engine.load_model("sum", None, {})
    assert await infer(engine, "sum", 5, "s") == [5]
    changed = repository_config("direct { } max_sequence_idle_microseconds: 5000000")
    repository.add_onnx("sum", BATCHED, changed)
    await engine.load_model("sum", None, {})
    with pytest.raises(InvalidArgumentError, match="must specify the START flag"):
        await infer(engine, "sum", 1)
    assert await infer(engine, "sum", 1, "s") == [1]


async def test_an_onnx_model_keeps_a_state(repository: RepositoryBuilder, engine: Engine) -> None:
    repository.add_onnx("sum", BATCHED, repository_config("direct { }"))
    await engine.load_model("sum", None, {})
    steps = [
        await infer(engine, "sum", value, flags) for value, flags in ((1, "s"), (2, ""), (3, "e"))
    ]
    assert steps == [[1], [3], [6]]


async def test_a_model_without_a_batch_axis_runs_one_sequence_at_a_time(
    repository: RepositoryBuilder, engine: Engine
) -> None:
    model = sequence_model([1], [1])
    repository.add_onnx("sum", model, repository_config("direct { }", max_batch_size=0))
    await engine.load_model("sum", None, {})
    assert await infer(engine, "sum", 1, "s") == [1]
    second = asyncio.create_task(infer(engine, "sum", 10, "se", key=2))
    assert await infer(engine, "sum", 2) == [3]
    assert not second.done()
    assert await infer(engine, "sum", 3, "e") == [6]
    assert await second == [10]


async def test_a_state_may_grow_and_begin_in_a_file(
    repository: RepositoryBuilder, engine: Engine
) -> None:
    model = sequence_model(["n", 1], ["n", "length"], is_list=True)
    state = STATE.replace("[ 1 ]", "[ -1 ]").replace(
        " }",
        ' initial_state { name: "first" data_type: TYPE_INT32 dims: [ 2 ] data_file: "seven" } }',
    )
    config = repository_config("oldest { max_candidate_sequences: 8 }", state=state, dims=-1)
    folder = repository.add_onnx("list", model, config)
    (folder / "initial_state").mkdir()
    (folder / "initial_state" / "seven").write_bytes(np.array([7, 8], np.int32).tobytes())
    await engine.load_model("list", None, {})
    assert await infer(engine, "list", 1, "s") == [7, 8, 1]
    # States of different lengths can't be joined, and needn't be.
    steps = [infer(engine, "list", 2), infer(engine, "list", 5, "s", key=2)]
    assert await asyncio.gather(*steps) == [[7, 8, 1, 2], [7, 8, 5]]


async def test_a_warm_up_is_given_controls_and_states(
    repository: RepositoryBuilder, engine: Engine
) -> None:
    warmup = (
        'model_warmup { name: "w" batch_size: 2 inputs { key: "IN" '
        "value { data_type: TYPE_INT32 dims: [ 1 ] zero_data: true } } }"
    )
    repository.add_onnx("sum", BATCHED, repository_config("direct { }", extra=warmup))
    await engine.load_model("sum", None, {})
    assert await infer(engine, "sum", 1, "s") == [1]
    assert engine.find("sum").statistics.execution_count == 2


async def test_an_iterative_sequence_of_a_model_that_reschedules_nothing_is_one_step(
    repository: RepositoryBuilder, engine: Engine
) -> None:
    repository.add_onnx("sum", BATCHED, repository_config("iterative_sequence: true"))
    await engine.load_model("sum", None, {})
    # More than there are slots, and each begins with the initial state.
    answers = [infer(engine, "sum", value, key=0) for value in range(10)]
    assert await asyncio.gather(*answers) == [[value] for value in range(10)]


async def test_a_config_without_tensors_is_completed_around_controls_and_states(
    repository: RepositoryBuilder, engine: Engine
) -> None:
    text = repository_config("direct { }")
    head, tail = text.split("input {", 1)
    repository.add_onnx("sum", BATCHED, head + tail[tail.index("instance_group") :])
    await engine.load_model("sum", None, {})
    signature = engine.find("sum").signature
    assert (list(signature.inputs), list(signature.outputs)) == (["IN"], ["OUT"])
    assert await infer(engine, "sum", 4, "s") == [4]


async def test_an_ensemble_passes_sequences_on(
    repository: RepositoryBuilder, engine: Engine
) -> None:
    repository.add_onnx("sum", BATCHED, repository_config("direct { }"))
    tensors = "data_type: TYPE_INT32 dims: [ 1 ]"
    repository.add_model(
        "both",
        'platform: "ensemble" max_batch_size: 4 '
        f'input {{ name: "IN" {tensors} }} output {{ name: "OUT" {tensors} }} '
        'ensemble_scheduling { step { model_name: "sum" model_version: -1 '
        'input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "between" } } '
        'step { model_name: "sum_too" model_version: -1 '
        'input_map { key: "IN" value: "between" } output_map { key: "OUT" value: "OUT" } } }',
    )
    repository.add_onnx("sum_too", BATCHED, repository_config("oldest { }"))
    await engine.load_model("both", None, {})
    steps = [(1, "s", 1), (10, "s", 2), (2, "", 1), (20, "", 2), (3, "e", 1), (30, "e", 2)]
    # The sums of the sums.
    assert [await infer(engine, "both", *step) for step in steps] == [
        *([1], [10], [4], [40], [10], [100])
    ]
