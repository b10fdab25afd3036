"""The sequence batcher: requests of one sequence run one after the other on one instance.

A sequence holds a slot of an instance from its first request to its last, or until it is idle for
too long; sequences that find no slot wait in the backlog. Each execution takes at most one request
of a sequence. How many sequences share it is the strategy's business: with "direct", row ``i`` is
slot ``i`` of the instance, always; with "oldest", a dynamic batcher chooses among the sequences.

Source: Triton's model_configuration.md ("Sequence Batcher") and ``sequence_batch_scheduler.cc``.
Differences: a sequence counts as idle from the end of its last execution and not from the arrival
of its last request, as the documentation says; a batch has the shape of the request that has
waited longest and not of the lowest slot's, so that no slot starves; and a sequence of which a
request was cancelled ends at once.
"""

import logging
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Final, NoReturn, Protocol

from naiad.errors import InvalidArgumentError
from naiad.inference.request import InferRequest
from naiad.inference.sequence import SequenceRow, SequenceState
from naiad.scheduling.dynamic import BatcherRules, DynamicBatcher
from naiad.scheduling.scheduler import Batch, BatchClose, refuse_reschedule

_log = logging.getLogger(__name__)

# Sorting out sequences that left the backlog in time costs one look at each that is kept.
_SPARE_EXPIRIES: Final = 64


@dataclass(frozen=True, slots=True)
class SequenceRules:
    """How sequences share a model.

    Attributes:
        model_name: for the texts of refusals.
        instance_count: of the model.
        slot_count: sequences that an instance has at a time.
        idle_ns: how long a sequence keeps its slot without a request.
        oldest: how batches are formed of the sequences of one instance; None for "direct".
        max_delay_ns: with "direct", how long a request may wait for others to run with it.
        minimum_utilization: with "direct", the share of the slots that need not wait.
        is_iterative: a request without a sequence begins one of its own, which lasts until the
            model is done with the request.
        held_until_count: with "direct", requests that must wait in slots before the first batch,
            for tests of clients (Triton's TRITONSERVER_DELAY_SCHEDULER).
        held_until_backlog_count: the same for requests in the backlog
            (TRITONSERVER_BACKLOG_DELAY_SCHEDULER).
    """

    model_name: str
    instance_count: int = 1
    slot_count: int = 1
    idle_ns: int = 1_000_000_000
    oldest: BatcherRules | None = None
    max_delay_ns: int = 0
    minimum_utilization: float = 0.0
    is_iterative: bool = False
    held_until_count: int = 0
    held_until_backlog_count: int = 0


class _Sequence:
    """Requests with one correlation id, from START to END.

    Attributes:
        correlation_id: of all of them.
        queue: those that wait.
        slot: None while the sequence is in the backlog.
        is_closed: no more requests join; the slot is free once the queue is empty.
        expires_ns: when the backlog gives the sequence up; None for never.
    """

    __slots__ = ("correlation_id", "expires_ns", "is_closed", "queue", "slot")

    def __init__(self, correlation_id: int | str) -> None:
        self.correlation_id = correlation_id
        self.queue: deque[InferRequest] = deque()
        self.slot: _Slot | None = None
        self.is_closed = False
        self.expires_ns: int | None = None


class _Slot:
    """A place for a sequence in an instance.

    Attributes:
        lane: of the instance.
        number: in the instance, from 0.
        sequence: that has it; None while it is free.
        state: of that sequence.
        free_ns: since when the next request of the sequence could run.
    """

    __slots__ = ("free_ns", "lane", "number", "sequence", "state")

    def __init__(self, lane: "_Lane", number: int) -> None:
        self.lane = lane
        self.number = number
        self.sequence: _Sequence | None = None
        self.state = SequenceState()
        self.free_ns = 0

    def next_request(self) -> InferRequest | None:
        """What the slot would run next."""
        if self.sequence is None or not self.sequence.queue:
            return None
        return self.sequence.queue[0]

    def key(self, request: InferRequest) -> object:
        """What the next requests of two slots must share to share a batch."""
        if request.sequence_start or self.state.key is None:
            return request.batch_key
        return request.batch_key, self.state.key


# The slot of each row, None for a row that only keeps a place, and why there are no more.
_Picks = tuple[Sequence[_Slot | None], BatchClose]


class _Lane(Protocol):
    """The slots of one instance, by strategy."""

    index: int
    slots: list[_Slot]
    running: list[_Slot]
    is_busy: bool

    def note(self, slot: _Slot) -> None:
        """The slot has a next request."""

    def withdraw(self, slot: _Slot) -> None:
        """The slot's next request is taken away."""

    def pick(self, now_ns: int) -> _Picks | None:
        """Which slots run now; called only while the instance is free."""

    def wake_ns(self) -> int | None:
        """When `pick` could first give something although nothing new arrives."""


