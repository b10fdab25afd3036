"""Compositions measured on Triton 2.51 (requests behind a running one, three ms apart)."""

from collections.abc import Sequence

import pytest
from tests.support.requests import rows_request

from naiad.inference.request import InferRequest
from naiad.scheduling.default import DefaultScheduler
from naiad.scheduling.dynamic import BatcherRules, DynamicBatcher
from naiad.scheduling.queue import QueuePolicy, QueueRules, TimeoutAction
from naiad.scheduling.scheduler import Batch, BatchClose, Scheduler

MS = 1_000_000
EXECUTION_NS = 270 * MS


def two_instances(*, is_order_preserved: bool = False) -> DynamicBatcher:
    rules = BatcherRules(8, instance_count=2, is_order_preserved=is_order_preserved)
    return DynamicBatcher(rules)


def batcher(*preferred: int, max_rows: int = 8, delay_ns: int = 0) -> DynamicBatcher:
    return DynamicBatcher(BatcherRules(max_rows, preferred, delay_ns))


def run(scheduler: Scheduler, arrivals: Sequence[tuple[int, int]], instances: int = 1) -> list[int]:
    """Rows of each execution on instances that take 270 ms, whatever the batch.

    Args:
        scheduler: that is asked.
        arrivals: time in ns and rows of each request.
        instances: how many there are.
    """
    waiting = list(arrivals)
    executed: list[int] = []
    now_ns = 0
    free_ns = [0] * instances
    running: list[Batch | None] = [None] * instances
    while waiting or len(scheduler):
        while waiting and waiting[0][0] <= now_ns:
            scheduler.offer(rows_request(waiting.pop(0)[1]), now_ns)
        for index in range(instances):
            finished = running[index]
            if now_ns >= free_ns[index] and finished is not None:
                scheduler.finish(finished, now_ns)
                running[index] = None
            if now_ns >= free_ns[index] and (batch := scheduler.take(now_ns)):
                running[index] = batch
                executed.append(sum(request.batch_size for request in batch.requests))
                free_ns[index] = now_ns + EXECUTION_NS
        now_ns += MS
    return executed


def behind_a_plug(count: int, rows: int = 1) -> list[tuple[int, int]]:
    return [(0, 1)] + [((60 + 3 * index) * MS, rows) for index in range(count)]


def idle(count: int) -> list[tuple[int, int]]:
    return [(3 * index * MS, 1) for index in range(count)]


