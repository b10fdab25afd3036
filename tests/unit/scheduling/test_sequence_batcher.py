import logging
from collections.abc import Callable
from typing import Any
from weakref import ref

import numpy as np
import pytest
from tests.support.requests import rows_request

from naiad.errors import InvalidArgumentError
from naiad.inference.request import InferRequest
from naiad.scheduling.default import DefaultScheduler
from naiad.scheduling.dynamic import BatcherRules, DynamicBatcher
from naiad.scheduling.scheduler import Batch, BatchClose
from naiad.scheduling.sequence import SequenceBatcher, SequenceRules

IDLE_NS = 1000


def direct(slots: int = 4, instances: int = 1, **rules: Any) -> SequenceBatcher:
    return SequenceBatcher(SequenceRules("m", instances, slots, IDLE_NS, None, **rules))


def oldest(
    candidates: int = 4,
    instances: int = 1,
    batching: BatcherRules | None = None,
) -> SequenceBatcher:
    rules = BatcherRules(4) if batching is None else batching
    return SequenceBatcher(SequenceRules("m", instances, candidates, IDLE_NS, rules))


def step(key: int | str, flags: str = "", **attributes: object) -> InferRequest:
    """One request; ``flags`` holds "s" for START, "e" for END."""
    request = rows_request(1)
    request.correlation_id = key
    request.sequence_start = "s" in flags
    request.sequence_end = "e" in flags
    for name, value in attributes.items():
        setattr(request, name, value)
    return request


def offer(batcher: SequenceBatcher, *requests: InferRequest, now_ns: int = 0) -> None:
    for request in requests:
        batcher.offer(request, now_ns)


def take(batcher: SequenceBatcher, now_ns: int = 0) -> Batch:
    batch = batcher.take(now_ns)
    assert batch is not None
    return batch


def keys(batch: Batch) -> list[int | str | None]:
    """The sequence of each row; None for a row that keeps a place."""
    assert batch.rows is not None
    return [None if row.request is None else row.request.correlation_id for row in batch.rows]


def run(batcher: SequenceBatcher, now_ns: int = 0) -> list[int | str | None]:
    batch = take(batcher, now_ns)
    batcher.finish(batch, now_ns)
    return keys(batch)


both = pytest.mark.parametrize("make", [direct, oldest], ids=["direct", "oldest"])


@both
def test_what_is_no_request_of_a_sequence_is_refused_in_tritons_words(
    make: Callable[..., SequenceBatcher],
) -> None:
    batcher = make()
    for key in (0, ""):
        with pytest.raises(InvalidArgumentError) as refusal:
            batcher.offer(step(key, "s"), 0)
        assert refusal.value.message == (
            "inference request to model 'm' must specify a non-zero or non-empty correlation ID"
        )
    with pytest.raises(InvalidArgumentError) as refusal:
        batcher.offer(step("abc"), 0)
    assert refusal.value.message == (
        "inference request for sequence abc to model 'm' must specify the START flag on the first "
        "request of the sequence"
    )
    with pytest.raises(InvalidArgumentError) as refusal:
        batcher.offer(step(1, "s", batch_size=2), 0)
    assert refusal.value.message == (
        "inference request to model 'm' must specify batch-size 1 due to requirements of sequence "
        "batcher"
    )
    assert len(batcher) == 0


@both
def test_a_number_and_its_text_are_two_sequences(make: Callable[..., SequenceBatcher]) -> None:
    batcher = make()
    offer(batcher, step(5, "s"), step("5", "se"))
    assert run(batcher) == [5, "5"]
    offer(batcher, step(5, "e"))
    assert run(batcher) == [5]


@both
def test_requests_of_a_sequence_run_one_after_the_other(
    make: Callable[..., SequenceBatcher],
) -> None:
    batcher = make()
    first, second, third = step(1, "s"), step(1), step(1, "e")
    offer(batcher, first, second, third)
    assert len(batcher) == 3
    for request in (first, second, third):
        batch = take(batcher)
        assert batch.requests == [request]
        assert batcher.take(0) is None
        batcher.finish(batch, 0)
    with pytest.raises(InvalidArgumentError, match="START flag"):
        batcher.offer(step(1), 0)


