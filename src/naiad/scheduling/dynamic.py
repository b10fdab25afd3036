"""The dynamic batcher: merges requests that arrive close together into one execution.

The rules are Triton's (model_configuration.md, "Dynamic Batcher") and so are the compositions, as
measured on it: rows are counted, not requests; a request is never split; the first request that
does not fit closes the batch. While every instance is busy, Triton already forms the next batches
as requests arrive, two for each instance and one more; only what comes after waits in the queue
proper, to be looked at all together when there is room. That decides which preferred size is met
first, and is followed here.
"""

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from naiad.inference.request import InferRequest
from naiad.scheduling.queue import NO_RULES, QueueRules, RequestQueue
from naiad.scheduling.scheduler import EXPIRY_TEXT, Batch, BatchClose, refuse_reschedule

_FORMED_PER_INSTANCE = 2


@dataclass(frozen=True, slots=True)
class BatcherRules:
    """How batches are formed.

    Attributes:
        max_rows: of an execution; at least 1.
        preferred_rows: sizes worth stopping at; empty means ``max_rows``.
        max_delay_ns: how long the oldest request may wait for company.
        instance_count: of the model.
        is_order_preserved: answers leave in the order in which requests came.
        held_until_count: requests that must wait before the first batch is formed, for tests of
            clients (Triton's TRITONSERVER_DELAY_SCHEDULER); 0 for none.
    """

    max_rows: int
    preferred_rows: tuple[int, ...] = ()
    max_delay_ns: int = 0
    instance_count: int = 1
    is_order_preserved: bool = False
    held_until_count: int = 0


class _Forming:
    """A batch that grows from the front of a queue.

    Attributes:
        count: requests in it.
        rows: of all of them.
        preferred_count: requests that made the last preferred size met on the way, or 0.
        crossing_count: those before the first that led beyond the largest preferred size where
            none had been met, or 0.
        key: of the first request; the others must have the same.
    """

    __slots__ = ("count", "crossing_count", "key", "preferred_count", "rows")

    def __init__(self) -> None:
        self.count = self.rows = self.preferred_count = self.crossing_count = 0
        self.key: object = None

    def add(self, request: InferRequest, preferred: frozenset[int]) -> None:
        """Take one more request, which fits."""
        if not self.count:
            self.key = request.batch_key
        self.rows += request.batch_size
        self.count += 1
        if self.rows in preferred:
            self.preferred_count = self.count

    def clear(self) -> None:
        """Begin anew."""
        self.count = self.rows = self.preferred_count = self.crossing_count = 0
        self.key = None


