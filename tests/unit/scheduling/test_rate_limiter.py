from collections import Counter

import pytest
from tests.support.requests import rows_request

from naiad.errors import InvalidArgumentError
from naiad.scheduling.default import DefaultScheduler
from naiad.scheduling.limited import LimitedScheduler
from naiad.scheduling.rate_limiter import (
    InstanceClaim,
    RateLimiter,
    ResourceClaim,
    ResourceLimit,
    Ticket,
)
from naiad.scheduling.scheduler import Batch


class Turns:
    """Counts the turns that came later."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


def claim(
    count: int = 1,
    name: str = "R",
    *,
    priority: int = 1,
    device: int = -1,
    is_global: bool = False,
) -> InstanceClaim:
    return InstanceClaim((ResourceClaim(name, count, is_global),), priority, device)


def tickets(limiter: RateLimiter, *claims: InstanceClaim) -> list[Ticket]:
    made = [Ticket(one, Turns()) for one in claims]
    limiter.add(made)
    return made


def turns(ticket: Ticket) -> int:
    assert isinstance(ticket.on_turn, Turns)
    return ticket.on_turn.count


def test_without_a_limit_one_of_the_most_demanding_runs() -> None:
    limiter = RateLimiter()
    large, small, other = tickets(limiter, claim(4), claim(2), claim(2))
    assert limiter.ask(small)
    assert limiter.ask(other)
    assert not limiter.ask(large)
    limiter.release(small, has_run=True)
    assert turns(large) == 0
    limiter.release(other, has_run=True)
    assert turns(large) == 1
    assert large.has_turn


def test_the_first_in_line_is_not_overtaken_by_who_needs_less() -> None:
    limiter = RateLimiter([ResourceLimit("R", 4)])
    large, small, late = tickets(limiter, claim(4), claim(1), claim(1))
    assert limiter.ask(small)
    assert not limiter.ask(large)
    assert not limiter.ask(late)
    limiter.release(small, has_run=True)
    assert large.has_turn
    assert late.is_waiting


def test_what_needs_nothing_always_has_its_turn() -> None:
    limiter = RateLimiter()
    free, other = tickets(limiter, InstanceClaim(), claim())
    assert limiter.ask(other)
    assert limiter.ask(free)


def test_turns_are_given_by_priority() -> None:
    limiter = RateLimiter([ResourceLimit("R", 1)])
    busy = tickets(limiter, claim(priority=1), claim(priority=2), claim(priority=4))
    counts: Counter[int] = Counter()
    for ticket in busy:
        limiter.ask(ticket)
    for _ in range(700):
        (running,) = (ticket for ticket in busy if ticket.has_turn)
        counts[running.claim.priority] += 1
        limiter.release(running, has_run=True, is_wanted=True)
    assert [counts[priority] for priority in (1, 2, 4)] == [
        pytest.approx(400, abs=2),
        pytest.approx(200, abs=2),
        pytest.approx(100, abs=2),
    ]


def test_who_was_idle_does_not_catch_up() -> None:
    limiter = RateLimiter([ResourceLimit("R", 1)])
    first, second = tickets(limiter, claim(), claim())
    for _ in range(100):
        assert limiter.ask(first)
        limiter.release(first, has_run=True)
    taken = []
    for _ in range(6):
        limiter.ask(first)
        limiter.ask(second)
        running = first if first.has_turn else second
        taken.append(running)
        limiter.release(running, has_run=True)
    assert taken.count(first) == 3


def test_a_turn_that_was_not_used_does_not_count() -> None:
    limiter = RateLimiter([ResourceLimit("R", 1)])
    first, second = tickets(limiter, claim(priority=100), claim())
    assert limiter.ask(first)
    limiter.release(first, has_run=False)
    assert limiter.ask(first)
    assert not limiter.ask(second)


def test_devices_have_resources_of_their_own_and_global_ones_are_shared() -> None:
    limiter = RateLimiter([ResourceLimit("R", 1), ResourceLimit("R", 2, 1)])
    on_0, also_on_0, on_1, also_on_1 = tickets(
        limiter, claim(device=0), claim(device=0), claim(device=1), claim(device=1)
    )
    assert limiter.ask(on_0)
    assert limiter.ask(on_1)
    assert limiter.ask(also_on_1)
    assert not limiter.ask(also_on_0)
    shared = RateLimiter()
    on_0, on_1 = tickets(shared, claim(device=0, is_global=True), claim(device=1, is_global=True))
    assert shared.ask(on_0)
    assert not shared.ask(on_1)


def test_an_instance_that_could_never_run_is_refused() -> None:
    limiter = RateLimiter([ResourceLimit("R", 3)])
    with pytest.raises(InvalidArgumentError) as caught:
        tickets(limiter, claim(2), claim(5))
    assert caught.value.message == (
        'Resource count for "R" is limited to 3 which will prevent scheduling of one or more '
        "model instances, the minimum required count is 5"
    )
    (fits,) = tickets(limiter, claim(3))
    assert limiter.ask(fits)


def test_a_resource_that_is_counted_for_another_device_is_not_here() -> None:
    limiter = RateLimiter([ResourceLimit("R", 10, 10)])
    with pytest.raises(InvalidArgumentError, match='count for "R" is limited to 0 which'):
        tickets(limiter, claim(4))
    (there,) = tickets(limiter, claim(4, device=10))
    assert limiter.ask(there)
    assert limiter.ask(tickets(limiter, claim(4, "other"))[0])


def test_a_resource_is_global_or_of_devices() -> None:
    limiter = RateLimiter()
    tickets(limiter, claim())
    with pytest.raises(InvalidArgumentError) as caught:
        tickets(limiter, claim(is_global=True))
    assert caught.value.message == (
        'Resource "R" is present as both global and device-specific resource in the model '
        "configuration."
    )


def test_who_leaves_gives_its_turn_and_its_place_back() -> None:
    limiter = RateLimiter([ResourceLimit("R", 1)])
    running, waiting, last = tickets(limiter, claim(), claim(), claim())
    assert limiter.ask(running)
    limiter.ask(waiting)
    limiter.ask(last)
    limiter.remove([running, waiting])
    assert last.has_turn
    assert turns(waiting) == 0


class Pinned(DefaultScheduler):
    """Wants every batch to be run by one instance."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self._index = index

    def take(self, now_ns: int) -> Batch | None:
        batch = super().take(now_ns)
        if batch is not None:
            batch.instance_index = self._index
        return batch


