"""The executor with real threads and a fake backend instance."""

import asyncio
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.support.requests import make_request, tensor

from naiad.clock import SystemClock
from naiad.engine.executor import Executor
from naiad.engine.instances import TensorAdapters
from naiad.engine.reshape import Reshaper
from naiad.engine.validation import validate_request
from naiad.errors import InvalidArgumentError, UnavailableError
from naiad.inference.datatypes import FP32
from naiad.inference.request import InferRequest
from naiad.inference.response import InferResponse
from naiad.inference.statistics import FailureReason
from naiad.inference.tensor import Tensor
from naiad.model_config.signature import ModelSignature, TensorSpec
from naiad.scheduling.default import DefaultScheduler
from naiad.scheduling.dynamic import BatcherRules, DynamicBatcher
from naiad.scheduling.queue import QueuePolicy, QueueRules
from naiad.scheduling.scheduler import Scheduler

SIGNATURE = ModelSignature(
    "double",
    8,
    [TensorSpec("IN", FP32, (1,))],
    [TensorSpec("OUT", FP32, (1,)), TensorSpec("SQUARE", FP32, (1,))],
)


class FakeInstance:
    """Doubles and squares its input; waits for the gate, and fails on negative numbers."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.started = threading.Semaphore(0)
        self.executed: list[tuple[int, Sequence[str]]] = []
        self.is_closed = False
        self.lost_rows = 0

    def execute(
        self, inputs: Mapping[str, npt.NDArray[Any]], output_names: Sequence[str]
    ) -> Sequence[Tensor]:
        self.started.release()
        assert self.gate.wait(60)
        data = inputs["IN"]
        self.executed.append((len(data), output_names))
        if (data == -1).any():
            raise InvalidArgumentError("no such number")
        if (data == -2).any():
            raise ZeroDivisionError("by the model")
        results = {"OUT": data * 2, "SQUARE": data * data}
        kept = len(data) - self.lost_rows
        return [Tensor(name, FP32, (kept, 1), results[name][:kept]) for name in output_names]

    def close(self) -> None:
        self.is_closed = True


class Harness:
    """One executor with one fake instance, and requests whose answers can be awaited."""

    def __init__(
        self, executor: Executor | None = None, instance: FakeInstance | None = None
    ) -> None:
        self.instance = instance or FakeInstance()
        self.executor = executor or Executor(
            1, SIGNATURE, DynamicBatcher(BatcherRules(8)), [self.instance], SystemClock()
        )

    def send(
        self, *values: float, output_names: Sequence[str] | None = None
    ) -> tuple[InferRequest, asyncio.Future[InferResponse]]:
        answer: asyncio.Future[InferResponse] = asyncio.get_running_loop().create_future()
        data = np.array(values, np.float32).reshape(-1, 1)
        request = make_request(
            tensor("IN", data), output_names=output_names, on_response=answer.set_result
        )
        request.batch_size = len(data)
        self.executor.submit(request)
        return request, answer

    async def hold(self) -> asyncio.Future[InferResponse]:
        """Send one request that occupies the instance until the gate opens."""
        self.instance.gate.clear()
        _, answer = self.send(0)
        await asyncio.to_thread(self.instance.started.acquire)
        return answer


def harness_with(scheduler: Scheduler) -> Harness:
    instance = FakeInstance()
    return Harness(Executor(1, SIGNATURE, scheduler, [instance], SystemClock()), instance)


def values(response: InferResponse) -> list[list[float]]:
    assert response.error is None, response.error
    return [output.data.ravel().tolist() for output in response.outputs]


def refuse(response: InferResponse) -> None:
    raise ConnectionResetError


async def test_each_request_gets_its_own_rows() -> None:
    harness = Harness()
    held = await harness.hold()
    answers = [harness.send(*rows)[1] for rows in ([1], [2, 3], [4])]
    harness.instance.gate.set()
    await held
    assert [values(await answer)[0] for answer in answers] == [[2], [4, 6], [8]]
    assert [rows for rows, _ in harness.instance.executed] == [1, 4]


async def test_each_request_gets_exactly_the_outputs_it_asked_for_by_name() -> None:
    harness = Harness()
    held = await harness.hold()
    first = harness.send(3, output_names=["SQUARE"])[1]
    second = harness.send(4, output_names=["SQUARE", "OUT"])[1]
    harness.instance.gate.set()
    await held
    assert values(await first) == [[9]]
    assert values(await second) == [[8], [16]]


async def test_ids_parameters_priorities_and_wanted_outputs_do_not_part_requests() -> None:
    harness = Harness()
    held = await harness.hold()
    answers = []
    for index in range(4):
        data = np.array([[index]], np.float32)
        answer: asyncio.Future[InferResponse] = asyncio.get_running_loop().create_future()
        request = make_request(
            tensor("IN", data),
            request_id=f"r{index}",
            output_names=[None, ["OUT"], ["SQUARE"], ["OUT", "SQUARE"]][index],
            on_response=answer.set_result,
        )
        request.parameters = {"number": index}
        request.priority, request.timeout_us = index, index * 1000
        validate_request(SIGNATURE, request)
        harness.executor.submit(request)
        answers.append(answer)
    harness.instance.gate.set()
    await held
    assert [values(await answer) for answer in answers] == [[[0], [0]], [[2]], [[4]], [[6], [9]]]
    assert [rows for rows, _ in harness.instance.executed] == [1, 4]


async def test_only_wanted_outputs_are_computed() -> None:
    harness = Harness()
    await harness.send(3, output_names=["SQUARE"])[1]
    assert harness.instance.executed == [(1, ["SQUARE"])]


@pytest.mark.parametrize(
    ("bad", "text"), [(-1, "no such number"), (-2, "ZeroDivisionError: by the model")]
)
async def test_a_failing_batch_fails_its_requests_and_nothing_else(bad: float, text: str) -> None:
    harness = Harness()
    response = await harness.send(bad)[1]
    assert response.error is not None
    assert response.error.message == text
    assert values(await harness.send(5)[1])[0] == [10]
    statistics = harness.executor.statistics
    assert (statistics.success.count, statistics.fail.count) == (1, 1)
    assert statistics.failures[FailureReason.BACKEND] == 1


def retrying(scheduler: Scheduler) -> Harness:
    instance = FakeInstance()
    adapters = TensorAdapters(Reshaper(SIGNATURE), is_retried_singly=True)
    executor = Executor(1, SIGNATURE, scheduler, [instance], SystemClock(), adapters)
    return Harness(executor, instance)


@pytest.mark.parametrize("is_order_preserved", [False, True])
async def test_where_the_model_says_so_one_bad_request_fails_alone(
    is_order_preserved: bool,
) -> None:
    rules = BatcherRules(8, is_order_preserved=is_order_preserved)
    harness = retrying(DynamicBatcher(rules))
    held = await harness.hold()
    good = [harness.send(*rows)[1] for rows in ([1], [2, 3])]
    bad = harness.send(-2)[1]
    last = harness.send(4)[1]
    harness.instance.gate.set()
    await held
    assert [values(await answer)[0] for answer in (*good, last)] == [[2], [4, 6], [8]]
    failed = await bad
    assert failed.error is not None
    assert failed.error.message == "ZeroDivisionError: by the model"
    assert [rows for rows, _ in harness.instance.executed] == [1, 5, 1, 2, 1, 1]
    statistics = harness.executor.statistics
    assert (statistics.success.count, statistics.fail.count) == (4, 1)
    assert (statistics.inference_count, statistics.execution_count) == (5, 4)
    await asyncio.wait_for(harness.executor.drain(), 60)


async def test_what_is_alone_or_cancelled_is_not_retried() -> None:
    harness = retrying(DynamicBatcher(BatcherRules(8)))
    assert (await harness.send(-1)[1]).error is not None
    harness.instance.gate.clear()
    bad = harness.send(-1)[1]
    gone, _ = harness.send(5)
    for _ in range(2):
        await asyncio.to_thread(harness.instance.started.acquire)
    harness.executor.cancel(gone)
    harness.instance.gate.set()
    assert (await bad).error is not None
    await asyncio.wait_for(harness.executor.drain(), 60)
    assert [rows for rows, _ in harness.instance.executed] == [1, 2, 1]
    assert harness.executor.statistics.failures[FailureReason.CANCELED] == 1


async def test_a_lost_row_fails_the_batch_and_names_both_counts() -> None:
    harness = Harness()
    harness.instance.lost_rows = 1
    response = await harness.send(1, 2, 3)[1]
    assert response.error is not None
    assert "batch of 3 rows" in response.error.message
    assert "[2, 1]" in response.error.message


async def test_a_request_that_waited_too_long_is_answered_while_another_runs() -> None:
    policy = QueuePolicy(default_timeout_ns=20_000_000)
    harness = harness_with(DynamicBatcher(BatcherRules(1), QueueRules(default_policy=policy)))
    held = await harness.hold()
    late = harness.send(1)[1]
    response = await asyncio.wait_for(late, 60)
    assert not held.done()
    assert response.error is not None
    assert response.error.message == "Request timeout expired"
    statistics = harness.executor.statistics
    assert statistics.failures[FailureReason.REJECTED] == 1
    assert statistics.pending_count == 0
    harness.instance.gate.set()
    assert values(await held)[0] == [0]
    await asyncio.wait_for(harness.executor.drain(), 60)


async def test_a_full_queue_refuses_at_once_and_counts_nothing() -> None:
    policy = QueuePolicy(max_size=2)
    harness = harness_with(DynamicBatcher(BatcherRules(1), QueueRules(default_policy=policy)))
    held = await harness.hold()
    waiting = [harness.send(value)[1] for value in (1, 2)]
    with pytest.raises(UnavailableError, match="Exceeds maximum queue size"):
        harness.send(3)
    harness.instance.gate.set()
    await asyncio.gather(held, *waiting)
    statistics = harness.executor.statistics
    assert (statistics.success.count, statistics.fail.count) == (3, 0)


async def test_preserved_order_holds_over_instances() -> None:
    instances = [FakeInstance(), FakeInstance()]
    scheduler = DynamicBatcher(BatcherRules(1, instance_count=2, is_order_preserved=True))
    executor = Executor(1, SIGNATURE, scheduler, instances, SystemClock())
    answered: list[str] = []
    for instance in instances:
        instance.gate.clear()
    done = asyncio.Event()

    def note(response: InferResponse) -> None:
        answered.append(response.request_id)
        if len(answered) == 2:
            done.set()

    for name in ("first", "second"):
        data = tensor("IN", np.ones((1, 1), np.float32))
        executor.submit(make_request(data, request_id=name, on_response=note))
    # The last idle instance is taken first, so the first one gets the second request.
    instances[0].gate.set()
    await asyncio.to_thread(instances[1].started.acquire)
    await asyncio.to_thread(instances[0].started.acquire)
    assert answered == []
    instances[1].gate.set()
    await asyncio.wait_for(done.wait(), 60)
    assert answered == ["first", "second"]


async def test_a_callback_that_raises_costs_the_others_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    harness = Harness()
    held = await harness.hold()
    broken = harness.send(1)[0]
    broken.on_response = refuse
    kept = harness.send(2)[1]
    harness.instance.gate.set()
    await held
    assert values(await kept)[0] == [4]
    assert "could not be delivered" in caplog.text


async def test_a_cancelled_request_in_the_queue_never_runs_and_is_not_answered() -> None:
    harness = Harness()
    held = await harness.hold()
    dropped, silent = harness.send(1)
    kept = harness.send(2)[1]
    harness.executor.cancel(dropped)
    harness.instance.gate.set()
    await held
    assert values(await kept)[0] == [4]
    assert not silent.done()
    assert [rows for rows, _ in harness.instance.executed] == [1, 1]
    assert harness.executor.statistics.failures[FailureReason.CANCELED] == 1
    assert harness.executor.statistics.pending_count == 0


async def test_a_request_cancelled_while_it_runs_is_not_answered() -> None:
    harness = Harness()
    harness.instance.gate.clear()
    request, silent = harness.send(1)
    await asyncio.to_thread(harness.instance.started.acquire)
    harness.executor.cancel(request)
    harness.instance.gate.set()
    await harness.executor.drain()
    assert not silent.done()
    assert harness.executor.statistics.failures[FailureReason.CANCELED] == 1


async def test_drain_answers_what_was_accepted_and_refuses_the_rest() -> None:
    harness = Harness()
    held = await harness.hold()
    waiting = harness.send(1)[1]
    draining = asyncio.create_task(harness.executor.drain())
    await asyncio.sleep(0)
    with pytest.raises(UnavailableError, match="Server is stopping"):
        harness.send(2)
    harness.instance.gate.set()
    await draining
    assert held.done()
    assert waiting.done()
    await harness.executor.close()
    assert harness.instance.is_closed


async def test_statistics_add_up() -> None:
    harness = Harness()
    held = await harness.hold()
    answers = [harness.send(*([1.0] * rows))[1] for rows in (1, 2, 3)]
    harness.instance.gate.set()
    await held
    await asyncio.gather(*answers)
    statistics = harness.executor.statistics
    assert statistics.success.count == statistics.queue.count == 4
    assert statistics.inference_count == 7
    assert statistics.execution_count == 2
    assert {rows: batch.compute_infer.count for rows, batch in statistics.batches.items()} == {
        1: 1,
        6: 1,
    }
    assert statistics.compute_infer.count == 4
    assert statistics.success.ns >= statistics.queue.ns + statistics.compute_infer.ns // 4


async def test_a_request_without_company_runs_when_its_delay_is_over() -> None:
    harness = harness_with(DynamicBatcher(BatcherRules(8, max_delay_ns=1_000_000)))
    assert values(await harness.send(3)[1]) == [[6.0], [9.0]]


async def test_instances_run_side_by_side() -> None:
    instances = [FakeInstance(), FakeInstance()]
    for instance in instances:
        instance.gate.clear()
    executor = Executor(1, SIGNATURE, DefaultScheduler(), instances, SystemClock())
    answers = [Harness(executor, instances[0]).send(number)[1] for number in (1, 2)]
    for instance in instances:
        await asyncio.to_thread(instance.started.acquire)
    for instance in instances:
        instance.gate.set()
    first, second = await asyncio.gather(*answers)
    assert (values(first), values(second)) == ([[2.0], [1.0]], [[4.0], [4.0]])
    assert [len(instance.executed) for instance in instances] == [1, 1]


async def test_a_model_without_a_batch_axis_answers_whole_arrays() -> None:
    signature = ModelSignature(
        "double", 0, [TensorSpec("IN", FP32, (-1, 1))], [TensorSpec("OUT", FP32, (-1, 1))]
    )
    instance = FakeInstance()
    executor = Executor(1, signature, DefaultScheduler(), [instance], SystemClock())
    _, answer = Harness(executor, instance).send(1, 2)
    assert values(await answer) == [[2.0, 4.0]]
