"""TorchScript files, which Triton's PyTorch backend serves."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from naiad.errors import UnsupportedError
from naiad.exporter.failures import first_line
from naiad.exporter.formats import Interface, Runner, Written
from naiad.exporter.observed import observe
from naiad.exporter.plan import ExportPlan
from naiad.exporter.tracing import tracer_notes
from naiad.inference.comparison import Array
from naiad.repository.golden import GoldenCase
from naiad.source_model.evaluation import evaluation
from naiad.source_model.model import flatten_model
from naiad.source_model.tensors import to_array, to_tensor

_INDEXED: Final = re.compile(r".*__\d+", re.DOTALL)


class TorchScriptFormat:
    """One ``model.pt``.

    The module is scripted where that works, since only that keeps its control flow, and else
    traced. Around it lies a traced shell that takes the inputs one by one and returns a flat
    tuple, whatever the module takes and returns.
    """

    name = "torchscript"
    file_name = "model.pt"
    backend = "pytorch"
    platform = ""
    is_default_file = True

    @property
    def libraries(self) -> Mapping[str, str]:
        """Nothing but torch itself."""
        return {}

    def write(self, plan: ExportPlan, path: Path) -> Written:
        """Script or trace the module.

        Raises:
            UnsupportedError: neither works, or the way that was asked for does not.
        """
        inner, notes = _script(plan)
        flat = plan.flat
        if inner is not None:
            flat = flatten_model(
                plan.source, plan.input_names, has_batch=plan.batch is not None, module=inner
            )
        with evaluation(flat), tracer_notes() as remarks:
            try:
                traced = torch.jit.trace(  # type: ignore[no-untyped-call]
                    flat, plan.trace_inputs(), check_trace=False
                )
            except Exception as error:
                raise UnsupportedError(
                    f"torch.jit.trace cannot trace the model: {first_line(error)}. The format "
                    "onnx or pt2 may be able to"
                ) from error
            torch.jit.save(traced, path)
        return Written(plan.input_names, name_by_position(plan.output_names), (*notes, *remarks))

    def open(self, path: Path, datatypes: Mapping[str, str]) -> Runner:
        """The file as torch loads it."""
        module = torch.jit.load(path, map_location="cpu")  # type: ignore[no-untyped-call]
        return open_torch(module, datatypes)

    def describe(self, path: Path, plan: ExportPlan, cases: Sequence[GoldenCase]) -> Interface:
        """What the cases show; the file itself knows no shapes."""
        return observe(plan, cases)


def open_torch(module: Any, datatypes: Mapping[str, str]) -> Runner:
    """Call a loaded torch module with arrays, by position."""

    def run(inputs: Mapping[str, Array]) -> Sequence[Array]:
        tensors = [to_tensor(inputs[name], datatype) for name, datatype in datatypes.items()]
        with torch.no_grad():
            return [to_array(output) for output in module(*tensors)]

    return run


def _script(plan: ExportPlan) -> tuple[nn.Module | None, list[str]]:
    if plan.options.torchscript == "trace":
        return None, ["traced, as asked: one path through the model's Python code is kept"]
    try:
        with evaluation(plan.source.module):
            scripted: nn.Module = torch.jit.script(plan.source.module)
            _call_scripted(plan, scripted)
    except Exception as error:
        if plan.options.torchscript == "script":
            raise UnsupportedError(
                f"torch.jit.script cannot script the model: {first_line(error)}. Leave the choice "
                "to auto, or use the format onnx or pt2"
            ) from error
        return None, [
            f"traced, because torch.jit.script cannot script the model ({first_line(error)}): one "
            "path through its Python code is kept, which the golden cases tried"
        ]
    return scripted, ["scripted: the model's own if, for and while are kept"]


def _call_scripted(plan: ExportPlan, scripted: nn.Module) -> None:
    args, kwargs = plan.source.arguments(plan.source.example)
    scripted(*args, **kwargs)


def name_by_position(names: Sequence[str]) -> tuple[str, ...]:
    """The outputs' names, unless Triton would read an index out of one.

    Its backend takes ``<anything>__<index>`` for a position, and other names in their order.
    """
    if any(_INDEXED.fullmatch(name) for name in names):
        return tuple(f"output__{index}" for index in range(len(names)))
    return tuple(names)


FORMAT: Final = TorchScriptFormat()
