"""Random requests through whole executors: each gets its own rows, once, whatever happens."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.requests import make_request, tensor

from naiad.clock import SystemClock
from naiad.engine.executor import Executor
from naiad.engine.instances import TensorAdapters
from naiad.engine.ragged_tensors import RaggedTensors
from naiad.engine.reshape import Reshaper
from naiad.engine.schedulers import make_scheduler
from naiad.engine.validation import validate_request
from naiad.errors import InvalidArgumentError, UnavailableError
from naiad.inference.datatypes import FP32
from naiad.inference.request import InferRequest
from naiad.inference.response import InferResponse
from naiad.inference.tensor import Tensor
from naiad.model_config.normalize import fill_defaults
from naiad.model_config.schema import ModelConfig
from naiad.model_config.signature import ModelSignature
from naiad.model_config.text_format import parse_config

MAX_ROWS = 6
POISON = -1.0

RAGGED = """
allow_ragged_batch: true }
batch_output { kind: BATCH_SCATTER_WITH_INPUT_SHAPE target_name: "OUT" source_input: "IN" }
"""
SCHEDULINGS = [
    "dynamic_batching { }",
    "dynamic_batching { preferred_batch_size: [ 2, 4 ] preserve_ordering: true }",
    "dynamic_batching { max_queue_delay_microseconds: 300 priority_levels: 2 "
    "default_priority_level: 1 default_queue_policy { default_timeout_microseconds: 2000 "
    "max_queue_size: 6 } }",
    "sequence_batching { direct { } }",
    "sequence_batching { oldest { max_candidate_sequences: 4 } }",
]


def config_of(scheduling: str, *, is_ragged: bool) -> ModelConfig:
    config = parse_config(
        f'name: "m" max_batch_size: {MAX_ROWS} '
        f'input {{ name: "IN" data_type: TYPE_FP32 dims: [ -1 ] {RAGGED if is_ragged else "}"} '
        'output { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] } ' + scheduling,
        "text",
    )
    fill_defaults(config)
    return config


class DoublingInstance:
    """Doubles; fails on a batch with the poison in it, and keeps to the bound."""

    def __init__(self, *, is_ragged: bool) -> None:
        self._is_ragged = is_ragged
        self.largest = 0

    def execute(
        self, inputs: Mapping[str, npt.NDArray[Any]], output_names: Sequence[str]
    ) -> Sequence[Tensor]:
        data = inputs["IN"]
        assert data.ndim == (1 if self._is_ragged else 2)
        self.largest = max(self.largest, 0 if self._is_ragged else len(data))
        if (data == POISON).any():
            raise InvalidArgumentError("poison")
        return [Tensor("OUT", FP32, data.shape, data * 2)]

    def close(self) -> None:
        """Nothing is held."""


@dataclass(frozen=True)
class Step:
    """One request.

    Attributes:
        rows: of it; a sequence takes one.
        width: of each.
        fate: what becomes of it.
        key: of its sequence.
        flags: of it there, "s" and "e".
        pause: turns of the loop before the next.
        priority: of it.
    """

    rows: int
    width: int
    fate: str
    key: int
    flags: str
    pause: int
    priority: int


steps = st.lists(
    st.builds(
        Step,
        rows=st.integers(1, MAX_ROWS),
        width=st.integers(1, 3),
        fate=st.sampled_from(["", "", "", "", "", "poison", "cancel", "cancel later"]),
        key=st.integers(1, 3),
        flags=st.sampled_from(["", "", "s", "e"]),
        pause=st.integers(0, 2),
        priority=st.integers(0, 2),
    ),
    min_size=1,
    max_size=30,
)


class Sent:
    """A request and all its answers."""

    def __init__(self, number: int, step: Step, *, is_sequence: bool) -> None:
        self.step = step
        rows = 1 if is_sequence else step.rows
        # No two requests have an element in common.
        data = np.arange(rows * step.width, dtype=np.float32) + 1000 * (number + 1)
        self.data = data.reshape(rows, step.width)
        if step.fate == "poison":
            self.data[0, 0] = POISON
        self.answers: list[InferResponse] = []
        self.is_refused = self.is_cancelled = False
        self.request = make_request(tensor("IN", self.data), on_response=self.answers.append)
        self.request.priority = step.priority
        if is_sequence:
            self.request.correlation_id = step.key
            self.request.sequence_start = "s" in step.flags
            self.request.sequence_end = "e" in step.flags

    def cancel(self, executor: Executor) -> None:
        if not self.answers and not self.is_refused:
            self.is_cancelled = True
            executor.cancel(self.request)

    def check(self) -> None:
        if self.is_cancelled or self.is_refused:
            assert self.answers == []
            return
        [answer] = self.answers
        assert answer.is_final
        if answer.error is not None:
            return
        assert self.step.fate != "poison"
        [output] = answer.outputs
        np.testing.assert_array_equal(output.data, 2 * self.data)


async def serve(config: ModelConfig, schedule: Sequence[Step], instance_count: int) -> None:
    signature = ModelSignature.from_config(config)
    ragged = RaggedTensors.from_config(config, signature)
    is_sequence = config.HasField("sequence_batching")
    instances = [DoublingInstance(is_ragged=ragged is not None) for _ in range(instance_count)]
    executor = Executor(
        1,
        signature,
        make_scheduler(config, instance_count=instance_count),
        instances,
        SystemClock(),
        TensorAdapters(Reshaper(signature), None, ragged),
    )
    sent = []
    for number, step in enumerate(schedule):
        one = Sent(number, step, is_sequence=is_sequence)
        sent.append(one)
        one.is_refused = not submit(executor, signature, one.request)
        if step.fate == "cancel":
            one.cancel(executor)
        for _ in range(step.pause):
            await asyncio.sleep(0)
        for other in sent:
            if other.step.fate == "cancel later" and other is not one:
                other.cancel(executor)
    await asyncio.wait_for(executor.drain(), 300)
    await executor.close()
    for one in sent:
        one.check()
    statistics = executor.statistics
    assert statistics.pending_count == 0
    accepted = sum(not one.is_refused for one in sent)
    assert statistics.success.count + statistics.fail.count == accepted
    assert all(instance.largest <= MAX_ROWS for instance in instances)


def submit(executor: Executor, signature: ModelSignature, request: InferRequest) -> bool:
    try:
        validate_request(signature, request)
        executor.submit(request)
    except (InvalidArgumentError, UnavailableError):
        return False
    return True


cases = given(
    scheduling=st.sampled_from(SCHEDULINGS),
    is_ragged=st.booleans(),
    schedule=steps,
    instance_count=st.integers(1, 3),
)


def check_schedule(
    scheduling: str, is_ragged: bool, schedule: list[Step], instance_count: int
) -> None:
    asyncio.run(serve(config_of(scheduling, is_ragged=is_ragged), schedule, instance_count))


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@cases
def test_every_request_is_answered_once_with_its_own_rows(
    scheduling: str, is_ragged: bool, schedule: list[Step], instance_count: int
) -> None:
    check_schedule(scheduling, is_ragged, schedule, instance_count)


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.timeout(1200)
@settings(max_examples=10_000, deadline=None)
@cases
def test_every_request_of_many_schedules_is_answered_once_with_its_own_rows(
    scheduling: str, is_ragged: bool, schedule: list[Step], instance_count: int
) -> None:
    check_schedule(scheduling, is_ragged, schedule, instance_count)
