"""Quantiles of streams: the promised rank errors, in bounded memory, whatever comes."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from naiad.inference.rank_sketch import RankSketch, find_quantiles

QUANTILES = (0.0, 0.001, 0.1, 0.25, 0.5, 0.9, 0.95, 0.99, 0.999, 1.0)
Values = npt.NDArray[np.int64]


def _random_run(seed: int, count: int, spread: int) -> Values:
    return np.random.default_rng(seed).integers(-spread, spread, count)


# Few different values, as short latencies have, and many; the long ones are cheap to draw.
runs = st.one_of(
    arrays(np.int64, st.integers(0, 20), elements=st.integers(-(2**62), 2**62)),
    st.builds(
        _random_run,
        st.integers(0, 2**32 - 1),
        st.integers(0, 1000),
        st.sampled_from([2, 1000, 2**62]),
    ),
    st.builds(np.arange, st.integers(-500, 500), st.integers(0, 1000)),
)
parts = st.lists(st.lists(runs, max_size=12), min_size=1, max_size=5)


def make_sketch(error: float, added: Sequence[Values]) -> RankSketch:
    sketch = RankSketch(error)
    for run in added:
        sketch.add(run)
    return sketch


def check_ranks(sketches: Sequence[RankSketch], everything: Values, error: float) -> None:
    """Hold the quantiles of sketches against the values themselves."""
    ordered = np.sort(everything)
    for quantile, value in zip(QUANTILES, find_quantiles(sketches, QUANTILES), strict=True):
        # The ranks that a value has: from the first to the last that equals it.
        lowest = np.searchsorted(ordered, value, "left") + 1
        highest = np.searchsorted(ordered, value, "right")
        assert lowest <= highest, "a value that was never added"
        wanted = quantile * len(ordered)
        slack = error * len(ordered) + 1
        assert lowest - slack <= wanted <= highest + slack


@pytest.mark.slow
@settings(deadline=None)
@given(parts=parts, error=st.sampled_from([0.0001, 0.001, 0.01, 0.05, 0.3]))
def test_no_rank_is_off_by_more_than_the_error(parts: list[list[Values]], error: float) -> None:
    everything = np.concatenate([np.empty(0, np.int64), *(run for part in parts for run in part)])
    sketches = [make_sketch(error, part) for part in parts]
    assert sum(sketch.count for sketch in sketches) == len(everything)
    if len(everything):
        # As floats, which quantiles are; 2**62 is more than they tell apart.
        check_ranks(sketches, everything.astype(float).astype(np.int64), error)
    else:
        assert all(math.isnan(value) for value in find_quantiles(sketches, QUANTILES))


@pytest.mark.slow
@settings(deadline=None)
@given(values=arrays(np.int64, st.integers(1, 50), elements=st.integers(0, 10**9)))
def test_quantiles_of_few_values_are_exact(values: Values) -> None:
    ordered = np.sort(values)
    found = find_quantiles([make_sketch(0.001, [values])], QUANTILES)
    ranks = [max(math.ceil(quantile * len(values) - 1e-6), 1) for quantile in QUANTILES]
    assert found == [float(ordered[rank - 1]) for rank in ranks]


def _shuffled(count: int) -> Values:
    return np.random.default_rng(1).permutation(count).astype(np.int64)


STREAMS = {
    "ascending": np.arange(100_000),
    "descending": np.arange(100_000)[::-1],
    "shuffled": _shuffled(100_000),
    "from both ends": np.where(np.arange(100_000) % 2, np.arange(100_000), -np.arange(100_000)),
    "to the middle": np.concatenate([np.arange(50_000), 100_000 - np.arange(50_000)]),
    "few values": _shuffled(100_000) % 7,
    "heavy tail": (1e6 / (_shuffled(100_000) + 1)).astype(np.int64),
}


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("error", [0.001, 0.02])
def test_memory_stays_bounded_on_long_streams(name: str, error: float) -> None:
    stream = STREAMS[name]
    sketch = RankSketch(error)
    for start in range(0, len(stream), 1000):
        sketch.add(stream[start : start + 1000])
        # Half of 1 / error would do if all were known beforehand; what the summary's authors prove
        # grows with the logarithm of the length, and values that close in on one another come near.
        assert len(sketch) <= (2 + math.log2(1 + 2 * error * sketch.count)) / (2 * error) + 10
    check_ranks([sketch], stream, error)
