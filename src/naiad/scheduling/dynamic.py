"""The dynamic batcher: merges requests that arrive close together into one execution.

The rules are Triton's (model_configuration.md, "Dynamic Batcher"; its measured compositions):
rows are counted, not requests; a request is never split; the queue is first in, first out, and
the first request that does not fit closes the batch.
"""

from collections import deque
from collections.abc import Sequence

from naiad.inference.request import InferRequest


class DynamicBatcher:
    """Forms batches of at most ``max_batch_size`` rows.

    Without a delay an idle instance takes what is there at once: the largest prefix of the queue
    that reaches a preferred size, else all that fits. With a delay, a batch short of the largest
    preferred size waits until its oldest request has waited that long.

    Args:
        max_batch_size: rows per execution, at least 1.
        preferred_batch_sizes: sizes worth stopping at; empty means ``max_batch_size``.
        max_queue_delay_ns: how long the oldest request may wait for company.
    """

    def __init__(
        self, max_batch_size: int, preferred_batch_sizes: Sequence[int], max_queue_delay_ns: int
    ) -> None:
        self._max_rows = max_batch_size
        self._preferred = frozenset(preferred_batch_sizes) or frozenset((max_batch_size,))
        self._largest_preferred = max(self._preferred)
        self._delay_ns = max_queue_delay_ns
        self._queue: deque[InferRequest] = deque()

    def offer(self, request: InferRequest, now_ns: int) -> None:
        """Append to the queue; its wait counts from ``now_ns``."""
        request.queued_ns = now_ns
        self._queue.append(request)

    def take(self, now_ns: int) -> list[InferRequest] | None:
        """The next batch, or None while nothing is there or it pays to wait."""
        queue = self._queue
        if not queue:
            return None
        if len(queue) == 1 and not self._delay_ns:
            return [queue.popleft()]
        count, rows, preferred_count, is_closed = self._measure()
        waited_ns = now_ns - queue[0].queued_ns
        if preferred_count and waited_ns < self._delay_ns:
            count = preferred_count
        elif not self._delay_ns:
            count = preferred_count or count
        elif not is_closed and rows < self._largest_preferred and waited_ns < self._delay_ns:
            return None
        return [queue.popleft() for _ in range(count)]

    def _measure(self) -> tuple[int, int, int, bool]:
        """How far the next batch can reach.

        Returns:
            The number of requests that fit and their rows; the number that makes the last
            preferred size met on the way, or 0; whether a waiting request can't join.
        """
        rows = count = preferred_count = 0
        key = self._queue[0].batch_key
        for request in self._queue:
            total = rows + request.batch_size
            if count and (total > self._max_rows or request.batch_key != key):
                return count, rows, preferred_count, True
            rows = total
            count += 1
            if rows in self._preferred:
                preferred_count = count
        return count, rows, preferred_count, rows >= self._max_rows

    def wake_ns(self) -> int | None:
        """When the oldest request will have waited long enough."""
        if not self._queue or not self._delay_ns:
            return None
        return self._queue[0].queued_ns + self._delay_ns

    def remove(self, request: InferRequest) -> bool:
        """Drop a request that still waits."""
        try:
            self._queue.remove(request)
        except ValueError:
            return False
        return True

    def __len__(self) -> int:
        return len(self._queue)