# Rows: 7 behind a plug, 13 behind a plug, 4 of 3 rows behind a plug, 3 on an idle server.
MEASURED = [
    (DefaultScheduler, [[1] * 8, [1] * 14, [1, 3, 3, 3, 3], [1, 1, 1]]),
    (batcher, [[1, 7], [1, 8, 5], [1, 6, 6], [1, 2]]),
    (lambda: batcher(4), [[1, 4, 3], [1, 4, 4, 4, 1], [1, 6, 6], [1, 2]]),
    (lambda: batcher(4, delay_ns=200 * MS), [[4, 4], [4, 5, 5], [4, 6, 3], [3]]),
    (lambda: batcher(delay_ns=200 * MS), [[8], [8, 6], [7, 6], [3]]),
    (lambda: batcher(2, 6), [[1, 2, 2, 2, 1], [1, 2, 2, 2, 6, 1], [1, 6, 6], [1, 2]]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("make", "expected"), MEASURED, ids=["none", "{}", "4", "4+delay", "delay", "2,6"]
)
def test_the_executions_are_those_of_triton(
    make: type[DefaultScheduler], expected: list[list[int]]
) -> None:
    assert run(make(), behind_a_plug(7)) == expected[0]
    assert run(make(), behind_a_plug(13)) == expected[1]
    assert run(make(), behind_a_plug(4, rows=3)) == expected[2]
    assert run(make(), idle(3)) == expected[3]


@pytest.mark.parametrize("is_order_preserved", [False, True])
def test_two_instances_share_the_work_as_in_triton(is_order_preserved: bool) -> None:
    def sizes(arrivals: list[tuple[int, int]]) -> list[int]:
        scheduler = two_instances(is_order_preserved=is_order_preserved)
        # Triton's statistics count sizes and not their order.
        return sorted(run(scheduler, arrivals, instances=2))

    assert sizes(behind_a_plug(7)) == [1, 1, 6]
    # Measured: 1, 2..1, 3..4, 8.
    assert sizes(behind_a_plug(13)) == [1, 1, 4, 8]
    assert sizes(behind_a_plug(4, rows=3)) == [1, 3, 3, 6]
    assert sizes(idle(3)) == [1, 1, 1]


def compositions(scheduler: Scheduler, rows: Sequence[int], now_ns: int = 0) -> list[int]:
    """Rows of each batch when all requests wait and an instance is always free."""
    for count in rows:
        scheduler.offer(rows_request(count), now_ns)
    sizes = []
    while batch := scheduler.take(now_ns):
        sizes.append(sum(request.batch_size for request in batch.requests))
    return sizes


@pytest.mark.parametrize(
    ("rows", "expected"), [([8, 1, 8, 1], [8, 1, 8, 1]), ([5, 5, 3, 3], [5, 8, 3])]
)
def test_a_request_is_never_split_or_overtaken(rows: list[int], expected: list[int]) -> None:
    assert compositions(batcher(), rows) == expected


def test_the_default_scheduler_merges_nothing() -> None:
    assert compositions(DefaultScheduler(), [1, 2, 3]) == [1, 2, 3]


def test_other_dims_close_the_batch_and_keep_the_order() -> None:
    scheduler = batcher()
    requests = [rows_request(1, key) for key in "ababcc"]
    for request in requests:
        scheduler.offer(request, 0)
    taken: list[list[InferRequest]] = []
    reasons = []
    while batch := scheduler.take(0):
        taken.append(batch.requests)
        reasons.append(batch.closed_by)
    assert [len(batch) for batch in taken] == [1, 1, 1, 1, 2]
    assert [request for batch in taken for request in batch] == requests
    assert reasons == [BatchClose.SHAPE_DIFFERS] * 4 + [BatchClose.QUEUE_EMPTY]


def taken(scheduler: Scheduler, now_ns: int) -> tuple[int, BatchClose] | None:
    batch = scheduler.take(now_ns)
    return (len(batch.requests), batch.closed_by) if batch else None


def offer(scheduler: Scheduler, *rows: int, now_ns: int = 0) -> None:
    for count in rows:
        scheduler.offer(rows_request(count), now_ns)


def test_a_delay_holds_a_batch_until_its_oldest_request_waited_that_long() -> None:
    scheduler = batcher(delay_ns=1000)
    offer(scheduler, 1)
    offer(scheduler, 1, now_ns=600)
    assert taken(scheduler, 999) is None
    assert scheduler.wake_ns() == 1000
    assert taken(scheduler, 1000) == (2, BatchClose.DELAY_OVER)


def test_a_request_that_leads_beyond_every_preferred_size_sends_those_before_it() -> None:
    scheduler = DynamicBatcher(BatcherRules(8, (2, 6), 1000))
    offer(scheduler, 3)
    assert taken(scheduler, 0) is None
    offer(scheduler, 4, now_ns=10)
    assert taken(scheduler, 10) == (1, BatchClose.PREFERRED_SIZE)
    # It waits for its own company.
    assert taken(scheduler, 1009) is None
    assert taken(scheduler, 1010) == (1, BatchClose.DELAY_OVER)


def test_behind_a_running_batch_such_a_request_joins_those_before_it() -> None:
    scheduler = DynamicBatcher(BatcherRules(8, (2, 6), 1000))
    offer(scheduler, 2)
    running = scheduler.take(0)
    assert running is not None
    offer(scheduler, 3, 4, now_ns=10)
    scheduler.finish(running, 20)
    assert taken(scheduler, 20) == (2, BatchClose.PREFERRED_SIZE)


@pytest.mark.parametrize(
    ("preferred", "delay_ns", "rows", "now_ns", "expected"),
    [
        # The largest preferred size, though a smaller one was met on the way.
        ((4, 6), 0, [1] * 7, 0, [6, 1]),
        ((2, 6), 1000, [3, 4], 0, [3]),
        ((2, 6), 1000, [3, 4], 1000, [7]),
        ((2, 6), 1000, [3, 4, 1], 1100, [8]),
    ],
)
def test_what_gathers_while_the_scheduler_is_held_is_looked_at_together(
    preferred: tuple[int, ...],
    delay_ns: int,
    rows: list[int],
    now_ns: int,
    expected: list[int],
) -> None:
    scheduler = DynamicBatcher(BatcherRules(8, preferred, delay_ns, held_until_count=len(rows)))
    offer(scheduler, *rows[:-1])
    assert taken(scheduler, 0) is None
    offer(scheduler, rows[-1])
    sizes = []
    while batch := scheduler.take(now_ns):
        sizes.append(sum(request.batch_size for request in batch.requests))
    assert sizes == expected


def test_a_full_batch_does_not_wait() -> None:
    scheduler = batcher(max_rows=4, delay_ns=1000)
    offer(scheduler, 1, 1, 1, 1, 1)
    assert taken(scheduler, 0) == (4, BatchClose.FULL)
    assert taken(scheduler, 0) is None


def test_a_preferred_size_does_not_wait() -> None:
    scheduler = batcher(4, delay_ns=1000)
    offer(scheduler, 1, 1, 1, 1)
    assert taken(scheduler, 0) == (4, BatchClose.PREFERRED_SIZE)


def test_a_batch_that_the_next_request_does_not_fit_does_not_wait() -> None:
    scheduler = batcher(delay_ns=1000)
    offer(scheduler, 5, 5)
    assert taken(scheduler, 0) == (1, BatchClose.FULL)


def test_nothing_waits_without_a_delay() -> None:
    scheduler = batcher(4)
    offer(scheduler, 1, now_ns=5)
    assert scheduler.wake_ns() is None
    assert taken(scheduler, 5) == (1, BatchClose.QUEUE_EMPTY)


def test_a_held_batcher_waits_for_that_many_requests_once() -> None:
    scheduler = DynamicBatcher(BatcherRules(8, held_until_count=3))
    offer(scheduler, 1, 1)
    assert taken(scheduler, 0) is None
    offer(scheduler, 1)
    assert taken(scheduler, 0) == (3, BatchClose.QUEUE_EMPTY)
    offer(scheduler, 1)
    assert taken(scheduler, 0) == (1, BatchClose.QUEUE_EMPTY)


@pytest.mark.parametrize("scheduler", [DefaultScheduler(), batcher(), batcher(2, 4)])
def test_a_removed_request_does_not_run(scheduler: Scheduler) -> None:
    kept, dropped = rows_request(1), rows_request(1)
    scheduler.offer(dropped, 0)
    scheduler.offer(kept, 0)
    assert scheduler.remove(dropped)
    assert not scheduler.remove(dropped)
    assert len(scheduler) == 1
    batch = scheduler.take(0)
    assert batch is not None
    assert batch.requests == [kept]
    assert scheduler.take(0) is None


def test_a_request_that_goes_before_delayed_ones_does_not_take_their_place_in_a_batch() -> None:
    policy = QueuePolicy(TimeoutAction.DELAY, default_timeout_ns=100)
    scheduler = DynamicBatcher(BatcherRules(4, (2,)), QueueRules(default_policy=policy))
    late = [rows_request(1, "late") for _ in range(6)]
    for request in late:
        scheduler.offer(request, 0)
    assert not scheduler.expire(100)
    first = scheduler.take(100)  # and the next ones are formed
    assert first is not None
    early = rows_request(3, "early")
    scheduler.offer(early, 100)
    second = scheduler.take(100)
    assert second is not None
    assert second.requests == [early]
    rest = []
    while (batch := scheduler.take(100)) is not None:
        rest += batch.requests
    assert first.requests + rest == late


def test_a_batch_that_was_closed_before_others_came_says_so() -> None:
    scheduler = batcher(1)
    offer(scheduler, 1, 1, 1, 2)
    assert taken(scheduler, 0) == (1, BatchClose.PREFERRED_SIZE)
    # The last of them makes a batch beyond the largest preferred size, which waits for no others.
    offer(scheduler, 1)
    assert [taken(scheduler, 0) for _ in range(4)] == [
        (1, BatchClose.PREFERRED_SIZE),
        (1, BatchClose.PREFERRED_SIZE),
        (1, BatchClose.PREFERRED_SIZE),
        (1, BatchClose.QUEUE_EMPTY),
    ]