@both
def test_the_state_is_that_of_the_sequence_until_a_start_makes_a_new_one(
    make: Callable[..., SequenceBatcher], caplog: pytest.LogCaptureFixture
) -> None:
    batcher = make()
    states = []
    with caplog.at_level(logging.WARNING):
        offer(batcher, step(1, "s"), step(1), step(1, "s"), step(1, "e"), step(1, "se"))
    assert [record.message for record in caplog.records] == [
        "sequence 1 for model 'm' has a conflict. The previous sequence did not end before this "
        "sequence start. Previous sequence will be terminated early."
    ]
    # After its END the id may start again in another slot, beside what is left of the first.
    while (batch := batcher.take(0)) is not None:
        assert batch.rows is not None
        states.extend([row.state for row in batch.rows if row.request is not None])
        batcher.finish(batch, 0)
    first, ended, second, restarted, last = states
    assert first is second
    assert restarted is last
    assert len({id(first), id(ended), id(restarted)}) == 3


def test_direct_keeps_each_sequence_in_its_row() -> None:
    batcher = direct()
    offer(batcher, *(step(key, "s") for key in (1, 2, 3, 4)))
    batch = take(batcher)
    assert keys(batch) == [1, 2, 3, 4]
    assert batch.closed_by is BatchClose.FULL
    batcher.finish(batch, 0)
    offer(batcher, step(3), step(1))
    batch = take(batcher)
    assert keys(batch) == [1, None, 3]
    assert [request.correlation_id for request in batch.requests] == [1, 3]
    assert batch.closed_by is BatchClose.QUEUE_EMPTY
    batcher.finish(batch, 0)


def test_direct_does_not_join_other_shapes_and_starves_none() -> None:
    batcher = direct()
    offer(batcher, step(1, "s", batch_key="a"), now_ns=1)
    offer(batcher, step(2, "s", batch_key="b"), now_ns=0)
    offer(batcher, step(3, "s", batch_key="b"), now_ns=2)
    batch = take(batcher, 2)
    assert keys(batch) == [None, 2, 3]
    assert batch.closed_by is BatchClose.SHAPE_DIFFERS
    batcher.finish(batch, 2)
    # The row of a slot that is passed over is there too, as with Triton.
    offer(batcher, step(3, batch_key="b"), now_ns=3)
    assert run(batcher, 3) == [1, None, None]
    assert run(batcher, 3) == [None, None, 3]


@both
def test_states_of_different_dims_do_not_share_a_batch(
    make: Callable[..., SequenceBatcher],
) -> None:
    batcher = make()
    offer(batcher, step(1, "s"), step(2, "s"))
    batch = take(batcher)
    assert batch.rows is not None
    state = batch.rows[0].state
    assert state is not None
    state.tensors, state.key = {"S": np.zeros((1, 2))}, (2,)
    batcher.finish(batch, 0)
    offer(batcher, step(1), now_ns=1)
    offer(batcher, step(2), now_ns=2)
    assert [key for key in run(batcher, 2) if key] == [1]
    assert [key for key in run(batcher, 2) if key] == [2]


def test_sequences_spread_over_the_instances_and_stay_there() -> None:
    batcher = direct(slots=2, instances=2)
    offer(batcher, *(step(key, "s") for key in (1, 2, 3)))
    first, second = take(batcher), take(batcher)
    assert [first.instance_index, second.instance_index] == [0, 1]
    assert [keys(first), keys(second)] == [[1, 3], [2]]
    offer(batcher, step(1), step(2))
    assert batcher.take(0) is None
    batcher.finish(second, 0)
    third = take(batcher)
    assert (third.instance_index, keys(third)) == (1, [2])


@both
def test_without_a_free_slot_a_sequence_waits_for_one(make: Callable[..., SequenceBatcher]) -> None:
    batcher = make(2)
    offer(batcher, step(1, "s"), step(2, "s"), step(3, "s"), step(3), step(4, "s"))
    assert run(batcher) == [1, 2]
    assert batcher.take(0) is None
    offer(batcher, step(2, "e"))
    assert [key for key in run(batcher) if key] == [2]
    assert [key for key in run(batcher) if key] == [3]
    offer(batcher, step(3, "e"), step(1, "e"))
    assert run(batcher) == [1, 3]
    assert run(batcher) == [4, 3]


