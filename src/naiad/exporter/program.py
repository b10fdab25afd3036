"""The model as a torch.export program, which both ONNX and .pt2 files are made from."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch.export import Dim, ExportedProgram

from naiad.errors import UnsupportedError
from naiad.exporter.plan import ExportPlan
from naiad.source_model.evaluation import evaluation

_CONSTRAINTS: Final = "Constraints violated"
_SPECIALIZED: Final = re.compile(
    r"marked (\w+) as dynamic but your code specialized it to be a constant \((\d+)\)"
)
_DATA_DEPENDENT: Final = "data-dependent"


class FixedAxisError(UnsupportedError):
    """The captured model has one size of an axis that is to vary."""


def capture(plan: ExportPlan) -> ExportedProgram:
    """Capture the flat model with its dynamic axes.

    Raises:
        FixedAxisError: the capture fixes an axis, with torch's reason and what to do.
        UnsupportedError: torch cannot capture it at all, likewise.
    """
    if any(isinstance(part, torch.jit.ScriptModule) for part in plan.source.module.modules()):
        raise UnsupportedError(
            "the module is TorchScript already, which torch.export cannot capture: use the format "
            "torchscript, or export the Python module that it was made from"
        )
    inputs = plan.trace_inputs()
    dims = {name: Dim(name) for names in plan.axes for name in names.values()}
    try:
        return _export(plan, inputs, _shapes(plan.axes, dims))
    except Exception as error:
        if _CONSTRAINTS not in str(error):
            raise _explain(error) from error
        refusal = error
    # A size that must be a multiple of something, or below a bound, has no plain name; torch
    # then finds the relation itself, and the golden cases try it.
    try:
        return _export(plan, inputs, _shapes(plan.axes, dict.fromkeys(dims, Dim.DYNAMIC)))
    except Exception as error:
        # The first refusal speaks of the axes by the user's names.
        raise _explain(refusal) from error


def _export(
    plan: ExportPlan, inputs: tuple[torch.Tensor, ...], shapes: tuple[dict[int, Any], ...]
) -> ExportedProgram:
    with evaluation(plan.flat):
        return torch.export.export(plan.flat, inputs, dynamic_shapes=shapes)


def _shapes(
    axes: Sequence[Mapping[int, str]], dims: Mapping[str, Any]
) -> tuple[dict[int, Any], ...]:
    return tuple({axis: dims[name] for axis, name in names.items()} for names in axes)


def _explain(error: Exception) -> UnsupportedError:
    text = str(error).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if _DATA_DEPENDENT in text:
        place = next((i for i, line in enumerate(lines) if "call raised this error" in line), None)
        where = " ".join(lines[place + 1 : place + 3]) if place is not None else lines[0]
        return UnsupportedError(
            f"the model decides by the values of its tensors, which a graph cannot: {where}. Use "
            "torch.where or torch.cond instead of if, or the format torchscript, which keeps "
            "Python's if and while"
        )
    if _CONSTRAINTS in text:
        fixed = [f"'{name}' to {size}" for name, size in _SPECIALIZED.findall(text)]
        found = f"it fixes {' and '.join(fixed)}" if fixed else " ".join(lines[1:3])
        return FixedAxisError(
            f"the captured model cannot vary an axis that was to be dynamic: {found}. Let sizes "
            "come from the tensors (x.shape[0]) instead of numbers, take the axis out of the "
            "dynamic ones, set max_batch_size to 0 if it is the batch, or use the format "
            "torchscript, which also keeps the loop of an LSTM or GRU"
        )
    return UnsupportedError(
        f"torch.export cannot capture the model: {type(error).__name__}: "
        f"{' '.join(lines[:4]).rstrip('.')}. The format torchscript may be able to"
    )
