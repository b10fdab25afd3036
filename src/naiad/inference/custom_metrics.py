"""Metrics that models define, as they are at one moment."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

Labels = tuple[tuple[str, str], ...]


class MetricKind(IntEnum):
    """What a metric does; the numbers are Triton's."""

    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2


@dataclass(frozen=True, slots=True)
class MetricReading:
    """A metric as it is now.

    Attributes:
        labels: by name.
        value: of a counter or gauge, or the sum of what a histogram has counted.
        bounds: of a histogram's buckets, ascending.
        counts: what fell in each of them, and one more for what was above all.
    """

    labels: Labels
    value: float
    bounds: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class FamilyReading:
    """A family as it is now."""

    name: str
    description: str
    kind: MetricKind
    metrics: tuple[MetricReading, ...]


def cumulate(counts: Sequence[int]) -> Iterator[int]:
    """How many values were at most each bound, from how many fell into each bucket."""
    total = 0
    for count in counts:
        total += count
        yield total
