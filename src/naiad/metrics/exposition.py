"""The body of ``/metrics``: Prometheus' text format, version 0.0.4.

Written here and not by prometheus_client, which ends the name of every counter in ``_total``;
Triton's don't, and dashboards ask for Triton's. Source: Prometheus' "Exposition formats".
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Protocol

from naiad.inference.custom_metrics import (
    FamilyReading,
    MetricKind,
    cumulate,
)
from naiad.inference.statistics import CacheStatistics, ModelStatistics
from naiad.metrics.cpu import MachineMonitor
from naiad.metrics.families import (
    BATCH_CLOSED,
    BATCH_SIZE,
    CACHE_FAMILIES,
    CPU_MEMORY_TOTAL,
    CPU_MEMORY_USED,
    CPU_UTILIZATION,
    FIRST_RESPONSES,
    MODEL_FAMILIES,
    SUMMARY_FAMILIES,
    TUNING_FAMILIES,
    HistogramReading,
    Labels,
    MetricFamily,
    ModelMetricFamily,
    Reading,
    SummaryFamily,
    read_batch_sizes,
    read_first_responses,
)

_ESCAPES: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
_NOT_IN_NAMES: Final = re.compile(r"[^a-zA-Z0-9_]")


class MeasuredModel(Protocol):
    """A model version that serves."""

    @property
    def name(self) -> str:
        """Of the model."""
        ...

    @property
    def version(self) -> int:
        """Of this version."""
        ...

    @property
    def namespace(self) -> str:
        """Of its repository; empty without model namespacing."""
        ...

    @property
    def statistics(self) -> ModelStatistics:
        """Its counters."""
        ...

    @property
    def metric_tags(self) -> Mapping[str, str]:
        """Labels that its config adds."""
        ...


class MetricsRenderer:
    """Renders the state of the server when it is asked for.

    Args:
        list_models: the models that serve now.
        machine: for the CPU metrics; None leaves these out.
        read_custom: the metrics that models have defined.
        cache: of the response cache; None where there is none.
        has_latency_sums: whether sums of latencies are shown.
    """

    def __init__(
        self,
        list_models: Callable[[], Iterable[MeasuredModel]],
        machine: MachineMonitor | None = None,
        read_custom: Callable[[], Iterable[FamilyReading]] | None = None,
        cache: CacheStatistics | None = None,
        *,
        has_latency_sums: bool = True,
    ) -> None:
        self._list_models = list_models
        self._machine = machine
        self._cache = cache
        self._read_custom = read_custom
        self._families = [f for f in MODEL_FAMILIES if has_latency_sums or not f.is_latency_sum]

    def render(self) -> bytes:
        """All metrics; called on the event loop, where the counters are written."""
        models = [(_labels_of(model), model.statistics) for model in self._list_models()]
        lines: list[str] = []
        for family in self._families:
            lines.extend(_render_model_family(family, models))
        if self._machine is not None:
            usage = self._machine.read()
            for machine_family, value in (
                (CPU_UTILIZATION, usage.utilization),
                (CPU_MEMORY_TOTAL, usage.memory.total_bytes),
                (CPU_MEMORY_USED, usage.memory.used_bytes),
            ):
                lines.extend(_render_family(machine_family, [({}, value)]))
        if self._cache is not None:
            for cache_family in CACHE_FAMILIES:
                value = cache_family.read(self._cache)
                lines.extend(_render_family(cache_family, [({}, value)]))
        lines.extend(_render_first_responses(models))
        for summary_family in SUMMARY_FAMILIES:
            lines.extend(_render_summaries(summary_family, models))
        lines.extend(_render_batch_sizes(models))
        lines.extend(_render_model_family(BATCH_CLOSED, models))
        for family in TUNING_FAMILIES:
            lines.extend(_render_model_family(family, models))
        if self._read_custom is not None:
            for reading in self._read_custom():
                lines.extend(_render_custom(reading))
        lines.append("")
        return "\n".join(lines).encode()


def _labels_of(model: MeasuredModel) -> Labels:
    # The underscore is Triton's; it keeps tags apart from labels that a later version adds.
    tags = {f"_{_NOT_IN_NAMES.sub('_', key)}": value for key, value in model.metric_tags.items()}
    labels = {**tags, "model": model.name, "version": str(model.version)}
    if model.namespace:
        labels["namespace"] = model.namespace
    return labels


def _render_model_family(
    family: ModelMetricFamily, models: Iterable[tuple[Labels, ModelStatistics]]
) -> Iterator[str]:
    readings = [
        ({**labels, **extra}, value)
        for labels, statistics in models
        for extra, value in family.read(statistics)
    ]
    if readings or not family.is_optional:
        yield from _render_family(family, readings)


def _render_batch_sizes(models: Iterable[tuple[Labels, ModelStatistics]]) -> Iterator[str]:
    yield from _render_family(BATCH_SIZE, ())
    for labels, statistics in models:
        yield from _render_histogram(BATCH_SIZE.name, labels, read_batch_sizes(statistics))


def _render_first_responses(models: Iterable[tuple[Labels, ModelStatistics]]) -> Iterator[str]:
    header = _render_family(FIRST_RESPONSES, ())
    for labels, statistics in models:
        histogram = statistics.first_responses
        if histogram is not None:
            # Once, before the first.
            yield from header
            yield from _render_histogram(
                FIRST_RESPONSES.name, labels, read_first_responses(histogram)
            )


def _render_summaries(
    family: SummaryFamily, models: Iterable[tuple[Labels, ModelStatistics]]
) -> Iterator[str]:
    header = _render_family(family, ())
    for labels, statistics in models:
        summaries = statistics.summaries
        if summaries is None or not family.is_shown(statistics):
            continue
        yield from header
        total = family.total(statistics)
        text = _format_labels(labels)
        yield f"{family.name}_count{text} {total.count}"
        yield f"{family.name}_sum{text} {total.ns // 1000}"
        for quantile, value in summaries.read_us(family.latency(summaries)):
            text = _format_labels(labels, ("quantile", _format_number(quantile)))
            yield f"{family.name}{text} {_format_number(value)}"


def _render_family(family: MetricFamily, readings: Iterable[Reading]) -> Iterator[str]:
    yield f"# HELP {family.name} {family.help}"
    yield f"# TYPE {family.name} {family.type}"
    for labels, value in readings:
        yield f"{family.name}{_format_labels(labels)} {value}"


def _render_custom(family: FamilyReading) -> Iterator[str]:
    help_text = family.description.replace("\\", "\\\\").replace("\n", "\\n")
    yield f"# HELP {family.name} {help_text}"
    yield f"# TYPE {family.name} {family.kind.name.lower()}"
    for metric in family.metrics:
        if family.kind is MetricKind.HISTOGRAM:
            histogram = HistogramReading(metric.bounds, metric.counts, metric.value)
            yield from _render_histogram(family.name, dict(metric.labels), histogram)
        else:
            labels = _format_labels(dict(metric.labels))
            yield f"{family.name}{labels} {_format_number(metric.value)}"


def _render_histogram(name: str, labels: Labels, histogram: HistogramReading) -> Iterator[str]:
    totals = list(cumulate(histogram.counts))
    total = totals[-1] if totals else 0
    for bound, count in zip([*histogram.bounds, math.inf], totals, strict=True):
        yield f"{name}_bucket{_format_labels(labels, ('le', _format_number(bound)))} {count}"
    yield f"{name}_sum{_format_labels(labels)} {_format_number(histogram.sum)}"
    yield f"{name}_count{_format_labels(labels)} {total}"


def _format_number(value: float) -> str:
    if math.isfinite(value):
        return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(value)
    if math.isnan(value):
        return "NaN"
    return "+Inf" if value > 0 else "-Inf"


def _format_labels(labels: Labels, last: tuple[str, str] | None = None) -> str:
    """In the order of their names, and behind them the one that tells a metric's series apart."""
    pairs = [f'{key}="{labels[key].translate(_ESCAPES)}"' for key in sorted(labels)]
    if last is not None:
        pairs.append(f'{last[0]}="{last[1]}"')
    return f"{{{','.join(pairs)}}}" if pairs else ""
