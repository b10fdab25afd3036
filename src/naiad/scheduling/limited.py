"""A scheduler whose batches wait for their turn among all models."""

from collections.abc import Callable, Collection, Mapping, Sequence

from naiad.inference.request import InferRequest
from naiad.scheduling.rate_limiter import InstanceClaim, RateLimiter, Ticket
from naiad.scheduling.scheduler import ANY_INSTANCE, Batch, Scheduler


class LimitedScheduler:
    """Takes a batch from another scheduler when the rate limiter lets an instance run it.

    Args:
        scheduler: which forms the batches.
        limiter: shared by all models.
        claims: one for each instance of this model, in their order.
    """

    def __init__(
        self, scheduler: Scheduler, limiter: RateLimiter, claims: Sequence[InstanceClaim]
    ) -> None:
        self._scheduler = scheduler
        self._limiter = limiter
        self._claims = claims
        # Where instances are alike, whose ticket it is doesn't matter, nor who runs the batch.
        self._is_uniform = len(set(claims)) == 1
        self._on_turn: Callable[[], None] = _ignore
        # By the number of the instance, as is what follows.
        self._tickets: dict[int, Ticket] = {}
        # Of instances that are gone, whose last batch still runs.
        self._leaving: set[Ticket] = set()
        # Of instances that are about to come.
        self._reserved: dict[int, Ticket] = {}
        # What the scheduler wants to be run by just that one.
        self._held: dict[int, Batch] = {}
        self._running: dict[Batch, Ticket] = {}
        # What began while the instances were alike and still runs now that they are not: its
        # tickets may be those of instances that are free. Until it has ended, nothing else begins.
        self._unpinned: set[Batch] = set()

    @property
    def is_order_preserved(self) -> bool:
        """That of the scheduler behind."""
        return self._scheduler.is_order_preserved

    @property
    def expiry_text(self) -> str:
        """That of the scheduler behind."""
        return self._scheduler.expiry_text

    def begin(self, on_turn: Callable[[], None]) -> None:
        """Take part; `take` gives nothing before.

        Args:
            on_turn: called when `take` may give a batch that it could not give before.

        Raises:
            InvalidArgumentError: an instance could never run.
        """
        self._on_turn = on_turn
        tickets = [Ticket(claim, on_turn) for claim in self._claims]
        self._limiter.add(tickets)
        self._tickets = dict(enumerate(tickets))

    def reserve(self, claims: Mapping[int, InstanceClaim], leaving: Collection[int]) -> None:
        """Make sure that further instances can run; `set_instances` lets them take part.

        Args:
            claims: by the number of the instance.
            leaving: instances that will be taken away when these come.

        Raises:
            InvalidArgumentError: one of them could never run; none is reserved.
        """
        reserved = {number: Ticket(claim, self._on_turn) for number, claim in claims.items()}
        self._limiter.add(list(reserved.values()), [self._tickets[number] for number in leaving])
        self._reserved.update(reserved)

    def set_instances(self, numbers: Collection[int], now_ns: int) -> None:
        """Let those that were reserved take part, and forget what was reserved for others."""
        self._scheduler.set_instances(numbers, now_ns)
        for number, ticket in self._reserved.items():
            if number in numbers:
                self._tickets[number] = ticket
            else:
                self._limiter.remove([ticket])
        self._reserved.clear()
        was_uniform = self._is_uniform
        self._look_at_claims()
        if was_uniform and not self._is_uniform:
            self._unpinned.update(self._running)

    def release(self, number: int) -> bool:
        """Let the instance take part no more, after the batch that has its turn."""
        if number in self._held or not self._scheduler.release(number):
            return False
        ticket = self._tickets.pop(number, None)
        if ticket is not None:
            self._look_at_claims()
            if ticket in self._running.values():
                self._leaving.add(ticket)
            else:
                self._limiter.remove([ticket])
        return True

    def _look_at_claims(self) -> None:
        self._is_uniform = len({ticket.claim for ticket in self._tickets.values()}) == 1

    def end(self) -> None:
        """Take part no more."""
        self._limiter.remove([*self._tickets.values(), *self._reserved.values(), *self._leaving])
        self._tickets = {}
        self._reserved = {}
        self._leaving = set()

    def offer(self, request: InferRequest, now_ns: int) -> None:
        """Take a validated request into the queue."""
        self._scheduler.offer(request, now_ns)

    def take(self, now_ns: int) -> Batch | None:
        """The batch that should run now and has its turn."""
        if self._unpinned:
            return None
        for index in list(self._held):
            if self._limiter.ask(self._tickets[index]):
                return self._start(self._held.pop(index), self._tickets[index])
        busy = set(self._running.values())
        free = [
            index
            for index, ticket in self._tickets.items()
            if ticket not in busy and index not in self._held
        ]
        # A turn that is there is used before another is asked for.
        for index in sorted(free, key=lambda index: not self._tickets[index].has_turn):
            ticket = self._tickets[index]
            if not len(self._scheduler):
                self._decline(ticket)
            elif self._limiter.ask(ticket):
                batch = self._scheduler.take(now_ns)
                if batch is None:
                    self._decline(ticket)
                    return None
                batch = self._place(batch, index)
                if batch is not None:
                    return batch
            elif self._is_uniform:
                # The others need as much, and would only stand in line for what one can do.
                return None
        return None

    def _decline(self, ticket: Ticket) -> None:
        """Give a turn back that there is nothing to do with."""
        if ticket.has_turn:
            self._limiter.release(ticket, has_run=False)

    def _place(self, batch: Batch, index: int) -> Batch | None:
        """A batch and the instance whose turn it is; None where it has to wait for another's."""
        if self._is_uniform or batch.instance_index in (ANY_INSTANCE, index):
            if not self._is_uniform:
                batch.instance_index = index
            return self._start(batch, self._tickets[index])
        self._limiter.release(self._tickets[index], has_run=False)
        wanted = batch.instance_index
        if self._limiter.ask(self._tickets[wanted]):
            return self._start(batch, self._tickets[wanted])
        self._held[wanted] = batch
        return None

    def _start(self, batch: Batch, ticket: Ticket) -> Batch:
        self._running[batch] = ticket
        return batch

    def finish(self, batch: Batch, now_ns: int) -> None:
        """A batch that was taken has run; whoever waits for what it held has its turn."""
        self._scheduler.finish(batch, now_ns)
        ticket = self._running.pop(batch)
        self._unpinned.discard(batch)
        if ticket in self._leaving:
            self._leaving.remove(ticket)
            self._limiter.remove([ticket])
            return
        is_wanted = len(self._scheduler) > 0
        self._limiter.release(ticket, has_run=True, is_wanted=is_wanted)

    def reschedule(self, request: InferRequest, now_ns: int) -> None:
        """Take a request back that is to run again."""
        self._scheduler.reschedule(request, now_ns)

    def expire(self, now_ns: int) -> Sequence[InferRequest]:
        """The requests that have waited too long, whoever runs."""
        return self._scheduler.expire(now_ns)

    def wake_ns(self) -> int | None:
        """None while a turn is waited for: `begin`'s callback tells when it is there."""
        return None if self._waits() else self._scheduler.wake_ns()

    def next_deadline_ns(self) -> int | None:
        """When `expire` will first find something, or None."""
        return self._scheduler.next_deadline_ns()

    def remove(self, request: InferRequest) -> bool:
        """Drop a request that still waits."""
        return self._scheduler.remove(request)

    def abandoned(self) -> Sequence[InferRequest]:
        """Requests that can't run because one before them was removed."""
        return self._scheduler.abandoned()

    def _waits(self) -> bool:
        return any(ticket.is_waiting for ticket in self._tickets.values())

    def stop(self, now_ns: int) -> None:
        """No request will be offered any more."""
        self._scheduler.stop(now_ns)

    def __len__(self) -> int:
        return len(self._scheduler) + sum(len(batch.requests) for batch in self._held.values())


def _ignore() -> None:
    """Before `begin`, nobody asks for a turn."""
