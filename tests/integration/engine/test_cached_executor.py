"""The response cache in front of an executor with a real thread and a fake backend instance."""

import asyncio
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.support.requests import make_request, tensor

from naiad.clock import SystemClock
from naiad.engine.cached_executor import CachedExecutor
from naiad.engine.executor import Executor
from naiad.engine.response_cache import INLINE_BYTES, MAX_TEXT_ELEMENTS, RequestKeys, ResponseCache
from naiad.errors import InvalidArgumentError, UnavailableError
from naiad.inference.datatypes import BYTES, FP32
from naiad.inference.request import InferRequest
from naiad.inference.response import InferResponse
from naiad.inference.statistics import FailureReason, ModelStatistics
from naiad.inference.tensor import SharedTensor, Tensor
from naiad.model_config.signature import ModelSignature, TensorSpec
from naiad.scheduling.dynamic import BatcherRules, DynamicBatcher
from naiad.scheduling.queue import QueuePolicy, QueueRules

SIGNATURE = ModelSignature(
    "m", 0, [TensorSpec("IN", FP32, (-1,))], [TensorSpec("OUT", FP32, (-1,))]
)
LARGE = INLINE_BYTES // 4 + 1


class FakeInstance:
    """Adds one; waits for the gate, and refuses -1."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.started = threading.Semaphore(0)
        self.execution_count = 0

    def execute(
        self, inputs: Mapping[str, npt.NDArray[Any]], output_names: Sequence[str]
    ) -> Sequence[Tensor]:
        self.started.release()
        assert self.gate.wait(60)
        self.execution_count += 1
        data = inputs["IN"]
        if data.dtype == np.object_:
            return [Tensor("OUT", BYTES, data.shape, data)]
        if (data == -1).any():
            raise InvalidArgumentError("no such number")
        return [Tensor("OUT", FP32, data.shape, data + 1)]

    def close(self) -> None:
        pass


class Harness:
    """A model behind the cache, and requests whose answers can be awaited."""

    def __init__(
        self,
        capacity_bytes: int = 64 << 20,
        *,
        is_order_preserved: bool = False,
        max_queue_size: int = 0,
    ) -> None:
        self.instance = FakeInstance()
        self.cache = ResponseCache(capacity_bytes)
        rules = BatcherRules(1, is_order_preserved=is_order_preserved)
        queue = QueueRules(default_policy=QueuePolicy(max_size=max_queue_size))
        executor = Executor(
            1, SIGNATURE, DynamicBatcher(rules, queue), [self.instance], SystemClock()
        )
        self.executor = CachedExecutor(
            RequestKeys("m", 1, self.cache.generation(""), SIGNATURE.outputs),
            SIGNATURE,
            executor,
            self.cache,
            SystemClock(),
            is_order_preserved=is_order_preserved,
        )

    @property
    def statistics(self) -> ModelStatistics:
        return self.executor.statistics

    def send(self, source: Tensor | float) -> tuple[InferRequest, asyncio.Future[InferResponse]]:
        answer: asyncio.Future[InferResponse] = asyncio.get_running_loop().create_future()
        if not isinstance(source, Tensor):
            source = tensor("IN", np.array([source], np.float32))
        request = make_request(source, on_response=answer.set_result)
        self.executor.submit(request)
        return request, answer

    async def ask(self, source: Tensor | float) -> InferResponse:
        return await self.send(source)[1]

    def counts(self) -> tuple[int, int, int]:
        """Hits, misses, executions."""
        statistics = self.statistics
        return (
            statistics.cache_hit.count,
            statistics.cache_miss.count,
            statistics.execution_count,
        )


def value(response: InferResponse) -> float:
    assert response.error is None, response.error
    return float(response.outputs[0].data[0])


def large(first: float, size: int = LARGE) -> Tensor:
    data = np.zeros(size, np.float32)
    data[0] = first
    return tensor("IN", data)


async def test_the_same_again_does_not_run() -> None:
    harness = Harness()
    answers = [value(await harness.ask(x)) for x in (1, 1, 2, 1)]
    assert answers == [2, 2, 3, 2]
    assert harness.counts() == (2, 2, 2)
    statistics = harness.statistics
    assert (statistics.success.count, statistics.queue.count) == (4, 4)
    assert (statistics.inference_count, statistics.compute_infer.count) == (2, 2)
    assert statistics.cache_hit.ns > 0
    assert statistics.last_inference_ms > 0


async def test_a_hit_is_answered_after_submit_and_with_its_own_id() -> None:
    harness = Harness()
    await harness.ask(1)
    answer: asyncio.Future[InferResponse] = asyncio.get_running_loop().create_future()
    request = make_request(
        tensor("IN", np.array([1], np.float32)), request_id="mine", on_response=answer.set_result
    )
    harness.executor.submit(request)
    assert not answer.done()
    response = await answer
    assert (response.model_name, response.model_version, response.request_id) == ("m", 1, "mine")
    assert response.is_final


async def test_large_inputs_and_outputs_go_through_threads() -> None:
    harness = Harness()
    answers = [value(await harness.ask(large(x))) for x in (5, 5, 6, 5)]
    assert answers == [6, 6, 7, 6]
    assert harness.counts() == (2, 2, 2)
    assert harness.cache.statistics.used_bytes > 2 * INLINE_BYTES


async def test_many_texts_are_passed_by() -> None:
    harness = Harness()
    texts = np.full(MAX_TEXT_ELEMENTS + 1, b"x", np.object_)
    for _ in range(2):
        response = await harness.ask(tensor("IN", texts))
        assert response.error is None
    assert harness.counts() == (0, 0, 2)
    assert harness.cache.statistics.entry_count == 0


async def test_an_answer_without_room_is_given_and_not_kept(
    caplog: pytest.LogCaptureFixture,
) -> None:
    harness = Harness(capacity_bytes=2000)
    for _ in range(2):
        assert value(await harness.ask(large(1, 1000))) == 2
    assert harness.counts() == (0, 2, 2)
    assert harness.cache.statistics.entry_count == 0
    assert caplog.text.count("Failed to insert key into response cache") == 1


async def test_errors_are_not_kept() -> None:
    harness = Harness()
    for _ in range(2):
        response = await harness.ask(-1)
        assert response.error is not None
        assert response.error.message == "no such number"
    assert harness.instance.execution_count == 2
    assert harness.cache.statistics.entry_count == 0


@pytest.mark.parametrize("size", [1, LARGE])
async def test_what_its_client_overwrites_meanwhile_is_answered_as_hashed(size: int) -> None:
    harness = Harness()
    harness.instance.gate.clear()
    data = np.zeros(size, np.float32)
    _, answer = harness.send(SharedTensor("IN", FP32, data.shape, data))
    await asyncio.to_thread(harness.instance.started.acquire)
    data[0] = 7
    harness.instance.gate.set()
    assert value(await answer) == 1
    assert value(await harness.ask(large(0, size))) == 1
    assert value(await harness.ask(large(7, size))) == 8


@pytest.mark.parametrize("size", [1, LARGE])
async def test_a_cancelled_request_is_never_answered(size: int) -> None:
    harness = Harness()
    await harness.ask(large(1, size))
    request, answer = harness.send(large(1, size))
    harness.executor.cancel(request)
    await harness.executor.drain()
    await asyncio.sleep(0)
    assert not answer.done()
    assert harness.statistics.failures[FailureReason.CANCELED] == 1
    assert harness.statistics.success.count == 1


async def test_a_miss_that_is_cancelled_in_the_queue_leaves_it() -> None:
    harness = Harness()
    harness.instance.gate.clear()
    _, first = harness.send(1)
    await asyncio.sleep(0)
    request, second = harness.send(2)
    harness.executor.cancel(request)
    harness.instance.gate.set()
    assert value(await first) == 2
    assert not second.done()
    assert harness.instance.execution_count == 1


async def test_a_full_queue_refuses_small_and_large_requests() -> None:
    harness = Harness(max_queue_size=1)
    harness.instance.gate.clear()
    _, running = harness.send(1)
    await asyncio.sleep(0)
    _, waiting = harness.send(2)
    with pytest.raises(UnavailableError):
        harness.send(3)
    refused = await harness.ask(large(4))
    assert isinstance(refused.error, UnavailableError)
    harness.instance.gate.set()
    assert [value(await answer) for answer in (running, waiting)] == [2, 3]


async def test_hits_wait_for_their_turn_where_order_is_promised() -> None:
    harness = Harness(is_order_preserved=True)
    await harness.ask(1)
    harness.instance.gate.clear()
    order: list[float] = []
    answers = []
    for x in (2, 1, 3):
        _, answer = harness.send(x)
        answer.add_done_callback(lambda done: order.append(value(done.result())))
        answers.append(answer)
    cancelled, never = harness.send(1)
    answers.append(harness.send(1)[1])
    await asyncio.sleep(0)
    assert not answers[1].done()
    harness.executor.cancel(cancelled)
    harness.instance.gate.set()
    await asyncio.gather(*answers)
    await asyncio.sleep(0)
    assert order == [3, 2, 4]
    assert not never.done()
    assert harness.statistics.cache_hit.count == 3


async def test_hits_do_not_wait_where_none_is() -> None:
    harness = Harness()
    await harness.ask(1)
    harness.instance.gate.clear()
    _, slow = harness.send(2)
    assert value(await harness.ask(1)) == 2
    assert not slow.done()
    harness.instance.gate.set()
    await slow


async def test_a_drain_waits_for_what_is_hashed_and_what_is_kept() -> None:
    harness = Harness()
    answers = [harness.send(large(x))[1] for x in (1, 1)]
    await harness.executor.drain()
    assert all(answer.done() for answer in answers)
    with pytest.raises(UnavailableError, match="Server is stopping"):
        harness.send(9)
    await harness.executor.close()


async def test_hashing_does_not_hold_the_loop() -> None:
    harness = Harness()
    loop = asyncio.get_running_loop()
    rounds = 0

    def go_round() -> None:
        nonlocal rounds
        if not harness.statistics.cache_miss.count:
            rounds += 1
            loop.call_soon(go_round)

    _, answer = harness.send(large(1, 4 * LARGE))
    go_round()
    assert value(await answer) == 2
    assert rounds > 1
