"""Models that take turns, at random: nothing waits for ever, and no resource is overdrawn."""

from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.requests import rows_request

from naiad.scheduling.default import DefaultScheduler
from naiad.scheduling.limited import LimitedScheduler
from naiad.scheduling.rate_limiter import (
    InstanceClaim,
    RateLimiter,
    ResourceClaim,
    ResourceLimit,
)
from naiad.scheduling.scheduler import ANY_INSTANCE, Batch

LIMITS = {"R": 3, "S": 4}
RESOURCE = st.builds(ResourceClaim, st.sampled_from(["R", "S"]), st.integers(0, 3))
CLAIM = st.builds(
    InstanceClaim,
    st.lists(RESOURCE, max_size=2, unique_by=lambda r: r.name).map(tuple),
    st.integers(1, 4),
)


class Pinned(DefaultScheduler):
    """Wants its batches to be run by one instance after the other, as sequences do."""

    def __init__(self, instance_count: int) -> None:
        super().__init__()
        self._instance_count = instance_count
        self._next = 0
        self._busy: set[int] = set()

    def take(self, now_ns: int) -> Batch | None:
        if self._next in self._busy:
            return None
        batch = super().take(now_ns)
        if batch is not None:
            batch.instance_index = self._next
            self._busy.add(self._next)
            self._next = (self._next + 1) % self._instance_count
        return batch

    def finish(self, batch: Batch, now_ns: int) -> None:
        self._busy.remove(batch.instance_index)


class Model:
    """An executor in miniature: looks when something arrives, ends, or has its turn."""

    def __init__(
        self,
        limiter: RateLimiter,
        claims: list[InstanceClaim],
        due: "deque[Model]",
        *,
        pinned: bool,
    ) -> None:
        self.claims = claims
        inner = Pinned(len(claims)) if pinned and len(set(claims)) > 1 else DefaultScheduler()
        self.scheduler = LimitedScheduler(inner, limiter, claims)
        self.running: list[Batch] = []
        self.answered_count = 0
        self.due = due
        self.scheduler.begin(lambda: due.append(self))

    def look(self) -> None:
        while len(self.running) < len(self.claims):
            batch = self.scheduler.take(0)
            if batch is None:
                return
            self.running.append(batch)

    def finish(self, index: int) -> None:
        batch = self.running.pop(index % len(self.running))
        self.answered_count += len(batch.requests)
        self.scheduler.finish(batch, 0)
        self.due.append(self)


def used(models: list[Model], name: str) -> int:
    total = 0
    for model in models:
        for batch in model.running:
            index = 0 if batch.instance_index == ANY_INSTANCE else batch.instance_index
            total += sum(c.count for c in model.claims[index].claims if c.name == name)
    return total


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(CLAIM, min_size=1, max_size=3), st.booleans()), min_size=1, max_size=3
    ),
    st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.integers(0, 5)), max_size=40),
)
def test_every_request_has_its_turn(
    shapes: list[tuple[list[InstanceClaim], bool]], steps: list[tuple[int, bool, int]]
) -> None:
    limiter = RateLimiter(ResourceLimit(name, count) for name, count in LIMITS.items())
    due: deque[Model] = deque()
    models = [Model(limiter, claims, due, pinned=pinned) for claims, pinned in shapes]
    offered_count = 0

    def settle() -> None:
        while due:
            due.popleft().look()
        for name, limit in LIMITS.items():
            assert used(models, name) <= limit

    for position, is_arrival, index in steps:
        model = models[position % len(models)]
        if is_arrival:
            model.scheduler.offer(rows_request(1), 0)
            due.append(model)
            offered_count += 1
        elif model.running:
            model.finish(index)
        settle()
    while any(model.running for model in models):
        next(model for model in models if model.running).finish(0)
        settle()
    assert sum(model.answered_count for model in models) == offered_count
