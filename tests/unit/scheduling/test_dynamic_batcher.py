"""Compositions measured on Triton 2.51 (requests behind a running one, three ms apart)."""

from collections.abc import Sequence

import pytest
from tests.support.requests import rows_request

from naiad.inference.request import InferRequest
from naiad.scheduling.default import DefaultScheduler
from naiad.scheduling.dynamic import DynamicBatcher
from naiad.scheduling.scheduler import Scheduler


def compositions(scheduler: Scheduler, rows: Sequence[int], now_ns: int = 0) -> list[int]:
    """Rows of each batch when all requests wait and an instance is always free."""
    for count in rows:
        scheduler.offer(rows_request(count), now_ns)
    sizes = []
    while batch := scheduler.take(now_ns):
        sizes.append(sum(request.batch_size for request in batch))
    return sizes


@pytest.mark.parametrize(
    ("preferred", "rows", "expected"),
    [
        ([], [1] * 7, [7]),
        ([], [1] * 13, [8, 5]),
        ([], [3] * 4, [6, 6]),
        ([4], [1] * 7, [4, 3]),
        ([4], [1] * 13, [4, 4, 4, 1]) ,
        ([4], [3] * 4, [6, 6]),
        ([], [8, 1, 8, 1], [8, 1, 8, 1]),
        ([], [5, 5, 3, 3], [5, 8, 3]),
    ],
)  # fmt: skip
def test_without_a_delay_what_is_there_goes_at_once(
    preferred: list[int], rows: list[int], expected: list[int]
) -> None:
    assert compositions(DynamicBatcher(8, preferred, 0), rows) == expected


def test_the_default_scheduler_merges_nothing() -> None:
    assert compositions(DefaultScheduler(), [1, 2, 3]) == [1, 2, 3]


def test_other_dims_close_the_batch_and_keep_the_order() -> None:
    batcher = DynamicBatcher(8, [], 0)
    requests = [rows_request(1, key) for key in "ababcc"]
    for request in requests:
        batcher.offer(request, 0)
    taken: list[list[InferRequest]] = []
    while batch := batcher.take(0):
        taken.append(batch)
    assert [len(batch) for batch in taken] == [1, 1, 1, 1, 2]
    assert [request for batch in taken for request in batch] == requests


def test_a_delay_holds_a_batch_until_its_oldest_request_waited_that_long() -> None:
    batcher = DynamicBatcher(8, [], 1000)
    batcher.offer(rows_request(1), 0)
    batcher.offer(rows_request(1), 600)
    assert batcher.take(999) is None
    assert batcher.wake_ns() == 1000
    assert len(batcher.take(1000) or []) == 2


def test_a_full_batch_does_not_wait() -> None:
    batcher = DynamicBatcher(4, [], 1000)
    for _ in range(5):
        batcher.offer(rows_request(1), 0)
    assert len(batcher.take(0) or []) == 4
    assert batcher.take(0) is None


def test_a_preferred_size_does_not_wait() -> None:
    batcher = DynamicBatcher(8, [4], 1000)
    for _ in range(4):
        batcher.offer(rows_request(1), 0)
    assert len(batcher.take(0) or []) == 4


def test_a_batch_that_the_next_request_does_not_fit_does_not_wait() -> None:
    batcher = DynamicBatcher(8, [], 1000)
    for rows in (5, 5):
        batcher.offer(rows_request(rows), 0)
    assert len(batcher.take(0) or []) == 1


def test_nothing_waits_without_a_delay() -> None:
    batcher = DynamicBatcher(8, [4], 0)
    batcher.offer(rows_request(1), 5)
    assert batcher.wake_ns() is None
    assert len(batcher.take(5) or []) == 1


@pytest.mark.parametrize("scheduler", [DefaultScheduler(), DynamicBatcher(8, [], 0)])
def test_a_removed_request_does_not_run(scheduler: Scheduler) -> None:
    kept, dropped = rows_request(1), rows_request(1)
    scheduler.offer(dropped, 0)
    scheduler.offer(kept, 0)
    assert scheduler.remove(dropped)
    assert not scheduler.remove(dropped)
    assert len(scheduler) == 1
    assert scheduler.take(0) == [kept]
    assert scheduler.take(0) is None