def test_a_whole_sequence_of_the_backlog_frees_its_slot() -> None:
    batcher = direct(1)
    offer(batcher, step(1, "se"), step(2, "s"), step(2, "e"), step(2, "se"))
    assert [run(batcher) for _ in range(4)] == [[1], [2], [2], [2]]
    assert batcher.take(0) is None
    assert len(batcher) == 0


@both
def test_an_idle_sequence_loses_its_slot(make: Callable[..., SequenceBatcher]) -> None:
    batcher = make(1)
    offer(batcher, step(1, "s"), step(2, "se"))
    batch = take(batcher)
    assert batcher.next_deadline_ns() is None
    # Idle is who has nothing to do, however long the execution takes.
    assert batcher.expire(5000) == []
    batcher.finish(batch, 5000)
    assert batcher.next_deadline_ns() == 5000 + IDLE_NS
    batcher.expire(5000 + IDLE_NS - 1)
    assert batcher.take(5999) is None
    assert batcher.expire(5000 + IDLE_NS) == []
    assert run(batcher, 6000) == [2]
    with pytest.raises(InvalidArgumentError, match="sequence 1 to model"):
        batcher.offer(step(1), 6000)
    assert batcher.next_deadline_ns() is None


def test_a_request_keeps_its_sequence_from_being_idle() -> None:
    batcher = direct(1)
    offer(batcher, step(1, "s"))
    run(batcher)
    offer(batcher, step(1), now_ns=IDLE_NS - 1)
    batcher.expire(IDLE_NS + 1)
    assert run(batcher, IDLE_NS + 1) == [1]
    assert batcher.next_deadline_ns() == 2 * IDLE_NS + 1


def test_the_backlog_gives_a_sequence_up_at_the_earliest_timeout_of_its_requests() -> None:
    batcher = direct(1)
    offer(batcher, step(1, "s"))
    first, second, third = (step(2, "s" * (us == 8), timeout_us=us) for us in (8, 2, 5))
    offer(batcher, first, second, third, step(3, "se", timeout_us=1000))
    assert batcher.next_deadline_ns() == 2000
    assert batcher.expire(1999) == []
    assert batcher.expire(2000) == [first, second, third]
    assert batcher.expiry_text == "timeout of the corresponding sequence has been expired"
    with pytest.raises(InvalidArgumentError, match="sequence 2"):
        batcher.offer(step(2), 2000)
    assert len(batcher) == 2


def test_a_sequence_with_a_slot_has_no_timeout() -> None:
    batcher = direct(1)
    offer(batcher, step(1, "se", timeout_us=1), step(2, "s", timeout_us=5))
    batch = take(batcher)
    assert batcher.expire(10_000) == []
    batcher.finish(batch, 10_000)
    assert run(batcher, 10_000) == [2]


def test_many_timeouts_of_served_sequences_are_forgotten() -> None:
    batcher = direct(1)
    for key in range(1, 1001):
        offer(batcher, step(key, "se", timeout_us=10**9))
        if key > 1:
            run(batcher)
    assert len(batcher._backlog._expiries) < 100


def test_direct_waits_for_the_slots_that_it_shall_fill_at_least() -> None:
    batcher = direct(4, max_delay_ns=100, minimum_utilization=0.75)
    offer(batcher, step(1, "s"), now_ns=5)
    offer(batcher, step(2, "s"), now_ns=50)
    assert batcher.take(104) is None
    assert batcher.wake_ns() == 105
    batch = take(batcher, 105)
    assert keys(batch) == [1, 2]
    assert batch.closed_by is BatchClose.DELAY_OVER
    assert batcher.wake_ns() is None
    batcher.finish(batch, 110)
    offer(batcher, step(3, "s"), step(1), now_ns=110)
    assert batcher.take(110) is None
    offer(batcher, step(2), now_ns=111)
    assert run(batcher, 111) == [1, 2, 3]


def test_nobody_is_woken_for_a_request_that_was_removed() -> None:
    batcher = direct(4, max_delay_ns=100, minimum_utilization=0.75)
    request = step(1, "s")
    offer(batcher, request)
    assert batcher.take(0) is None
    assert batcher.wake_ns() == 100
    assert batcher.remove(request)
    assert batcher.take(100) is None
    assert batcher.wake_ns() is None