class _DirectLane:
    """Row ``i`` of every batch is slot ``i``."""

    def __init__(self, index: int, rules: SequenceRules) -> None:
        self.index = index
        self.slots: list[_Slot] = [_Slot(self, number) for number in range(rules.slot_count)]
        self.running: list[_Slot] = []
        self.is_busy = False
        # Triton waits only where both are set.
        self._delay_ns = rules.max_delay_ns if rules.minimum_utilization else 0
        self._wanted = rules.minimum_utilization * rules.slot_count
        self._wake_ns: int | None = None

    def note(self, slot: _Slot) -> None:
        """The slots are looked at when a batch is formed."""

    def withdraw(self, slot: _Slot) -> None:
        """The slots are looked at when a batch is formed."""

    def pick(self, now_ns: int) -> _Picks | None:
        """Rows from slot 0 to the last slot that has a request, be it of this batch or not."""
        ready = [(slot, request) for slot in self.slots if (request := slot.next_request())]
        self._wake_ns = None
        if not ready:
            return None
        oldest, first = min(ready, key=lambda pair: pair[1].queued_ns)
        is_over = now_ns - first.queued_ns >= self._delay_ns
        if not is_over and len(ready) < self._wanted:
            self._wake_ns = first.queued_ns + self._delay_ns
            return None
        key = oldest.key(first)
        rows: list[_Slot | None] = [None] * (ready[-1][0].number + 1)
        count = 0
        for slot, request in ready:
            if slot.key(request) == key:
                rows[slot.number] = slot
                count += 1
        if count < len(ready):
            return rows, BatchClose.SHAPE_DIFFERS
        if count == len(self.slots):
            return rows, BatchClose.FULL
        has_waited = self._delay_ns and is_over and count < self._wanted
        return rows, BatchClose.DELAY_OVER if has_waited else BatchClose.QUEUE_EMPTY

    def wake_ns(self) -> int | None:
        """When the oldest request will have waited long enough."""
        return self._wake_ns


class _OldestLane:
    """A dynamic batcher of the next request of each sequence."""

    def __init__(self, index: int, rules: SequenceRules, batching: BatcherRules) -> None:
        self.index = index
        self.slots: list[_Slot] = [_Slot(self, number) for number in range(rules.slot_count)]
        self.running: list[_Slot] = []
        self.is_busy = False
        self._batcher = DynamicBatcher(batching)
        # Slots whose next request the batcher does not have yet, and slots by the request that
        # it has, with the time of the arrival and the key, which are overwritten for the batcher.
        self._pending: dict[_Slot, None] = {}
        self._issued: dict[int, tuple[_Slot, int, object]] = {}

    def note(self, slot: _Slot) -> None:
        """Remember to give the slot's next request to the batcher, unless it has it."""
        request = slot.next_request()
        if request is not None and id(request) not in self._issued:
            self._pending[slot] = None

    def withdraw(self, slot: _Slot) -> None:
        """Take the slot's next request back."""
        self._pending.pop(slot, None)
        request = slot.next_request()
        if request is not None and self._issued.pop(id(request), None) is not None:
            self._batcher.remove(request)

    def pick(self, now_ns: int) -> _Picks | None:
        """What the dynamic batcher says."""
        # Not before the last execution is over: it decides on the state that the next one is
        # given, and so on who can share its batch.
        if self._pending:
            self._issue()
        batch = self._batcher.take(now_ns)
        if batch is None:
            return None
        slots = []
        for request in batch.requests:
            slot, request.queued_ns, request.batch_key = self._issued.pop(id(request))
            slots.append(slot)
        return slots, batch.closed_by

    def _issue(self) -> None:
        candidates = []
        for slot in self._pending:
            request = slot.next_request()
            if request is not None:
                since_ns = max(request.queued_ns, slot.free_ns)
                candidates.append((since_ns, request.queued_ns, slot.number, slot, request))
        self._pending.clear()
        for since_ns, queued_ns, _, slot, request in sorted(candidates, key=lambda c: c[:3]):
            self._issued[id(request)] = slot, queued_ns, request.batch_key
            request.batch_key = slot.key(request)
            self._batcher.offer(request, since_ns)

    def wake_ns(self) -> int | None:
        """When the oldest candidate will have waited long enough."""
        return self._batcher.wake_ns()


