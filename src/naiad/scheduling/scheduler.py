"""What the engine asks of every scheduler."""

from collections.abc import Collection, Sequence
from enum import StrEnum
from typing import Final, NoReturn, Protocol

from naiad.errors import InvalidArgumentError
from naiad.inference.request import InferRequest
from naiad.inference.sequence import SequenceRow

EXPIRY_TEXT: Final = "Request timeout expired"
ANY_INSTANCE: Final = -1


def refuse_reschedule() -> NoReturn:
    """Say that requests run once.

    Raises:
        InvalidArgumentError: always.
    """
    raise InvalidArgumentError(
        "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not "
        "configured to handle such a flag. Set sequence_batching { iterative_sequence: true }"
    )


class BatchClose(StrEnum):
    """Why a batch took no more requests; the label of the counter of closed batches."""

    FULL = "full"
    PREFERRED_SIZE = "preferred_size"
    DELAY_OVER = "delay_over"
    SHAPE_DIFFERS = "shape_differs"
    QUEUE_EMPTY = "queue_empty"


class Batch:
    """Requests that run together, in order.

    Attributes:
        requests: at least one.
        closed_by: why there are no more.
        instance_index: the instance that must run it, or `ANY_INSTANCE`.
        rows: of a sequence batcher, the rows of the execution; None where they are just those of
            the requests.
    """

    __slots__ = ("closed_by", "instance_index", "requests", "rows")

    def __init__(
        self,
        requests: list[InferRequest],
        closed_by: BatchClose,
        instance_index: int = ANY_INSTANCE,
        rows: list[SequenceRow] | None = None,
    ) -> None:
        self.requests = requests
        self.closed_by = closed_by
        self.instance_index = instance_index
        self.rows = rows


class Scheduler(Protocol):
    """Holds the requests of one model version that wait, and says which run next.

    A pure state machine: it neither waits nor runs anything, and ``now_ns`` never goes back.
    """

    @property
    def is_order_preserved(self) -> bool:
        """Whether answers must leave in the order in which batches were taken."""
        ...

    @property
    def expiry_text(self) -> str:
        """What a request that `expire` gives back is answered."""
        ...

    def offer(self, request: InferRequest, now_ns: int) -> None:
        """Take a validated request into the queue.

        Raises:
            UnavailableError: the queue is full.
            InvalidArgumentError: this scheduler can't run such a request.
        """
        ...

    def take(self, now_ns: int) -> Batch | None:
        """The batch that should run now, or None when nothing should.

        Called only while an instance is free. The requests leave the queue.
        """
        ...

    def finish(self, batch: Batch, now_ns: int) -> None:
        """A batch that was taken has run, whether well or not, and its instance is free again."""
        ...

    def reschedule(self, request: InferRequest, now_ns: int) -> None:
        """Take a request back that is to run again; called before `finish` of its batch.

        Raises:
            InvalidArgumentError: this scheduler runs every request once.
        """
        ...

    def expire(self, now_ns: int) -> Sequence[InferRequest]:
        """The requests that have waited too long and are to be refused; they leave the queue."""
        ...

    def wake_ns(self) -> int | None:
        """When ``take`` could first give a batch although nothing new arrives, or None."""
        ...

    def next_deadline_ns(self) -> int | None:
        """When ``expire`` will first find something, or None."""
        ...

    def remove(self, request: InferRequest) -> bool:
        """Drop a request that still waits; False when it is not here (any more)."""
        ...

    def abandoned(self) -> Sequence[InferRequest]:
        """Requests that can't run because one before them was removed; they leave the queue."""
        ...

    def set_instances(self, numbers: Collection[int], now_ns: int) -> None:
        """Instances came or were taken away; at first they are numbered from 0.

        Args:
            numbers: of those that are there from now on, at least one. A new number stands for a
                new instance, and one that was taken away never comes back.
            now_ns: the time.
        """
        ...

    def release(self, number: int) -> bool:
        """Let go of an instance that was taken away.

        Returns:
            False while the instance still has to run what no other can; ask again later.
        """
        ...

    def stop(self, now_ns: int) -> None:
        """No request will be offered any more: none of those that wait shall wait for one."""
        ...

    def __len__(self) -> int:
        """How many requests wait."""
        ...
