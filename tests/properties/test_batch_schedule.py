"""Random schedules of the default scheduler and the dynamic batcher."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from tests.support.requests import rows_request

from naiad.inference.request import InferRequest
from naiad.scheduling.dynamic import BatcherRules, DynamicBatcher

MAX_ROWS = 8
steps = st.lists(
    st.one_of(
        st.tuples(st.just("offer"), st.integers(1, MAX_ROWS), st.sampled_from("ab")),
        st.tuples(st.just("take"), st.integers(0, 3000), st.just("")),
        st.tuples(st.just("remove"), st.integers(0, 5), st.just("")),
    ),
    max_size=60,
)


@given(
    steps=steps, preferred=st.sets(st.integers(1, MAX_ROWS)), delay_ns=st.sampled_from([0, 2000])
)
def test_no_request_is_lost_or_taken_twice_and_no_bound_is_broken(
    steps: list[tuple[str, int, str]], preferred: set[int], delay_ns: int
) -> None:
    batcher = DynamicBatcher(BatcherRules(MAX_ROWS, tuple(preferred), delay_ns))
    now_ns = 0
    waiting: list[InferRequest] = []
    for verb, number, key in steps:
        if verb == "offer":
            request = rows_request(number, key)
            batcher.offer(request, now_ns)
            waiting.append(request)
        elif verb == "remove" and number < len(waiting):
            assert batcher.remove(waiting.pop(number))
        elif verb == "take":
            now_ns += number
            taken = batcher.take(now_ns)
            if taken is None:
                assert not waiting or now_ns - waiting[0].queued_ns < delay_ns
                continue
            batch = taken.requests
            assert batch == waiting[: len(batch)]
            assert sum(request.batch_size for request in batch) <= MAX_ROWS
            assert len({request.batch_key for request in batch}) == 1
            del waiting[: len(batch)]
        assert len(batcher) == len(waiting)


@given(
    rows=st.lists(st.integers(1, MAX_ROWS), min_size=1, max_size=40),
    preferred=st.sets(st.integers(1, MAX_ROWS)),
)
def test_a_delay_over_empties_the_queue_in_full_batches(
    rows: list[int], preferred: set[int]
) -> None:
    batcher = DynamicBatcher(BatcherRules(MAX_ROWS, tuple(preferred), 1000))
    for count in rows:
        batcher.offer(rows_request(count), 0)
    taken = []
    while batch := batcher.take(1000):
        taken.append(sum(request.batch_size for request in batch.requests))
    assert sum(taken) == sum(rows)
    # Two neighbours would not have fitted into one batch, or the first had a size worth closing at.
    worth = max(preferred, default=MAX_ROWS)
    assert all(a + b > MAX_ROWS or a >= worth or a in preferred for a, b in pairwise(taken))