class _Backlog:
    """Sequences that wait for a slot, in the order in which they came."""

    def __init__(self) -> None:
        self._sequences: dict[_Sequence, None] = {}
        # When, a number that keeps equal ones apart, and who; entries of sequences that left, or
        # that expire earlier by now, are dropped when they come up.
        self._expiries: list[tuple[int, int, _Sequence]] = []
        self._count = 0

    def add(self, sequence: _Sequence) -> None:
        """Append a sequence."""
        self._sequences[sequence] = None

    def limit(self, sequence: _Sequence, expires_ns: int) -> None:
        """Give a sequence up at ``expires_ns``, if it is still here then."""
        if sequence.expires_ns is not None and sequence.expires_ns <= expires_ns:
            return
        sequence.expires_ns = expires_ns
        self._count += 1
        heappush(self._expiries, (expires_ns, self._count, sequence))
        if len(self._expiries) > 2 * len(self._sequences) + _SPARE_EXPIRIES:
            self._expiries = [entry for entry in self._expiries if self._is_valid(entry)]
            heapify(self._expiries)

    def pop(self) -> _Sequence | None:
        """Take the first sequence out."""
        sequence = next(iter(self._sequences), None)
        if sequence is not None:
            del self._sequences[sequence]
        return sequence

    def remove(self, sequence: _Sequence) -> None:
        """Take a sequence out."""
        self._sequences.pop(sequence, None)

    def expire(self, now_ns: int) -> Iterable[_Sequence]:
        """The sequences whose time is over; they are out of the backlog."""
        while (due_ns := self.next_expiry_ns()) is not None and due_ns <= now_ns:
            sequence = heappop(self._expiries)[2]
            del self._sequences[sequence]
            yield sequence

    def next_expiry_ns(self) -> int | None:
        """When the next sequence is given up."""
        expiries = self._expiries
        while expiries and not self._is_valid(expiries[0]):
            heappop(expiries)
        return expiries[0][0] if expiries else None

    def request_count(self) -> int:
        """How many requests wait here."""
        return sum(len(sequence.queue) for sequence in self._sequences)

    def _is_valid(self, entry: tuple[int, int, _Sequence]) -> bool:
        return entry[2] in self._sequences and entry[2].expires_ns == entry[0]


