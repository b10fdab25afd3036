"""Inputs that a file doesn't listen to: whatever they hold, it answers the same."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from naiad.inference.comparison import Array, same_bits
from naiad.repository.golden import GoldenCase
from naiad.verify.explanation import Cause, Explanation
from naiad.verify.hops import Hop, HopFailedError


def find_deaf_input(
    hop: Hop, source: Hop | None, cases: Sequence[GoldenCase]
) -> Explanation | None:
    """An input that changes the source's answers and none of the hop's.

    Args:
        hop: that differs.
        source: the eager model; without it an input that the model doesn't use is the same.
        cases: their inputs are exchanged among cases of the same shapes, and turned around, so
            that nothing is asked that the model isn't made for.
    """
    if source is None:
        return None
    for name in cases[0].inputs:
        if _is_deaf(hop, cases, name) and not _is_deaf(source, cases, name):
            return Explanation(
                Cause.BAKED_CONSTANT,
                hop.name,
                f"baked constant: '{hop.name}' answers the same bits whatever input '{name}' "
                "holds, and the source model does not: the export made a constant of it, or of "
                "what is computed from it",
            )
    return None


def _is_deaf(hop: Hop, cases: Sequence[GoldenCase], name: str) -> bool:
    """Whether no exchange of an input moves an answer; also false where there is none to try."""
    tried = 0
    for case in cases:
        for other in _others(case, cases, name):
            try:
                before = hop.run(case)
                after = hop.run(replace(case, inputs={**case.inputs, name: other}))
            except HopFailedError:
                continue
            if not all(same_bits(before[output], after[output]) for output in before):
                return False
            tried += 1
    return tried > 0


def _others(case: GoldenCase, cases: Sequence[GoldenCase], name: str) -> list[Array]:
    """Other values for an input, of its own shape."""
    own = case.inputs[name]
    found = [
        other.inputs[name]
        for other in cases
        if other is not case and other.inputs[name].shape == own.shape
    ]
    found.append(np.ascontiguousarray(np.flip(own)))
    return [other for other in found if not np.array_equal(other, own)][:2]
