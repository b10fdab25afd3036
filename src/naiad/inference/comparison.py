"""How far two sets of outputs are apart, in numbers, and what still counts as equal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from naiad.inference.datatypes import BF16, widen_bf16

Array = npt.NDArray[Any]
Outputs = Mapping[str, Array]
"""Output name -> array with the batch axis; BF16 as bit patterns in uint16, BYTES as objects."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Equal means ``|actual - expected| <= atol + rtol * |expected|`` for each element."""

    rtol: float
    atol: float


EXACT: Final = Tolerance(0.0, 0.0)

# FP32 is the rule that a user is promised: kernels that add in another order stay a decade below
# it in every network measured (worst seen 4e-6). The others keep its ratio to the datatype's
# rounding step (2^-24 for FP32, 2^-53, 2^-11 and 2^-8), rounded up, with a floor for long sums.
_BY_DATATYPE: Final[Mapping[str, Tolerance]] = {
    "FP64": Tolerance(1e-7, 1e-8),
    "FP32": Tolerance(1e-4, 1e-5),
    "FP16": Tolerance(1e-2, 1e-3),
    "BF16": Tolerance(4e-2, 1e-2),
}


_FREE_DEPTH: Final = 64
"""Layers with weights up to which the tolerance is the datatype's own."""


def default_tolerance(datatype: str, depth: int = 0) -> Tolerance:
    """The tolerance against eager PyTorch for a v2 datatype; integers and text must be exact.

    Rounding errors of one layer after the other add up like a random walk, so past 64 layers the
    tolerance grows with the square root of the depth: 256 layers have twice that of 64.

    Args:
        datatype: of the output.
        depth: layers with weights between input and output; 0 where nobody knows.
    """
    tolerance = _BY_DATATYPE.get(datatype, EXACT)
    growth = max(1.0, (depth / _FREE_DEPTH) ** 0.5)
    return Tolerance(tolerance.rtol * growth, tolerance.atol * growth)


@dataclass(frozen=True, slots=True)
class Difference:
    """What sets two versions of one output apart.

    Attributes:
        output: the output's name.
        max_abs: largest ``|actual - expected|``; infinite where the two are not comparable
            (shape, dtype, a missing output, or NaN against a number).
        max_rel: largest ``|actual - expected| / |expected|`` over the elements whose expected
            value is neither 0 nor infinite.
        worst_index: of the element that goes furthest beyond the tolerance, or nearest to it;
            None when nothing differs or nothing compares.
        same_top1: for each row the largest value of the last axis is at the same place; None
            where that means nothing (not floating point, or a last axis of one).
        same_bits: each element has the same bits; any NaN equals any NaN.
        equal: the verdict under the tolerance.
        problem: why the two could not be compared, else "".
        only_ties: they are indices, as of a top-k, and differ only where the values that they
            belong to are equal; then ``equal`` is true.
        max_ulp: the largest number of representable values between an element and its reference
            (units in the last place), where both are finite; None where it isn't floating point.
        cosine: of the angle between the two as vectors of their finite elements; None where one
            is empty, zero or not floating point.
        same_top5: for each row the five largest values of the last axis are at the same places,
            in any order; None where that means nothing, or the axis has fewer than six.
        expected_value: of the element at ``worst_index``.
        actual_value: of the element at ``worst_index``.
    """

    output: str
    max_abs: float
    max_rel: float
    worst_index: tuple[int, ...] | None
    same_top1: bool | None
    same_bits: bool
    equal: bool
    problem: str = ""
    only_ties: bool = False
    max_ulp: int | None = None
    cosine: float | None = None
    same_top5: bool | None = None
    expected_value: float | None = None
    actual_value: float | None = None


def compare_outputs(
    expected: Outputs,
    actual: Outputs,
    datatypes: Mapping[str, str],
    tolerances: Mapping[str, Tolerance],
) -> list[Difference]:
    """One difference for each expected output, then one for each output nobody expected.

    Where two outputs are the values and the indices of a top-k and the values agree, indices of
    equal values count as equal: PyTorch and onnxruntime order ties each in its own way.

    Args:
        expected: the reference.
        actual: the outputs under suspicion.
        datatypes: output name -> v2 datatype; tells BF16 from UINT16.
        tolerances: output name -> tolerance; by datatype where a name is missing.
    """
    found = []
    for name, reference in expected.items():
        datatype = datatypes.get(name, "")
        tolerance = tolerances.get(name, default_tolerance(datatype))
        if name in actual:
            found.append(compare(name, reference, actual[name], datatype, tolerance))
        else:
            found.append(_incomparable(name, f"output '{name}' is missing"))
    agreeing = [expected[difference.output] for difference in found if difference.equal]
    differences = [
        replace(difference, equal=True, only_ties=True)
        if not (difference.equal or difference.problem)
        and _differ_in_ties(expected[difference.output], actual[difference.output], agreeing)
        else difference
        for difference in found
    ]
    differences.extend(
        _incomparable(name, f"output '{name}' was not expected")
        for name in actual
        if name not in expected
    )
    return differences