def test_a_delay_without_a_utilization_is_none() -> None:
    batcher = direct(4, max_delay_ns=100)
    offer(batcher, step(1, "s"))
    assert run(batcher) == [1]


def test_oldest_takes_the_preferred_number_of_those_that_wait_longest() -> None:
    batcher = oldest(8, batching=BatcherRules(8, (2,)))
    offer(batcher, *(step(key, "s") for key in (1, 2, 3)))
    first = take(batcher)
    assert (keys(first), first.closed_by) == ([1, 2], BatchClose.PREFERRED_SIZE)
    offer(batcher, step(2), now_ns=10)
    offer(batcher, step(1), now_ns=20)
    batcher.finish(first, 30)
    assert run(batcher, 30) == [3, 2]
    assert run(batcher, 30) == [1]


def test_oldest_waits_for_company_since_the_request_could_run() -> None:
    batcher = oldest(8, batching=BatcherRules(8, (), 100))
    offer(batcher, step(1, "s"))
    assert batcher.take(99) is None
    assert batcher.wake_ns() == 100
    batch = take(batcher, 100)
    offer(batcher, step(1), now_ns=110)
    offer(batcher, step(2, "s"), now_ns=160)
    batcher.finish(batch, 150)
    assert batcher.take(170) is None
    assert batcher.wake_ns() == 250
    assert run(batcher, 250) == [1, 2]


def test_oldest_counts_the_time_in_the_queue_from_the_arrival() -> None:
    batcher = oldest()
    offer(batcher, step(1, "s"), now_ns=10)
    offer(batcher, step(1), now_ns=20)
    batch = take(batcher, 30)
    assert batch.requests[0].queued_ns == 10
    batcher.finish(batch, 40)
    assert take(batcher, 40).requests[0].queued_ns == 20


def test_no_candidates_named_means_as_many_as_fit_a_batch() -> None:
    batcher = oldest(3)
    offer(batcher, *(step(key, "s") for key in (1, 2, 3, 4)))
    assert run(batcher) == [1, 2, 3]
    assert batcher.take(0) is None


@both
def test_a_removed_request_ends_its_sequence(make: Callable[..., SequenceBatcher]) -> None:
    batcher = make(1)
    kept, removed, later, last = step(1, "s"), step(1), step(1), step(1, "e")
    offer(batcher, kept, removed, later, last, step(2, "se"))
    assert batcher.remove(removed)
    assert not batcher.remove(removed)
    assert batcher.abandoned() == [later, last]
    assert batcher.abandoned() == []
    with pytest.raises(InvalidArgumentError, match="START"):
        batcher.offer(step(1), 0)
    assert run(batcher) == [1]
    assert run(batcher) == [2]
    assert len(batcher) == 0


@both
def test_a_removed_first_request_frees_the_slot(make: Callable[..., SequenceBatcher]) -> None:
    batcher = make(1)
    first, second = step(1, "s"), step(1)
    offer(batcher, first, second, step(2, "se"))
    assert batcher.remove(first)
    assert batcher.abandoned() == [second]
    assert run(batcher) == [2]
    offer(batcher, step(3, "s"))
    assert run(batcher) == [3]


def test_a_removed_candidate_is_not_taken() -> None:
    batcher = oldest(2, batching=BatcherRules(4, (), 100))
    first = step(1, "s")
    offer(batcher, first, step(2, "s"), step(3, "s"))
    assert batcher.take(0) is None
    assert batcher.remove(first)
    assert run(batcher, 100) == [2, 3]


@both
def test_a_request_of_the_backlog_can_be_removed(make: Callable[..., SequenceBatcher]) -> None:
    batcher = make(1)
    waiting = step(2, "s")
    offer(batcher, step(1, "s"), waiting, step(3, "s"))
    assert batcher.remove(waiting)
    offer(batcher, step(1, "e"))
    assert [run(batcher) for _ in range(3)] == [[1], [1], [3]]
    assert batcher.take(0) is None


