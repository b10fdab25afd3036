"""Random schedules of the sequence batcher, against a plain account of what was sent."""

import logging

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)
from tests.support.requests import rows_request

from naiad.errors import InvalidArgumentError
from naiad.inference.request import InferRequest
from naiad.scheduling.dynamic import BatcherRules
from naiad.scheduling.scheduler import Batch
from naiad.scheduling.sequence import SequenceBatcher, SequenceRules

MAX_ROWS = 3
IDLE_NS = 50_000
# Few ids, so that sequences meet; the text of a number is an id of its own.
ids = st.sampled_from([1, 2, "1", "a", 2**64 - 1, 0])
# With and without a reason to wait, on time and beyond everything that may time out.
pauses = st.sampled_from([0, 1, 999, 1000, 5000, IDLE_NS])


class Account:
    """The requests of one correlation id from START to END, as the client sent them."""

    def __init__(self) -> None:
        self.waiting: list[InferRequest] = []
        self.states: set[int] = set()
        self.idle_since_ns = 0


class SequenceBatcherMachine(RuleBasedStateMachine):
    """Nothing lost, nothing twice, order within a sequence, one request of it at a time."""

    cancellable = Bundle("cancellable")

    @initialize(
        strategy=st.sampled_from(["direct", "oldest"]),
        instances=st.integers(1, 3),
        slots=st.integers(1, 4),
        delay_ns=st.sampled_from([0, 1000]),
        utilization=st.sampled_from([0.0, 0.5, 1.0]),
        preferred=st.sets(st.integers(1, MAX_ROWS)),
        makes=st.sampled_from(["sequences", "generations"]),
    )
    def make(
        self,
        *,
        strategy: str,
        instances: int,
        slots: int,
        delay_ns: int,
        utilization: float,
        preferred: set[int],
        makes: str,
    ) -> None:
        # Sequences that start anew are warned of, here thousands of times.
        logging.getLogger("naiad.scheduling.sequence").setLevel(logging.ERROR)
        self.is_iterative = makes == "generations"
        is_oldest = strategy == "oldest"
        self.delay_ns = delay_ns
        self.max_rows = MAX_ROWS if is_oldest else slots
        self.instances, self.slots = instances, slots
        oldest = BatcherRules(MAX_ROWS, tuple(preferred), delay_ns) if is_oldest else None
        self.is_direct = oldest is None
        self.batcher = SequenceBatcher(
            SequenceRules(
                "m",
                instances,
                slots,
                IDLE_NS,
                oldest,
                delay_ns,
                utilization,
                is_iterative=self.is_iterative,
            )
        )
        self.now_ns = 0
        # Open accounts by id, and that of every request that waits.
        self.open: dict[int | str, Account] = {}
        self.accounts: dict[int, Account] = {}
        self.running: dict[int, Batch] = {}
        # Where each sequence runs, once it has run.
        self.places: dict[int, tuple[int, int]] = {}
        self.sent: list[InferRequest] = []
        self.done: list[InferRequest] = []

    @rule(
        target=cancellable,
        key=ids,
        start=st.booleans(),
        end=st.booleans(),
        shape=st.sampled_from("aab"),
        timeout_us=st.sampled_from([0, 0, 1, 5]),
    )
    def offer(
        self,
        key: int | str,
        start: bool,
        end: bool,
        shape: str,
        timeout_us: int,
    ) -> InferRequest:
        return self._offer(key, "s" * start + "e" * end, shape, timeout_us)

    def _offer(self, key: int | str, flags: str, shape: str, timeout_us: int) -> InferRequest:
        start, end = "s" in flags, "e" in flags
        request = rows_request(1, shape)
        request.correlation_id, request.timeout_us = key, timeout_us
        request.sequence_start, request.sequence_end = start, end
        try:
            self.batcher.offer(request, self.now_ns)
        except InvalidArgumentError:
            assert not self.is_iterative if key == 0 else not start
            assert key not in self.open
            return request
        if key == 0:
            # A sequence of its own, which nobody else is in.
            key = request.correlation_id
            start = request.sequence_start
            assert key not in self.open
        account = self.open.get(key)
        if account is None:
            assert start
            account = self.open[key] = Account()
        account.waiting.append(request)
        self.accounts[id(request)] = account
        self.sent.append(request)
        if end:
            del self.open[key]
        return request

    @rule(
        target=cancellable,
        keys=st.lists(ids, min_size=2, unique_by=str),
        end=st.booleans(),
    )
    def start_several(self, keys: list[int | str], end: bool) -> MultipleResults[InferRequest]:
        return multiple(*(self._offer(key, "s" + "e" * end, "a", 0) for key in keys))

    @rule()
    def take(self) -> None:
        if len(self.running) == self.instances:
            return
        batch = self.batcher.take(self.now_ns)
        if batch is None:
            self._check_patience()
            return
        assert batch.instance_index not in self.running
        self.running[batch.instance_index] = batch
        assert batch.rows is not None
        assert [row.request for row in batch.rows if row.request] == batch.requests
        assert 1 <= len(batch.requests) <= len(batch.rows) <= self.max_rows
        assert len({str(request.batch_key) for request in batch.requests}) == 1
        for number, row in enumerate(batch.rows):
            if row.request is not None:
                assert row.state is not None
                self._check_row(row.request, id(row.state), batch.instance_index, number)

    def _check_row(self, request: InferRequest, state: int, instance: int, number: int) -> None:
        account = self.accounts[id(request)]
        # The next of its sequence, so no other of it is in this batch or in one that runs.
        assert account.waiting.pop(0) is request
        assert not any(
            self.accounts[id(other)] is account
            for batch in self.running.values()
            for other in batch.requests
            if other is not request
        )
        if not request.sequence_start:
            assert state in account.states
        account.states = {state}
        place = (instance, number if self.is_direct else 0)
        assert self.places.setdefault(id(account), place) == place
        self.done.append(request)

    def _check_patience(self) -> None:
        """Whoever could run waits for a reason, and not beyond it."""
        wake_ns = self.batcher.wake_ns()
        assert wake_ns is None or self.now_ns < wake_ns <= self.now_ns + self.delay_ns

    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        if self.running:
            index = data.draw(st.sampled_from(sorted(self.running)))
            self._finish(index)

    def _finish(self, index: int) -> None:
        batch = self.running.pop(index)
        self.batcher.finish(batch, self.now_ns)
        for request in batch.requests:
            account = self.accounts[id(request)]
            account.idle_since_ns = self.now_ns
            if self.is_iterative and not account.waiting:
                # The model is done with the request, and that is the end.
                self._forget(account)

    @precondition(lambda self: getattr(self, "is_iterative", False))
    @rule(data=st.data())
    def generate(self, data: st.DataObject) -> None:
        """The model wants to run some requests of a batch again."""
        if not self.running:
            return
        index = data.draw(st.sampled_from(sorted(self.running)))
        for request in self.running[index].requests:
            if data.draw(st.booleans()):
                self._reschedule(request)
        self._finish(index)

    def _reschedule(self, request: InferRequest) -> None:
        account = self.accounts[id(request)]
        if self.open.get(request.correlation_id) is not account:
            # Whoever has the id now gets nothing of a sequence that has ended.
            with pytest.raises(InvalidArgumentError, match="must specify the START flag"):
                self.batcher.reschedule(request, self.now_ns)
            return
        self.batcher.reschedule(request, self.now_ns)
        account.waiting.append(request)
        self.done = [other for other in self.done if other is not request]

    def _finish_all(self) -> None:
        for index in list(self.running):
            self._finish(index)

    @rule(pause_ns=pauses)
    def wait(self, pause_ns: int) -> None:
        self.now_ns += pause_ns
        rejected = self.batcher.expire(self.now_ns)
        for request in rejected:
            account = self.accounts[id(request)]
            assert account.waiting.pop(0) is request
            # It never had a slot.
            assert id(account) not in self.places
            self._forget(account)
            self.done.append(request)
        deadline_ns = self.batcher.next_deadline_ns()
        assert deadline_ns is None or deadline_ns > self.now_ns
        for account in [] if self.is_iterative else list(self.open.values()):
            is_idle = not account.waiting and not self._is_running(account)
            if is_idle and self.now_ns - account.idle_since_ns >= IDLE_NS:
                self._forget(account)

    @rule(request=cancellable)
    def cancel(self, request: InferRequest) -> None:
        account = self.accounts.get(id(request))
        is_waiting = account is not None and request in account.waiting
        assert self.batcher.remove(request) == is_waiting
        abandoned = list(self.batcher.abandoned())
        if account is None or not is_waiting:
            assert abandoned == []
            return
        position = account.waiting.index(request)
        assert abandoned == account.waiting[position + 1 :]
        self.done += account.waiting[position:]
        del account.waiting[position:]
        self._forget(account)

    def _forget(self, account: Account) -> None:
        for key, known in list(self.open.items()):
            if known is account:
                del self.open[key]

    def _is_running(self, account: Account) -> bool:
        return any(
            self.accounts[id(request)] is account
            for batch in self.running.values()
            for request in batch.requests
        )

    @invariant()
    def count(self) -> None:
        if hasattr(self, "batcher"):
            assert len(self.batcher) == len(self.sent) - len(self.done)

    def teardown(self) -> None:
        """With time enough, everything that waits is answered."""
        logging.getLogger("naiad.scheduling.sequence").setLevel(logging.NOTSET)
        if not hasattr(self, "batcher"):
            return
        self._finish_all()
        while before := len(self.batcher):
            # Whatever waits for company, for a slot or for its time to be over does so no more.
            self.wait(IDLE_NS)
            self.wait(self.delay_ns)
            self.take()
            self._finish_all()
            assert len(self.batcher) < before
        assert sorted(map(id, self.done)) == sorted(map(id, self.sent))


class ManySchedulesMachine(SequenceBatcherMachine):
    """The same, for the whole matrix."""


SequenceBatcherMachine.TestCase.settings = settings(
    max_examples=300, stateful_step_count=40, deadline=None
)
ManySchedulesMachine.TestCase.settings = settings(
    max_examples=10_000, stateful_step_count=40, deadline=None
)
test_sequence_schedules = pytest.mark.slow(SequenceBatcherMachine.TestCase)
test_many_sequence_schedules = pytest.mark.slow(
    pytest.mark.full(pytest.mark.timeout(900)(ManySchedulesMachine.TestCase))
)
