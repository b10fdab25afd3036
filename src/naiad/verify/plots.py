"""What is kept of a hop's answers to draw them: a sample of points, and all errors by decade."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from naiad.inference.comparison import Outputs, absolute_difference, as_numbers
from naiad.repository.golden import GoldenCase

LOWEST_DECADE: Final = -9
HIGHEST_DECADE: Final = 1
_MAX_POINTS: Final = 300


@dataclass(frozen=True, slots=True)
class Plot:
    """One hop's answers against eager PyTorch's.

    Attributes:
        hop: which.
        points: expected and answered value of a sample of finite elements.
        histogram: decade of the absolute error -> number of elements; "0" for none at all, and
            ``1e-9`` and ``1e1`` for all that is below and above.
    """

    hop: str
    points: Sequence[tuple[float, float]]
    histogram: Mapping[str, int]


def decades() -> list[str]:
    """The keys of a histogram, in order."""
    return ["0", *(f"1e{power}" for power in range(LOWEST_DECADE, HIGHEST_DECADE + 1))]


@dataclass(slots=True)
class PlotCollector:
    """Gathers the plots of one model's hops.

    Attributes:
        datatypes: output name -> v2 datatype.
    """

    datatypes: Mapping[str, str]
    _points: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    _histograms: dict[str, dict[str, int]] = field(default_factory=dict)

    def add(self, hop: str, answers: Iterable[tuple[GoldenCase, Outputs]]) -> None:
        """Take the answers of a hop in; what has no numbers, or another shape, is left out."""
        points = self._points.setdefault(hop, [])
        histogram = self._histograms.setdefault(hop, dict.fromkeys(decades(), 0))
        for case, answer in answers:
            for name, expected in case.outputs.items():
                actual = answer.get(name)
                if actual is None or actual.shape != expected.shape or expected.dtype.hasobject:
                    continue
                wanted, got = (
                    as_numbers(array, self.datatypes.get(name, "")).reshape(-1)
                    for array in (expected, actual)
                )
                _count(histogram, absolute_difference(wanted, got))
                _sample(points, wanted.astype(np.float64), got.astype(np.float64))

    def plots(self) -> list[Plot]:
        """One for each hop that has answered with numbers."""
        return [
            Plot(hop, points, self._histograms[hop])
            for hop, points in self._points.items()
            if any(self._histograms[hop].values())
        ]


def _count(histogram: dict[str, int], errors: np.ndarray[tuple[int, ...], np.dtype[np.float64]]
           ) -> None:  # fmt: skip
    histogram["0"] += int(np.count_nonzero(errors == 0))
    positive = np.where(np.isfinite(errors), errors, math.inf)[errors != 0]
    powers = np.clip(np.floor(np.log10(positive)), LOWEST_DECADE, HIGHEST_DECADE).astype(int)
    for power, count in zip(*np.unique(powers, return_counts=True), strict=True):
        histogram[f"1e{power}"] += int(count)


def _sample(
    points: list[tuple[float, float]],
    expected: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
    actual: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
) -> None:
    room = _MAX_POINTS - len(points)
    finite = np.flatnonzero(np.isfinite(expected) & np.isfinite(actual))
    if room <= 0 or not finite.size:
        return
    # Evenly over the array, and at most a third of the room, so that later cases are seen too.
    chosen = finite[
        np.linspace(0, finite.size - 1, min(finite.size, max(room // 3, 1))).astype(int)
    ]
    points.extend(zip(expected[chosen].tolist(), actual[chosen].tolist(), strict=True))
