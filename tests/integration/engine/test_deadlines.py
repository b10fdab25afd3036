"""Timeouts in the queue are kept to the nanosecond, on a loop whose time is a test's own."""

import asyncio
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.support.fake_clock import FakeClock
from tests.support.fake_time_loop import ROUNDING_NS, run
from tests.support.requests import make_request, tensor

from naiad.engine.executor import Executor
from naiad.errors import UnavailableError
from naiad.inference.datatypes import FP32
from naiad.inference.response import InferResponse
from naiad.inference.tensor import Tensor
from naiad.model_config.signature import ModelSignature, TensorSpec
from naiad.scheduling.default import DefaultScheduler
from naiad.scheduling.dynamic import BatcherRules, DynamicBatcher
from naiad.scheduling.queue import QueuePolicy, QueueRules, TimeoutAction
from naiad.scheduling.scheduler import Scheduler
from naiad.scheduling.sequence import SequenceBatcher, SequenceRules

SIGNATURE = ModelSignature("m", 8, [TensorSpec("IN", FP32, (1,))], [TensorSpec("OUT", FP32, (1,))])
MS = 1_000_000


class BusyInstance:
    """Has its first batch until it is let go."""

    def __init__(self) -> None:
        self.gate = threading.Event()

    def execute(
        self, inputs: Mapping[str, npt.NDArray[Any]], output_names: Sequence[str]
    ) -> Sequence[Tensor]:
        assert self.gate.wait(60)
        return [Tensor(name, FP32, inputs["IN"].shape, inputs["IN"]) for name in output_names]

    def close(self) -> None:
        """Nothing is held."""


class Harness:
    """An executor whose instance is busy, and when each request was answered."""

    def __init__(self, scheduler: Scheduler, clock: FakeClock) -> None:
        self.clock = clock
        self.instance = BusyInstance()
        self.executor = Executor(1, SIGNATURE, scheduler, [self.instance], clock)
        self.answered: dict[int, tuple[int, InferResponse]] = {}
        self.progress = asyncio.Event()

    def send(self, number: int, timeout_us: int = 0, key: int = 0, *, start: bool = False) -> None:
        def note(response: InferResponse) -> None:
            self.answered[number] = self.clock.time_ns, response
            self.progress.set()

        request = make_request(tensor("IN", np.zeros((1, 1), np.float32)), on_response=note)
        request.timeout_us, request.correlation_id, request.sequence_start = timeout_us, key, start
        self.executor.submit(request)

    async def until(self, count: int) -> None:
        while len(self.answered) < count:
            self.progress.clear()
            await self.progress.wait()

    async def close(self) -> None:
        self.instance.gate.set()
        await self.executor.drain()
        await self.executor.close()


def policy(timeout_ms: int, action: TimeoutAction = TimeoutAction.REJECT) -> QueueRules:
    return QueueRules(default_policy=QueuePolicy(action, timeout_ms * MS, is_override_allowed=True))


def test_every_request_is_answered_at_its_deadline_whatever_runs() -> None:
    timeouts_us = [9000, 1000, 5000, 1, 7000, 0, 2500, 1000]

    async def scenario(clock: FakeClock) -> None:
        harness = Harness(DynamicBatcher(BatcherRules(1), policy(10)), clock)
        harness.send(-1)
        for _ in range(3):
            await asyncio.sleep(0)
        sent_ns = {}
        for number, timeout_us in enumerate(timeouts_us):
            clock.advance_us(137)
            sent_ns[number] = clock.time_ns
            harness.send(number, timeout_us)
        await harness.until(len(timeouts_us))
        for number, timeout_us in enumerate(timeouts_us):
            at_ns, response = harness.answered[number]
            assert response.error is not None
            assert response.error.message == "Request timeout expired"
            # The loop had no turn before all were sent.
            due_ns = max(sent_ns[number] + (timeout_us or 10_000) * 1000, sent_ns[7])
            assert 0 <= at_ns - due_ns <= ROUNDING_NS
        assert -1 not in harness.answered
        await harness.close()

    run(scenario)


def test_a_sequence_without_a_slot_is_answered_at_its_deadline() -> None:
    async def scenario(clock: FakeClock) -> None:
        harness = Harness(SequenceBatcher(SequenceRules("m", idle_ns=10**12)), clock)
        harness.send(-1, key=1, start=True)
        for _ in range(3):
            await asyncio.sleep(0)
        begun_ns = clock.time_ns
        harness.send(0, 4000, key=2, start=True)
        harness.send(1, 0, key=2)
        await harness.until(2)
        for number in range(2):
            at_ns, response = harness.answered[number]
            assert response.error is not None
            assert 0 <= at_ns - (begun_ns + 4 * MS) <= ROUNDING_NS
        await harness.close()

    run(scenario)


@pytest.mark.parametrize("count", [1, 5])
def test_a_batch_runs_when_its_delay_is_over(count: int) -> None:
    async def scenario(clock: FakeClock) -> None:
        harness = Harness(DynamicBatcher(BatcherRules(8, max_delay_ns=3 * MS)), clock)
        harness.instance.gate.set()
        begun_ns = clock.time_ns
        for number in range(count):
            harness.send(number)
        await harness.until(count)
        # Answers come by a thread, whose turn takes no time of this clock unless the loop waits.
        assert all(at_ns - begun_ns >= 3 * MS for at_ns, _ in harness.answered.values())
        assert harness.executor.statistics.execution_count == 1
        await harness.close()

    run(scenario)


def test_no_more_than_may_wait_do_whatever_leaves_meanwhile() -> None:
    rules = QueueRules(default_policy=QueuePolicy(default_timeout_ns=2 * MS, max_size=3))

    async def scenario(clock: FakeClock) -> None:
        harness = Harness(DynamicBatcher(BatcherRules(1), rules), clock)
        harness.send(-1)
        for _ in range(3):
            await asyncio.sleep(0)
        for wave in range(4):
            for number in range(3):
                harness.send(10 * wave + number)
            for _ in range(20):
                with pytest.raises(UnavailableError, match="Exceeds maximum queue size"):
                    harness.send(99)
            # These three time out and make room for the next.
            await harness.until(3 * (wave + 1))
        assert harness.executor.statistics.fail.count == 12
        await harness.close()

    run(scenario)


def test_without_a_policy_nobody_waits_in_vain() -> None:
    async def scenario(clock: FakeClock) -> None:
        harness = Harness(DefaultScheduler(), clock)
        for number in range(3):
            harness.send(number, 1)
        await asyncio.sleep(3600)
        assert not harness.answered
        await harness.close()
        assert all(response.error is None for _, response in harness.answered.values())

    run(scenario)