def compare(
    output: str, expected: Array, actual: Array, datatype: str, tolerance: Tolerance
) -> Difference:
    """Measure one output against its reference."""
    if expected.shape != actual.shape:
        return _incomparable(
            output, f"shape {list(actual.shape)} instead of {list(expected.shape)}"
        )
    if expected.dtype != actual.dtype:
        return _incomparable(output, f"dtype {actual.dtype} instead of {expected.dtype}")
    if expected.dtype.hasobject:
        return _compare_objects(output, expected, actual)
    found = _compare_numbers(
        output, as_numbers(expected, datatype), as_numbers(actual, datatype), tolerance
    )
    if datatype == BF16.name and found.max_ulp is not None:
        # Measured as FP32, whose lower half BF16 doesn't have.
        return replace(found, max_ulp=found.max_ulp >> 16)
    return found


def as_numbers(array: Array, datatype: str) -> Array:
    """The elements as the numbers that they mean: BF16's bit patterns as float32."""
    return widen_bf16(array) if datatype == BF16.name else array


def absolute_difference(expected: Array, actual: Array) -> npt.NDArray[np.float64]:
    """``|actual - expected|`` element by element; equal infinities and NaN against NaN give 0."""
    if expected.dtype.kind in "iub":
        # Subtract the smaller from the larger as unsigned numbers: exact, even for UINT64.
        wide = np.uint64 if expected.dtype.kind in "ub" else np.int64
        a, b = expected.astype(wide), actual.astype(wide)
        larger, smaller = np.maximum(a, b).view(np.uint64), np.minimum(a, b).view(np.uint64)
        return (larger - smaller).astype(np.float64)
    a, b = expected.astype(np.float64), actual.astype(np.float64)
    with np.errstate(invalid="ignore"):
        distance = np.abs(b - a)
    agree = (a == b) | (np.isnan(a) & np.isnan(b))
    return np.where(agree, 0.0, np.where(np.isnan(distance), np.inf, distance))


def same_bits(expected: Array, actual: Array) -> bool:
    """Whether each element has the same bits; -0.0 is not 0.0, any NaN equals any NaN."""
    if expected.dtype.kind != "f":
        return bool(np.array_equal(expected, actual))
    bits = np.dtype(f"u{expected.dtype.itemsize}")
    identical = np.ascontiguousarray(expected).view(bits) == np.ascontiguousarray(actual).view(bits)
    return bool((identical | (np.isnan(expected) & np.isnan(actual))).all())


def same_top1(expected: Array, actual: Array) -> bool | None:
    """Whether each row's largest value is at the same place; None where that means nothing."""
    if expected.dtype.kind != "f" or expected.ndim == 0 or expected.shape[-1] < 2:
        return None
    if expected.size == 0:
        return None
    return bool(np.array_equal(expected.argmax(axis=-1), actual.argmax(axis=-1)))


def same_top5(expected: Array, actual: Array) -> bool | None:
    """Whether each row's five largest values are at the same places, in any order.

    None where that means nothing: not floating point, nothing at all, or five values or fewer.
    """
    if expected.dtype.kind != "f" or expected.ndim == 0 or expected.shape[-1] < 6:
        return None
    if expected.size == 0:
        return None
    wanted, got = (
        np.sort(np.argsort(-array, axis=-1, kind="stable")[..., :5], axis=-1)
        for array in (expected, actual)
    )
    return bool(np.array_equal(wanted, got))


def max_ulp(expected: Array, actual: Array) -> int | None:
    """The largest distance of two finite elements in units in the last place.

    None where the arrays aren't floating point. 0.0 and -0.0 are the same number.
    """
    if expected.dtype.kind != "f":
        return None
    finite = np.isfinite(expected) & np.isfinite(actual)
    a, b = (_ordinals(array[finite]) for array in (expected, actual))
    if not a.size:
        return 0
    # As unsigned numbers, for two of opposite sign may be further apart than an int64 holds.
    larger, smaller = np.maximum(a, b).view(np.uint64), np.minimum(a, b).view(np.uint64)
    return int((larger - smaller).max())


