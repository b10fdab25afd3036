"""The default scheduler: one request per execution, first come, first served."""

from collections import deque

from naiad.inference.request import InferRequest


class DefaultScheduler:
    """For models without ``dynamic_batching``; Triton never merges their requests either."""

    def __init__(self) -> None:
        self._queue: deque[InferRequest] = deque()

    def offer(self, request: InferRequest, now_ns: int) -> None:
        """Append to the queue."""
        request.queued_ns = now_ns
        self._queue.append(request)

    def take(self, now_ns: int) -> list[InferRequest] | None:
        """The oldest request, alone."""
        if not self._queue:
            return None
        return [self._queue.popleft()]

    def wake_ns(self) -> int | None:
        """Never: a request that waits can run as soon as an instance is free."""
        return None

    def remove(self, request: InferRequest) -> bool:
        """Drop a request that still waits."""
        try:
            self._queue.remove(request)
        except ValueError:
            return False
        return True

    def __len__(self) -> int:
        return len(self._queue)