def test_two_models_take_turns_with_one_resource() -> None:
    limiter = RateLimiter()
    models = [LimitedScheduler(DefaultScheduler(), limiter, [claim(), claim()]) for _ in range(2)]
    later = [Turns(), Turns()]
    for model, turn in zip(models, later, strict=True):
        model.begin(turn)
        for _ in range(3):
            model.offer(rows_request(1), 0)
    order = []
    batch = models[0].take(0)
    assert models[0].take(0) is None
    assert models[1].take(0) is None
    running = models[0]
    while batch is not None:
        order.append(models.index(running))
        running.finish(batch, 0)
        # Twice, since a turn that one gives back unused is the other's.
        found = [(model, made) for model in models * 2 if (made := model.take(0)) is not None]
        assert len(found) <= 1
        running, batch = found[0] if found else (running, None)
    assert Counter(order) == {0: 3, 1: 3}
    assert all(turn.count for turn in later)
    assert [len(model) for model in models] == [0, 0]


def test_a_turn_without_work_is_given_back() -> None:
    limiter = RateLimiter()
    first = LimitedScheduler(DefaultScheduler(), limiter, [claim()])
    second = LimitedScheduler(DefaultScheduler(), limiter, [claim()])
    turn = Turns()
    first.begin(Turns())
    second.begin(turn)
    first.offer(rows_request(1), 0)
    request = rows_request(1)
    second.offer(request, 0)
    batch = first.take(0)
    assert batch is not None
    assert second.take(0) is None
    assert second.wake_ns() is None
    assert second.remove(request)
    first.finish(batch, 0)
    assert turn.count == 1
    assert second.take(0) is None
    first.offer(rows_request(1), 0)
    assert first.take(0) is not None


