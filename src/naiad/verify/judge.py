"""What counts as the same answer: tolerances, and indices of tied values."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from naiad.inference.comparison import (
    Array,
    Difference,
    Outputs,
    Tolerance,
    compare_outputs,
    default_tolerance,
)
from naiad.repository.golden import GoldenCase
from naiad.verify.hops import HopFailedError

if TYPE_CHECKING:
    from naiad.verify.laboratory import Choice, Laboratory

_NOISE_ALLOWANCE: Final = 4.0
"""A file may be this many times as far from the exact answer as eager PyTorch is.

Eager's own error is one draw of what rounding can do; another order of the same sums is another.
"""


class Judge:
    """Compares answers to golden cases under one model's tolerances.

    The rule: the tolerance that the export wrote down, or the one of datatype and depth if that
    is wider; where the source computes in FP64 too, never less than four times of what eager
    PyTorch itself is away from that.

    Attributes:
        tolerances: output name -> what counts as equal.
        written: output name -> what the export wrote down.
        noise: output name -> how far eager PyTorch is from FP64, where that is known.
    """

    def __init__(
        self,
        datatypes: Mapping[str, str],
        tolerances: Mapping[str, Tolerance],
        laboratory: "Laboratory | None" = None,
        cases: Sequence[GoldenCase] = (),
    ) -> None:
        self._datatypes = datatypes
        self._laboratory = laboratory
        self.noise = laboratory.noise(cases) if laboratory is not None else {}
        layers = laboratory.layers if laboratory is not None else 0
        self.written = {
            name: tolerances.get(name, default_tolerance(datatype))
            for name, datatype in datatypes.items()
        }
        self.tolerances = {
            name: _widen(
                self.written[name], default_tolerance(datatype, layers), self.noise.get(name)
            )
            for name, datatype in datatypes.items()
        }

    def compare(self, case: GoldenCase, expected: Outputs, actual: Outputs) -> list[Difference]:
        """The differences of two answers to the inputs of a case, output by output."""
        found = compare_outputs(expected, actual, self._datatypes, self.tolerances)
        if self._laboratory is None or not any(_may_be_ties(d, expected) for d in found):
            return found
        try:
            choices = self._laboratory.choices(case)
        except HopFailedError:
            return found
        return [
            replace(d, equal=True, only_ties=True)
            if _may_be_ties(d, expected)
            and self._are_tied(choices, expected[d.output], actual[d.output])
            else d
            for d in found
        ]

    def is_equal(self, case: GoldenCase, expected: Outputs, actual: Outputs) -> bool:
        """Whether every output agrees."""
        return all(difference.equal for difference in self.compare(case, expected, actual))

    def needs_noise(self, case: GoldenCase, actual: Outputs) -> bool:
        """Whether the answer counts as equal only for the wider tolerance of depth or FP64."""
        written = compare_outputs(case.outputs, actual, self._datatypes, self.written)
        if all(difference.equal or difference.problem for difference in written):
            return False
        wide = compare_outputs(case.outputs, actual, self._datatypes, self.tolerances)
        return any(w.equal and not n.equal for w, n in zip(wide, written, strict=True))

    def datatype(self, output: str) -> str:
        """The v2 datatype of an output, "" for one that nobody expects."""
        return self._datatypes.get(output, "")

    def _are_tied(self, choices: Sequence["Choice"], expected: Array, actual: Array) -> bool:
        return any(_chose_equal_values(choice, expected, actual) for choice in choices)


def _widen(written: Tolerance, by_depth: Tolerance, noise: float | None) -> Tolerance:
    if written.rtol == 0.0 and written.atol == 0.0:
        # Exact is exact: integers, text, or the user's own wish.
        return written
    atol = max(written.atol, by_depth.atol)
    if noise is not None and np.isfinite(noise):
        atol = max(atol, _NOISE_ALLOWANCE * noise)
    return Tolerance(max(written.rtol, by_depth.rtol), atol)


def _may_be_ties(difference: Difference, expected: Outputs) -> bool:
    if difference.equal or difference.problem:
        return False
    return expected[difference.output].dtype.kind in "iu"


def _chose_equal_values(choice: "Choice", expected: Array, actual: Array) -> bool:
    """Whether ``expected`` is what the choice gave, and ``actual`` points to equal values."""
    if choice.indices.size != expected.size or choice.values.dtype.kind not in "fiu":
        return False
    if not np.array_equal(choice.indices.reshape(-1), expected.reshape(-1)):
        return False
    values, axis = (
        (choice.values.reshape(-1), 0) if choice.axis is None else (choice.values, choice.axis)
    )
    length = values.shape[axis] if values.ndim else 0
    if not length or actual.min(initial=0) < 0 or actual.max(initial=0) >= length:
        return False
    wanted, got = (
        _gather(values, indices.reshape(choice.indices.shape), axis)
        for indices in (expected, actual)
    )
    # Values that count as equal may be chosen either way.
    close = default_tolerance("FP32")
    return bool(np.allclose(got, wanted, rtol=close.rtol, atol=close.atol, equal_nan=True))


def _gather(values: Array, indices: Array, axis: int) -> Array:
    if indices.ndim < values.ndim:
        return np.take_along_axis(values, np.expand_dims(indices, axis), axis).squeeze(axis)
    if indices.ndim == 0:
        return values[indices]
    return np.take_along_axis(values, indices, axis)