def test_a_removed_request_of_a_running_sequence_leaves_the_slot_to_the_next() -> None:
    batcher = oldest(1)
    second = step(1)
    offer(batcher, step(1, "s"), second, step(2, "se"))
    batch = take(batcher)
    assert batcher.remove(second)
    assert batcher.take(0) is None
    batcher.finish(batch, 0)
    assert run(batcher) == [2]


def test_tests_of_clients_may_hold_the_first_batch_back() -> None:
    batcher = direct(2, held_until_count=3, held_until_backlog_count=1)
    offer(batcher, step(1, "s"), step(2, "s"), step(3, "s"))
    assert batcher.take(0) is None
    offer(batcher, step(1))
    assert run(batcher) == [1, 2]
    assert run(batcher) == [1]


def test_nothing_is_due_when_nothing_is_there() -> None:
    batcher = direct()
    assert batcher.take(0) is None
    assert batcher.wake_ns() is None
    assert batcher.next_deadline_ns() is None
    assert batcher.expire(0) == []
    assert not batcher.remove(step(1))


iterative = pytest.mark.parametrize(
    "batcher",
    [
        SequenceBatcher(SequenceRules("m", 1, 2, IDLE_NS, None, is_iterative=True)),
        SequenceBatcher(SequenceRules("m", 1, 2, IDLE_NS, BatcherRules(2), is_iterative=True)),
    ],
    ids=["direct", "oldest"],
)


@iterative
def test_a_request_that_runs_again_keeps_its_slot_and_its_state(batcher: SequenceBatcher) -> None:
    # The third waits for the place of one that is done with.
    first, second, third = (step(0) for _ in range(3))
    offer(batcher, first, second, third)
    batch = take(batcher)
    assert batch.requests == [first, second]
    assert first.sequence_start
    assert batch.rows is not None
    state = batch.rows[0].state
    batcher.reschedule(first, 1)
    batcher.finish(batch, 1)
    assert not first.sequence_start
    assert [first.correlation_id, second.correlation_id, third.correlation_id] == [1, 2, 3]
    batch = take(batcher, 1)
    assert set(batch.requests) == {first, third}
    assert batch.rows is not None
    assert next(row.state for row in batch.rows if row.request is first) is state
    batcher.finish(batch, 2)
    # No sequence is left to be idle.
    assert batcher.next_deadline_ns() is None
    assert not len(batcher)


def test_own_sequences_take_no_id_of_a_client() -> None:
    batcher = direct(is_iterative=True)
    own = step(0)
    offer(batcher, step(1, "s"), own)
    assert own.correlation_id == 2


def test_a_sequence_that_has_ended_runs_no_request_again() -> None:
    batcher = direct(is_iterative=True)
    only = step(5, "se")
    offer(batcher, only)
    batch = take(batcher)
    with pytest.raises(InvalidArgumentError, match="must specify the START flag"):
        batcher.reschedule(only, 0)
    batcher.finish(batch, 0)
    assert not len(batcher)


def test_a_request_does_not_go_on_in_a_sequence_that_began_after_its_own() -> None:
    batcher = direct(is_iterative=True)
    ended, begun = step(5, "se"), step(5, "s")
    offer(batcher, ended)
    batch = take(batcher)
    offer(batcher, begun)
    with pytest.raises(InvalidArgumentError, match="must specify the START flag"):
        batcher.reschedule(ended, 0)
    batcher.finish(batch, 0)
    assert take(batcher).requests == [begun]


def test_without_iterative_sequences_every_request_runs_once() -> None:
    batcher = direct()
    first = step(1, "s")
    offer(batcher, first)
    batch = take(batcher)
    with pytest.raises(InvalidArgumentError, match="TRITONSERVER_REQUEST_RELEASE_RESCHEDULE"):
        batcher.reschedule(first, 0)
    batcher.finish(batch, 0)
    assert batcher.next_deadline_ns() == IDLE_NS


@pytest.mark.parametrize("scheduler", [DefaultScheduler(), DynamicBatcher(BatcherRules(4))])
def test_other_schedulers_run_every_request_once(
    scheduler: DefaultScheduler | DynamicBatcher,
) -> None:
    with pytest.raises(InvalidArgumentError, match="TRITONSERVER_REQUEST_RELEASE_RESCHEDULE"):
        scheduler.reschedule(rows_request(1), 0)


