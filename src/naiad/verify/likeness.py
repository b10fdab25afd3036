"""Whether a hop's answer is the one that a fault foretells: equal, near, or of one distribution."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from naiad.inference.comparison import Array, Outputs, as_numbers, cosine
from naiad.inference.datatypes import round_to_bf16, widen_bf16
from naiad.repository.golden import GoldenCase
from naiad.verify.hops import Hop, HopFailedError
from naiad.verify.judge import Judge
from naiad.verify.references import Likeness

DRAWS: Final = 64
"""Answers of a random hop that are compared with as many of a random reference."""

# Rounding of one kind leaves less than half of the difference; anything else leaves it whole.
_NEARER: Final = 0.5
# A difference much larger than the rounding itself has another cause.
_LARGER: Final = 8.0
_COSINE: Final = 0.4
# An answer that is the right one times a number is no rounding of it, whatever it resembles.
_SCALED: Final = 0.98
# Of BF16, whose step is 2^-8, after a few layers.
_COARSE: Final = 0.05
_STANDARD_ERRORS: Final = 6.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One case, foretold and answered.

    Attributes:
        case: the question.
        expected: the answer with the supposed faults in it.
        actual: the hop's.
        plain: the answer without those of the faults that are a matter of rounding.
    """

    case: GoldenCase
    expected: Outputs
    actual: Outputs
    plain: Outputs


def is_alike(judge: Judge, sample: Sample, likeness: Collection[Likeness]) -> bool:
    """Whether the hop's answer is the foretold one, under the mildest of the likenesses."""
    if Likeness.FINITE in likeness:
        finite = _with_finite_only(sample)
        return finite is not None and is_alike(
            judge, finite, [kind for kind in likeness if kind is not Likeness.FINITE]
        )
    if judge.is_equal(sample.case, sample.expected, sample.actual):
        return True
    if Likeness.NEAR in likeness:
        # One case has few numbers: all of them are judged together.
        return could_be_near(sample)
    for kind, step in ((Likeness.HALF, _to_half), (Likeness.BRAIN, _to_brain)):
        if kind in likeness:
            return _is_in_steps(judge, sample, step)
    return False


def is_random(hop: Hop, case: GoldenCase) -> bool:
    """Whether the hop answers the same question differently each time."""
    try:
        first, second = hop.run(case), hop.run(case)
    except HopFailedError:
        return False
    return not all(
        np.array_equal(first[name], second[name], equal_nan=first[name].dtype.kind == "f")
        for name in first
        if name in second and _differs_much(first[name], second[name])
    )


def are_same_draws(expected: Sequence[Outputs], actual: Sequence[Outputs]) -> bool:
    """Whether two series of random answers have one mean and one spread, element by element."""
    if len(expected) < DRAWS or len(actual) < DRAWS:
        return False
    return all(
        name in actual[0]
        and _has_same_moments(
            np.stack([answer[name] for answer in expected]),
            np.stack([answer[name] for answer in actual]),
        )
        for name in expected[0]
    )


def _differs_much(first: Array, second: Array) -> bool:
    # Threads may add in another order each time, and that is no random operation.
    if first.dtype.kind != "f" or first.shape != second.shape:
        return True
    return not np.allclose(first, second, rtol=1e-3, atol=1e-5, equal_nan=True)


def _has_same_moments(expected: Array, actual: Array) -> bool:
    if expected.shape != actual.shape:
        return False
    if expected.dtype.kind != "f":
        return True
    a, b = expected.astype(np.float64), actual.astype(np.float64)
    spread = np.sqrt((a.var(axis=0) + b.var(axis=0)) / len(a))
    scale = float(np.abs(a).mean()) or 1.0
    means_agree = (
        np.abs(a.mean(axis=0) - b.mean(axis=0)) <= _STANDARD_ERRORS * spread + 1e-4 * scale
    )
    if not bool(means_agree.all()):
        return False
    # One element's variance of 64 draws is a poor estimate; that of all together is a good one.
    total_a, total_b = float(a.var(axis=0).sum()), float(b.var(axis=0).sum())
    return 0.5 <= (total_a + 1e-12) / (total_b + 1e-12) <= 2.0


