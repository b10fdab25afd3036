"""Whether an exported file's answers are the source model's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from naiad.errors import InternalError
from naiad.inference.comparison import (
    Array,
    Difference,
    Outputs,
    Tolerance,
    as_numbers,
    compare_outputs,
)
from naiad.repository.golden import GoldenCase


@dataclass(frozen=True, slots=True)
class CaseDifference:
    """What sets one output of one golden case apart from the source model's.

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

    def __init__(self, message: str, differences: Sequence[CaseDifference]) -> None:
        super().__init__(message)
        self.differences = tuple(differences)


def compare_case(
    case: GoldenCase,
    actual: Outputs,
    datatypes: Mapping[str, str],
    tolerances: Mapping[str, Tolerance],
) -> list[CaseDifference]:
    """One difference for each output of the case.

    Args:
        case: with the source model's outputs.
        actual: the file's outputs; the same names.
        datatypes: output name -> v2 datatype.
        tolerances: output name -> tolerance.
    """
    return [
        CaseDifference(
            case.name,
            found.output,
            found.max_abs,
            _detail(
                found, case.outputs[found.output], actual[found.output], datatypes[found.output]
            ),
            found.equal,
        )
        for found in compare_outputs(case.outputs, actual, datatypes, tolerances)
    ]


def scale_tolerance(tolerance: Tolerance, outputs: Sequence[Array], datatype: str) -> Tolerance:
    """The tolerance with ``atol`` in proportion to the output's size where that is above 1.

    The error of a sum is relative to its terms, so that of an element near zero is in proportion
    to its neighbours.
    """
    if tolerance.atol == 0.0:
        return tolerance
    numbers = np.concatenate([as_numbers(o, datatype).astype(np.float64).reshape(-1)
                              for o in outputs])  # fmt: skip
    finite = numbers[np.isfinite(numbers)]
    root_mean_square = float(np.sqrt(np.mean(np.square(finite)))) if finite.size else 0.0
    return Tolerance(tolerance.rtol, tolerance.atol * max(1.0, root_mean_square))


def _detail(found: Difference, expected: Array, actual: Array, datatype: str) -> str:
    if found.problem:
        return (
            f"got {actual.dtype}{list(actual.shape)}, expected "
            f"{expected.dtype}{list(expected.shape)}"
        )
    if found.only_ties:
        return "ties were broken the other way"
    if found.worst_index is None:
        return ""
    got, wanted = (as_numbers(a, datatype)[found.worst_index] for a in (actual, expected))
    return f"at {list(found.worst_index)}: got {got}, expected {wanted}"
