"""The metrics of each model: names, help texts, types and labels, as Triton spells them.

Dashboards and alerts match on these texts. Source: core's ``metrics.cc`` and the server's
``docs/user_guide/metrics.md``.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from naiad.inference.latency_summaries import LatencySummaries, LatencySummary
from naiad.inference.statistics import (
    BatchTuning,
    CacheStatistics,
    DurationStatistic,
    FailureReason,
    LatencyHistogram,
    ModelStatistics,
)

Labels = Mapping[str, str]
Reading = tuple[Labels, int | float]
_NO_LABELS: Final[Labels] = {}
# Powers of two, as preferred batch sizes mostly are.
BATCH_SIZE_BOUNDS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class MetricType(StrEnum):
    """The word of the exposition's TYPE line."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    SUMMARY = "summary"


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """What the exposition says of a metric before its values."""

    name: str
    help: str
    type: MetricType


@dataclass(frozen=True, slots=True)
class ModelMetricFamily(MetricFamily):
    """A metric that each model version has.

    Attributes:
        read: its values, each with the labels that it has besides the model's own.
        is_optional: it isn't mentioned while no model has it.
        is_latency_sum: it is a sum of latencies, which not everybody wants.
    """

    read: Callable[[ModelStatistics], Iterator[Reading]]
    is_optional: bool = False
    is_latency_sum: bool = False


@dataclass(frozen=True, slots=True)
class SummaryFamily(MetricFamily):
    """Quantiles of a latency of each model version.

    Attributes:
        latency: where they come from.
        total: how many there were since the version was loaded, and their sum.
        is_shown: whether a model has them.
    """

    latency: Callable[[LatencySummaries], LatencySummary]
    total: Callable[[ModelStatistics], DurationStatistic]
    is_shown: Callable[[ModelStatistics], bool]


def _value(get: Callable[[ModelStatistics], int]) -> Callable[[ModelStatistics], Iterator[Reading]]:
    def read(statistics: ModelStatistics) -> Iterator[Reading]:
        yield _NO_LABELS, get(statistics)

    return read


def _failures(statistics: ModelStatistics) -> Iterator[Reading]:
    for reason in FailureReason:
        yield {"reason": reason}, statistics.failures[reason]


def _us(ns: int) -> int:
    return ns // 1000


def _cached(
    get: Callable[[ModelStatistics], int],
) -> Callable[[ModelStatistics], Iterator[Reading]]:
    """A reader for models that the response cache serves; others have no such series."""

    def read(statistics: ModelStatistics) -> Iterator[Reading]:
        if statistics.is_cached:
            yield _NO_LABELS, get(statistics)

    return read


def _tuned(get: Callable[[BatchTuning], int]) -> Callable[[ModelStatistics], Iterator[Reading]]:
    """A reader for models with an adaptive batcher; others have no such series."""

    def read(statistics: ModelStatistics) -> Iterator[Reading]:
        if statistics.tuning is not None:
            yield _NO_LABELS, get(statistics.tuning)

    return read


def _closings(statistics: ModelStatistics) -> Iterator[Reading]:
    for reason, count in sorted(statistics.closings.items()):
        yield {"reason": reason}, count


@dataclass(frozen=True, slots=True)
class HistogramReading:
    """A histogram as it is now.

    Attributes:
        bounds: of its buckets, ascending.
        counts: what fell into each of them, and one more for what was above all.
        sum: of all values.
    """

    bounds: Sequence[float]
    counts: Sequence[int]
    sum: float


def read_batch_sizes(statistics: ModelStatistics) -> HistogramReading:
    """The values of `BATCH_SIZE`."""
    counts = [0] * (len(BATCH_SIZE_BOUNDS) + 1)
    rows = 0
    for size, batch in statistics.batches.items():
        counts[bisect_left(BATCH_SIZE_BOUNDS, size)] += batch.compute_infer.count
        rows += size * batch.compute_infer.count
    return HistogramReading(BATCH_SIZE_BOUNDS, counts, rows)


def read_first_responses(histogram: LatencyHistogram) -> HistogramReading:
    """The values of `FIRST_RESPONSES`."""
    return HistogramReading(
        histogram.bounds_ms, tuple(histogram.counts), histogram.sum_ns // 1_000_000
    )


