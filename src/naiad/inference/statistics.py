"""Counters of one model version, in the terms of Triton's statistics extension.

Times are cumulative nanoseconds. The event loop alone writes and reads them, so there is no lock.
Source: Triton's extension_statistics.md.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from naiad.inference.latency_summaries import LatencySummaries


class FailureReason(StrEnum):
    """Why a request failed, as the label of the failure counter spells it."""

    REJECTED = "REJECTED"
    CANCELED = "CANCELED"
    BACKEND = "BACKEND"
    OTHER = "OTHER"


@dataclass(slots=True)
class DurationStatistic:
    """How often something happened and how long it took altogether."""

    count: int = 0
    ns: int = 0

    def add(self, ns: int, count: int = 1) -> None:
        """Count ``count`` more that took ``ns`` together."""
        self.count += count
        self.ns += ns


class ComputeTimes:
    """What the models spent on one request, however many of them took part in it.

    Attributes:
        input_ns, infer_ns, output_ns: joining inputs, in the models, and taking their outputs.
    """

    __slots__ = ("infer_ns", "input_ns", "output_ns")

    def __init__(self) -> None:
        self.input_ns = 0
        self.infer_ns = 0
        self.output_ns = 0

    def add(self, input_ns: int, infer_ns: int, output_ns: int) -> None:
        """Add one execution."""
        self.input_ns += input_ns
        self.infer_ns += infer_ns
        self.output_ns += output_ns


@dataclass(slots=True)
class BatchStatistic:
    """Executions of one batch size."""

    compute_input: DurationStatistic = field(default_factory=DurationStatistic)
    compute_infer: DurationStatistic = field(default_factory=DurationStatistic)
    compute_output: DurationStatistic = field(default_factory=DurationStatistic)


@dataclass(slots=True)
class BatchTuning:
    """What an adaptive batcher has chosen, and what for.

    Attributes:
        target_ns: the latency that 99 of 100 requests should keep.
        max_rows: of an execution.
        delay_ns: how long an idle instance waits for more requests; 0 for not at all.
    """

    target_ns: int
    max_rows: int
    delay_ns: int


class LatencyHistogram:
    """Latencies by the buckets that they fall into.

    Args:
        bounds_ms: of the buckets, ascending; a latency belongs to the first that is not below it.

    Attributes:
        bounds_ms: the same.
        counts: latencies in each bucket, and one more for those above all.
        sum_ns: of all latencies.
    """

    __slots__ = ("_bounds_ns", "bounds_ms", "counts", "sum_ns")

    def __init__(self, bounds_ms: Sequence[float]) -> None:
        self.bounds_ms = tuple(bounds_ms)
        self.counts = [0] * (len(self.bounds_ms) + 1)
        self.sum_ns = 0
        self._bounds_ns = [bound * 1e6 for bound in self.bounds_ms]

    def add(self, ns: int) -> None:
        """Count one."""
        self.counts[bisect_left(self._bounds_ns, ns)] += 1
        self.sum_ns += ns


@dataclass(slots=True)
class ModelStatistics:
    """Everything counted for one model version since it was loaded.

    Attributes:
        last_inference_ms: milliseconds since the epoch; 0 before the first.
        inference_count: rows that succeeded (a request of batch size 8 counts 8).
        execution_count: executions of the model whose batch was answered.
        success: requests answered without error; ns from receipt to answer.
        fail: requests that failed in the queue or in the model.
        failures: the same by reason.
        queue: answered requests; ns in the queue.
        compute_input, compute_infer, compute_output: answered requests; ns of their batches in
            joining inputs, in the model and in taking its outputs, counted for each request.
        cache_hit, cache_miss: requests that the response cache answered, or looked up in vain.
        is_cached: the response cache is asked before the model.
        batches: executions by batch size.
        closings: batches by why they took no more requests, in the scheduler's words.
        pending_count: requests that wait in the queue now.
        tuning: of an adaptive batcher, what it has chosen; None where there is none.
        summaries: quantiles of latencies; None where nobody asked for them.
        first_responses: time from a request to its first response; None likewise.
    """

    last_inference_ms: int = 0
    inference_count: int = 0
    execution_count: int = 0
    success: DurationStatistic = field(default_factory=DurationStatistic)
    fail: DurationStatistic = field(default_factory=DurationStatistic)
    queue: DurationStatistic = field(default_factory=DurationStatistic)
    compute_input: DurationStatistic = field(default_factory=DurationStatistic)
    compute_infer: DurationStatistic = field(default_factory=DurationStatistic)
    compute_output: DurationStatistic = field(default_factory=DurationStatistic)
    cache_hit: DurationStatistic = field(default_factory=DurationStatistic)
    cache_miss: DurationStatistic = field(default_factory=DurationStatistic)
    is_cached: bool = False
    batches: dict[int, BatchStatistic] = field(default_factory=dict)
    failures: dict[FailureReason, int] = field(
        default_factory=lambda: dict.fromkeys(FailureReason, 0)
    )
    closings: Counter[str] = field(default_factory=Counter)
    pending_count: int = 0
    tuning: BatchTuning | None = None
    summaries: LatencySummaries | None = None
    first_responses: LatencyHistogram | None = None


@dataclass(slots=True)
class CacheStatistics:
    """Everything counted for the response cache, of all models together.

    Attributes:
        capacity_bytes: what it may hold; 0 where somebody else bounds it.
        used_bytes: what it holds.
        entry_count: responses in it.
        hit_count, miss_count: lookups that found one, or did not.
        eviction_count: responses dropped for want of room.
        lookup_ns: in hashing requests and looking them up.
        insertion_ns: in copying responses into it.
    """

    capacity_bytes: int
    used_bytes: int = 0
    entry_count: int = 0
    hit_count: int = 0
    miss_count: int = 0
    eviction_count: int = 0
    lookup_ns: int = 0
    insertion_ns: int = 0

    def add_lookup(self, ns: int, *, is_hit: bool) -> None:
        """Count a lookup that took ``ns``."""
        self.lookup_ns += ns
        if is_hit:
            self.hit_count += 1
        else:
            self.miss_count += 1