def cosine(expected: Array, actual: Array) -> float | None:
    """Of the angle between two arrays as vectors, over the elements that are finite in both.

    None where the arrays aren't floating point, or one of the vectors has no length.
    """
    if expected.dtype.kind != "f":
        return None
    finite = np.isfinite(expected) & np.isfinite(actual)
    a, b = (_unit(array[finite].astype(np.float64)) for array in (expected, actual))
    if a is None or b is None:
        return None
    return float(np.clip(np.dot(a, b), -1.0, 1.0))


def worst(differences: Sequence[Difference]) -> Difference:
    """The difference that decides: unequal before equal, then the largest."""
    return max(differences, key=lambda d: (not d.equal, d.max_abs))


def _incomparable(output: str, problem: str) -> Difference:
    return Difference(
        output=output,
        max_abs=float("inf"),
        max_rel=float("inf"),
        worst_index=None,
        same_top1=None,
        same_bits=False,
        equal=False,
        problem=problem,
    )


def _compare_objects(output: str, expected: Array, actual: Array) -> Difference:
    unequal = np.flatnonzero(expected.reshape(-1) != actual.reshape(-1))
    same = unequal.size == 0
    worst_index = None if same else _index(int(unequal[0]), expected.shape)
    size = 0.0 if same else float("inf")
    return Difference(output, size, size, worst_index, None, same, same)


def _compare_numbers(
    output: str, expected: Array, actual: Array, tolerance: Tolerance
) -> Difference:
    distance = absolute_difference(expected, actual)
    magnitude = np.abs(expected.astype(np.float64))
    relevant = (magnitude > 0) & np.isfinite(magnitude)
    max_abs = float(distance.max(initial=0.0))
    max_rel = float((distance[relevant] / magnitude[relevant]).max(initial=0.0))
    # Infinity and NaN must match outright, so their magnitude allows nothing.
    finite = np.where(np.isfinite(magnitude), magnitude, 0.0)
    excess = distance - (tolerance.atol + tolerance.rtol * finite)
    index = _index(int(excess.argmax()), expected.shape) if max_abs > 0 else None
    return Difference(
        output=output,
        max_abs=max_abs,
        max_rel=max_rel,
        worst_index=index,
        same_top1=same_top1(expected, actual),
        same_bits=same_bits(expected, actual),
        equal=bool((excess <= 0).all()),
        max_ulp=max_ulp(expected, actual),
        cosine=cosine(expected, actual),
        same_top5=same_top5(expected, actual),
        expected_value=None if index is None else float(expected[index]),
        actual_value=None if index is None else float(actual[index]),
    )


def _ordinals(values: Array) -> npt.NDArray[np.int64]:
    """Floats as integers in the same order, neighbours one apart."""
    size = values.dtype.itemsize
    bits = np.ascontiguousarray(values).view(f"i{size}").astype(np.int64)
    # Negative floats sort downwards by their bits; mirror them below zero.
    lowest = np.int64(-(2 ** (8 * size - 1)))
    return np.where(bits < 0, lowest - bits, bits)


def _unit(vector: npt.NDArray[np.float64]) -> npt.NDArray[np.float64] | None:
    # Scaled first: the square of a large float64 would be infinite.
    largest = float(np.abs(vector).max(initial=0.0))
    if largest == 0:
        return None
    scaled = vector / largest
    unit: npt.NDArray[np.float64] = scaled / np.linalg.norm(scaled)
    return unit


def _index(flat: int, shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(flat, tuple(shape)))


def _differ_in_ties(indices: Array, other: Array, agreeing: Sequence[Array]) -> bool:
    """Whether indices differ only where one of the agreeing outputs holds equal values."""
    if indices.dtype.kind not in "iu" or indices.ndim == 0:
        return False
    moved = indices != other
    return any(
        values.dtype.kind == "f" and values.shape == indices.shape and _are_tied(values, moved)
        for values in agreeing
    )


def _are_tied(values: Array, marked: npt.NDArray[np.bool_]) -> bool:
    """Whether each marked value occurs more than once along the last axis."""
    rows, marks = values.reshape(-1, values.shape[-1]), marked.reshape(-1, values.shape[-1])
    return all(
        np.count_nonzero(row == value) > 1
        for row, mark in zip(rows, marks, strict=True)
        for value in row[mark]
    )
