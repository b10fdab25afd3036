"""What the engine asks of every scheduler."""

from typing import Protocol

from naiad.inference.request import InferRequest


class Scheduler(Protocol):
    """Holds the requests of one model version that wait, and says which run next.

    A pure state machine: it neither waits nor runs anything, and ``now_ns`` never goes back.
    """

    def offer(self, request: InferRequest, now_ns: int) -> None:
        """Take a validated request into the queue.

        Raises:
            UnavailableError: the queue is full.
        """
        ...

    def take(self, now_ns: int) -> list[InferRequest] | None:
        """The batch that should run now, in order, or None when nothing should.

        Called only while an instance is free. The requests leave the queue.
        """
        ...

    def wake_ns(self) -> int | None:
        """When ``take`` could first give a batch although nothing new arrives, or None."""
        ...

    def remove(self, request: InferRequest) -> bool:
        """Drop a request that still waits; False when it is not here (any more)."""
        ...

    def __len__(self) -> int:
        """How many requests wait."""
        ...
