"""Metrics that a model defines; they are on the server's metrics page, among its own.

The values are the server's: instances that name the same family and labels share them.
"""

from __future__ import annotations

import json
import weakref
from typing import Any

from .errors import TritonModelException
from .host import Host, HostError, binding


class MetricKind:
    """What a metric does."""

    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2


class MetricFamily:
    """A name with metrics that differ in their labels.

    Args:
        name: on the metrics page.
        description: for people.
        kind: ``MetricFamily.COUNTER``, ``GAUGE`` or ``HISTOGRAM``.

    Raises:
        TritonModelException: the name is taken by another family, or is none.
    """

    COUNTER = MetricKind.COUNTER
    GAUGE = MetricKind.GAUGE
    HISTOGRAM = MetricKind.HISTOGRAM

    def __init__(self, name: str, description: str, kind: int) -> None:
        self._host = binding.get()
        self._kind = kind
        self.name = name
        # They end with the family, as Triton's do, and say so.
        self._metrics: weakref.WeakSet[Metric] = weakref.WeakSet()
        try:
            self._number = int(
                self._host.call(
                    "metric_family", {"name": name, "description": description, "kind": kind}, {}
                )
            )
        except HostError as error:
            raise TritonModelException(f"Error when creating MetricFamily: {error}") from error

    def Metric(  # noqa: N802 - Triton's name
        self, labels: dict[str, str] | None = None, buckets: list[float] | None = None
    ) -> Metric:
        """A metric of this family.

        Args:
            labels: texts by name.
            buckets: of a histogram, ascending.
        """
        if labels is not None and not isinstance(labels, dict):
            raise TritonModelException("Failed to create metric. Labels must be a dictionary.")
        if buckets is not None and not isinstance(buckets, list):
            raise TritonModelException("Failed to create metric. Buckets must be a list.")
        is_histogram = self._kind == MetricKind.HISTOGRAM
        if buckets and not is_histogram:
            raise TritonModelException("Failed to create metric. Unexpected buckets found.")
        if is_histogram and buckets is None:
            raise TritonModelException("Failed to create metric. Missing required buckets.")
        texts = {str(key): _label(value) for key, value in (labels or {}).items()}
        arguments = {"family": self._number, "labels": texts, "buckets": buckets or []}
        try:
            number = int(self._host.call("metric", arguments, {}))
        except HostError as error:
            raise TritonModelException(f"Error when creating Metric: {error}") from error
        made = Metric(self._host, number, self._kind)
        self._metrics.add(made)
        return made

    def __del__(self) -> None:
        for metric in list(getattr(self, "_metrics", ())):
            metric.end()
        _release(getattr(self, "_host", None), "metric_family_end", getattr(self, "_number", 0))


class Metric:
    """One value, or one histogram."""

    def __init__(self, host: Host, number: int, kind: int) -> None:
        self._host = host
        self._number = number
        self._kind = kind

    def increment(self, value: float) -> None:
        """Add; a counter takes no negative numbers.

        Raises:
            TritonModelException: this kind of metric does not do that.
        """
        self._require("increment", MetricKind.COUNTER, MetricKind.GAUGE)
        if self._kind == MetricKind.COUNTER and value < 0:
            raise TritonModelException(
                "Failed to increment metric value: TRITONSERVER_METRIC_KIND_COUNTER can only be "
                "incremented monotonically by non-negative values."
            )
        self._tell("increment", value)

    def set(self, value: float) -> None:
        """Put another value in place of a gauge's.

        Raises:
            TritonModelException: it is no gauge.
        """
        self._require("set", MetricKind.GAUGE)
        self._tell("set", value)

    def observe(self, value: float) -> None:
        """Count a value in a histogram.

        Raises:
            TritonModelException: it is none.
        """
        self._require("observe", MetricKind.HISTOGRAM)
        self._tell("observe", value)

    def value(self) -> float:
        """The value of a counter or a gauge.

        Raises:
            TritonModelException: it is a histogram.
        """
        self._require("get", MetricKind.COUNTER, MetricKind.GAUGE)
        try:
            return float(self._host.call("metric_value", {"metric": self._number}, {}))
        except HostError as error:
            raise TritonModelException(f"Failed to get metric value: {error}") from error

    def end(self) -> None:
        """The family is gone, and this with it."""
        _release(self._host, "metric_end", self._number)
        self._number = 0

    def _tell(self, operation: str, value: float) -> None:
        arguments = {"metric": self._number, "operation": operation, "value": float(value)}
        self._host.tell("metric", arguments)

    def _require(self, operation: str, *kinds: int) -> None:
        if not self._number:
            raise TritonModelException(
                "Invalid metric operation as the corresponding 'MetricFamily' has been deleted. "
                "The 'MetricFamily' object should be deleted AFTER its corresponding 'Metric' "
                "objects have been deleted."
            )
        if self._kind not in kinds:
            names = ("COUNTER", "GAUGE", "HISTOGRAM")
            what = "get" if operation == "get" else operation
            raise TritonModelException(
                f"Failed to {what} metric value: TRITONSERVER_METRIC_KIND_{names[self._kind]} "
                f"does not support {'Value' if operation == 'get' else operation.capitalize()}"
            )

    def __del__(self) -> None:
        _release(getattr(self, "_host", None), "metric_end", getattr(self, "_number", 0))


def _release(host: Host | None, name: str, number: int) -> None:
    if host is None or not number:
        return
    try:
        host.tell(name, {"number": number})
    except Exception:  # noqa: BLE001 - the server is gone, or Python is at its end
        return


def _label(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
