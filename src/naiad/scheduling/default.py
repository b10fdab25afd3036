"""The default scheduler: one request per execution, first come, first served."""

from collections.abc import Collection, Sequence

from naiad.inference.request import InferRequest
from naiad.scheduling.queue import NO_RULES, RequestQueue
from naiad.scheduling.scheduler import EXPIRY_TEXT, Batch, BatchClose, refuse_reschedule


class DefaultScheduler:
    """For models without ``dynamic_batching``; Triton never merges their requests either."""

    is_order_preserved = False
    expiry_text = EXPIRY_TEXT

    def __init__(self) -> None:
        self._queue = RequestQueue(NO_RULES)

    def offer(self, request: InferRequest, now_ns: int) -> None:
        """Append to the queue."""
        self._queue.push(request, now_ns)

    def take(self, now_ns: int) -> Batch | None:
        """The oldest request, alone."""
        if not len(self._queue):
            return None
        return Batch(self._queue.pop(1), BatchClose.FULL)

    def finish(self, batch: Batch, now_ns: int) -> None:
        """What ran does not matter to what runs next."""

    def reschedule(self, request: InferRequest, now_ns: int) -> None:
        """Requests run once.

        Raises:
            InvalidArgumentError: always.
        """
        refuse_reschedule()

    def expire(self, now_ns: int) -> Sequence[InferRequest]:
        """Never any: there is no queue policy without a dynamic batcher."""
        return ()

    def wake_ns(self) -> int | None:
        """Never: a request that waits can run as soon as an instance is free."""
        return None

    def next_deadline_ns(self) -> int | None:
        """Never."""
        return None

    def remove(self, request: InferRequest) -> bool:
        """Drop a request that still waits."""
        return self._queue.remove(request)

    def abandoned(self) -> Sequence[InferRequest]:
        """Never any: requests do not depend on each other."""
        return ()

    def set_instances(self, numbers: Collection[int], now_ns: int) -> None:
        """How many there are does not matter to what runs next."""

    def release(self, number: int) -> bool:
        """Every instance can run every batch."""
        return True

    def stop(self, now_ns: int) -> None:
        """No request waits for another."""

    def __len__(self) -> int:
        return len(self._queue)
