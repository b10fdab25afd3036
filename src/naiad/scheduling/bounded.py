"""A scheduler whose requests wait within a bound on memory that all models share."""

from collections.abc import Sequence

from naiad.errors import UnavailableError
from naiad.inference.datatypes import BYTES
from naiad.inference.request import InferRequest
from naiad.inference.tensor import SharedTensor, Tensor
from naiad.scheduling.scheduler import Batch, Scheduler

# Texts from all over a tensor, whose lengths stand for those of all others: to count a million
# would hold the event loop up.
_COUNTED_TEXTS = 1024
# What Python adds to each, as sys.getsizeof says, with what its allocator rounds up to.
_TEXT_BYTES = 40


class QueueBudget:
    """Bytes of inputs that wait, over all models; belongs to the event loop.

    Attributes:
        limit_bytes: that may wait.
        waiting_bytes: that do.
    """

    __slots__ = ("limit_bytes", "waiting_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.waiting_bytes = 0


class BoundedScheduler:
    """Lets requests into another scheduler while what waits fits.

    A request before which none waits is let in and not counted: it is about to run, so a queue that
    is as good as empty costs nothing and no request is too large for it.

    Args:
        scheduler: which forms the batches.
        budget: shared by all models.
    """

    def __init__(self, scheduler: Scheduler, budget: QueueBudget) -> None:
        self._scheduler = scheduler
        self._budget = budget
        self.is_order_preserved = scheduler.is_order_preserved
        self.expiry_text = scheduler.expiry_text
        # Nothing is added to these, and to pass them on costs a call of every request.
        self.finish = scheduler.finish
        self.reschedule = scheduler.reschedule
        self.wake_ns = scheduler.wake_ns
        self.next_deadline_ns = scheduler.next_deadline_ns
        self.set_instances = scheduler.set_instances
        self.release = scheduler.release
        self.stop = scheduler.stop

    def offer(self, request: InferRequest, now_ns: int) -> None:
        """Take a validated request into the queue.

        Raises:
            UnavailableError: what waits in the server is as much as may, or the queue is full.
            InvalidArgumentError: the scheduler can't run such a request.
        """
        if not len(self._scheduler):
            self._scheduler.offer(request, now_ns)
            return
        size = 0
        for tensor in request.inputs.values():
            is_plain = type(tensor) is Tensor and tensor.datatype is not BYTES
            size += tensor.data.nbytes if is_plain else _count_bytes(tensor)
        budget = self._budget
        if size and budget.waiting_bytes + size > budget.limit_bytes:
            raise UnavailableError(
                f"[request id: {request.request_id or '<id_unknown>'}] Exceeds maximum queue size: "
                f"requests of {budget.waiting_bytes} bytes wait in the server, and "
                f"--max-queue-bytes lets {budget.limit_bytes} wait; send this one again later"
            )
        self._scheduler.offer(request, now_ns)
        request.waiting_bytes = size
        budget.waiting_bytes += size

    def _release(self, requests: Sequence[InferRequest]) -> None:
        budget = self._budget
        for request in requests:
            if request.waiting_bytes:
                budget.waiting_bytes -= request.waiting_bytes
                request.waiting_bytes = 0

    def take(self, now_ns: int) -> Batch | None:
        """The batch that should run now; it doesn't wait any more."""
        batch = self._scheduler.take(now_ns)
        if batch is not None and self._budget.waiting_bytes:
            self._release(batch.requests)
        return batch

    def expire(self, now_ns: int) -> Sequence[InferRequest]:
        """The requests that have waited too long."""
        expired = self._scheduler.expire(now_ns)
        if expired:
            self._release(expired)
        return expired

    def remove(self, request: InferRequest) -> bool:
        """Drop a request that still waits."""
        if not self._scheduler.remove(request):
            return False
        self._release((request,))
        return True

    def abandoned(self) -> Sequence[InferRequest]:
        """Requests that can't run because one before them was removed."""
        abandoned = self._scheduler.abandoned()
        self._release(abandoned)
        return abandoned

    def __len__(self) -> int:
        return len(self._scheduler)


def _count_bytes(tensor: Tensor) -> int:
    """Memory of the server that an input of texts takes, an estimate; none is in shared memory."""
    data = tensor.data
    if type(tensor) is SharedTensor or not data.size:
        return 0
    counted = data.reshape(-1)[:: -(-data.size // _COUNTED_TEXTS)].tolist()
    length = sum(map(len, counted)) * data.size // len(counted)
    return data.nbytes + _TEXT_BYTES * data.size + length
