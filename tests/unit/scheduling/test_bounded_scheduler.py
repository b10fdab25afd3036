"""The bound on what waits in all models together."""

from sys import getsizeof

import numpy as np
import pytest
from tests.support.requests import make_request, rows_request, tensor

from naiad.errors import UnavailableError
from naiad.inference.datatypes import FP32
from naiad.inference.request import InferRequest
from naiad.inference.tensor import SharedTensor
from naiad.scheduling.bounded import BoundedScheduler, QueueBudget
from naiad.scheduling.dynamic import BatcherRules, DynamicBatcher
from naiad.scheduling.queue import QueuePolicy, QueueRules
from naiad.scheduling.sequence import SequenceBatcher, SequenceRules

# Of one row of `rows_request`.
ROW_BYTES = 4


def bounded(budget: QueueBudget, policy: QueuePolicy | None = None) -> BoundedScheduler:
    rules = QueueRules(default_policy=policy or QueuePolicy())
    return BoundedScheduler(DynamicBatcher(BatcherRules(8), rules), budget)


def test_models_share_the_bound_and_a_refusal_says_what_waits() -> None:
    budget = QueueBudget(5 * ROW_BYTES)
    first, second = bounded(budget), bounded(budget)
    # The first of each is about to run.
    for scheduler in (first, second):
        scheduler.offer(rows_request(8), 0)
    first.offer(rows_request(3), 0)
    second.offer(rows_request(2), 0)
    assert budget.waiting_bytes == 5 * ROW_BYTES
    with pytest.raises(UnavailableError) as refusal:
        first.offer(rows_request(1), 0)
    assert refusal.value.message == (
        "[request id: <id_unknown>] Exceeds maximum queue size: requests of 20 bytes wait in the "
        "server, and --max-queue-bytes lets 20 wait; send this one again later"
    )
    assert first.take(0) is not None
    batch = first.take(0)
    assert batch is not None
    assert [request.batch_size for request in batch.requests] == [3]
    assert budget.waiting_bytes == 2 * ROW_BYTES
    second.offer(rows_request(3), 0)


def test_whoever_leaves_the_queue_makes_room() -> None:
    budget = QueueBudget(100 * ROW_BYTES)
    scheduler = bounded(budget, QueuePolicy(default_timeout_ns=1000))
    requests = [rows_request(8) for _ in range(4)]
    for request in requests:
        scheduler.offer(request, 0)
    assert scheduler.remove(requests[1])
    assert not scheduler.remove(requests[1])
    assert budget.waiting_bytes == 2 * 8 * ROW_BYTES
    assert scheduler.take(0) is not None
    assert list(scheduler.expire(1000)) == requests[2:]
    assert budget.waiting_bytes == 0


def test_the_rest_of_a_cancelled_sequence_makes_room() -> None:
    budget = QueueBudget(100 * ROW_BYTES)
    scheduler = BoundedScheduler(SequenceBatcher(SequenceRules("m")), budget)
    steps = [rows_request(1) for _ in range(4)]
    for step in steps:
        step.correlation_id, step.sequence_start = 7, step is steps[0]
        scheduler.offer(step, 0)
    assert scheduler.remove(steps[1])
    assert list(scheduler.abandoned()) == steps[2:]
    assert budget.waiting_bytes == 0
    assert len(scheduler) == 1


def test_what_the_queue_itself_refuses_does_not_wait() -> None:
    budget = QueueBudget(100 * ROW_BYTES)
    scheduler = bounded(budget, QueuePolicy(max_size=2))
    for _ in range(2):
        scheduler.offer(rows_request(1), 0)
    with pytest.raises(UnavailableError, match=r"Exceeds maximum queue size$"):
        scheduler.offer(rows_request(1), 0)
    assert budget.waiting_bytes == ROW_BYTES


def waiting_bytes(request: InferRequest) -> int:
    budget = QueueBudget(1 << 40)
    scheduler = bounded(budget)
    scheduler.offer(rows_request(1), 0)
    scheduler.offer(request, 0)
    return budget.waiting_bytes


def test_texts_are_estimated_and_shared_memory_is_free() -> None:
    texts = np.full((1, 1000), b"twelve bytes", np.object_)
    assert waiting_bytes(make_request(tensor("IN", texts))) == 1000 * (8 + 40 + 12)
    assert waiting_bytes(make_request(tensor("IN", np.empty((1, 0), np.object_)))) == 0
    data = np.zeros((1, 1000), np.float32)
    shared = SharedTensor("IN", FP32, data.shape, data)
    assert waiting_bytes(make_request(shared)) == 0


@pytest.mark.parametrize("count", [1, 500, 5000])
def test_the_estimate_of_texts_is_near_the_memory_that_they_take(count: int) -> None:
    """Long ones behind short ones count, too, and so do the objects of Python."""
    texts = np.empty((1, count), np.object_)
    texts[0] = [b"%d" % n if n < count // 2 else b"%d" % n * 200 for n in range(count)]
    taken = texts.nbytes + sum(map(getsizeof, texts[0]))
    assert waiting_bytes(make_request(tensor("IN", texts))) == pytest.approx(taken, rel=0.1)
