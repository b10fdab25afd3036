"""Whose turn it is to execute, over all models: resources that instances share, and priorities.

A pure state machine. An instance takes its resources for one execution and gives them back; those
that wait get their turns in the order of the executions they had, each weighted with its
priority. Source: Triton's ``docs/user_guide/rate_limiter.md`` and core's ``rate_limiter.cc``.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from naiad.errors import InvalidArgumentError

_log = logging.getLogger(__name__)

CPU_DEVICE = -1
# A name, and the device, None for a resource that the whole server has once.
_Pool = tuple[str, int | None]


@dataclass(frozen=True, slots=True)
class ResourceLimit:
    """How much there is of a resource.

    Attributes:
        name: of it.
        count: units.
        device: number of a GPU; None for every device, and for a global resource.
    """

    name: str
    count: int
    device: int | None = None


@dataclass(frozen=True, slots=True)
class ResourceClaim:
    """What an execution takes of a resource; of a global one, or of that of its device."""

    name: str
    count: int
    is_global: bool = False


@dataclass(frozen=True, slots=True)
class InstanceClaim:
    """What one model instance asks for.

    Attributes:
        claims: for each execution.
        priority: 1 or more; an instance of priority 2 has half the turns of one of priority 1.
        device: where it runs.
    """

    claims: tuple[ResourceClaim, ...] = ()
    priority: int = 1
    device: int = CPU_DEVICE


class _Turn(Enum):
    NONE = auto()
    WAITS = auto()
    HAS = auto()


class Ticket:
    """One instance's place among all others.

    Args:
        claim: of the instance.
        on_turn: called when a turn is given that was not there when it was asked for.
    """

    __slots__ = ("claim", "needs", "on_turn", "passed", "turn")

    def __init__(self, claim: InstanceClaim, on_turn: Callable[[], None]) -> None:
        self.claim = claim
        self.on_turn = on_turn
        self.needs: dict[_Pool, int] = {}
        for resource in claim.claims:
            pool = (resource.name, None if resource.is_global else claim.device)
            self.needs[pool] = self.needs.get(pool, 0) + resource.count
        self.turn = _Turn.NONE
        # Executions so far times priority; see `RateLimiter._now`.
        self.passed = 0

    @property
    def has_turn(self) -> bool:
        """Whether it may execute now."""
        return self.turn is _Turn.HAS

    @property
    def is_waiting(self) -> bool:
        """Whether it asked for a turn and has none."""
        return self.turn is _Turn.WAITS


class RateLimiter:
    """Gives turns.

    Args:
        limits: of resources; one that has none has as much as the most demanding instance needs.
    """

    def __init__(self, limits: Iterable[ResourceLimit] = ()) -> None:
        self._limits = {(limit.name, limit.device): limit.count for limit in limits}
        self._tickets: dict[Ticket, None] = {}
        self._taken: dict[_Pool, int] = {}
        self._available: dict[_Pool, int] = {}
        # In the order in which they asked.
        self._waiting: dict[Ticket, None] = {}
        # Where the one that had the last turn stood. Who was idle meanwhile starts from here, and
        # does not get all the turns it never wanted.
        self._now = 0

    def add(self, tickets: Sequence[Ticket], leaving: Collection[Ticket] = ()) -> None:
        """Let the instances of a model take part.

        Args:
            tickets: of the instances.
            leaving: of others that these will replace, so that what both need together is no
                reason against them.

        Raises:
            InvalidArgumentError: one of them could never run, or a resource is global here and
                of devices elsewhere; none takes part.
        """
        everyone = [*(ticket for ticket in self._tickets if ticket not in leaving), *tickets]
        self._check_kinds(everyone)
        for pool, count in _most(everyone).items():
            limit = self._limit(pool)
            if limit is not None and limit < count:
                raise InvalidArgumentError(
                    f'Resource count for "{pool[0]}" is limited to {limit} which will prevent '
                    "scheduling of one or more model instances, the minimum required count is "
                    f"{count}"
                )
        self._tickets.update(dict.fromkeys(tickets))
        self._refresh(_most(self._tickets))

    def remove(self, tickets: Sequence[Ticket]) -> None:
        """The instances of a model are gone; turns they have are given back."""
        for ticket in tickets:
            self._waiting.pop(ticket, None)
            self._tickets.pop(ticket, None)
            if ticket.turn is _Turn.HAS:
                self._give_back(ticket)
            ticket.turn = _Turn.NONE
        self._refresh(_most(self._tickets))
        self._next_turns()

    def ask(self, ticket: Ticket) -> bool:
        """Ask for a turn; whether it is there. If not, ``on_turn`` is called once it is."""
        if ticket.turn is _Turn.NONE:
            self._line_up(ticket)
            self._next_turns(asking=ticket)
        return ticket.turn is _Turn.HAS

    def release(self, ticket: Ticket, *, has_run: bool, is_wanted: bool = False) -> None:
        """Give a turn back.

        Args:
            ticket: that has it.
            has_run: it was used, and counts.
            is_wanted: the instance asks for the next one; before the others are looked at, so that
                it can have several in a row.
        """
        self._give_back(ticket)
        ticket.turn = _Turn.NONE
        if has_run:
            ticket.passed += ticket.claim.priority
        if is_wanted:
            self._line_up(ticket)
        self._next_turns()

    def _line_up(self, ticket: Ticket) -> None:
        ticket.turn = _Turn.WAITS
        ticket.passed = max(ticket.passed, self._now)
        self._waiting[ticket] = None

    def _next_turns(self, asking: Ticket | None = None) -> None:
        # The first one alone is looked at: whoever needs much would never get it if others that
        # need less went ahead.
        while self._waiting:
            first = min(self._waiting, key=lambda ticket: ticket.passed)
            if any(
                self._taken.get(pool, 0) + count > self._available[pool]
                for pool, count in first.needs.items()
            ):
                return
            del self._waiting[first]
            for pool, count in first.needs.items():
                self._taken[pool] = self._taken.get(pool, 0) + count
            first.turn = _Turn.HAS
            self._now = first.passed
            if first is not asking:
                first.on_turn()

    def _give_back(self, ticket: Ticket) -> None:
        for pool, count in ticket.needs.items():
            self._taken[pool] -= count

    def _limit(self, pool: _Pool) -> int | None:
        name, device = pool
        if device is None:
            # Triton ignores the device of a limit where the resource is global.
            return next((n for (known, _), n in self._limits.items() if known == name), None)
        limit = self._limits.get((name, device), self._limits.get((name, None)))
        if limit is None and any(known == name for known, _ in self._limits):
            # Of a resource that was counted for other devices this one has none.
            return 0
        return limit

    def _refresh(self, needed: dict[_Pool, int]) -> None:
        available = {}
        for pool, count in needed.items():
            limit = self._limit(pool)
            available[pool] = count if limit is None else limit
            if available[pool] != self._available.get(pool):
                name, device = pool
                _log.debug(
                    "Max Resource Map: Device: %s\t Resource: %s\t Count: %d",
                    "GLOBAL" if device is None else device,
                    name,
                    available[pool],
                )
        self._available = available

    def _check_kinds(self, tickets: Iterable[Ticket]) -> None:
        kinds: dict[str, bool] = {}
        for ticket in tickets:
            for name, device in ticket.needs:
                if kinds.setdefault(name, device is None) is not (device is None):
                    raise InvalidArgumentError(
                        f'Resource "{name}" is present as both global and device-specific '
                        "resource in the model configuration."
                    )


def _most(tickets: Iterable[Ticket]) -> dict[_Pool, int]:
    """What the most demanding instance needs, by resource."""
    most: dict[_Pool, int] = {}
    for ticket in tickets:
        for pool, count in ticket.needs.items():
            most[pool] = max(most.get(pool, 0), count)
    return most
