"""Whether an exported file's answers are the source model's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from naiad.errors import InternalError
from naiad.repository.golden import GoldenCase, Tolerance

Array = npt.NDArray[Any]

_TIE: Final = "ties were broken the other way"


@dataclass(frozen=True, slots=True)
class Difference:
    """What sets one output of one case apart from the source model's.

    Attributes:
        case: its name.
        output: its name.
        max_abs: largest ``|actual - expected|``; infinite where they cannot be compared.
        detail: where it is, or why they cannot be compared; "" where nothing differs.
        equal: under the tolerance.
    """

    case: str
    output: str
    max_abs: float
    detail: str
    equal: bool


class DisagreementError(InternalError):
    """The exported file answers otherwise than the source model.

    Attributes:
        differences: those outside their tolerance.
    """

    def __init__(self, message: str, differences: Sequence[Difference]) -> None:
        super().__init__(message)
        self.differences = tuple(differences)


def compare_case(
    case: GoldenCase,
    actual: Mapping[str, Array],
    datatypes: Mapping[str, str],
    tolerances: Mapping[str, Tolerance],
) -> list[Difference]:
    """One difference for each output of the case.

    Where two outputs are the values and the indices of a top-k and the values agree, indices of
    equal values count as equal: PyTorch and onnxruntime order ties each in its own way.
    """
    found = [
        _compare(case, name, actual[name], datatypes[name], tolerances[name])
        for name in case.outputs
    ]
    agreeing = [case.outputs[d.output] for d in found if d.equal]
    return [
        difference
        if difference.equal or not _are_ties(case, difference.output, actual, agreeing)
        else Difference(case.name, difference.output, difference.max_abs, _TIE, equal=True)
        for difference in found
    ]


def scale_tolerance(tolerance: Tolerance, outputs: Sequence[Array], datatype: str) -> Tolerance:
    """The tolerance with ``atol`` in proportion to the output's size where that is above 1.

    The error of a sum is relative to its terms, so that of an element near zero is in proportion
    to its neighbours.
    """
    if tolerance.atol == 0.0:
        return tolerance
    numbers = np.concatenate([_as_numbers(o, datatype).astype(np.float64).reshape(-1)
                              for o in outputs])  # fmt: skip
    finite = numbers[np.isfinite(numbers)]
    root_mean_square = float(np.sqrt(np.mean(np.square(finite)))) if finite.size else 0.0
    return Tolerance(tolerance.rtol, tolerance.atol * max(1.0, root_mean_square))


def _compare(
    case: GoldenCase, name: str, actual: Array, datatype: str, tolerance: Tolerance
) -> Difference:
    expected = case.outputs[name]
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        detail = (
            f"got {actual.dtype}{list(actual.shape)}, expected "
            f"{expected.dtype}{list(expected.shape)}"
        )
        return Difference(case.name, name, float("inf"), detail, equal=False)
    expected, actual = _as_numbers(expected, datatype), _as_numbers(actual, datatype)
    distance = _distance(expected, actual)
    magnitude = np.abs(expected.astype(np.float64))
    # An infinite expected value would allow an infinite error; it has to match outright.
    relative = np.where(np.isfinite(magnitude), tolerance.rtol * magnitude, 0.0)
    excess = distance - (tolerance.atol + relative)
    largest = float(distance.max(initial=0.0))
    if largest == 0.0:
        return Difference(case.name, name, 0.0, "", equal=True)
    worst = np.unravel_index(int(np.argmax(excess)), expected.shape)
    index = [int(i) for i in worst]
    detail = f"at {index}: got {actual[worst]}, expected {expected[worst]}"
    return Difference(case.name, name, largest, detail, equal=bool((excess <= 0).all()))


def _distance(expected: Array, actual: Array) -> npt.NDArray[np.float64]:
    if expected.dtype.kind in "iub":
        unequal = expected != actual
        # Exact where the two differ at all, also for integers that float64 cannot hold.
        apart = np.abs(expected.astype(np.float64) - actual.astype(np.float64))
        return np.where(unequal, np.maximum(apart, 1.0), 0.0)
    a, b = expected.astype(np.float64), actual.astype(np.float64)
    agree = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        distance = np.abs(a - b)
    return np.where(agree, 0.0, np.where(np.isnan(distance), np.inf, distance))


def _are_ties(
    case: GoldenCase, name: str, actual: Mapping[str, Array], agreeing: Sequence[Array]
) -> bool:
    indices, other = case.outputs[name], actual[name]
    if indices.dtype.kind not in "iu" or indices.shape != other.shape or indices.ndim == 0:
        return False
    moved = indices != other
    return any(
        values.dtype.kind == "f" and values.shape == indices.shape and _has_ties(values, moved)
        for values in agreeing
    )


def _has_ties(values: Array, moved: npt.NDArray[np.bool_]) -> bool:
    """Whether each marked value occurs more than once along the last axis."""
    rows, marks = values.reshape(-1, values.shape[-1]), moved.reshape(-1, values.shape[-1])
    return all(
        np.count_nonzero(row == value) > 1
        for row, mark in zip(rows, marks, strict=True)
        for value in row[mark]
    )


def _as_numbers(array: Array, datatype: str) -> Array:
    """BF16's bit patterns as the numbers that they mean."""
    if datatype == "BF16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array
