"""Latencies that are measured where the server was asked for them.

Where it was not, nothing of this stands in the way of a request.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from naiad.clock import Clock
from naiad.engine.model import ModelExecutor
from naiad.engine.warmup import WarmupSample
from naiad.errors import NaiadError
from naiad.inference.latency_summaries import LatencySummaries, QuantileTarget
from naiad.inference.request import InferRequest, ResponseCallback
from naiad.inference.response import InferResponse
from naiad.inference.statistics import LatencyHistogram
from naiad.model_config.schema import ModelConfig

_log = logging.getLogger(__name__)

# Triton's name and buckets.
FIRST_RESPONSE_FAMILY: Final = "nv_inference_first_response_histogram_ms"
DEFAULT_BOUNDS_MS: Final = (100.0, 500.0, 2000.0, 5000.0)


@dataclass(frozen=True, slots=True)
class LatencyOptions:
    """What is measured of each model beside the sums of its latencies.

    Attributes:
        targets: quantiles of the latencies of the last minute; empty for none.
        has_histogram: how long requests wait for their first responses.
    """

    targets: tuple[QuantileTarget, ...] = ()
    has_histogram: bool = False


def measure_latencies(
    executor: ModelExecutor, config: ModelConfig, options: LatencyOptions, clock: Clock
) -> ModelExecutor:
    """The executor of a model that takes no requests yet, such that it measures.

    Args:
        executor: of the whole model, the response cache before it.
        config: valid; may have buckets of its own.
        options: what to measure.
        clock: the executor's.
    """
    bounds_ms = _histogram_bounds_ms(config)
    if options.targets:
        executor.statistics.summaries = LatencySummaries(options.targets, clock)
    if not options.has_histogram:
        return executor
    histogram = LatencyHistogram(bounds_ms)
    executor.statistics.first_responses = histogram
    return TimedExecutor(executor, histogram, clock)


def _histogram_bounds_ms(config: ModelConfig) -> Sequence[float]:
    bounds: Sequence[float] = DEFAULT_BOUNDS_MS
    for control in config.model_metrics.metric_control:
        family = control.metric_identifier.family
        if family == FIRST_RESPONSE_FAMILY:
            # Above all of them there is one without a bound in any case.
            bounds = [b for b in control.histogram_options.buckets if b != math.inf]
        else:
            _log.warning(
                "model '%s': Metric family '%s' in 'metric_identifier' is not a customizable "
                "metric in Triton core. The one that is: %s",
                config.name,
                family,
                FIRST_RESPONSE_FAMILY,
            )
    return bounds


class TimedExecutor:
    """Takes the time from a request to its first response, whatever that is.

    Args:
        executor: answers the requests.
        histogram: where the times go.
        clock: the executor's.

    Attributes:
        executor: the same.
    """

    def __init__(self, executor: ModelExecutor, histogram: LatencyHistogram, clock: Clock) -> None:
        self.executor = executor
        self.statistics = executor.statistics
        self._histogram = histogram
        self._clock = clock

    def submit(self, request: InferRequest) -> None:
        """Pass a validated request on.

        Raises:
            NaiadError: it is refused.
        """
        on_response = request.on_response
        start_ns = request.received_ns or self._clock.now_ns()
        request.on_response = _Timer(self, start_ns, on_response).on_response
        try:
            self.executor.submit(request)
        except NaiadError:
            request.on_response = on_response
            raise

    def cancel(self, request: InferRequest) -> None:
        """The caller went away: no response follows."""
        self.executor.cancel(request)

    def problem(self) -> str:
        """Why the model can't run although it is loaded."""
        return self.executor.problem()

    async def warm_up(self, samples: Sequence[WarmupSample]) -> None:
        """Run samples, which nobody waits for."""
        await self.executor.warm_up(samples)

    async def drain(self) -> None:
        """Refuse new requests and wait until the accepted ones are answered."""
        await self.executor.drain()

    async def close(self) -> None:
        """Free what runs the model."""
        await self.executor.close()

    def note(self, start_ns: int) -> None:
        """The first response of a request is there."""
        self._histogram.add(self._clock.now_ns() - start_ns)


class _Timer:
    """Waits for the first response of a request, to which nothing leads from here."""

    __slots__ = ("_executor", "_is_running", "_on_client_response", "_start_ns")

    def __init__(
        self, executor: TimedExecutor, start_ns: int, on_client_response: ResponseCallback
    ) -> None:
        self._executor = executor
        self._start_ns = start_ns
        self._on_client_response = on_client_response
        self._is_running = True

    def on_response(self, response: InferResponse) -> None:
        """The executor calls this in place of the client's callback."""
        if self._is_running:
            self._is_running = False
            # A final response without anything says only that there was none.
            if response.outputs or response.error is not None:
                self._executor.note(self._start_ns)
        self._on_client_response(response)
