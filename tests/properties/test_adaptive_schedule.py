"""Random schedules of the adaptive batcher."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.requests import rows_request

from naiad.inference.request import InferRequest
from naiad.scheduling.adaptive import AdaptiveBatcher
from naiad.scheduling.dynamic import BatcherRules
from naiad.scheduling.scheduler import Batch

MAX_ROWS = 16
TARGET_NS = 20_000_000
steps = st.lists(
    st.tuples(
        st.sampled_from(["offer", "offer", "burst", "take", "finish", "finish", "remove", "idle"]),
        st.integers(1, MAX_ROWS),
        st.integers(0, 8_000_000),
    ),
    max_size=150,
)


class Schedule:
    """One run of a batcher, and what must hold after every step."""

    def __init__(self, instances: int) -> None:
        self.batcher = AdaptiveBatcher(BatcherRules(MAX_ROWS, instance_count=instances), TARGET_NS)
        self.free = instances
        self.now_ns = 1
        self.free_ns = 1
        self.waiting: list[InferRequest] = []
        self.running: list[Batch] = []

    def offer(self, rows: int) -> None:
        request = rows_request(rows)
        self.batcher.offer(request, self.now_ns)
        self.waiting.append(request)

    def take(self) -> None:
        while self.free:
            batch = self.batcher.take(self.now_ns)
            if batch is None:
                self.check_wait()
                return
            requests = batch.requests
            assert requests == self.waiting[: len(requests)]
            rows = sum(request.batch_size for request in requests)
            assert rows <= MAX_ROWS
            assert rows <= self.batcher.tuning.max_rows or len(requests) == 1
            del self.waiting[: len(requests)]
            self.running.append(batch)
            self.free -= 1

    def check_wait(self) -> None:
        """An instance is free and nothing runs on it: only for a while that keeps the target."""
        if not self.waiting:
            return
        since_ns = max(self.waiting[0].queued_ns, self.free_ns)
        assert self.now_ns - since_ns < TARGET_NS
        wake_ns = self.batcher.wake_ns()
        assert wake_ns is not None
        assert self.now_ns < wake_ns <= since_ns + TARGET_NS

    def finish(self, number: int) -> None:
        if self.running:
            batch = self.running.pop(number % len(self.running))
            self.free += 1
            self.free_ns = self.now_ns
            self.batcher.finish(batch, self.now_ns)
            self.take()

    def remove(self, number: int) -> None:
        if self.waiting:
            request = self.waiting.pop(number % len(self.waiting))
            assert self.batcher.remove(request)

    def pass_time(self, ns: int) -> None:
        """As the executor does, come back when the batcher says so."""
        end_ns = self.now_ns + ns
        wake_ns = self.batcher.wake_ns()
        while self.free and wake_ns is not None and wake_ns <= end_ns:
            self.now_ns = wake_ns
            self.take()
            wake_ns = self.batcher.wake_ns()
        self.now_ns = end_ns
        if wake_ns is None or wake_ns > end_ns:
            self.take()


def run(steps: list[tuple[str, int, int]], instances: int) -> None:
    schedule = Schedule(instances)
    for verb, number, ns in steps:
        schedule.pass_time(ns)
        match verb:
            case "offer":
                schedule.offer(number)
            case "burst":
                for _ in range(number):
                    schedule.offer(1)
            case "finish":
                schedule.finish(number)
            case "remove":
                schedule.remove(number)
        schedule.take()
        tuning = schedule.batcher.tuning
        assert 1 <= tuning.max_rows <= MAX_ROWS
        assert 0 <= tuning.delay_ns < TARGET_NS
        assert len(schedule.batcher) == len(schedule.waiting)
    while schedule.waiting or schedule.running:
        schedule.finish(0)
        schedule.pass_time(TARGET_NS)


@given(steps=steps, instances=st.integers(1, 3))
def test_nothing_is_lost_no_batch_is_too_large_and_no_wait_too_long(
    steps: list[tuple[str, int, int]], instances: int
) -> None:
    run(steps, instances)


@pytest.mark.full
@pytest.mark.timeout(900)
@settings(max_examples=10_000, deadline=None)
@given(steps=steps, instances=st.integers(1, 3))
def test_ten_thousand_schedules_hold(steps: list[tuple[str, int, int]], instances: int) -> None:
    run(steps, instances)
