"""The model as a torch.export program, which both ONNX and .pt2 files are made from."""

import contextlib
import io
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch.export import Dim, ExportedProgram

from naiad.errors import UnsupportedError
from naiad.exporter.plan import ExportPlan
from naiad.exporter.source_lines import find_raising_line
from naiad.source_model.evaluation import evaluation

_CONSTRAINTS: Final = "Constraints violated"
_SPECIALIZED: Final = re.compile(
    r"marked (\w+) as dynamic but your code specialized it to be a constant \((\d+)\)"
)
_DATA_DEPENDENT: Final = "data-dependent"
_NO_FAKE: Final = re.compile(r"There was no fake impl registered for <CustomOpDef\((\S+)\)>")


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
    with evaluation(plan.flat), _without_printed_graphs():
        return torch.export.export(plan.flat, inputs, dynamic_shapes=shapes)


@contextlib.contextmanager
def _without_printed_graphs() -> Iterator[None]:
    """Keep back what torch prints to stderr before it fails: its inner graph, page by page.

    What is printed by a model that can be captured appears afterwards.
    """
    printed = io.StringIO()
    with contextlib.redirect_stderr(printed):
        yield
    sys.stderr.write(printed.getvalue())


def _shapes(
    axes: Sequence[Mapping[int, str]], dims: Mapping[str, Any]
) -> tuple[dict[int, Any], ...]:
    return tuple({axis: dims[name] for axis, name in names.items()} for names in axes)


def _explain(error: Exception) -> UnsupportedError:
    text = str(error).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    place = find_raising_line(error)
    where = f" ({place})" if place else ""
    if _DATA_DEPENDENT in text:
        return UnsupportedError(
            "the model decides by the values of its tensors, or sizes a tensor by them, which a "
            f"graph cannot{where or f': {lines[0]}'}. Use torch.where or torch.cond instead of if, "
            "or the format torchscript, which keeps Python's if and while"
        )
    if _CONSTRAINTS in text:
        return _explain_fixed_axis(text, lines)
    if missing := _NO_FAKE.search(text):
        return UnsupportedError(
            f"the operator {missing[1]} does not say what it returns{where}, so that torch.export "
            "cannot capture the model: register that with torch.library.register_fake, or use the "
            "format torchscript and load the operator's library on the server"
        )
    return UnsupportedError(
        f"torch.export cannot capture the model{where}: {type(error).__name__}: "
        f"{' '.join(lines[:4]).rstrip('.')}. The format torchscript may be able to"
    )


def _explain_fixed_axis(text: str, lines: Sequence[str]) -> FixedAxisError:
    fixed = [f"'{name}' to {size}" for name, size in _SPECIALIZED.findall(text)]
    found = f"it fixes {' and '.join(fixed)}" if fixed else " ".join(lines[1:3])
    return FixedAxisError(
        f"the captured model cannot vary an axis that was to be dynamic: {found}. Let sizes "
        "come from the tensors (x.shape[0]) instead of numbers, take the axis out of the "
        "dynamic ones, set max_batch_size to 0 if it is the batch, or use the format "
        "torchscript, which also keeps the loop of an LSTM or GRU"
    )
