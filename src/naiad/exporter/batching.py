"""Whether axis 0 is a batch: found by running the model, not by reading it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from naiad.exporter.failures import MODEL_FAILURES, first_line
from naiad.exporter.options import ExportOptions
from naiad.exporter.sampling import AxisNames, Sampler, Values
from naiad.source_model.model import SourceModel

DEFAULT_NAME: Final = "batch"
_SIZES: Final = (2, 3)
# The rows of a batch are multiplied by other kernels than a single row, so they may round apart.
_RTOL: Final = 1e-3
_ATOL: Final = 1e-4
# Half precision: some rounding steps of bfloat16 (2^-8), which add up over the terms of a row.
_COARSE: Final = 0.05


@dataclass(frozen=True, slots=True)
class BatchAxis:
    """The answer.

    Attributes:
        name: of the batch axis; None where there is none.
        axes: the named axes of each input, the batch among them.
        reason: why there is none, for people.
    """

    name: str | None
    axes: tuple[AxisNames, ...]
    reason: str = ""

    def note(self) -> str:
        """The decision in a sentence."""
        if self.name is None:
            return f"no batch axis (max_batch_size 0): {self.reason}"
        return "axis 0 of every input and output is the batch: rows do not depend on each other"


def find_batch(
    source: SourceModel,
    asked: Sequence[AxisNames],
    ranges: Mapping[int, tuple[float, float]],
    options: ExportOptions,
) -> BatchAxis:
    """Try whether axis 0 of all inputs and outputs is a batch of independent rows.

    A server joins the rows of several requests, so a model whose rows see each other (a mean
    over the batch, a softmax over axis 0) has no batch axis, whatever its shapes are.

    Args:
        source: the model, run in eager mode.
        asked: the axes that the user named, for each input.
        ranges: of values to draw, by position of the input.
        options: whether no batch axis is wanted, and the seed.
    """
    without = tuple(asked)
    if options.max_batch_size == 0:
        return BatchAxis(None, without, "max_batch_size 0 was asked for")
    names = {axes[0] for axes in asked if 0 in axes} or {DEFAULT_NAME}
    if len(names) > 1:
        return BatchAxis(None, without, f"axis 0 is named {' and '.join(sorted(names))}")
    name = names.pop()
    reason = _shape_reason(source)
    if reason:
        return BatchAxis(None, without, reason)
    axes = tuple({0: name, **own} for own in asked)
    sampler = Sampler(source.example, axes, ranges, options.seed)
    reason = _size_reason(source, sampler, name)
    for values in (Values.NORMAL, Values.UNIFORM):
        reason = reason or _independence_reason(source, sampler, name, values)
    return BatchAxis(None, without, reason) if reason else BatchAxis(name, axes)


def _shape_reason(source: SourceModel) -> str:
    sizes = {}
    for name, tensor in zip(source.input_names, source.example, strict=True):
        if tensor.ndim == 0:
            return f"input '{name}' is a scalar"
        sizes[name] = tensor.shape[0]
    if len(set(sizes.values())) > 1:
        shown = ", ".join(f"'{name}' {size}" for name, size in sizes.items())
        return f"axis 0 has different sizes in the example's inputs: {shown}"
    if 0 in sizes.values():
        return "axis 0 of the example is empty"
    return ""


def _size_reason(source: SourceModel, sampler: Sampler, name: str) -> str:
    for size in _SIZES:
        try:
            outputs = source.run(sampler.resize({name: size}))
        except MODEL_FAILURES as error:
            return f"with {size} rows the model fails: {first_line(error)}"
        for output, tensor in outputs:
            if tensor.ndim == 0 or tensor.shape[0] != size:
                return (
                    f"with {size} rows in the inputs, output '{output}' has the shape "
                    f"{list(tensor.shape)}"
                )
    return ""


def _independence_reason(source: SourceModel, sampler: Sampler, name: str, values: Values) -> str:
    rows = _SIZES[-1]
    batch = sampler.draw({name: rows}, values, 0)
    try:
        together = source.run(batch)
    except MODEL_FAILURES:
        # Not every combination of values suits every model; the example's own integers do.
        batch = sampler.draw({name: rows}, values, 0, keep_integers=True)
        try:
            together = source.run(batch)
        except MODEL_FAILURES as error:
            return f"with values like the example's the model fails: {first_line(error)}"
    for row in range(rows):
        try:
            alone = source.run([tensor[row : row + 1] for tensor in batch])
        except MODEL_FAILURES as error:
            return f"with a single row the model fails: {first_line(error)}"
        for (output, all_rows), (_, one) in zip(together, alone, strict=True):
            if not _are_close(all_rows[row : row + 1], one):
                return (
                    f"a row of output '{output}' depends on the other rows of its batch (a "
                    "reduction, normalisation or position over axis 0?)"
                )
    return ""


def _are_close(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape:
        return False
    if not (one.is_floating_point() or one.is_complex()):
        return torch.equal(one, other)
    wide = torch.complex128 if one.is_complex() else torch.float64
    coarse = one.dtype in {torch.float16, torch.bfloat16}
    return torch.allclose(
        one.to(wide), other.to(wide), rtol=_COARSE if coarse else _RTOL,
        atol=_COARSE if coarse else _ATOL, equal_nan=True,
    )  # fmt: skip
