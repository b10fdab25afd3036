"""Metrics that models define, beside those that the server keeps of them.

A family is known by its name, a metric of it by its labels: models, and instances of one model,
that name the same ones share the value. What nobody holds any more is gone. Any thread may use
all of it. Source: Triton's metrics.md, "Custom Metrics".
"""

import itertools
import re
import threading
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any, Final

from naiad.errors import InvalidArgumentError
from naiad.inference.custom_metrics import FamilyReading, Labels, MetricKind, MetricReading

_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


class _Metric:
    __slots__ = ("bounds", "counts", "holders", "value")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.value = 0.0
        self.holders = 0


class _Family:
    __slots__ = ("description", "holders", "kind", "metrics", "name")

    def __init__(self, name: str, description: str, kind: MetricKind) -> None:
        self.name = name
        self.description = description
        self.kind = kind
        self.metrics: dict[Labels, _Metric] = {}
        self.holders = 0


class CustomMetrics:
    """All families of one server."""

    def __init__(self) -> None:
        self._families: dict[str, _Family] = {}
        self._lock = threading.Lock()

    def hold_family(self, name: str, description: str, kind: int) -> str:
        """Define a family, or hold the one that there is; returns its name.

        Raises:
            InvalidArgumentError: the name is none, or taken by a family of another kind.
        """
        if not _NAME.fullmatch(name) or name.startswith("nv_"):
            raise InvalidArgumentError(
                f"'{name}' can't be the name of a metric family: it needs letters, digits, '_' and "
                "':', and names that begin with 'nv_' are the server's"
            )
        with self._lock:
            family = self._families.get(name)
            if family is None:
                family = self._families[name] = _Family(name, description, MetricKind(kind))
            elif family.kind != kind:
                raise InvalidArgumentError(
                    f"metric family '{name}' exists already and is a {family.kind.name.lower()}"
                )
            family.holders += 1
        return name

    def hold_metric(
        self, family: str, labels: Mapping[str, str], bounds: Sequence[float]
    ) -> Labels:
        """Define a metric, or hold the one that there is; returns what it is known by.

        Raises:
            InvalidArgumentError: a label or the bounds can't be what they are.
        """
        for label in labels:
            if not _LABEL.fullmatch(label):
                raise InvalidArgumentError(f"'{label}' can't be the name of a label")
        if any(low >= high for low, high in itertools.pairwise(bounds)):
            raise InvalidArgumentError("the buckets of a histogram must ascend")
        key = tuple(sorted(labels.items()))
        with self._lock:
            metrics = self._families[family].metrics
            if key not in metrics:
                metrics[key] = _Metric(bounds)
            elif metrics[key].bounds != tuple(bounds):
                raise InvalidArgumentError(
                    f"the histogram '{family}' with these labels has other buckets already"
                )
            metrics[key].holders += 1
        return key

    def drop_family(self, name: str) -> None:
        """Take one `hold_family` back."""
        with self._lock:
            family = self._families[name]
            family.holders -= 1
            if not family.holders:
                del self._families[name]

    def drop_metric(self, family: str, key: Labels) -> None:
        """Take one `hold_metric` back."""
        with self._lock:
            known = self._families.get(family)
            metric = known.metrics.get(key) if known is not None else None
            if known is None or metric is None:
                return
            metric.holders -= 1
            if not metric.holders:
                del known.metrics[key]

    def change(self, family: str, key: Labels, operation: str, value: float) -> None:
        """Do ``increment``, ``set`` or ``observe``.

        Raises:
            InvalidArgumentError: the kind of the metric does not do that.
        """
        with self._lock:
            known = self._families[family]
            metric = known.metrics[key]
            if operation == "observe" and known.kind is MetricKind.HISTOGRAM:
                metric.value += value
                metric.counts[bisect_left(metric.bounds, value)] += 1
            elif operation == "set" and known.kind is MetricKind.GAUGE:
                metric.value = value
            elif operation == "increment" and (
                known.kind is MetricKind.GAUGE or (known.kind is MetricKind.COUNTER and value >= 0)
            ):
                metric.value += value
            else:
                raise InvalidArgumentError(
                    f"a {known.kind.name.lower()} such as '{family}' does not do '{operation}' "
                    f"with {value:g}"
                )

    def value(self, family: str, key: Labels) -> float:
        """Of a counter or a gauge."""
        with self._lock:
            return self._families[family].metrics[key].value

    def read(self) -> list[FamilyReading]:
        """Everything, sorted by name."""
        with self._lock:
            return [
                FamilyReading(
                    family.name,
                    family.description,
                    family.kind,
                    tuple(
                        MetricReading(key, metric.value, metric.bounds, tuple(metric.counts))
                        for key, metric in sorted(family.metrics.items())
                    ),
                )
                for _, family in sorted(self._families.items())
            ]


class MetricHolder:
    """What one model instance holds, by numbers that mean something to that instance alone.

    Used by one thread, but for `close`.
    """

    def __init__(self, metrics: CustomMetrics) -> None:
        self._metrics = metrics
        self._families: dict[int, str] = {}
        self._held: dict[int, tuple[str, Labels]] = {}
        self._last = 0
        self._lock = threading.Lock()

    def call(self, name: str, arguments: Mapping[str, Any]) -> int | float:
        """Do what an instance waits for.

        Raises:
            InvalidArgumentError: it can't be done.
        """
        with self._lock:
            if name == "metric_family":
                family = self._metrics.hold_family(
                    arguments["name"], arguments["description"], arguments["kind"]
                )
                self._last += 1
                self._families[self._last] = family
                return self._last
            if name == "metric":
                family = self._families[arguments["family"]]
                key = self._metrics.hold_metric(family, arguments["labels"], arguments["buckets"])
                self._last += 1
                self._held[self._last] = (family, key)
                return self._last
            if name == "metric_value":
                return self._metrics.value(*self._held[arguments["metric"]])
        raise InvalidArgumentError(f"there is no call '{name}'")

    def tell(self, name: str, arguments: Mapping[str, Any]) -> None:
        """Do what an instance does not wait for.

        Raises:
            InvalidArgumentError: it can't be done.
        """
        with self._lock:
            if name == "metric":
                held = self._held.get(arguments["metric"])
                if held is not None:
                    self._metrics.change(*held, arguments["operation"], arguments["value"])
            elif name == "metric_end":
                held = self._held.pop(arguments["number"], None)
                if held is not None:
                    self._metrics.drop_metric(*held)
            elif name == "metric_family_end":
                family = self._families.pop(arguments["number"], None)
                if family is not None:
                    self._metrics.drop_family(family)

    def close(self) -> None:
        """Let go of everything; the instance is gone."""
        with self._lock:
            for held in self._held.values():
                self._metrics.drop_metric(*held)
            for family in self._families.values():
                self._metrics.drop_family(family)
            self._held.clear()
            self._families.clear()
