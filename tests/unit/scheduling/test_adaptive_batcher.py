"""The adaptive batcher in simulated time, beside fixed settings where it matters."""

from collections.abc import Callable

import pytest
from tests.support.batch_simulation import BatchSimulation
from tests.support.requests import rows_request

from naiad.errors import UnavailableError
from naiad.scheduling.adaptive import AdaptiveBatcher
from naiad.scheduling.dynamic import BatcherRules, DynamicBatcher
from naiad.scheduling.queue import QueuePolicy, QueueRules
from naiad.scheduling.scheduler import BatchClose

MS = 1_000_000
TARGET_NS = 50 * MS
MAX_ROWS = 64


def affine(rows: int) -> float:
    return 5 * MS + 0.25 * MS * rows


def linear(rows: int) -> float:
    return 0.2 * MS + 2 * MS * rows


def adaptive(*, instances: int = 1, target_ns: int = TARGET_NS) -> AdaptiveBatcher:
    return AdaptiveBatcher(BatcherRules(MAX_ROWS, instance_count=instances), target_ns)


@pytest.mark.parametrize(("took_ns", "per_s"), [(affine, 2740), (linear, 440)])
@pytest.mark.parametrize("share", [1 / 3, 2 / 3, 1])
def test_the_target_is_kept_at_any_load_that_can_be_served(
    took_ns: Callable[[int], float], per_s: float, share: float
) -> None:
    simulation = BatchSimulation(adaptive(), took_ns)
    simulation.open_loop(per_s * share, 1)
    simulation.forget()
    simulation.open_loop(per_s * share, 2)
    assert simulation.p99_ns() <= TARGET_NS
    assert len(simulation.latencies_ns) == pytest.approx(2 * per_s * share, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("clients", [16, 64])
@pytest.mark.parametrize("instances", [1, 2])
def test_saturated_it_does_as_much_as_the_best_fixed_setting(clients: int, instances: int) -> None:
    def throughput(scheduler: AdaptiveBatcher | DynamicBatcher) -> float:
        simulation = BatchSimulation(scheduler, affine, instance_count=instances)
        simulation.closed_loop(clients, 2)
        return len(simulation.latencies_ns)

    fixed = max(
        throughput(DynamicBatcher(BatcherRules(rows, (), delay_ns, instances)))
        for rows in (8, 16, 32, 64)
        for delay_ns in (0, 5 * MS, 15 * MS)
    )
    assert throughput(adaptive(instances=instances)) >= 0.95 * fixed


def test_an_execution_that_would_take_too_long_is_not_begun() -> None:
    batcher = adaptive(target_ns=20 * MS)
    simulation = BatchSimulation(batcher, linear)
    simulation.open_loop(300, 2)
    # A request may wait for one execution and be in the next.
    assert linear(batcher.tuning.max_rows) * 2 <= 20 * MS
    assert max(simulation.sizes) <= 4


def test_overload_is_met_with_the_size_that_does_most() -> None:
    batcher = adaptive()
    simulation = BatchSimulation(batcher, affine)
    simulation.open_loop(5000, 1)
    assert batcher.tuning.max_rows == MAX_ROWS


def test_a_jump_of_the_load_is_followed_within_a_second() -> None:
    simulation = BatchSimulation(adaptive(), affine)
    simulation.open_loop(100, 2)
    simulation.open_loop(2500, 1)
    simulation.forget()
    simulation.open_loop(2500, 1)
    assert simulation.p99_ns() <= TARGET_NS


@pytest.mark.slow
def test_a_model_that_becomes_slower_gets_smaller_batches() -> None:
    batcher = adaptive()
    simulation = BatchSimulation(batcher, linear)
    simulation.open_loop(100, 2)
    before = batcher.tuning.max_rows
    simulation.took_ns = lambda rows: 4 * linear(rows)
    simulation.open_loop(80, 5)
    assert batcher.tuning.max_rows < before


def test_noise_does_not_cost_the_throughput() -> None:
    simulation = BatchSimulation(adaptive(), lambda rows: affine(rows) * noise(), seed=3)

    def noise() -> float:
        return simulation.random.lognormvariate(0, 0.3)

    simulation.open_loop(1500, 1)
    simulation.forget()
    simulation.open_loop(1500, 2)
    assert len(simulation.latencies_ns) == pytest.approx(3000, rel=0.1)
    assert simulation.p99_ns() <= TARGET_NS


def test_nobody_waits_while_an_instance_idles_and_the_load_is_low() -> None:
    batcher = adaptive()
    simulation = BatchSimulation(batcher, affine)
    simulation.open_loop(20, 3)
    assert simulation.idle_wait_ns == 0
    assert batcher.tuning.delay_ns == 0


def test_a_wait_for_company_ends_in_time_and_is_named() -> None:
    batcher = adaptive()
    simulation = BatchSimulation(batcher, affine)
    simulation.closed_loop(32, 2)
    simulation.drain()
    delay_ns = batcher.tuning.delay_ns
    assert 0 < delay_ns <= affine(1)
    now_ns = simulation.now_ns + TARGET_NS
    batcher.offer(rows_request(1), now_ns)
    assert batcher.take(now_ns) is None
    assert batcher.wake_ns() == now_ns + delay_ns
    assert batcher.take(now_ns + delay_ns - 1) is None
    batch = batcher.take(now_ns + delay_ns)
    assert batch is not None
    assert batch.closed_by is BatchClose.DELAY_OVER
    assert batcher.wake_ns() is None


def test_a_wait_ends_when_the_one_that_waited_is_gone() -> None:
    batcher = adaptive()
    simulation = BatchSimulation(batcher, affine)
    simulation.closed_loop(32, 2)
    simulation.drain()
    request = rows_request(1)
    batcher.offer(request, simulation.now_ns)
    assert batcher.take(simulation.now_ns) is None
    assert batcher.remove(request)
    assert not batcher.remove(request)
    assert batcher.wake_ns() is None
    assert len(batcher) == 0


def test_queue_rules_hold() -> None:
    policy = QueuePolicy(default_timeout_ns=1000, max_size=1)
    batcher = AdaptiveBatcher(
        BatcherRules(8, is_order_preserved=True), TARGET_NS, QueueRules(default_policy=policy)
    )
    assert batcher.is_order_preserved
    request = rows_request(2)
    batcher.offer(request, 10)
    with pytest.raises(UnavailableError):
        batcher.offer(rows_request(1), 10)
    assert batcher.next_deadline_ns() == 1010
    assert list(batcher.expire(1010)) == [request]
    assert batcher.take(1010) is None
    assert list(batcher.abandoned()) == []


def test_a_request_with_more_rows_than_the_choice_runs_alone() -> None:
    batcher = adaptive()
    batcher.offer(rows_request(40), 0)
    batcher.offer(rows_request(1), 0)
    batch = batcher.take(0)
    assert batch is not None
    assert [request.batch_size for request in batch.requests] == [40]
