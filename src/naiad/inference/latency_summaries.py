"""Quantiles of the latencies of the last minute, of one model version.

The event loop alone writes and reads them. Window and its parts are those of Triton's summaries,
which are prometheus-cpp's (``time_window_quantiles.cc``).
"""

from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from naiad.clock import Clock
from naiad.inference.rank_sketch import RankSketch, find_quantiles

WINDOW_NS: Final = 60_000_000_000
PART_COUNT: Final = 5
_PART_NS: Final = WINDOW_NS // PART_COUNT
# Latencies that are gathered before they are sorted into a sketch: enough that the sketch costs
# each of them little, and few enough that it holds the loop for a fraction of a millisecond.
_MIN_RUN_LENGTH: Final = 1024


@dataclass(frozen=True, slots=True)
class QuantileTarget:
    """A quantile to be known.

    Attributes:
        quantile: 0 to 1.
        error: of its rank, as a share of all.
    """

    quantile: float
    error: float


DEFAULT_TARGETS: Final = (
    QuantileTarget(0.5, 0.05),
    QuantileTarget(0.9, 0.01),
    QuantileTarget(0.95, 0.001),
    QuantileTarget(0.99, 0.001),
    QuantileTarget(0.999, 0.001),
)


class LatencySummary:
    """One latency.

    Args:
        error: of the ranks.
    """

    __slots__ = ("_error", "_parts", "_run", "_run_length")

    def __init__(self, error: float) -> None:
        self._error = error
        self._run = array("q")
        # A sketch keeps about as many values as this, and goes through all of them each time.
        self._run_length = max(_MIN_RUN_LENGTH, int(1 / error))
        self._parts = deque([RankSketch(error)], PART_COUNT)

    def add(self, ns: int, count: int = 1) -> None:
        """Count ``count`` more that took ``ns`` each."""
        if count == 1:
            self._run.append(ns)
        else:
            self._run.extend([ns] * count)
        if len(self._run) >= self._run_length:
            self._sort_in()

    def turn(self, steps: int) -> None:
        """Begin a new part of the window, and drop the oldest."""
        self._sort_in()
        for _ in range(min(steps, PART_COUNT)):
            self._parts.append(RankSketch(self._error))

    def quantiles_us(self, quantiles: Sequence[float]) -> list[float]:
        """Whole microseconds that so many of the latencies did not exceed; NaN without any."""
        self._sort_in()
        return find_quantiles(self._parts, quantiles)

    def _sort_in(self) -> None:
        self._parts[-1].add(np.array(self._run, np.int64) // 1000)
        del self._run[:]


class LatencySummaries:
    """The latencies of one model version.

    Args:
        targets: the quantiles that are asked for, at least one.
        clock: of all times that are given.

    Attributes:
        targets: the same.
        request, queue, compute_input, compute_infer, compute_output: of answered requests, as
            `ModelStatistics` counts them.
        cache_hit: of requests that the response cache answered, looking them up.
        cache_miss: of the others, looking them up and keeping their answers.
    """

    __slots__ = (
        "_clock",
        "_turn_ns",
        "cache_hit",
        "cache_miss",
        "compute_infer",
        "compute_input",
        "compute_output",
        "queue",
        "request",
        "targets",
    )

    def __init__(self, targets: Sequence[QuantileTarget], clock: Clock) -> None:
        self.targets = tuple(targets)
        # One sketch serves all targets, so the strictest counts.
        error = min(target.error for target in targets)
        self.request = LatencySummary(error)
        self.queue = LatencySummary(error)
        self.compute_input = LatencySummary(error)
        self.compute_infer = LatencySummary(error)
        self.compute_output = LatencySummary(error)
        self.cache_hit = LatencySummary(error)
        self.cache_miss = LatencySummary(error)
        self._clock = clock
        self._turn_ns = clock.now_ns() + _PART_NS

    def advance(self, now_ns: int) -> None:
        """Forget what is too old; called before anything is added."""
        if now_ns < self._turn_ns:
            return
        steps = (now_ns - self._turn_ns) // _PART_NS + 1
        self._turn_ns += steps * _PART_NS
        for summary in self._all():
            summary.turn(steps)

    def add_request(self, request_ns: int, queue_ns: int, now_ns: int) -> None:
        """Count an answered request."""
        self.advance(now_ns)
        self.request.add(request_ns)
        self.queue.add(queue_ns)

    def add_compute(self, input_ns: int, infer_ns: int, output_ns: int, count: int) -> None:
        """Count ``count`` requests that shared an execution."""
        self.compute_input.add(input_ns, count)
        self.compute_infer.add(infer_ns, count)
        self.compute_output.add(output_ns, count)

    def read_us(self, summary: LatencySummary) -> list[tuple[float, float]]:
        """The quantiles of one of the latencies, as they are now.

        Returns:
            Each with the whole microseconds that so many did not exceed; NaN without any.
        """
        self.advance(self._clock.now_ns())
        quantiles = [target.quantile for target in self.targets]
        return list(zip(quantiles, summary.quantiles_us(quantiles), strict=True))

    def _all(self) -> tuple[LatencySummary, ...]:
        return (
            self.request,
            self.queue,
            self.compute_input,
            self.compute_infer,
            self.compute_output,
            self.cache_hit,
            self.cache_miss,
        )