class DynamicBatcher:
    """Forms batches of at most ``max_rows`` rows.

    Without a delay an idle instance takes what is there at once: as many requests as make the
    largest preferred size, else all that fit. With a delay, a batch short of the largest preferred
    size waits until its oldest request has waited that long.
    """

    expiry_text = EXPIRY_TEXT

    def __init__(self, rules: BatcherRules, queue_rules: QueueRules = NO_RULES) -> None:
        self.is_order_preserved = rules.is_order_preserved
        self._max_rows = rules.max_rows
        self._preferred = frozenset(rules.preferred_rows) or frozenset((rules.max_rows,))
        self._largest_preferred = max(self._preferred)
        # Then it makes no difference when batches are formed.
        self._is_plain = self._largest_preferred == self._max_rows and len(self._preferred) == 1
        self._delay_ns = rules.max_delay_ns
        self._held_until_count = rules.held_until_count
        # A request that overtakes must not find its place taken by a batch formed before it came.
        self._is_prioritized = queue_rules.is_prioritized
        self._instance_count = rules.instance_count
        self._formed_limit = self._count_formed()
        self._queue = RequestQueue(queue_rules)
        # Batches at the front of the queue that take no more, then one that may still grow.
        self._formed: deque[tuple[int, BatchClose]] = deque()
        self._open = _Forming()
        # Since when an instance is free, as far as `take` and `finish` tell.
        self._running_count = 0
        self._free_since_ns = 0

    def limit_rows(self, max_rows: int) -> None:
        """Let later batches have at most so many rows; for batchers without preferred sizes.

        A request that has more runs alone.
        """
        self._max_rows = self._largest_preferred = max_rows
        self._preferred = frozenset((max_rows,))

    def offer(self, request: InferRequest, now_ns: int) -> None:
        """Append to the queue; its wait counts from ``now_ns``."""
        queue = self._queue
        queue.push(request, now_ns)
        if queue.has_delayed:
            # It goes before those past their timeout, which may be in a batch already.
            self._forget_formed()

    def take(self, now_ns: int) -> Batch | None:
        """The next batch, or None while nothing is there or it pays to wait."""
        batch = self._form(now_ns)
        if batch is not None:
            self._running_count += 1
        return batch

    def _form(self, now_ns: int) -> Batch | None:
        queue = self._queue
        if not len(queue):
            return None
        if self._held_until_count:
            if len(queue) < self._held_until_count:
                return None
            # What gathered meanwhile is looked at all together.
            self._held_until_count = 0
            self._fill(queue.tail(0))
            return self._take_open(now_ns)
        if len(queue) == 1 and not self._delay_ns:
            self._forget_formed()
            return Batch(queue.pop(1), BatchClose.QUEUE_EMPTY)
        if self._formed_limit and not self._is_plain:
            self._follow_arrivals(
                is_patient=bool(self._delay_ns) and now_ns - queue.oldest_ns() < self._delay_ns
            )
            if self._formed:
                count, closed_by = self._formed.popleft()
                batch = Batch(queue.pop(count), closed_by)
                self._look_at_backlog()
                return batch
        if not self._open.count:
            self._fill(queue.tail(0))
        return self._take_open(now_ns)

    def _forget_formed(self) -> None:
        """Batches that were formed may have lost a member; they are formed anew."""
        self._formed.clear()
        self._open.clear()

    def _unassigned(self) -> Iterator[InferRequest]:
        """The requests that are in no batch yet."""
        return self._queue.tail(sum(count for count, _ in self._formed) + self._open.count)

    def _follow_arrivals(self, *, is_patient: bool) -> None:
        """Form batches as Triton did when the requests came, one by one.

        Args:
            is_patient: the oldest of them may still wait for company.
        """
        forming = self._open
        for request in self._unassigned():
            if len(self._formed) >= self._formed_limit:
                return
            if not self._fits(request):
                is_full = request.batch_key == forming.key
                self._close(BatchClose.FULL if is_full else BatchClose.SHAPE_DIFFERS)
                if len(self._formed) >= self._formed_limit:
                    return
            elif is_patient and self._leads_beyond(request):
                self._close(BatchClose.PREFERRED_SIZE)
            forming.add(request, self._preferred)
            is_preferred = forming.preferred_count == forming.count
            if forming.rows >= self._max_rows:
                self._close(BatchClose.FULL)
            elif (is_preferred and not self._delay_ns) or forming.rows > self._largest_preferred:
                self._close(BatchClose.PREFERRED_SIZE)

    def _look_at_backlog(self) -> None:
        """Form batches of what came while as many as may be formed were."""
        forming = self._open
        while len(self._formed) < self._formed_limit and not forming.count:
            is_last = self._fill(self._unassigned())
            if not forming.count:
                return
            if forming.preferred_count and not self._delay_ns:
                self._formed.append((forming.preferred_count, BatchClose.PREFERRED_SIZE))
                forming.clear()
            elif not is_last:
                self._close(self._why_closed(is_last=False, is_over=False))
            elif forming.rows >= self._largest_preferred:
                # More may come before it runs, and find it closed.
                is_full = forming.rows >= self._max_rows
                self._close(BatchClose.FULL if is_full else BatchClose.PREFERRED_SIZE)
            else:
                return

    def _leads_beyond(self, request: InferRequest) -> bool:
        """Whether a batch that waits on a free instance runs without a request that just came.

        With it no preferred size could be met any more.
        """
        forming = self._open
        return (
            forming.count > 0
            and not forming.preferred_count
            and forming.rows + request.batch_size > self._largest_preferred
            and request.queued_ns >= self._free_since_ns
        )

    def _fits(self, request: InferRequest) -> bool:
        forming = self._open
        return not forming.count or (
            forming.rows + request.batch_size <= self._max_rows and request.batch_key == forming.key
        )

    def _fill(self, requests: Iterator[InferRequest]) -> bool:
        """Let the open batch, which is empty, take all that fit; whether there were no others."""
        forming = self._open
        count = rows = preferred_count = crossing_count = 0
        key: object = None
        is_last = True
        for request in requests:
            total = rows + request.batch_size
            if count == 0:
                key = request.batch_key
            elif total > self._max_rows or request.batch_key != key:
                is_last = False
                break
            if count and total > self._largest_preferred and not preferred_count:
                crossing_count = crossing_count or count
            rows = total
            count += 1
            if rows in self._preferred:
                preferred_count = count
        forming.count, forming.rows, forming.key = count, rows, key
        forming.preferred_count, forming.crossing_count = preferred_count, crossing_count
        return is_last

    def _close(self, closed_by: BatchClose) -> None:
        self._formed.append((self._open.count, closed_by))
        self._open.clear()

    def _take_open(self, now_ns: int) -> Batch | None:
        forming = self._open
        is_last = forming.count == len(self._queue)
        waited_ns = now_ns - self._queue.oldest_ns()
        is_over = bool(self._delay_ns) and waited_ns >= self._delay_ns
        if forming.preferred_count and not is_over:
            count, closed_by = forming.preferred_count, BatchClose.PREFERRED_SIZE
            if forming.rows >= self._max_rows and count == forming.count:
                closed_by = BatchClose.FULL
        elif forming.crossing_count and self._delay_ns and not is_over:
            count, closed_by = forming.crossing_count, BatchClose.PREFERRED_SIZE
        elif self._delay_ns and not is_over and is_last and forming.rows < self._largest_preferred:
            forming.clear()
            return None
        else:
            count = forming.count
            closed_by = self._why_closed(is_last=is_last, is_over=is_over)
        forming.clear()
        return Batch(self._queue.pop(count), closed_by)

    def _why_closed(self, *, is_last: bool, is_over: bool) -> BatchClose:
        if self._open.rows >= self._max_rows:
            return BatchClose.FULL
        if is_last and self._delay_ns:
            return BatchClose.DELAY_OVER if is_over else BatchClose.PREFERRED_SIZE
        if is_last:
            return BatchClose.QUEUE_EMPTY
        following = next(self._unassigned())
        is_same = following.batch_key == self._open.key
        return BatchClose.FULL if is_same else BatchClose.SHAPE_DIFFERS

    def finish(self, batch: Batch, now_ns: int) -> None:
        """An instance is free again; who comes from now on finds it so."""
        if self._running_count >= self._instance_count:
            self._free_since_ns = now_ns
        self._running_count -= 1

    def reschedule(self, request: InferRequest, now_ns: int) -> None:
        """Requests run once.

        Raises:
            InvalidArgumentError: always.
        """
        refuse_reschedule()

    def expire(self, now_ns: int) -> Sequence[InferRequest]:
        """The requests past their timeout, if their policy is to refuse them."""
        deadline_ns = self._queue.next_deadline_ns()
        if deadline_ns is None or now_ns < deadline_ns:
            return ()
        self._forget_formed()
        return self._queue.expire(now_ns)

    def wake_ns(self) -> int | None:
        """When the oldest request will have waited long enough."""
        if not len(self._queue) or not self._delay_ns:
            return None
        return self._queue.oldest_ns() + self._delay_ns

    def next_deadline_ns(self) -> int | None:
        """When the next timeout is due."""
        return self._queue.next_deadline_ns()

    def remove(self, request: InferRequest) -> bool:
        """Drop a request that still waits."""
        if not self._queue.remove(request):
            return False
        self._forget_formed()
        return True

    def abandoned(self) -> Sequence[InferRequest]:
        """Never any: requests do not depend on each other."""
        return ()

    def set_instances(self, numbers: Collection[int], now_ns: int) -> None:
        """Form as many batches ahead as these instances want."""
        self._instance_count = len(numbers)
        self._formed_limit = self._count_formed()

    def _count_formed(self) -> int:
        """How many batches are formed ahead."""
        return 0 if self._is_prioritized else _FORMED_PER_INSTANCE * self._instance_count + 1

    def release(self, number: int) -> bool:
        """Every instance can run every batch."""
        return True

    def stop(self, now_ns: int) -> None:
        """Hold nothing back any more."""
        self._held_until_count = 0

    def __len__(self) -> int:
        return len(self._queue)
