"""The requests of one model version that wait: priorities, limits and deadlines.

Source: Triton's model_configuration.md, "Queue Policy" and "Priority Levels". Triton answers a
request that has waited too long only when the running execution ends; here deadlines are kept.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from heapq import heapify, heappop, heappush
from itertools import chain, islice
from typing import Final

from naiad.errors import UnavailableError
from naiad.inference.request import InferRequest


class TimeoutAction(Enum):
    """What happens to a request that has waited for as long as it may."""

    REJECT = 0
    DELAY = 1


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """The rules of one priority level.

    Attributes:
        timeout_action: for a request past its timeout; DELAY serves it after all others of its
            level.
        default_timeout_ns: how long a request may wait; 0 for ever.
        is_override_allowed: a request may ask for a shorter timeout, never for a longer one.
        max_size: requests, not rows, that may wait; 0 for any number.
    """

    timeout_action: TimeoutAction = TimeoutAction.REJECT
    default_timeout_ns: int = 0
    is_override_allowed: bool = False
    max_size: int = 0

    def timeout_ns(self, request: InferRequest) -> int:
        """How long this request may wait; 0 for ever."""
        asked_ns = request.timeout_us * 1000
        if self.is_override_allowed and 0 < asked_ns < self.default_timeout_ns:
            return asked_ns
        return self.default_timeout_ns


@dataclass(frozen=True, slots=True)
class QueueRules:
    """The rules of a whole queue.

    Attributes:
        level_count: priorities from 1, the highest, to this; 0 where priority means nothing.
        default_level: of requests that name no level, or one that there is not.
        default_policy: of the levels that have none of their own.
        policies: by level.
    """

    level_count: int = 0
    default_level: int = 0
    default_policy: QueuePolicy = QueuePolicy()
    policies: Mapping[int, QueuePolicy] = field(default_factory=dict)

    @property
    def is_prioritized(self) -> bool:
        """Whether a later request may overtake an earlier one."""
        return self.level_count > 1

    def level(self, request: InferRequest) -> int:
        """The level that a request waits in."""
        if 0 < request.priority <= self.level_count:
            return request.priority
        return self.default_level

    def policy(self, level: int) -> QueuePolicy:
        """The policy of a level."""
        return self.policies.get(level, self.default_policy)


# Sorting out deadlines of requests that left costs one look at each that is kept.
_SPARE_DEADLINES: Final = 64

NO_RULES: Final = QueueRules()


# A queue from whose middle a request is taken as fast as from its front, however many wait.
_Waiting = OrderedDict[InferRequest, None]


class _Level:
    """The requests of one priority; those past their deadline come last."""

    __slots__ = ("delayed", "policy", "waiting")

    def __init__(self, policy: QueuePolicy) -> None:
        self.policy = policy
        self.waiting: _Waiting = OrderedDict()
        self.delayed: _Waiting = OrderedDict()

    def __len__(self) -> int:
        return len(self.waiting) + len(self.delayed)

    def remove(self, request: InferRequest) -> bool:
        for queue in (self.waiting, self.delayed):
            if request in queue:
                del queue[request]
                return True
        return False


class _Deadline:
    """Until when a request may wait.

    Attributes:
        request: None once it left the queue, so that its tensors go with it and not only when the
            time is over.
    """

    __slots__ = ("request",)

    def __init__(self, request: InferRequest) -> None:
        self.request: InferRequest | None = request


class RequestQueue:
    """Requests in the order in which they should run.

    First in, first out within a priority level; a level is served before the next lower one.
    """

    def __init__(self, rules: QueueRules) -> None:
        self._rules = rules
        self._levels: dict[int, _Level] = {}
        # Ascending; most queues have one level, and none has more than were ever used.
        self._order: list[_Level] = []
        # Time, a number that keeps equal ones apart, deadline; those of requests that left the
        # queue are dropped when they come up.
        self._deadlines: list[tuple[int, int, _Deadline]] = []
        self._deadline_count = 0
        self._waiting: dict[InferRequest, _Deadline] = {}
        # Most queues are plain, and the way through them is as short as it can be.
        is_plain = rules.level_count == 0 and rules.default_policy == QueuePolicy()
        self._plain = self._add_level(rules.default_level).waiting if is_plain else None

    def push(self, request: InferRequest, now_ns: int) -> None:
        """Let a request wait; its time counts from ``now_ns``.

        Raises:
            UnavailableError: as many as may wait do already.
        """
        if self._plain is not None:
            request.queued_ns = now_ns
            self._plain[request] = None
            return
        number = self._rules.level(request)
        level = self._levels.get(number)
        if level is None:
            level = self._add_level(number)
        policy = level.policy
        if policy.max_size and len(level) >= policy.max_size:
            raise UnavailableError(
                f"[request id: {request.request_id or '<id_unknown>'}] Exceeds maximum queue size"
            )
        request.queued_ns = now_ns
        level.waiting[request] = None
        timeout_ns = policy.timeout_ns(request)
        if timeout_ns:
            self._deadline_count += 1
            deadline = self._waiting[request] = _Deadline(request)
            heappush(self._deadlines, (now_ns + timeout_ns, self._deadline_count, deadline))

    def pop(self, count: int) -> list[InferRequest]:
        """Take the first ``count`` requests out."""
        if self._plain is not None:
            popitem = self._plain.popitem
            return [popitem(last=False)[0] for _ in range(count)]
        taken: list[InferRequest] = []
        for level in self._order:
            for queue in (level.waiting, level.delayed):
                while queue and len(taken) < count:
                    taken.append(queue.popitem(last=False)[0])
        if self._deadlines:
            for request in taken:
                self._forget_deadline(request)
            self._drop_deadlines()
        return taken

    def remove(self, request: InferRequest) -> bool:
        """Take one request out, wherever it is; False when it is not here."""
        if not any(level.remove(request) for level in self._order):
            return False
        self._forget_deadline(request)
        self._drop_deadlines()
        return True

    def expire(self, now_ns: int) -> list[InferRequest]:
        """Apply the timeouts; returns the requests to reject, which are out of the queue now."""
        rejected = []
        while (deadline_ns := self.next_deadline_ns()) is not None and deadline_ns <= now_ns:
            request = heappop(self._deadlines)[2].request
            if request is None:
                continue
            level = self._levels[self._rules.level(request)]
            self.remove(request)
            if level.policy.timeout_action is TimeoutAction.REJECT:
                rejected.append(request)
            else:
                level.delayed[request] = None
        return rejected

    def next_deadline_ns(self) -> int | None:
        """When the next timeout is due, or None."""
        deadlines = self._deadlines
        while deadlines and deadlines[0][2].request is None:
            heappop(deadlines)
        return deadlines[0][0] if deadlines else None

    def _forget_deadline(self, request: InferRequest) -> None:
        """A request left the queue, or has nothing to lose any more."""
        deadline = self._waiting.pop(request, None)
        if deadline is not None:
            deadline.request = None

    def _drop_deadlines(self) -> None:
        """Drop the deadlines of requests that left before they come up, once they are many."""
        if len(self._deadlines) > 2 * len(self._waiting) + _SPARE_DEADLINES:
            self._deadlines = [entry for entry in self._deadlines if entry[2].request is not None]
            heapify(self._deadlines)

    def oldest_ns(self) -> int:
        """Since when the request at the front has waited; the queue must not be empty."""
        return next(iter(self)).queued_ns

    def __iter__(self) -> Iterator[InferRequest]:
        if self._plain is not None:
            return iter(self._plain)
        return chain.from_iterable(
            queue for level in self._order for queue in (level.waiting, level.delayed)
        )

    @property
    def has_delayed(self) -> bool:
        """Whether requests past their timeout wait, which one that comes now goes before."""
        return self._plain is None and any(level.delayed for level in self._order)

    def tail(self, start: int) -> Iterator[InferRequest]:
        """The requests from position ``start`` on."""
        return islice(self, start, None) if start else iter(self)

    def __len__(self) -> int:
        return len(self._plain) if self._plain is not None else sum(map(len, self._order))

    def _add_level(self, number: int) -> _Level:
        level = self._levels[number] = _Level(self._rules.policy(number))
        self._order = [known for _, known in sorted(self._levels.items())]
        return level
