"""The distribution of a stream of numbers in bounded memory, with promised rank errors.

A Greenwald-Khanna summary that takes its values in sorted runs. Two of them together are as exact
as the worse of the two, which the targeted summaries of Prometheus' client libraries are not: so a
sliding window can be made of parts, and a value goes into one of them instead of into all. Source:
Greenwald and Khanna, "Space-efficient online computation of quantile summaries" (2001), and their
"Quantiles and equi-depth histograms over streams" (2016) on joining them.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

_Values = npt.NDArray[np.int64]
_NOTHING: Final[_Values] = np.empty(0, np.int64)


class RankSketch:
    """What is kept of the values so far.

    Between two neighbours that are kept lie so few values that any rank is known to
    ``error * count``, or exactly where that is less than one.

    Args:
        error: of a rank, as a share of how many values there are.

    Attributes:
        count: how many values were added.
    """

    __slots__ = ("_error", "_maximum_ranks", "_minimum_ranks", "_values", "count")

    def __init__(self, error: float) -> None:
        self.count = 0
        self._error = error
        # Ascending. A value's rank, counted from 1, is between the two.
        self._values = _NOTHING
        self._minimum_ranks = _NOTHING
        self._maximum_ranks = _NOTHING

    def __len__(self) -> int:
        """How many values are kept."""
        return len(self._values)

    def add(self, values: _Values) -> None:
        """Add values in any order.

        Args:
            values: shape ``(n,)``.
        """
        if not len(values):
            return
        self._merge(np.sort(values))
        self._thin_out()

    def steps(self) -> tuple[_Values, npt.NDArray[np.float64]]:
        """The distribution, as steps to be summed with those of other sketches.

        Returns:
            The values kept, ascending, and for each by how much the number of values that are
            at most that large grows there. Summed up, they are off by ``error * count`` at most.
        """
        below = np.append(self._maximum_ranks[1:] - 1, self.count)
        middles = (self._minimum_ranks + below) / 2
        return self._values, np.diff(middles, prepend=0.0)

    def _merge(self, run: _Values) -> None:
        """Put a sorted run between the values that are kept."""
        kept = self._values
        ahead = np.searchsorted(kept, run, "left")
        before = np.searchsorted(run, kept, "right")
        own_ranks = np.arange(1, len(run) + 1)
        minimum_ranks = own_ranks + np.append(0, self._minimum_ranks)[ahead]
        maximum_ranks = own_ranks + np.append(self._maximum_ranks - 1, self.count)[ahead]
        size = len(kept) + len(run)
        run_places = ahead + own_ranks - 1
        kept_places = before + np.arange(len(kept))
        self._values = _place(size, (run_places, run), (kept_places, kept))
        self._minimum_ranks = _place(
            size, (run_places, minimum_ranks), (kept_places, self._minimum_ranks + before)
        )
        self._maximum_ranks = _place(
            size, (run_places, maximum_ranks), (kept_places, self._maximum_ranks + before)
        )
        self.count += len(run)

    def _thin_out(self) -> None:
        """Drop what the promise does not need; the least and the greatest value stay."""
        values = self._values
        # Whatever lies between two equal values equals them.
        is_edge = np.ones(len(values), np.bool_)
        is_edge[1:-1] = (values[1:-1] != values[:-2]) | (values[1:-1] != values[2:])
        self._keep(is_edge)
        width = int(2 * self._error * self.count)
        if width <= 1:
            return
        # As far as two neighbours may be apart, and to the next one where all are further.
        following = np.searchsorted(self._maximum_ranks, self._minimum_ranks + width, "right") - 1
        jumps = np.maximum(following, np.arange(1, len(self) + 1)).tolist()
        at, last = 0, len(self) - 1
        chosen = [at]
        while at < last:
            at = jumps[at]
            chosen.append(at)
        self._keep(np.array(chosen))

    def _keep(self, places: npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> None:
        self._values = self._values[places]
        self._minimum_ranks = self._minimum_ranks[places]
        self._maximum_ranks = self._maximum_ranks[places]


def find_quantiles(sketches: Sequence[RankSketch], quantiles: Sequence[float]) -> list[float]:
    """Quantiles of all values of several sketches together.

    Args:
        sketches: any number of them.
        quantiles: each from 0 to 1.

    Returns:
        For each quantile a value that was added; NaN where none was. Its rank is within
        ``error`` of the quantile, as a share of all values, or next to it where they are few.
    """
    parts = [sketch.steps() for sketch in sketches if sketch.count]
    if not parts:
        return [float("nan")] * len(quantiles)
    values = np.concatenate([values for values, _ in parts])
    growth = np.concatenate([growth for _, growth in parts])
    order = np.argsort(values, kind="stable")
    ranks = np.cumsum(growth[order])
    wanted = np.array(quantiles) * sum(sketch.count for sketch in sketches)
    # Sums of halves can come out a little short of the whole that they make.
    places = np.searchsorted(ranks, wanted - 1e-6, "left")
    return [float(value) for value in values[order][np.minimum(places, len(ranks) - 1)]]


def _place(size: int, *parts: tuple[_Values, _Values]) -> _Values:
    placed = np.empty(size, np.int64)
    for places, values in parts:
        placed[places] = values
    return placed
