"""What the engine asks of every scheduler."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from naiad.inference.request import InferRequest


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
    """

    __slots__ = ("closed_by", "requests")

    def __init__(self, requests: list[InferRequest], closed_by: BatchClose) -> None:
        self.requests = requests
        self.closed_by = closed_by


class Scheduler(Protocol):
    """Holds the requests of one model version that wait, and says which run next.

    A pure state machine: it neither waits nor runs anything, and ``now_ns`` never goes back.
    """

    @property
    def is_order_preserved(self) -> bool:
        """Whether answers must leave in the order in which batches were taken."""
        ...

    def offer(self, request: InferRequest, now_ns: int) -> None:
        """Take a validated request into the queue.

        Raises:
            UnavailableError: the queue is full.
        """
        ...

    def take(self, now_ns: int) -> Batch | None:
        """The batch that should run now, or None when nothing should.

        Called only while an instance is free. The requests leave the queue.
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

    def __len__(self) -> int:
        """How many requests wait."""
        ...
