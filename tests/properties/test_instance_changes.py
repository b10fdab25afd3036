"""Instances come and go at any moment: every request runs once, where it may."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.requests import rows_request

from naiad.inference.request import InferRequest
from naiad.scheduling.default import DefaultScheduler
from naiad.scheduling.dynamic import BatcherRules, DynamicBatcher
from naiad.scheduling.limited import LimitedScheduler
from naiad.scheduling.rate_limiter import InstanceClaim, RateLimiter, ResourceClaim
from naiad.scheduling.scheduler import ANY_INSTANCE, Batch, Scheduler
from naiad.scheduling.sequence import SequenceBatcher, SequenceRules

FIRST_COUNT = 2
CLAIMS = [InstanceClaim((ResourceClaim(name, 1),)) for name in ("A", "B")]


def make_scheduler(kind: str) -> Scheduler:
    if kind == "default":
        return DefaultScheduler()
    if kind == "dynamic":
        return DynamicBatcher(BatcherRules(4, instance_count=FIRST_COUNT))
    oldest = BatcherRules(4) if kind == "oldest" else None
    return SequenceBatcher(SequenceRules("m", FIRST_COUNT, 2, 10**9, oldest))


class Executor:
    """What the real one does with its scheduler and its instances, without threads."""

    def __init__(self, kind: str, *, is_limited: bool) -> None:
        self.scheduler = make_scheduler(kind)
        self.limited: LimitedScheduler | None = None
        if is_limited:
            self.limited = LimitedScheduler(self.scheduler, RateLimiter(), [CLAIMS[0]] * 2)
            self.limited.begin(self.note_turn)
            self.scheduler = self.limited
        self.has_turn = False
        self.running: dict[int, Batch | None] = dict.fromkeys(range(FIRST_COUNT))
        self.leaving: set[int] = set()
        self.next_number = FIRST_COUNT
        self.finished: list[InferRequest] = []
        # The instances that each sequence was on.
        self.homes: dict[int | str, set[int]] = {}

    def change(self, kept: int, added: int, kind: int) -> None:
        present = [number for number in self.running if number not in self.leaving]
        new = range(self.next_number, self.next_number + max(added, 1 - min(kept, len(present))))
        self.next_number = new.stop
        numbers = {*present[:kept], *new}
        if self.limited is not None:
            self.limited.reserve(dict.fromkeys(new, CLAIMS[kind]), set(present) - numbers)
        self.running.update(dict.fromkeys(new))
        self.leaving.update(set(present) - numbers)
        self.scheduler.set_instances(numbers, 0)
        self.tick()

    def note_turn(self) -> None:
        """The limiter's word, in the middle of something; the loop comes to it after."""
        self.has_turn = True

    def tick(self) -> None:
        self.look()
        while self.has_turn:
            self.has_turn = False
            self.look()

    def look(self) -> None:
        for number in list(self.leaving):
            if self.scheduler.release(number) and self.running[number] is None:
                del self.running[number]
                self.leaving.remove(number)
        while idle := [number for number, batch in self.running.items() if batch is None]:
            batch = self.scheduler.take(0)
            if batch is None:
                return
            number = idle[0] if batch.instance_index == ANY_INSTANCE else batch.instance_index
            # Neither gone nor busy.
            assert self.running[number] is None
            self.running[number] = batch
            if batch.rows is not None:
                for request in batch.requests:
                    self.homes.setdefault(request.correlation_id, set()).add(number)

    def finish(self, index: int) -> bool:
        busy = [number for number, batch in self.running.items() if batch is not None]
        if not busy:
            return False
        number = busy[index % len(busy)]
        batch = self.running[number]
        assert batch is not None
        self.running[number] = None
        self.finished.extend(batch.requests)
        self.scheduler.finish(batch, 0)
        self.tick()
        return True


STEP = st.one_of(
    st.tuples(st.just("offer"), st.integers(0, 3), st.booleans(), st.just(0)),
    st.tuples(st.just("finish"), st.integers(0, 3), st.booleans(), st.just(0)),
    st.tuples(st.just("change"), st.integers(0, 2), st.booleans(), st.integers(0, 2)),
)


@pytest.mark.parametrize("kind", ["default", "dynamic", "direct", "oldest"])
@pytest.mark.parametrize("is_limited", [False, True])
@settings(max_examples=100, deadline=None)
@given(steps=st.lists(STEP, max_size=30))
def test_no_request_is_lost(
    kind: str, is_limited: bool, steps: list[tuple[str, int, bool, int]]
) -> None:
    executor = Executor(kind, is_limited=is_limited)
    offered: list[InferRequest] = []
    # Which run of a key a sequence is, and whether it has begun.
    runs = [1, 1, 1, 1]
    has_begun = [False] * 4
    for action, number, flag, count in steps:
        if action == "offer":
            request = rows_request(1)
            request.correlation_id = f"{number}.{runs[number]}"
            request.sequence_start, request.sequence_end = not has_begun[number], flag
            has_begun[number] = not flag
            runs[number] += flag
            offered.append(request)
            executor.scheduler.offer(request, 0)
            executor.tick()
        elif action == "finish":
            executor.finish(number)
        else:
            executor.change(number, count, int(flag))
    executor.scheduler.stop(0)
    executor.tick()
    while executor.finish(0):
        pass
    assert sorted(map(id, executor.finished)) == sorted(map(id, offered))
    assert not executor.leaving
    assert all(len(homes) == 1 for homes in executor.homes.values())
    for key in executor.homes:
        ran = [request for request in executor.finished if request.correlation_id == key]
        assert ran == [request for request in offered if request.correlation_id == key]
