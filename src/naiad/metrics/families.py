"""The metrics of each model: names, help texts, types and labels, as Triton spells them.

Dashboards and alerts match on these texts. Source: core's ``metrics.cc`` and the server's
``docs/user_guide/metrics.md``.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from naiad.inference.statistics import FailureReason, ModelStatistics

Labels = Mapping[str, str]
Reading = tuple[Labels, int | float]
_NO_LABELS: Final[Labels] = {}


class MetricType(StrEnum):
    """The word of the exposition's TYPE line."""

    COUNTER = "counter"
    GAUGE = "gauge"


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
    """

    read: Callable[[ModelStatistics], Iterator[Reading]]


def _value(get: Callable[[ModelStatistics], int]) -> Callable[[ModelStatistics], Iterator[Reading]]:
    def read(statistics: ModelStatistics) -> Iterator[Reading]:
        yield _NO_LABELS, get(statistics)

    return read


def _failures(statistics: ModelStatistics) -> Iterator[Reading]:
    for reason in FailureReason:
        yield {"reason": reason}, statistics.failures[reason]


def _us(ns: int) -> int:
    return ns // 1000


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
    ),
    ModelMetricFamily(
        "nv_inference_queue_duration_us",
        "Cumulative inference queuing duration in microseconds (includes cached requests)",
        MetricType.COUNTER,
        _value(lambda statistics: _us(statistics.queue.ns)),
    ),
    ModelMetricFamily(
        "nv_inference_compute_input_duration_us",
        "Cumulative compute input duration in microseconds (does not include cached requests)",
        MetricType.COUNTER,
        _value(lambda statistics: _us(statistics.compute_input.ns)),
    ),
    ModelMetricFamily(
        "nv_inference_compute_infer_duration_us",
        "Cumulative compute inference duration in microseconds (does not include cached requests)",
        MetricType.COUNTER,
        _value(lambda statistics: _us(statistics.compute_infer.ns)),
    ),
    ModelMetricFamily(
        "nv_inference_compute_output_duration_us",
        "Cumulative inference compute output duration in microseconds (does not include cached "
        "requests)",
        MetricType.COUNTER,
        _value(lambda statistics: _us(statistics.compute_output.ns)),
    ),
    ModelMetricFamily(
        "nv_inference_pending_request_count",
        "Instantaneous number of pending requests awaiting execution per-model.",
        MetricType.GAUGE,
        _value(lambda statistics: statistics.pending_count),
    ),
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