MODEL_FAMILIES: Final = (
    ModelMetricFamily(
        "nv_inference_request_success",
        "Number of successful inference requests, all batch sizes",
        MetricType.COUNTER,
        _value(lambda statistics: statistics.success.count),
    ),
    ModelMetricFamily(
        "nv_inference_request_failure",
        "Number of failed inference requests, all batch sizes",
        MetricType.COUNTER,
        _failures,
    ),
    ModelMetricFamily(
        "nv_inference_count",
        "Number of inferences performed (does not include cached requests)",
        MetricType.COUNTER,
        _value(lambda statistics: statistics.inference_count),
    ),
    ModelMetricFamily(
        "nv_inference_exec_count",
        "Number of model executions performed (does not include cached requests)",
        MetricType.COUNTER,
        _value(lambda statistics: statistics.execution_count),
    ),
    ModelMetricFamily(
        "nv_inference_request_duration_us",
        "Cumulative inference request duration in microseconds (includes cached requests)",
        MetricType.COUNTER,
        _value(lambda statistics: _us(statistics.success.ns)),
        is_latency_sum=True,
    ),
    ModelMetricFamily(
        "nv_inference_queue_duration_us",
        "Cumulative inference queuing duration in microseconds (includes cached requests)",
        MetricType.COUNTER,
        _value(lambda statistics: _us(statistics.queue.ns)),
        is_latency_sum=True,
    ),
    ModelMetricFamily(
        "nv_inference_compute_input_duration_us",
        "Cumulative compute input duration in microseconds (does not include cached requests)",
        MetricType.COUNTER,
        _value(lambda statistics: _us(statistics.compute_input.ns)),
        is_latency_sum=True,
    ),
    ModelMetricFamily(
        "nv_inference_compute_infer_duration_us",
        "Cumulative compute inference duration in microseconds (does not include cached requests)",
        MetricType.COUNTER,
        _value(lambda statistics: _us(statistics.compute_infer.ns)),
        is_latency_sum=True,
    ),
    ModelMetricFamily(
        "nv_inference_compute_output_duration_us",
        "Cumulative inference compute output duration in microseconds (does not include cached "
        "requests)",
        MetricType.COUNTER,
        _value(lambda statistics: _us(statistics.compute_output.ns)),
        is_latency_sum=True,
    ),
    ModelMetricFamily(
        "nv_cache_num_hits_per_model",
        "Number of cache hits per model",
        MetricType.COUNTER,
        _cached(lambda statistics: statistics.cache_hit.count),
        is_optional=True,
    ),
    ModelMetricFamily(
        "nv_cache_hit_duration_per_model",
        "Total cache hit duration per model, in microseconds",
        MetricType.COUNTER,
        _cached(lambda statistics: _us(statistics.cache_hit.ns)),
        is_optional=True,
        is_latency_sum=True,
    ),
    ModelMetricFamily(
        "nv_cache_num_misses_per_model",
        "Number of cache misses per model",
        MetricType.COUNTER,
        _cached(lambda statistics: statistics.cache_miss.count),
        is_optional=True,
    ),
    ModelMetricFamily(
        "nv_cache_miss_duration_per_model",
        "Total cache miss (insert+lookup) duration per model, in microseconds",
        MetricType.COUNTER,
        _cached(lambda statistics: _us(statistics.cache_miss.ns)),
        is_optional=True,
        is_latency_sum=True,
    ),
    ModelMetricFamily(
        "nv_inference_pending_request_count",
        "Instantaneous number of pending requests awaiting execution per-model.",
        MetricType.GAUGE,
        _value(lambda statistics: statistics.pending_count),
    ),
)

FIRST_RESPONSES: Final = MetricFamily(
    "nv_inference_first_response_histogram_ms",
    "Duration from request to first response in milliseconds",
    MetricType.HISTOGRAM,
)


def _is_any(_: ModelStatistics) -> bool:
    return True


def _is_cached(statistics: ModelStatistics) -> bool:
    return statistics.is_cached


# Triton's texts call some of these cumulative, as those of the sums are.
SUMMARY_FAMILIES: Final = (
    SummaryFamily(
        "nv_inference_request_summary_us",
        "Summary of inference request duration in microseconds (includes cached requests)",
        MetricType.SUMMARY,
        lambda summaries: summaries.request,
        lambda statistics: statistics.success,
        # Triton has none for models that the response cache serves, and its suite looks for that.
        lambda statistics: not statistics.is_cached,
    ),
    SummaryFamily(
        "nv_inference_queue_summary_us",
        "Summary of inference queuing duration in microseconds (includes cached requests)",
        MetricType.SUMMARY,
        lambda summaries: summaries.queue,
        lambda statistics: statistics.queue,
        _is_any,
    ),
    SummaryFamily(
        "nv_inference_compute_input_summary_us",
        "Cumulative compute input duration in microseconds (does not include cached requests)",
        MetricType.SUMMARY,
        lambda summaries: summaries.compute_input,
        lambda statistics: statistics.compute_input,
        _is_any,
    ),
    SummaryFamily(
        "nv_inference_compute_infer_summary_us",
        "Cumulative compute inference duration in microseconds (does not include cached requests)",
        MetricType.SUMMARY,
        lambda summaries: summaries.compute_infer,
        lambda statistics: statistics.compute_infer,
        _is_any,
    ),
    SummaryFamily(
        "nv_inference_compute_output_summary_us",
        "Cumulative inference compute output duration in microseconds (does not include cached "
        "requests)",
        MetricType.SUMMARY,
        lambda summaries: summaries.compute_output,
        lambda statistics: statistics.compute_output,
        _is_any,
    ),
    SummaryFamily(
        "nv_cache_hit_summary_per_model",
        "Summary of cache hit counts/durations per model, in microseconds.",
        MetricType.SUMMARY,
        lambda summaries: summaries.cache_hit,
        lambda statistics: statistics.cache_hit,
        _is_cached,
    ),
    SummaryFamily(
        "nv_cache_miss_summary_per_model",
        "Summary of cache miss counts/durations per model, in microseconds.",
        MetricType.SUMMARY,
        lambda summaries: summaries.cache_miss,
        lambda statistics: statistics.cache_miss,
        _is_cached,
    ),
)

