"""The dynamic batcher that sets its own size and delay, to keep a latency.

Triton has nothing like it. Batches are formed as the dynamic batcher forms them without a delay:
of what is there when an instance is free. What is added is a cap on their rows and, under load, a
wait for company that is as long as it pays; `BatchController` chooses both from what is counted
here.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

from naiad.inference.request import InferRequest
from naiad.scheduling.batch_controller import BatchController, LoadWindow
from naiad.scheduling.dynamic import BatcherRules, DynamicBatcher
from naiad.scheduling.queue import NO_RULES, QueueRules
from naiad.scheduling.scheduler import EXPIRY_TEXT, Batch, BatchClose, refuse_reschedule

_WINDOW_NS: Final = 100_000_000
_LONG_WINDOW_NS: Final = 1_000_000_000
# Executions that a choice should rest on.
_WINDOW_BATCHES: Final = 8
_EXPLORING_BATCHES: Final = 4


class AdaptiveBatcher:
    """Forms batches such that 99 of 100 requests are answered within a target.

    Args:
        rules: of the batches; preferred sizes and delay are chosen here instead.
        target_ns: from the queue to the answer.
        queue_rules: of the requests that wait.

    Attributes:
        tuning: the choice in force.
    """

    expiry_text = EXPIRY_TEXT

    def __init__(
        self, rules: BatcherRules, target_ns: int, queue_rules: QueueRules = NO_RULES
    ) -> None:
        self.is_order_preserved = rules.is_order_preserved
        self._target_ns = target_ns
        self._instance_count = rules.instance_count
        self._batcher = DynamicBatcher(
            replace(rules, preferred_rows=(), max_delay_ns=0), queue_rules
        )
        self._controller = BatchController(target_ns, rules.max_rows, rules.instance_count)
        self.tuning = self._controller.tuning
        self._batcher.limit_rows(self.tuning.max_rows)
        self._window = LoadWindow()
        self._window_ns = 0
        self._finished_count = 0
        self._waiting_rows = 0
        self._running_rows = 0
        # By batch, when it was taken and its rows.
        self._running: dict[Batch, tuple[int, int]] = {}
        # The most rows that were here at once, in this window and in the one before.
        self._peak_rows = self._last_peak_rows = 0
        # Since when an instance is kept waiting for company, and for how many rows; 0 while none.
        self._held_ns = self._held_rows = 0

    def offer(self, request: InferRequest, now_ns: int) -> None:
        """Append to the queue; its wait counts from ``now_ns``."""
        self._batcher.offer(request, now_ns)
        rows = request.batch_size
        self._waiting_rows += rows
        self._window.arrived_rows += rows
        self._peak_rows = max(self._peak_rows, self._waiting_rows + self._running_rows)

    def take(self, now_ns: int) -> Batch | None:
        """All that is there up to the size in force, or None while it pays to wait."""
        if self.tuning.delay_ns and self._waiting_rows and now_ns < self._hold(now_ns):
            return None
        batch = self._batcher.take(now_ns)
        if batch is None:
            return None
        rows = 0
        for request in batch.requests:
            rows += request.batch_size
        if self._held_ns:
            self._count_wait(batch, rows, now_ns)
        self._waiting_rows -= rows
        self._running_rows += rows
        self._running[batch] = (now_ns, rows)
        return batch

    def _hold(self, now_ns: int) -> int:
        """Until when an instance waits for more than what is there."""
        present_rows = max(self._peak_rows, self._last_peak_rows)
        # What all instances together could get is shared out.
        wanted_rows = min(self.tuning.max_rows, -(-present_rows // self._instance_count))
        if self._waiting_rows >= wanted_rows:
            return now_ns
        if not self._held_ns:
            self._held_ns, self._held_rows = now_ns, self._waiting_rows
        return self._held_ns + self.tuning.delay_ns

    def _count_wait(self, batch: Batch, rows: int, now_ns: int) -> None:
        """Let the time of an instance that waited be weighed against what it got for it."""
        joined_rows = max(rows - self._held_rows, 0)
        self._controller.count_wait(now_ns - self._held_ns, joined_rows / rows)
        if batch.closed_by is BatchClose.QUEUE_EMPTY and now_ns > self._held_ns:
            batch.closed_by = BatchClose.DELAY_OVER
        self._held_ns = 0

    def finish(self, batch: Batch, now_ns: int) -> None:
        """Learn from how long it took, and choose anew from time to time."""
        taken_ns, rows = self._running.pop(batch)
        window = self._window
        window.present_rows += self._waiting_rows + self._running_rows
        self._running_rows -= rows
        took_ns = now_ns - taken_ns
        window.busy_ns += took_ns
        self._controller.times.add(rows, took_ns)
        window.request_count += len(batch.requests)
        oldest_ns = now_ns - self._target_ns
        for request in batch.requests:
            if request.queued_ns < oldest_ns:
                window.late_count += 1
        self._finished_count += 1
        if not self._window_ns:
            self._window_ns = taken_ns
        if self._finished_count >= _EXPLORING_BATCHES:
            self._revise_if_due(now_ns - self._window_ns, now_ns)

    def _revise_if_due(self, elapsed_ns: int, now_ns: int) -> None:
        controller = self._controller
        is_due = elapsed_ns >= _WINDOW_NS and self._finished_count >= _WINDOW_BATCHES
        if not (is_due or controller.is_exploring or elapsed_ns >= _LONG_WINDOW_NS):
            return
        self._window.most_rows = self._peak_rows
        self._window.execution_count = self._finished_count
        controller.revise(self._window, max(elapsed_ns, 1))
        self._batcher.limit_rows(self.tuning.max_rows)
        self._window = LoadWindow()
        self._window_ns = now_ns
        self._finished_count = 0
        self._last_peak_rows, self._peak_rows = self._peak_rows, self._running_rows

    def reschedule(self, request: InferRequest, now_ns: int) -> None:
        """Requests run once.

        Raises:
            InvalidArgumentError: always.
        """
        refuse_reschedule()

    def expire(self, now_ns: int) -> Sequence[InferRequest]:
        """The requests past their timeout, if their policy is to refuse them."""
        expired = self._batcher.expire(now_ns)
        for request in expired:
            self._leave(request)
        return expired

    def wake_ns(self) -> int | None:
        """When the wait for company is over."""
        if not self._held_ns:
            return None
        return self._held_ns + self.tuning.delay_ns

    def next_deadline_ns(self) -> int | None:
        """When the next timeout is due."""
        return self._batcher.next_deadline_ns()

    def remove(self, request: InferRequest) -> bool:
        """Drop a request that still waits."""
        if not self._batcher.remove(request):
            return False
        self._leave(request)
        return True

    def _leave(self, request: InferRequest) -> None:
        self._waiting_rows -= request.batch_size
        if not self._waiting_rows:
            self._held_ns = 0

    def abandoned(self) -> Sequence[InferRequest]:
        """Never any: requests do not depend on each other."""
        return ()

    def set_instances(self, numbers: Collection[int], now_ns: int) -> None:
        """Choose size and delay for these instances."""
        self._instance_count = len(numbers)
        self._controller.set_instance_count(len(numbers))
        self._batcher.set_instances(numbers, now_ns)

    def release(self, number: int) -> bool:
        """Every instance can run every batch."""
        return True

    def stop(self, now_ns: int) -> None:
        """No request will be offered any more."""
        self._batcher.stop(now_ns)

    def __len__(self) -> int:
        return len(self._batcher)
