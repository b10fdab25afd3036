"""Priorities, limits and deadlines, as measured on Triton 2.51 and as its documents say."""

from weakref import ref

import pytest
from tests.support.requests import rows_request

from naiad.errors import UnavailableError
from naiad.inference.request import InferRequest
from naiad.scheduling.queue import QueuePolicy, QueueRules, RequestQueue, TimeoutAction

MS = 1_000_000


def waiting(priority: int = 0, timeout_us: int = 0) -> InferRequest:
    request = rows_request(1)
    request.priority = priority
    request.timeout_us = timeout_us
    return request


def test_a_higher_priority_goes_first_and_equals_keep_their_order() -> None:
    queue = RequestQueue(QueueRules(level_count=3, default_level=2))
    sent = [waiting(priority) for priority in (3, 3, 2, 1, 1, 0)]
    for request in sent:
        queue.push(request, 0)
    assert [request.priority for request in queue.pop(6)] == [1, 1, 2, 0, 3, 3]
    assert len(queue) == 0


@pytest.mark.parametrize("priority", [7, 2**64 - 1])
def test_a_level_that_there_is_not_is_the_default(priority: int) -> None:
    queue = RequestQueue(QueueRules(level_count=3, default_level=2))
    odd = waiting(priority)
    for request in (odd, waiting(2), waiting(1)):
        queue.push(request, 0)
    assert queue.pop(3)[1] is odd


def test_two_to_the_sixty_four_levels_cost_nothing() -> None:
    queue = RequestQueue(QueueRules(level_count=2**64 - 1, default_level=2**63))
    low, high = waiting(2**64 - 1), waiting(1)
    queue.push(low, 0)
    queue.push(high, 0)
    assert queue.pop(2) == [high, low]


def test_without_levels_priority_means_nothing() -> None:
    queue = RequestQueue(QueueRules())
    sent = [waiting(3), waiting(1)]
    for request in sent:
        queue.push(request, 0)
    assert queue.pop(2) == sent


def test_the_limit_counts_requests_that_wait_and_is_exact() -> None:
    queue = RequestQueue(QueueRules(default_policy=QueuePolicy(max_size=2)))
    queue.push(waiting(), 0)
    queue.push(waiting(), 0)
    with pytest.raises(
        UnavailableError, match=r"^\[request id: <id_unknown>\] Exceeds maximum queue size$"
    ):
        queue.push(waiting(), 0)
    queue.pop(1)
    queue.push(waiting(), 0)


def test_each_level_has_its_own_limit() -> None:
    rules = QueueRules(level_count=2, default_level=1, policies={2: QueuePolicy(max_size=1)})
    queue = RequestQueue(rules)
    queue.push(waiting(2), 0)
    with pytest.raises(UnavailableError):
        queue.push(waiting(2), 0)
    for _ in range(10):
        queue.push(waiting(1), 0)


def test_a_rejected_request_leaves_exactly_at_its_deadline() -> None:
    policy = QueuePolicy(default_timeout_ns=100 * MS)
    queue = RequestQueue(QueueRules(default_policy=policy))
    first, second = waiting(), waiting()
    queue.push(first, 0)
    queue.push(second, 1)
    assert queue.next_deadline_ns() == 100 * MS
    assert queue.expire(100 * MS - 1) == []
    assert queue.expire(100 * MS) == [first]
    assert queue.pop(2) == [second]
    assert queue.next_deadline_ns() is None


def test_a_delayed_request_runs_after_all_others() -> None:
    policy = QueuePolicy(TimeoutAction.DELAY, default_timeout_ns=100)
    queue = RequestQueue(QueueRules(default_policy=policy))
    late, in_time = waiting(), waiting()
    queue.push(late, 0)
    queue.push(in_time, 50)
    assert queue.expire(100) == []
    assert queue.pop(2) == [in_time, late]


@pytest.mark.parametrize(
    ("default_us", "asked_us", "expected_us"),
    [(5_000_000, 50_000, 50_000), (100_000, 5_000_000, 100_000), (100_000, 0, 100_000), (0, 5, 0)],
)
def test_an_override_can_only_shorten(default_us: int, asked_us: int, expected_us: int) -> None:
    allowed = QueuePolicy(default_timeout_ns=default_us * 1000, is_override_allowed=True)
    assert allowed.timeout_ns(waiting(timeout_us=asked_us)) == expected_us * 1000
    refused = QueuePolicy(default_timeout_ns=default_us * 1000)
    assert refused.timeout_ns(waiting(timeout_us=asked_us)) == default_us * 1000


def test_a_removed_request_has_no_deadline() -> None:
    queue = RequestQueue(QueueRules(default_policy=QueuePolicy(default_timeout_ns=100)))
    request = waiting()
    queue.push(request, 0)
    assert queue.remove(request)
    assert not queue.remove(request)
    assert queue.next_deadline_ns() is None
    assert queue.expire(1000) == []


@pytest.mark.parametrize("leave", ["pop", "remove", "expire"])
def test_a_request_that_left_is_not_kept_until_its_deadline(leave: str) -> None:
    """Its inputs may be large, and who waits behind it may have to wait for long."""
    policy = QueuePolicy(TimeoutAction.REJECT, default_timeout_ns=3_600_000 * MS)
    queue = RequestQueue(QueueRules(default_policy=policy))
    queue.push(waiting(), -3_600_000 * MS if leave == "expire" else 0)
    request = CountedRequest("", {}, None, lambda _response: None)
    life = ref(request)
    queue.push(request, -3_599_999 * MS if leave == "expire" else 0)
    if leave == "pop":
        queue.pop(2)
    elif leave == "remove":
        queue.remove(request)
    else:
        queue.expire(1 * MS)
    del request
    assert life() is None


def test_a_request_that_comes_again_has_its_new_deadline_alone() -> None:
    policy = QueuePolicy(TimeoutAction.REJECT, default_timeout_ns=100)
    queue = RequestQueue(QueueRules(default_policy=policy))
    first, request = waiting(), waiting()
    queue.push(first, 0)
    queue.push(request, 10)
    queue.remove(request)
    queue.push(request, 50)
    assert queue.expire(110) == [first]
    assert queue.next_deadline_ns() == 150


class CountedRequest(InferRequest):
    """Counts how often it is compared with another."""

    comparisons = 0

    def __eq__(self, other: object) -> bool:
        CountedRequest.comparisons += 1
        return self is other

    __hash__ = InferRequest.__hash__


@pytest.mark.parametrize("default_timeout_ns", [0, 5 * MS])
def test_who_leaves_the_middle_of_a_long_queue_is_not_searched_for(default_timeout_ns: int) -> None:
    policy = QueuePolicy(default_timeout_ns=default_timeout_ns)
    queue = RequestQueue(QueueRules(default_policy=policy))
    requests = [CountedRequest("", {}, None, lambda _response: None) for _ in range(1000)]
    for request in requests:
        queue.push(request, 0)
    CountedRequest.comparisons = 0
    for request in requests[900:500:-1]:
        assert queue.remove(request)
        assert not queue.remove(request)
    # Hashes may collide now and then.
    assert CountedRequest.comparisons < 100
    assert queue.pop(600) == requests[:501] + requests[901:]
    assert len(queue) == 0