@both
def test_at_the_end_the_backlog_does_not_wait_for_sequences_that_get_no_more(
    make: Callable[..., SequenceBatcher],
) -> None:
    batcher = make(1)
    offer(batcher, step(1, "s"), step(2, "s"), step(2), step(3, "se"))
    assert run(batcher) == [1]
    assert batcher.take(0) is None
    batcher.stop(0)
    assert [run(batcher) for _ in range(3)] == [[2], [2], [3]]
    assert not len(batcher)
    assert batcher.next_deadline_ns() is None


def test_a_generation_goes_on_at_the_end() -> None:
    batcher = direct(1, is_iterative=True)
    only = step(0)
    offer(batcher, only)
    batch = take(batcher)
    batcher.stop(0)
    batcher.reschedule(only, 0)
    batcher.finish(batch, 0)
    assert take(batcher).requests == [only]


def test_what_is_held_back_runs_at_the_end() -> None:
    for batcher in (
        direct(held_until_count=5),
        oldest(batching=BatcherRules(4)),
    ):
        offer(batcher, step(1, "s"))
        batcher.stop(0)
        assert run(batcher) == [1]
    held = DynamicBatcher(BatcherRules(4, held_until_count=5))
    held.offer(rows_request(1), 0)
    assert held.take(0) is None
    held.stop(0)
    assert held.take(0) is not None


@both
def test_a_sequence_ends_on_the_instance_that_was_taken_away(
    make: Callable[..., SequenceBatcher],
) -> None:
    batcher = make(1, 2)
    offer(batcher, step(1, "s"), step(2, "s"))
    places = {keys(batch)[0]: batch for batch in (take(batcher), take(batcher))}
    assert {batch.instance_index for batch in places.values()} == {0, 1}
    gone = places[1].instance_index
    batcher.set_instances((1 - gone, 2), 0)
    assert not batcher.release(gone)
    for batch in places.values():
        batcher.finish(batch, 0)
    assert not batcher.release(gone)
    offer(batcher, step(1), step(3, "s"))
    found = {keys(batch)[0]: batch for batch in (take(batcher), take(batcher))}
    assert (found[1].instance_index, found[3].instance_index) == (gone, 2)
    for batch in found.values():
        batcher.finish(batch, 0)
    offer(batcher, step(1, "e"), step(4, "se"))
    last = take(batcher)
    assert not batcher.release(gone)
    batcher.finish(last, 0)
    assert batcher.release(gone)
    # What waits gets no slot of an instance that is gone.
    assert batcher.take(0) is None
    assert len(batcher) == 1


@both
def test_sequences_that_wait_get_the_slots_of_new_instances(
    make: Callable[..., SequenceBatcher],
) -> None:
    batcher = make(1, 1)
    offer(batcher, step(1, "s"), step(2, "s"), step(3, "s"))
    assert run(batcher) == [1]
    assert batcher.take(0) is None
    batcher.set_instances((0, 5), 0)
    batch = take(batcher)
    assert (keys(batch), batch.instance_index) == ([2], 5)
    assert batcher.take(0) is None


@both
def test_a_sequence_that_is_idle_for_too_long_frees_an_instance_that_leaves(
    make: Callable[..., SequenceBatcher],
) -> None:
    batcher = make(1, 1)
    offer(batcher, step(1, "s"))
    assert run(batcher) == [1]
    batcher.set_instances((1,), 0)
    assert not batcher.release(0)
    batcher.expire(IDLE_NS)
    assert batcher.release(0)


@pytest.mark.parametrize("end", ["flag", "idle"])
def test_the_state_of_a_sequence_ends_with_it(end: str) -> None:
    """It may be large, and nobody may begin a sequence in the slot for hours."""
    batcher = direct()
    offer(batcher, step(1, "se" if end == "flag" else "s"))
    batch = take(batcher)
    assert batch.rows is not None
    state = batch.rows[0].state
    assert state is not None
    tensor = np.zeros(4)
    life = ref(tensor)
    state.tensors = {"STATE": tensor}
    batcher.finish(batch, 0)
    batcher.expire(IDLE_NS)
    del batch, state, tensor
    assert life() is None
