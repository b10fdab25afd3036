import math

import pytest
from tests.support.fake_clock import FakeClock

from naiad.inference.latency_summaries import (
    DEFAULT_TARGETS,
    PART_COUNT,
    WINDOW_NS,
    LatencySummaries,
    QuantileTarget,
)
from naiad.inference.statistics import LatencyHistogram

PART_NS = WINDOW_NS // PART_COUNT
MEDIAN = (QuantileTarget(0.5, 0.05),)


def medians(summaries: LatencySummaries) -> list[float]:
    return [
        summaries.read_us(summary)[0][1]
        for summary in (
            summaries.request,
            summaries.queue,
            summaries.compute_input,
            summaries.compute_infer,
            summaries.compute_output,
        )
    ]


def test_each_latency_has_quantiles_of_its_own_in_whole_microseconds() -> None:
    clock = FakeClock()
    summaries = LatencySummaries(MEDIAN, clock)
    assert all(math.isnan(value) for value in medians(summaries))
    summaries.add_request(9_999, 1_000, clock.now_ns())
    summaries.add_compute(2_000, 3_000, 4_000, 5)
    assert medians(summaries) == [9, 1, 2, 3, 4]


def test_the_targets_are_read_in_their_order() -> None:
    clock = FakeClock()
    summaries = LatencySummaries(DEFAULT_TARGETS, clock)
    for us in range(1, 2001):
        summaries.add_request(us * 1000, 0, clock.now_ns())
    values = dict(summaries.read_us(summaries.request))
    assert list(values) == [target.quantile for target in DEFAULT_TARGETS]
    for target in DEFAULT_TARGETS:
        # One sketch for all of them keeps to the strictest error.
        assert values[target.quantile] == pytest.approx(2000 * target.quantile, abs=2)


def test_a_latency_is_forgotten_after_the_window() -> None:
    clock = FakeClock()
    extremes = (QuantileTarget(0, 0.01), QuantileTarget(1, 0.01))
    summaries = LatencySummaries(extremes, clock)

    def least_and_greatest() -> list[float]:
        return [value for _, value in summaries.read_us(summaries.request)]

    for part in range(PART_COUNT):
        summaries.add_request((part + 1) * 1_000_000, 0, clock.now_ns())
        assert least_and_greatest() == [1000, (part + 1) * 1000]
        clock.time_ns += PART_NS
    for part in range(1, PART_COUNT):
        assert least_and_greatest() == [(part + 1) * 1000, PART_COUNT * 1000]
        clock.time_ns += PART_NS - 1
        assert least_and_greatest() == [(part + 1) * 1000, PART_COUNT * 1000]
        clock.time_ns += 1
    assert all(math.isnan(value) for value in least_and_greatest())


@pytest.mark.parametrize("parts", [PART_COUNT, PART_COUNT + 1, 10**6])
def test_after_a_long_silence_nothing_is_left(parts: int) -> None:
    clock = FakeClock()
    summaries = LatencySummaries(MEDIAN, clock)
    summaries.add_request(1_000_000, 0, clock.now_ns())
    clock.time_ns += parts * PART_NS
    assert math.isnan(medians(summaries)[0])
    summaries.add_request(7_000_000, 0, clock.now_ns())
    clock.time_ns += (PART_COUNT - 1) * PART_NS
    assert medians(summaries)[0] == 7000


def test_an_older_time_than_the_last_changes_nothing() -> None:
    clock = FakeClock()
    summaries = LatencySummaries(MEDIAN, clock)
    clock.time_ns += PART_NS
    summaries.add_request(1_000, 0, clock.now_ns())
    summaries.add_request(1_000, 0, clock.now_ns() - PART_NS)
    assert medians(summaries)[0] == 1


def test_a_histogram_counts_in_the_first_bucket_that_is_not_below() -> None:
    histogram = LatencyHistogram((1, 2.5))
    for ns in (1_000_000, 1_000_001, 2_500_000, 2_500_001, 0):
        histogram.add(ns)
    assert histogram.counts == [2, 2, 1]
    assert histogram.sum_ns == 7_000_002
