"""Smaller ONNX files at the price of precision, and how much of it golden cases then allow."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import onnx
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.quantization.shape_inference import quant_pre_process
from onnxruntime.transformers.float16 import convert_float_to_float16

from naiad.errors import InvalidArgumentError, UnsupportedError
from naiad.exporter.agreement import DisagreementError
from naiad.exporter.failures import first_line
from naiad.exporter.options import ExportOptions
from naiad.inference.comparison import Array, Tolerance, as_numbers, default_tolerance

# What an output may move, as a part of its own size (root mean square), before it is another
# model's: fp16 has 11 bits, int8 has 8 for each weight and each activation.
_LIMITS: Final = {"fp16": 0.02, "int8": 0.1}
# Golden cases are few; the next request may be off by more than the worst of them.
_HEADROOM: Final = 2.0


@dataclass(frozen=True, slots=True)
class Measurement:
    """One file, measured.

    Attributes:
        bytes: of the file.
        run_ns: median time of the example in the file alone.
        max_abs: largest difference from eager PyTorch.
    """

    bytes: int
    run_ns: int
    max_abs: float


@dataclass(frozen=True, slots=True)
class Optimization:
    """What an optimisation did.

    Attributes:
        kind: ``fp16`` or ``int8``.
        before: of the exact file.
        after: of the published one.
    """

    kind: str
    before: Measurement
    after: Measurement

    def note(self) -> str:
        """The measurements in a sentence."""
        before, after = self.before, self.after
        return (
            f"{self.kind}: {before.bytes:,} -> {after.bytes:,} bytes, "
            f"{before.run_ns / 1e6:.3g} -> {after.run_ns / 1e6:.3g} ms for the example, largest "
            f"difference from eager PyTorch {before.max_abs:.3g} -> {after.max_abs:.3g}"
        )


def check_optimization(options: ExportOptions, format_name: str) -> None:
    """Refuse an optimisation that a format does not have.

    Raises:
        InvalidArgumentError: it is for ONNX only.
    """
    if options.optimize and format_name != "onnx":
        raise InvalidArgumentError(
            f"optimize {options.optimize} is for the format onnx, and not for {format_name}: leave "
            "it out, or export a module that is quantised or in half precision already"
        )


def write_optimized(kind: str, source: Path, target: Path) -> tuple[str, ...]:
    """Write a smaller form of an ONNX file; inputs and outputs keep names and datatypes.

    Args:
        kind: ``fp16`` or ``int8``.
        source: of the exact file.
        target: of the new one.

    Returns:
        What the user should know about it.

    Raises:
        UnsupportedError: it cannot be done, or changes nothing.
    """
    before = onnx.load(source)
    operators = _operators(before)
    try:
        if kind == "fp16":
            _halve(before, target)
        else:
            _quantize(source, target)
    except Exception as error:
        raise UnsupportedError(
            f"the file cannot be made {kind}: {first_line(error)}. Leave optimize out"
        ) from error
    if _operators(onnx.load(target, load_external_data=False)) == operators:
        what = "floating point" if kind == "fp16" else "matrix products and large layers"
        raise UnsupportedError(
            f"{kind} finds nothing in the model that it can make smaller ({what}). Leave optimize "
            "out"
        )
    if kind == "fp16":
        return (
            "fp16: weights are half precision, inputs and outputs are not. Where a CPU has no half "
            "arithmetic, onnxruntime computes in FP32 between them: verify again on a GPU, where "
            "values above 65504 become infinite",
        )
    return (
        "int8: weights are stored as 8-bit integers. Activations are quantised by the range of "
        "the whole batch, so that an answer depends a little on the other rows of its batch",
    )


def loosen_tolerance(
    kind: str, name: str, datatype: str, expected: Sequence[Array], actual: Sequence[Array]
) -> Tolerance:
    """The tolerance of an output of an optimised file, measured on the golden cases.

    Twice the largest difference that they show, and at least what the datatype itself allows.
    Integers still have to be exact.

    Raises:
        DisagreementError: the output moved too far to be called the same model's.
    """
    own = default_tolerance(datatype)
    if own.atol == 0.0:
        return own
    wanted, got = (
        np.concatenate([as_numbers(a, datatype).astype(np.float64).reshape(-1) for a in arrays])
        for arrays in (expected, actual)
    )
    finite = np.isfinite(wanted) & np.isfinite(got)
    error = np.abs(got[finite] - wanted[finite])
    if not error.size:
        return own
    size = float(np.sqrt(np.mean(np.square(wanted[finite]))))
    moved = float(np.sqrt(np.mean(np.square(error))))
    if moved > _LIMITS[kind] * size:
        raise DisagreementError(
            f"{kind} moves the output '{name}' by {moved / size if size else np.inf:.1%} of its "
            f"size (root mean square over the golden cases); more than {_LIMITS[kind]:.0%} is "
            "another model's, so nothing was published. Leave optimize out, or allow it: "
            "tolerances in ExportOptions",
            (),
        )
    # The scale of the output is applied to the tolerance afterwards; here it is taken out again.
    return Tolerance(own.rtol, max(own.atol, _HEADROOM * float(error.max()) / max(1.0, size)))


def _halve(model: onnx.ModelProto, target: Path) -> None:
    with warnings.catch_warnings():
        # Of each weight that half precision cannot hold: the golden cases tell whether it matters.
        warnings.filterwarnings("ignore", r"the float32 number .* will be truncated to")
        onnx.save(convert_float_to_float16(model, keep_io_types=True), target)


def _quantize(source: Path, target: Path) -> None:
    prepared = target.with_name("prepared.onnx")
    quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
    quantize_dynamic(prepared, target, weight_type=QuantType.QInt8, per_channel=True)
    prepared.unlink()


def _operators(model: onnx.ModelProto) -> list[str]:
    return sorted(node.op_type for node in model.graph.node)
