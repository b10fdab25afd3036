"""Random schedules of the dynamic batcher with priorities and timeouts, against an account."""

from bisect import insort
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule
from tests.support.requests import rows_request

from naiad.errors import UnavailableError
from naiad.inference.request import InferRequest
from naiad.scheduling.bounded import BoundedScheduler, QueueBudget
from naiad.scheduling.dynamic import BatcherRules, DynamicBatcher
from naiad.scheduling.queue import QueuePolicy, QueueRules, TimeoutAction
from naiad.scheduling.scheduler import Batch, BatchClose

MAX_ROWS = 6
MS = 1_000_000

policies = st.builds(
    QueuePolicy,
    timeout_action=st.sampled_from(TimeoutAction),
    default_timeout_ns=st.sampled_from([0, 0, 2 * MS, 5 * MS]),
    is_override_allowed=st.booleans(),
    max_size=st.sampled_from([0, 0, 1, 3]),
)


@dataclass
class Level:
    """The requests of one priority, in the order in which they should run."""

    policy: QueuePolicy
    waiting: list[InferRequest] = field(default_factory=list)
    delayed: list[InferRequest] = field(default_factory=list)


class QueueMachine(RuleBasedStateMachine):
    """Nothing lost, nothing twice, order kept, every bound and every deadline exact."""

    sent = Bundle("sent")

    @initialize(
        preferred=st.sets(st.integers(1, MAX_ROWS)),
        delay_ns=st.sampled_from([0, 3 * MS]),
        instances=st.integers(1, 3),
        level_count=st.sampled_from([0, 1, 3]),
        default_policy=policies,
        first_policy=policies,
    )
    def make(
        self,
        preferred: set[int],
        delay_ns: int,
        instances: int,
        level_count: int,
        default_policy: QueuePolicy,
        first_policy: QueuePolicy,
    ) -> None:
        self.delay_ns = delay_ns
        self.preferred = preferred or {MAX_ROWS}
        rules = QueueRules(
            level_count,
            min(2, level_count),
            default_policy,
            {1: first_policy} if level_count else {},
        )
        self.queue_rules = rules
        self.budget = QueueBudget(1 << 40)
        self.batcher = BoundedScheduler(
            DynamicBatcher(BatcherRules(MAX_ROWS, tuple(preferred), delay_ns, instances), rules),
            self.budget,
        )
        # Those that found others waiting.
        self.counted: set[int] = set()
        self.levels = {
            number: Level(rules.policy(number)) for number in range(max(level_count, 1) + 1)
        }
        # When each is due, the number of its arrival, and who.
        self.deadlines: list[tuple[int, int, InferRequest]] = []
        self.now_ns = 0
        self.instances = instances
        self.running: list[Batch] = []
        self.accepted: list[InferRequest] = []
        self.done: list[InferRequest] = []

    def _in_order(self) -> list[InferRequest]:
        return [
            request
            for _, level in sorted(self.levels.items())
            for request in (*level.waiting, *level.delayed)
        ]

    def _level_of(self, request: InferRequest) -> Level:
        return next(
            level
            for level in self.levels.values()
            if any(other is request for other in (*level.waiting, *level.delayed))
        )

    @rule(
        target=sent,
        rows=st.integers(1, MAX_ROWS),
        key=st.sampled_from("aab"),
        priority=st.integers(0, 4),
        timeout_us=st.sampled_from([0, 1000, 4000, 9000]),
    )
    def offer(self, rows: int, key: str, priority: int, timeout_us: int) -> InferRequest:
        request = rows_request(rows, key)
        request.priority, request.timeout_us = priority, timeout_us
        known = 1 <= priority <= self.queue_rules.level_count
        level = self.levels[priority if known else self.queue_rules.default_level]
        is_full = 0 < level.policy.max_size <= len(level.waiting) + len(level.delayed)
        if is_full:
            with pytest.raises(UnavailableError, match="Exceeds maximum queue size"):
                self.batcher.offer(request, self.now_ns)
            return request
        if self._in_order():
            self.counted.add(id(request))
        self.batcher.offer(request, self.now_ns)
        level.waiting.append(request)
        self.accepted.append(request)
        timeout_ns = level.policy.default_timeout_ns
        if level.policy.is_override_allowed and 0 < timeout_us * 1000 < timeout_ns:
            timeout_ns = timeout_us * 1000
        if timeout_ns:
            insort(self.deadlines, (self.now_ns + timeout_ns, len(self.accepted), request))
        return request

    def _leave(self, request: InferRequest) -> None:
        level = self._level_of(request)
        level.waiting = [other for other in level.waiting if other is not request]
        level.delayed = [other for other in level.delayed if other is not request]
        self.deadlines = [entry for entry in self.deadlines if entry[2] is not request]
        self.done.append(request)

    @rule()
    def take(self) -> None:
        if len(self.running) == self.instances:
            return
        waiting = self._in_order()
        batch = self.batcher.take(self.now_ns)
        if batch is None:
            if waiting:
                # A reason to wait, and an end to it that the engine is told of.
                assert self.now_ns - waiting[0].queued_ns < self.delay_ns
                wake_ns = self.batcher.wake_ns()
                assert wake_ns == waiting[0].queued_ns + self.delay_ns
            return
        assert all(a is b for a, b in zip(batch.requests, waiting, strict=False))
        assert 1 <= len(batch.requests) <= len(waiting)
        rows = sum(request.batch_size for request in batch.requests)
        assert rows <= MAX_ROWS
        assert len({request.batch_key for request in batch.requests}) == 1
        self._check_reason(batch, waiting[len(batch.requests) :], rows)
        for request in batch.requests:
            self._leave(request)
        self.running.append(batch)

    def _check_reason(self, batch: Batch, left: list[InferRequest], rows: int) -> None:
        """The counters of closed batches say what is so."""
        if batch.closed_by is BatchClose.DELAY_OVER:
            assert self.delay_ns
            assert not left
        elif batch.closed_by is BatchClose.QUEUE_EMPTY:
            assert not left
            assert not self.delay_ns
        elif batch.closed_by is BatchClose.SHAPE_DIFFERS:
            assert left[0].batch_key != batch.requests[0].batch_key
        elif batch.closed_by is BatchClose.FULL:
            assert rows == MAX_ROWS or rows + left[0].batch_size > MAX_ROWS
        else:
            is_crossed = left and rows + left[0].batch_size > max(self.preferred)
            assert rows >= min(self.preferred) or is_crossed

    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        if self.running:
            index = data.draw(st.integers(0, len(self.running) - 1))
            self.batcher.finish(self.running.pop(index), self.now_ns)

    @rule(pause_ns=st.sampled_from([0, 1, MS, 3 * MS, 20 * MS]))
    def wait(self, pause_ns: int) -> None:
        self.now_ns += pause_ns
        rejected = []
        while self.deadlines and self.deadlines[0][0] <= self.now_ns:
            request = self.deadlines[0][2]
            level = self._level_of(request)
            self._leave(request)
            if level.policy.timeout_action is TimeoutAction.REJECT:
                rejected.append(request)
            else:
                self.done.pop()
                level.delayed.append(request)
        found = list(self.batcher.expire(self.now_ns))
        assert [id(request) for request in found] == [id(request) for request in rejected]

    @rule(request=sent)
    def cancel(self, request: InferRequest) -> None:
        is_waiting = any(other is request for other in self._in_order())
        assert self.batcher.remove(request) == is_waiting
        if is_waiting:
            self._leave(request)

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "batcher"):
            return
        assert len(self.batcher) == len(self._in_order())
        deadline_ns = self.deadlines[0][0] if self.deadlines else None
        assert self.batcher.next_deadline_ns() == deadline_ns
        counted = [request for request in self._in_order() if id(request) in self.counted]
        assert self.budget.waiting_bytes == 4 * sum(request.batch_size for request in counted)

    def teardown(self) -> None:
        """With time enough, everything that waits has run."""
        if not hasattr(self, "batcher"):
            return
        self.running.clear()
        while self._in_order():
            self.now_ns += self.delay_ns
            before = len(self.done)
            self.take()
            assert len(self.done) > before
            self.running.clear()
        assert sorted(map(id, self.done)) == sorted(map(id, self.accepted))


class ManyQueuesMachine(QueueMachine):
    """The same, for the whole matrix."""


QueueMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
ManyQueuesMachine.TestCase.settings = settings(
    max_examples=10_000, stateful_step_count=40, deadline=None
)
test_queue_schedules = pytest.mark.slow(QueueMachine.TestCase)
test_many_queue_schedules = pytest.mark.slow(
    pytest.mark.full(pytest.mark.timeout(900)(ManyQueuesMachine.TestCase))
)