def _with_finite_only(sample: Sample) -> Sample | None:
    """The sample with the expected value wherever just one side is finite; None if nothing is."""
    actual = dict(sample.actual)
    left = False
    for name, expected in sample.expected.items():
        found = actual.get(name)
        if found is None or found.shape != expected.shape or expected.dtype.kind != "f":
            continue
        comparable = np.isfinite(found) & np.isfinite(expected)
        left = left or bool(comparable.any())
        actual[name] = np.where(comparable, found, expected).astype(expected.dtype)
    return Sample(sample.case, sample.expected, actual, sample.plain) if left else None


def _to_half(values: Array) -> Array:
    with np.errstate(over="ignore"):
        return values.astype(np.float16).astype(values.dtype)


def _to_brain(values: Array) -> Array:
    return widen_bf16(round_to_bf16(values)).astype(values.dtype)


def _is_in_steps(judge: Judge, sample: Sample, to_steps: Callable[[Array], Array]) -> bool:
    """Whether what differs is near, and does not change when it is rounded to a datatype."""
    for difference in judge.compare(sample.case, sample.expected, sample.actual):
        if difference.equal:
            continue
        expected, actual = (
            outputs.get(difference.output) for outputs in (sample.expected, sample.actual)
        )
        if expected is None or actual is None or difference.problem or actual.dtype.kind != "f":
            return False
        finite = actual[np.isfinite(actual)]
        is_coarse = finite.size > 0 and np.array_equal(to_steps(finite), finite)
        scale = _distance(np.zeros_like(expected), expected)
        if not is_coarse or _distance(expected, actual) > _COARSE * scale:
            return False
    return True


def could_be_near(sample: Sample) -> bool:
    """Whether the outputs can be compared by their numbers at all."""
    return set(sample.expected) == set(sample.actual) and all(
        expected.shape == sample.actual[name].shape == sample.plain[name].shape
        for name, expected in sample.expected.items()
    )


def are_near(judge: Judge, samples: Sequence[Sample]) -> bool:
    """Whether over all samples the answers are much nearer to the foretold than to plain ones.

    Args:
        judge: tells which outputs differ.
        samples: each comparable by its shapes.
    """
    differing = {
        difference.output
        for sample in samples
        for difference in judge.compare(sample.case, sample.plain, sample.actual)
        if not difference.equal
    }
    # A label follows from scores, and scores that are near may make another one.
    floats = [n for n in differing if n in samples[0].actual and _is_float(samples, n)]
    return bool(floats) and all(_is_output_near(judge, samples, name) for name in floats)


def _is_float(samples: Sequence[Sample], name: str) -> bool:
    return all(
        sample.actual[name].dtype.kind == sample.plain[name].dtype.kind == "f" for sample in samples
    )


def _is_output_near(judge: Judge, samples: Sequence[Sample], name: str) -> bool:
    datatype = judge.datatype(name)
    plain, expected, actual = (
        np.concatenate([as_numbers(outputs[name], datatype).reshape(-1) for outputs in series])
        for series in (
            [sample.plain for sample in samples],
            [sample.expected for sample in samples],
            [sample.actual for sample in samples],
        )
    )
    without, with_fault = _distance(plain, actual), _distance(expected, actual)
    foretold = _distance(plain, expected)
    if with_fault <= _NEARER * without and without <= _LARGER * foretold:
        return True
    is_as_large = foretold <= _LARGER * without and without <= _LARGER * foretold
    return is_as_large and _is_correlated(expected, actual, plain)


def _is_correlated(expected: Array, actual: Array, plain: Array) -> bool:
    """Whether the two go away from the plain answer in one direction, beyond any chance.

    Errors of unrelated origin have a cosine of about ``1 / sqrt(n)``; libraries that quantise the
    same weights, each a little differently, have one of 0.5 and more.
    """
    directions = cosine(
        expected.astype(np.float64) - plain.astype(np.float64),
        actual.astype(np.float64) - plain.astype(np.float64),
    )
    along = cosine(actual.astype(np.float64) - plain.astype(np.float64), plain.astype(np.float64))
    if directions is None or (along is not None and abs(along) > _SCALED):
        return False
    return directions >= _COSINE and directions * math.sqrt(plain.size) >= _STANDARD_ERRORS


def _distance(a: Array, b: Array) -> float:
    """Root mean square of the difference, where both are finite."""
    difference: npt.NDArray[np.float64] = a.astype(np.float64) - b.astype(np.float64)
    finite = difference[np.isfinite(difference)]
    return float(np.sqrt(np.mean(np.square(finite)))) if finite.size else 0.0