def test_a_batch_waits_for_the_instance_that_it_belongs_to() -> None:
    limiter = RateLimiter()
    other = LimitedScheduler(DefaultScheduler(), limiter, [claim(name="B")])
    pinned = LimitedScheduler(Pinned(1), limiter, [claim(name="A"), claim(name="B")])
    other.begin(Turns())
    turn = Turns()
    pinned.begin(turn)
    other.offer(rows_request(1), 0)
    running = other.take(0)
    assert running is not None
    pinned.offer(rows_request(1), 0)
    assert pinned.take(0) is None
    assert len(pinned) == 1
    other.finish(running, 0)
    assert turn.count == 1
    batch = pinned.take(0)
    assert batch is not None
    assert batch.instance_index == 1
    assert len(pinned) == 0


def test_instances_that_replace_others_have_the_resources_to_themselves() -> None:
    limiter = RateLimiter([ResourceLimit("R", 4)])
    scheduler = LimitedScheduler(DefaultScheduler(), limiter, [claim(2)])
    scheduler.begin(Turns())
    with pytest.raises(InvalidArgumentError, match='"R" is limited to 4'):
        scheduler.reserve({1: claim(8)}, (0,))
    # Both kinds of a resource are no contradiction where one goes as the other comes.
    scheduler.reserve({2: claim(4, is_global=True)}, (0,))
    scheduler.set_instances((2,), 0)
    assert scheduler.release(0)
    scheduler.offer(rows_request(1), 0)
    batch = scheduler.take(0)
    assert batch is not None
    scheduler.finish(batch, 0)
    scheduler.end()
    assert limiter.ask(tickets(limiter, claim(4))[0])


def test_what_was_reserved_in_vain_takes_nothing() -> None:
    limiter = RateLimiter()
    scheduler = LimitedScheduler(DefaultScheduler(), limiter, [claim(2)])
    scheduler.begin(Turns())
    scheduler.reserve({1: claim(8)}, ())
    scheduler.set_instances((0,), 0)
    large, small = tickets(limiter, claim(2), claim(2))
    assert limiter.ask(large)
    assert not limiter.ask(small)


def test_a_batch_ends_before_instances_that_were_alike_are_told_apart() -> None:
    limiter = RateLimiter()
    scheduler = LimitedScheduler(DefaultScheduler(), limiter, [claim(name="A")] * 2)
    scheduler.begin(Turns())
    for _ in range(3):
        scheduler.offer(rows_request(1), 0)
    batch = scheduler.take(0)
    assert batch is not None
    scheduler.reserve({2: claim(name="B")}, (1,))
    scheduler.set_instances((0, 2), 0)
    assert scheduler.release(1)
    assert scheduler.take(0) is None
    scheduler.finish(batch, 0)
    found = [scheduler.take(0), scheduler.take(0)]
    assert {batch.instance_index for batch in found if batch is not None} == {0, 2}


def test_an_instance_that_is_gone_keeps_its_turn_until_its_batch_has_run() -> None:
    limiter = RateLimiter()
    scheduler = LimitedScheduler(DefaultScheduler(), limiter, [claim(2), claim(2), claim(1, "B")])
    scheduler.begin(Turns())
    scheduler.offer(rows_request(1), 0)
    batch = scheduler.take(0)
    assert batch is not None
    assert batch.instance_index == 0
    scheduler.set_instances((1, 2), 0)
    assert scheduler.release(0)
    # There is as much as one execution needs, and that one has it.
    (other,) = tickets(limiter, claim(2))
    assert not limiter.ask(other)
    scheduler.offer(rows_request(1), 0)
    scheduler.finish(batch, 0)
    assert turns(other) == 1
    limiter.release(other, has_run=True)
    following = scheduler.take(0)
    assert following is not None
    assert following.instance_index == 1