# What Triton doesn't show of its batching; ours, so with our name in front.
BATCH_CLOSED: Final = ModelMetricFamily(
    "naiad_batch_closed_total",
    "Number of batches formed, by the reason why a batch took no more requests",
    MetricType.COUNTER,
    _closings,
)
TUNING_FAMILIES: Final = (
    ModelMetricFamily(
        "naiad_batching_target_latency_us",
        "Latency that an adaptive batcher keeps for 99 of 100 requests, in microseconds",
        MetricType.GAUGE,
        _tuned(lambda tuning: _us(tuning.target_ns)),
        is_optional=True,
    ),
    ModelMetricFamily(
        "naiad_batching_max_rows",
        "Rows that an adaptive batcher lets an execution have now",
        MetricType.GAUGE,
        _tuned(lambda tuning: tuning.max_rows),
        is_optional=True,
    ),
    ModelMetricFamily(
        "naiad_batching_delay_us",
        "How long an adaptive batcher lets an idle instance wait for company now, in microseconds",
        MetricType.GAUGE,
        _tuned(lambda tuning: _us(tuning.delay_ns)),
        is_optional=True,
    ),
)
BATCH_SIZE: Final = MetricFamily(
    "naiad_batch_size",
    "Rows in each execution of the model",
    MetricType.HISTOGRAM,
)

CPU_UTILIZATION: Final = MetricFamily(
    "nv_cpu_utilization", "CPU utilization rate [0.0 - 1.0]", MetricType.GAUGE
)
CPU_MEMORY_TOTAL: Final = MetricFamily(
    "nv_cpu_memory_total_bytes", "CPU total memory (RAM), in bytes", MetricType.GAUGE
)
CPU_MEMORY_USED: Final = MetricFamily(
    "nv_cpu_memory_used_bytes", "CPU used memory (RAM), in bytes", MetricType.GAUGE
)


@dataclass(frozen=True, slots=True)
class CacheMetricFamily(MetricFamily):
    """A metric of the response cache.

    Attributes:
        read: its value.
    """

    read: Callable[[CacheStatistics], int | float]


CACHE_FAMILIES: Final = (
    CacheMetricFamily(
        "nv_cache_util",
        "Cache utilization [0.0 - 1.0]",
        MetricType.GAUGE,
        lambda statistics: statistics.used_bytes / max(statistics.capacity_bytes, 1),
    ),
    CacheMetricFamily(
        "nv_cache_num_entries",
        "Number of responses stored in response cache",
        MetricType.GAUGE,
        lambda statistics: statistics.entry_count,
    ),
    CacheMetricFamily(
        "nv_cache_num_hits",
        "Number of cache hits in response cache",
        MetricType.GAUGE,
        lambda statistics: statistics.hit_count,
    ),
    CacheMetricFamily(
        "nv_cache_num_misses",
        "Number of cache misses in response cache",
        MetricType.GAUGE,
        lambda statistics: statistics.miss_count,
    ),
    CacheMetricFamily(
        "nv_cache_num_lookups",
        "Number of cache lookups in response cache",
        MetricType.GAUGE,
        lambda statistics: statistics.hit_count + statistics.miss_count,
    ),
    CacheMetricFamily(
        "nv_cache_num_evictions",
        "Number of cache evictions in response cache",
        MetricType.GAUGE,
        lambda statistics: statistics.eviction_count,
    ),
    CacheMetricFamily(
        "nv_cache_lookup_duration",
        "Total cache lookup duration (hit and miss), in microseconds",
        MetricType.GAUGE,
        lambda statistics: _us(statistics.lookup_ns),
    ),
    CacheMetricFamily(
        "nv_cache_insertion_duration",
        "Total cache insertion duration, in microseconds",
        MetricType.GAUGE,
        lambda statistics: _us(statistics.insertion_ns),
    ),
)
