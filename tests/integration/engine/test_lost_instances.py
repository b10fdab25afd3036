"""Instances that take whole batches and may be lost: who waits, and who is told."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.support.requests import make_request, tensor

from naiad.clock import SystemClock
from naiad.engine.executor import Executor
from naiad.errors import UnavailableError
from naiad.inference.datatypes import FP32
from naiad.inference.response import InferResponse
from naiad.inference.tensor import Tensor
from naiad.model_config.signature import ModelSignature, TensorSpec
from naiad.scheduling.dynamic import BatcherRules, DynamicBatcher
from naiad.scheduling.scheduler import Scheduler
from naiad.scheduling.sequence import SequenceBatcher, SequenceRules

SIGNATURE = ModelSignature("m", 8, [TensorSpec("IN", FP32, (1,))], [TensorSpec("OUT", FP32, (1,))])


class FakeInstance:
    """Gives its input back and its own number; whether it lives is up to the test."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._on_change: Callable[[], None] = lambda: None
        self.is_ready = True
        self.is_lost = False
        self.failure = ""

    def watch(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change

    def lose(self, failure: str, *, is_final: bool = False) -> None:
        self.is_ready, self.failure, self.is_lost = False, failure, is_final
        self._on_change()

    def return_(self) -> None:
        self.is_ready, self.failure = True, ""
        self._on_change()

    def execute(
        self, inputs: Mapping[str, npt.NDArray[Any]], output_names: Sequence[str]
    ) -> Sequence[Tensor]:
        data = np.full_like(inputs["IN"], self._number)
        return [Tensor(name, FP32, data.shape, data) for name in output_names]

    def close(self) -> None:
        """Nothing is held."""


@pytest.fixture
def instances() -> list[FakeInstance]:
    return [FakeInstance(0), FakeInstance(1)]


@pytest.fixture
async def executor(instances: list[FakeInstance]) -> Executor:
    return Executor(1, SIGNATURE, DynamicBatcher(BatcherRules(8)), instances, SystemClock())


def send(executor: Executor) -> asyncio.Future[InferResponse]:
    answer: asyncio.Future[InferResponse] = asyncio.get_running_loop().create_future()
    request = make_request(tensor("IN", np.ones((1, 1), np.float32)), on_response=answer.set_result)
    executor.submit(request)
    return answer


@pytest.mark.parametrize("lost", [0, 1])
async def test_the_instance_that_lives_gets_the_requests(
    executor: Executor, instances: list[FakeInstance], lost: int
) -> None:
    instances[lost].lose("it crashed")
    for _ in range(3):
        response = await send(executor)
        assert response.outputs[0].data.item() == 1 - lost
    assert not executor.problem()


async def test_requests_wait_for_an_instance_to_come_back(
    executor: Executor, instances: list[FakeInstance]
) -> None:
    for instance in instances:
        instance.lose("it crashed")
    answer = send(executor)
    await asyncio.sleep(0)
    assert executor.problem() == "it crashed"
    assert not answer.done()
    instances[1].return_()
    assert (await answer).outputs[0].data.item() == 1
    assert not executor.problem()


async def test_who_waits_for_instances_that_are_given_up_is_told(
    executor: Executor, instances: list[FakeInstance]
) -> None:
    for instance in instances:
        instance.lose("it crashed")
    answer = send(executor)
    await asyncio.sleep(0)
    for instance in instances:
        instance.lose("given up", is_final=True)
    response = await answer
    assert isinstance(response.error, UnavailableError)
    with pytest.raises(UnavailableError, match="none of its instances lives"):
        send(executor)


@pytest.mark.parametrize("kind", ["delay", "minimum_utilization", "held"])
async def test_a_batch_that_waits_for_company_is_told_that_its_instances_are_given_up(
    instances: list[FakeInstance], kind: str
) -> None:
    """Nobody would look at it again: no instance comes back, and no request is let in."""
    hour_ns = 3_600_000_000_000
    scheduler: Scheduler
    if kind == "delay":
        scheduler = DynamicBatcher(BatcherRules(8, max_delay_ns=hour_ns))
    elif kind == "held":
        scheduler = DynamicBatcher(BatcherRules(8, held_until_count=8))
    else:
        scheduler = SequenceBatcher(
            SequenceRules("m", 2, 8, max_delay_ns=hour_ns, minimum_utilization=1.0)
        )
    executor = Executor(1, SIGNATURE, scheduler, instances, SystemClock())
    answer: asyncio.Future[InferResponse] = asyncio.get_running_loop().create_future()
    request = make_request(tensor("IN", np.ones((1, 1), np.float32)), on_response=answer.set_result)
    request.correlation_id, request.sequence_start = 7, True
    executor.submit(request)
    await asyncio.sleep(0)
    for instance in instances:
        instance.lose("given up", is_final=True)
    response = await asyncio.wait_for(answer, 60)
    assert isinstance(response.error, UnavailableError)
    assert executor.statistics.pending_count == 0
    await asyncio.wait_for(executor.drain(), 60)
    await executor.close()


async def test_a_backlog_of_sequences_is_told_that_its_instances_are_given_up(
    instances: list[FakeInstance],
) -> None:
    """The sequences that hold the slots have no request, and will not end."""
    scheduler = SequenceBatcher(SequenceRules("m", 2, 1, idle_ns=3_600_000_000_000))
    executor = Executor(1, SIGNATURE, scheduler, instances, SystemClock())
    answers: list[asyncio.Future[InferResponse]] = []
    for key in range(1, 6):
        answer: asyncio.Future[InferResponse] = asyncio.get_running_loop().create_future()
        request = make_request(
            tensor("IN", np.ones((1, 1), np.float32)), on_response=answer.set_result
        )
        request.correlation_id, request.sequence_start = key, True
        executor.submit(request)
        answers.append(answer)
    await asyncio.wait_for(asyncio.gather(*answers[:2]), 60)
    for instance in instances:
        instance.lose("given up", is_final=True)
    for response in await asyncio.wait_for(asyncio.gather(*answers[2:]), 60):
        assert isinstance(response.error, UnavailableError)
    assert executor.statistics.pending_count == 0
    await asyncio.wait_for(executor.drain(), 60)
    await executor.close()
