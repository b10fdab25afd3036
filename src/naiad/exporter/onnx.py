"""ONNX files, written by torch.onnx and run by onnxruntime.

torch.export unrolls the loop of an LSTM or GRU and so fixes its length. Where that length is to
vary, torch.onnx's older exporter writes the model, which traces it and has an ONNX operator for the
loop. Tracing loses what depends on values, so it is not taken for anything else, and like every
file this one is published only if it answers the golden cases, which hold other lengths.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime
import onnxscript
import torch
from torch import nn

from naiad.errors import InternalError, UnsupportedError
from naiad.exporter.formats import Interface, Runner, Written
from naiad.exporter.onnx_names import name_axes, rename_interface, strip_provenance
from naiad.exporter.operators import explain_conversion
from naiad.exporter.plan import ExportPlan
from naiad.exporter.program import FixedAxisError, capture
from naiad.exporter.target import choose_opset, read_target
from naiad.exporter.tracing import tracer_notes
from naiad.inference.comparison import Array
from naiad.inference.datatypes import from_dtype
from naiad.repository.golden import GoldenCase, TensorRecord
from naiad.source_model.evaluation import evaluation

# A protobuf message ends at 2 GB; below this the weights are part of the one file.
INLINE_LIMIT_BYTES: Final = 1_500_000_000

_QUIET: Final = 3
_UNSUPPORTED_HINT: Final = (
    "Replace it in the model, or use the format pt2 or torchscript, which run it as PyTorch does"
)


class OnnxFormat:
    """One ``model.onnx``; its weights beside it only where protobuf cannot hold them."""

    name = "onnx"
    file_name = "model.onnx"
    backend = "onnxruntime"
    platform = ""
    is_default_file = True

    def __init__(self, inline_limit_bytes: int = INLINE_LIMIT_BYTES) -> None:
        self._inline_limit_bytes = inline_limit_bytes

    @property
    def libraries(self) -> Mapping[str, str]:
        """Those that write the file and the one that runs it."""
        return {
            "onnx": onnx.__version__,
            "onnxscript": onnxscript.__version__,
            "onnxruntime": onnxruntime.__version__,
        }

    def write(self, plan: ExportPlan, path: Path) -> Written:
        """Capture the model, convert it, and name its inputs, outputs and axes.

        Raises:
            UnsupportedError: an operator, a datatype or an opset that it cannot be.
        """
        _refuse_bfloat16(plan)
        opset = choose_opset(plan.options)
        has_external_data = _weight_bytes(plan) > self._inline_limit_bytes
        notes: tuple[str, ...] = ()
        try:
            program = capture(plan)
        except FixedAxisError as error:
            if has_external_data or not _is_recurrent(plan):
                raise
            notes = _write_traced(plan, path, opset, error)
        else:
            _convert(plan, program, opset).save(path, external_data=has_external_data)
        model = onnx.load(path, load_external_data=False)
        found = _check_opset(model, opset)
        _require_interface(model, plan)
        rename_interface(model, plan.input_names, plan.output_names)
        name_axes(model, plan.axes)
        strip_provenance(model)
        _limit_ir(model, plan)
        onnx.save(model, path)
        return Written(plan.input_names, plan.output_names, (f"ONNX opset {found}", *notes))

    def open(self, path: Path, datatypes: Mapping[str, str]) -> Runner:
        """A session of onnxruntime's CPU provider."""
        options = onnxruntime.SessionOptions()
        options.log_severity_level = _QUIET
        try:
            session = onnxruntime.InferenceSession(
                path, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:
            raise UnsupportedError(
                f"onnxruntime cannot load the exported file: {error}. {_UNSUPPORTED_HINT}"
            ) from error

        def run(inputs: Mapping[str, Array]) -> Sequence[Array]:
            found: Sequence[Any] = session.run(None, {name: inputs[name] for name in datatypes})
            return [np.asarray(output) for output in found]

        return run

    def describe(self, path: Path, plan: ExportPlan, cases: Sequence[GoldenCase]) -> Interface:
        """What the file says."""
        graph = onnx.load(path, load_external_data=False).graph
        axes = {name: dict(plan.axes[i]) for i, name in enumerate(plan.input_names)}
        return Interface(
            tuple(_record(v, cases[0].inputs[v.name], axes[v.name]) for v in graph.input),
            tuple(_record(v, cases[0].outputs[v.name], {}) for v in graph.output),
        )


def _convert(
    plan: ExportPlan, program: torch.export.ExportedProgram, opset: int | None
) -> torch.onnx.ONNXProgram:
    try:
        converted = torch.onnx.export(
            program, dynamo=True, opset_version=opset, verbose=False,
            custom_translation_table=dict(plan.options.translations) or None,
        )  # fmt: skip
    except Exception as error:
        raise UnsupportedError(explain_conversion(error, program)) from error
    if converted is None:
        raise InternalError("torch.onnx.export returned no program")
    return converted


def _is_recurrent(plan: ExportPlan) -> bool:
    return any(isinstance(part, nn.RNNBase) for part in plan.source.module.modules())


def _write_traced(
    plan: ExportPlan, path: Path, opset: int | None, refusal: FixedAxisError
) -> tuple[str, ...]:
    """Write the file with torch.onnx's older exporter; returns what the user should know."""
    with evaluation(plan.flat), tracer_notes() as remarks:
        try:
            torch.onnx.export(
                plan.flat,
                plan.trace_inputs(),
                path,
                dynamo=False,
                opset_version=opset,
                input_names=plan.input_names,
                output_names=plan.output_names,
                dynamic_axes=dict(zip(plan.input_names, map(dict, plan.axes), strict=True)),
            )
        except Exception as error:
            # The refusal says what to do; the older exporter's reason would lead away from it.
            raise refusal from error
    return (
        "traced by torch.onnx's older exporter, which keeps the loop of an LSTM or GRU: one path "
        "through the model's Python code is kept, which the golden cases tried",
        *remarks,
    )


def _refuse_bfloat16(plan: ExportPlan) -> None:
    held = chain(plan.source.module.parameters(), plan.source.module.buffers(), plan.source.example)
    if any(tensor.dtype == torch.bfloat16 for tensor in held):
        raise UnsupportedError(
            "the model holds bfloat16, which onnxruntime cannot run on a CPU. Export "
            "model.float() (or model.half()), or use the format pt2 or torchscript"
        )


def _weight_bytes(plan: ExportPlan) -> int:
    held = chain(plan.source.module.parameters(), plan.source.module.buffers())
    return sum(tensor.numel() * tensor.element_size() for tensor in held)


def _check_opset(model: onnx.ModelProto, asked: int | None) -> int:
    """The file's opset, if it is the one that was asked for."""
    found = next(entry.version for entry in model.opset_import if not entry.domain)
    if asked is not None and asked != found:
        raise UnsupportedError(
            f"opset {asked} was asked for and torch.onnx wrote opset {found}; it writes 18 and "
            "higher reliably. Choose one of these"
        )
    return found


def _limit_ir(model: onnx.ModelProto, plan: ExportPlan) -> None:
    """Lower the IR version to what the target reads; nothing that torch writes needs a newer."""
    release = read_target(plan.options)
    if release is not None:
        model.ir_version = min(model.ir_version, release.onnx_ir)


def _require_interface(model: onnx.ModelProto, plan: ExportPlan) -> None:
    """Refuse a file that has lost an input or output: even unused ones have to stay."""
    graph_inputs, graph_outputs = len(model.graph.input), len(model.graph.output)
    if (graph_inputs, graph_outputs) != (len(plan.input_names), len(plan.output_names)):
        raise InternalError(
            f"the exported file has {graph_inputs} inputs and {graph_outputs} outputs, the model "
            f"{len(plan.input_names)} and {len(plan.output_names)}"
        )


def _record(value: onnx.ValueInfoProto, example: Array, axes: Mapping[int, str]) -> TensorRecord:
    tensor = value.type.tensor_type
    datatype = from_dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    if datatype is None:
        raise UnsupportedError(f"'{value.name}' of the exported file has an unknown datatype")
    if tensor.HasField("shape"):
        shape = tuple(d.dim_value if d.HasField("dim_value") else -1 for d in tensor.shape.dim)
    else:
        shape = (-1,) * example.ndim
    return TensorRecord(value.name, datatype.name, shape, axes)


FORMAT: Final = OnnxFormat()