class SequenceBatcher:
    """Pins sequences to slots of instances and forms batches of one request per sequence."""

    # Of one instance, a batch ends before the next begins; between instances nothing is promised.
    is_order_preserved = False
    expiry_text = "timeout of the corresponding sequence has been expired"

    def __init__(self, rules: SequenceRules) -> None:
        self._rules = rules
        # By the number of the instance.
        self._lanes: dict[int, _Lane] = {}
        # Those whose instances were taken away; no further sequence begins there.
        self._leaving: set[int] = set()
        # Lowest number first, so that sequences spread over the instances and batches stay dense.
        self._free: list[tuple[int, int]] = []
        for index in range(rules.instance_count):
            self._add_lane(index)
        # Sequences that further requests may join.
        self._open: dict[int | str, _Sequence] = {}
        self._backlog = _Backlog()
        # Since when each has had nothing to do; ascending.
        self._idle: dict[_Sequence, int] = {}
        # The sequence of each request that waits.
        self._waiting: dict[int, _Sequence] = {}
        # Of iterative sequences, that of each request that runs and may come again.
        self._running: dict[int, _Sequence] = {}
        self._abandoned: list[InferRequest] = []
        self._last_id = 0
        self._is_held = bool(rules.held_until_count or rules.held_until_backlog_count)

    def _add_lane(self, index: int) -> None:
        rules = self._rules
        oldest = rules.oldest
        lane: _Lane = (
            _DirectLane(index, rules) if oldest is None else _OldestLane(index, rules, oldest)
        )
        self._lanes[index] = lane
        for slot in lane.slots:
            heappush(self._free, (slot.number, index))

    def offer(self, request: InferRequest, now_ns: int) -> None:
        """Append to the request's sequence, which its START flag begins.

        Raises:
            InvalidArgumentError: the request is no single row of a sequence that was started.
        """
        sequence = self._find(request)
        request.queued_ns = now_ns
        self._idle.pop(sequence, None)
        sequence.queue.append(request)
        self._waiting[id(request)] = sequence
        if request.sequence_end:
            sequence.is_closed = True
            del self._open[sequence.correlation_id]
        if sequence.slot is not None:
            sequence.slot.lane.note(sequence.slot)
        elif request.timeout_us:
            self._backlog.limit(sequence, now_ns + request.timeout_us * 1000)

    def _find(self, request: InferRequest) -> _Sequence:
        """The sequence that a request belongs to, with a place in a slot or in the backlog."""
        if request.batch_size > 1:
            self._refuse("must specify batch-size 1 due to requirements of sequence batcher")
        key = request.correlation_id
        if not key:
            key = self._begin_own(request)
        sequence = self._open.get(key)
        if sequence is not None:
            if request.sequence_start:
                _log.warning(
                    "sequence %s for model '%s' has a conflict. The previous sequence did not end "
                    "before this sequence start. Previous sequence will be terminated early.",
                    key,
                    self._rules.model_name,
                )
            return sequence
        if not request.sequence_start:
            self._refuse_unknown(key)
        sequence = self._open[key] = _Sequence(key)
        if self._free:
            number, index = heappop(self._free)
            self._assign(self._lanes[index].slots[number], sequence, 0)
        else:
            self._backlog.add(sequence)
        return sequence

    def _begin_own(self, request: InferRequest) -> int:
        """Let a request without a sequence be the first of one."""
        if not self._rules.is_iterative:
            self._refuse("must specify a non-zero or non-empty correlation ID")
        self._last_id += 1
        while self._last_id in self._open:
            self._last_id += 1
        request.correlation_id = self._last_id
        request.sequence_start = True
        return self._last_id

    def _refuse(self, reason: str) -> NoReturn:
        raise InvalidArgumentError(
            f"inference request to model '{self._rules.model_name}' {reason}"
        )

    def _refuse_unknown(self, key: int | str) -> NoReturn:
        raise InvalidArgumentError(
            f"inference request for sequence {key} to model '{self._rules.model_name}' must "
            "specify the START flag on the first request of the sequence"
        )

    def take(self, now_ns: int) -> Batch | None:
        """The next batch of an instance that is free, for that instance."""
        if not self._waiting or self._holds_back():
            return None
        for lane in self._lanes.values():
            if not lane.is_busy and (picks := lane.pick(now_ns)) is not None:
                return self._take_from(lane, *picks, now_ns)
        return None

    def _holds_back(self) -> bool:
        if self._is_held:
            rules = self._rules
            backlog_count = self._backlog.request_count()
            self._is_held = (
                len(self._waiting) - backlog_count < rules.held_until_count
                or backlog_count < rules.held_until_backlog_count
            )
        return self._is_held

    def _take_from(
        self, lane: _Lane, picked: Sequence[_Slot | None], closed_by: BatchClose, now_ns: int
    ) -> Batch:
        requests: list[InferRequest] = []
        rows: list[SequenceRow] = []
        for slot in picked:
            if slot is None or slot.sequence is None:
                rows.append(SequenceRow(None, None))
                continue
            sequence = slot.sequence
            request = sequence.queue.popleft()
            del self._waiting[id(request)]
            if self._rules.is_iterative:
                self._running[id(request)] = sequence
            if request.sequence_start:
                slot.state = SequenceState()
            requests.append(request)
            rows.append(SequenceRow(request, slot.state))
            lane.running.append(slot)
            if sequence.is_closed and not sequence.queue:
                self._vacate(slot, now_ns)
            else:
                lane.note(slot)
        lane.is_busy = True
        return Batch(requests, closed_by, lane.index, rows)

    def finish(self, batch: Batch, now_ns: int) -> None:
        """Let the sequences of the batch go on."""
        lane = self._lanes[batch.instance_index]
        lane.is_busy = False
        if self._rules.is_iterative:
            for request in batch.requests:
                self._running.pop(id(request), None)
        for slot in lane.running:
            slot.free_ns = now_ns
            sequence = slot.sequence
            if sequence is None or sequence.queue:
                continue
            if self._rules.is_iterative:
                # The model is done with the request, or it would wait again by now.
                self._end(sequence, now_ns)
            else:
                self._idle[sequence] = now_ns
        lane.running.clear()

    def reschedule(self, request: InferRequest, now_ns: int) -> None:
        """Let a request that runs go on in its sequence; called before `finish` of its batch.

        Raises:
            InvalidArgumentError: sequences are not iterative, or this one has ended.
        """
        if not self._rules.is_iterative:
            refuse_reschedule()
        request.sequence_start = request.sequence_end = False
        sequence = self._running.get(id(request))
        if self._open.get(request.correlation_id) is not sequence:
            # Its own has ended; one that has begun since under the same id is somebody else's.
            self._refuse_unknown(request.correlation_id)
        self.offer(request, now_ns)

    def expire(self, now_ns: int) -> Sequence[InferRequest]:
        """End sequences that were idle for too long, and give up those in the backlog.

        Returns:
            The requests of sequences that found no slot in the time that one of them set.
        """
        while self._idle:
            sequence, since_ns = next(iter(self._idle.items()))
            if since_ns + self._rules.idle_ns > now_ns:
                break
            del self._idle[sequence]
            self._end(sequence, now_ns)
        rejected: list[InferRequest] = []
        for sequence in self._backlog.expire(now_ns):
            rejected.extend(sequence.queue)
            for request in sequence.queue:
                del self._waiting[id(request)]
            sequence.queue.clear()
            self._end(sequence, now_ns)
        return rejected

    def wake_ns(self) -> int | None:
        """When a batch that waits for company will have waited long enough."""
        if not self._waiting:
            return None
        times = [lane.wake_ns() for lane in self._lanes.values() if not lane.is_busy]
        return min((time for time in times if time is not None), default=None)

    def next_deadline_ns(self) -> int | None:
        """When the next sequence is given up, in its slot or in the backlog."""
        expiry_ns = self._backlog.next_expiry_ns()
        if not self._idle:
            return expiry_ns
        idle_ns = next(iter(self._idle.values())) + self._rules.idle_ns
        return idle_ns if expiry_ns is None else min(idle_ns, expiry_ns)

    def remove(self, request: InferRequest) -> bool:
        """Drop a request that still waits, and end its sequence: the next would miss its state.

        What came before it in the sequence still runs; what came after it is abandoned.
        """
        sequence = self._waiting.get(id(request))
        if sequence is None:
            return False
        queue = sequence.queue
        kept = queue.index(request)
        if kept == 0 and sequence.slot is not None:
            sequence.slot.lane.withdraw(sequence.slot)
        dropped = [queue.pop() for _ in range(len(queue) - kept)]
        for other in dropped:
            del self._waiting[id(other)]
        dropped.pop()
        self._abandoned.extend(reversed(dropped))
        self._end(sequence, request.queued_ns)
        return True

    def abandoned(self) -> Sequence[InferRequest]:
        """Requests of sequences that ended because one before them was removed."""
        abandoned, self._abandoned = self._abandoned, []
        return abandoned

    def set_instances(self, numbers: Collection[int], now_ns: int) -> None:
        """Give the sequences that wait the slots of new instances.

        Those that have a slot of an instance that was taken away stay there until they end.
        """
        for number in numbers:
            if number not in self._lanes:
                self._add_lane(number)
        self._leaving = {number for number in self._lanes if number not in numbers}
        self._free = [entry for entry in self._free if entry[1] not in self._leaving]
        heapify(self._free)
        while self._free and (sequence := self._backlog.pop()) is not None:
            number, index = heappop(self._free)
            slot = self._lanes[index].slots[number]
            self._assign(slot, sequence, now_ns)
            slot.lane.note(slot)

    def release(self, number: int) -> bool:
        """Forget the slots of an instance, unless a sequence still has one of them."""
        lane = self._lanes.get(number)
        if lane is None:
            return True
        if lane.running or any(slot.sequence is not None for slot in lane.slots):
            return False
        del self._lanes[number]
        self._leaving.discard(number)
        return True

    def stop(self, now_ns: int) -> None:
        """End the sequences, whose next requests will not come; what waits still runs.

        Those of the backlog need not wait until the others have been idle for long enough.
        """
        self._is_held = False
        if self._rules.is_iterative:
            return  # they end by themselves, and until then their requests come back
        for sequence in list(self._open.values()):
            self._idle.pop(sequence, None)
            self._end(sequence, now_ns)

    def _end(self, sequence: _Sequence, now_ns: int) -> None:
        """Let nothing more join; what is in the queue still runs."""
        sequence.is_closed = True
        if self._open.get(sequence.correlation_id) is sequence:
            del self._open[sequence.correlation_id]
        if sequence.queue:
            return
        if sequence.slot is not None:
            self._vacate(sequence.slot, now_ns)
        else:
            self._backlog.remove(sequence)

    def _vacate(self, slot: _Slot, now_ns: int) -> None:
        """Give the slot to the sequence that has waited longest for one."""
        if slot.sequence is not None:
            slot.sequence.slot = None
        # A last execution has it; in the slot it would stay until another sequence begins there.
        slot.state = SequenceState()
        if slot.lane.index in self._leaving:
            slot.sequence = None
            return
        following = self._backlog.pop()
        if following is not None:
            self._assign(slot, following, now_ns)
            slot.lane.note(slot)
        else:
            slot.sequence = None
            heappush(self._free, (slot.number, slot.lane.index))

    def _assign(self, slot: _Slot, sequence: _Sequence, now_ns: int) -> None:
        slot.sequence = sequence
        slot.free_ns = now_ns
        sequence.slot = slot

    def __len__(self) -> int:
        return len(self._waiting)
