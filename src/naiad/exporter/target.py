"""What the release of Triton that a version is meant for makes of it."""

import re
from typing import Final

import torch

from naiad.errors import UnsupportedError
from naiad.exporter.options import ExportOptions
from naiad.model_config.triton_release import TritonRelease, find_release

# What torch.onnx writes when it is left the choice.
TORCH_OPSET: Final = 20
_RELEASE: Final = re.compile(r"(\d+)\.(\d+)")


def read_target(options: ExportOptions) -> TritonRelease | None:
    """The release that the options name, or None.

    Raises:
        InvalidArgumentError: the table has no such release.
    """
    return find_release(options.target) if options.target else None


def choose_opset(options: ExportOptions) -> int | None:
    """The opset to write: what was asked for, what the target runs, or None for torch's choice.

    Raises:
        InvalidArgumentError: the table has no such release.
        UnsupportedError: the target does not run the opset that was asked for.
    """
    release = read_target(options)
    if release is None:
        return options.opset
    if options.opset is None:
        return min(TORCH_OPSET, release.onnx_opset)
    if options.opset > release.onnx_opset:
        raise UnsupportedError(
            f"Triton {release.release} runs ONNX up to opset {release.onnx_opset} (its "
            f"onnxruntime is {release.onnxruntime}), and opset {options.opset} was asked for. "
            "Leave the opset out: it follows the target"
        )
    return options.opset


def check_target(options: ExportOptions, format_name: str) -> tuple[str, ...]:
    """Refuse a format that the target cannot run.

    Returns:
        What is not certain about it and the user should know.

    Raises:
        InvalidArgumentError: the table has no such release.
        UnsupportedError: the target cannot run the format.
    """
    release = read_target(options)
    if release is None:
        return ()
    libtorch = release.pytorch or "one that NVIDIA does not name"
    if format_name == "onnx":
        choose_opset(options)
        return (
            f"for Triton {release.release}: ONNX opset up to {release.onnx_opset} and IR version "
            f"up to {release.onnx_ir}, which its onnxruntime {release.onnxruntime} reads",
        )
    if format_name == "pt2":
        raise UnsupportedError(
            f"no release of Triton serves programs of torch.export (.pt2), {release.release} "
            "neither: use the format onnx or torchscript"
        )
    if format_name == "aoti":
        if _major_minor(torch.__version__) != _major_minor(release.pytorch):
            raise UnsupportedError(
                "an AOTInductor package runs with the release of torch that compiled it, here "
                f"{torch.__version__}, and the libtorch of Triton {release.release} is {libtorch}: "
                "use the format onnx or torchscript, or export with that torch"
            )
        return ()
    if _major_minor(torch.__version__) == _major_minor(release.pytorch):
        return ()
    return (
        f"TorchScript written by torch {torch.__version__} is meant for the libtorch of Triton "
        f"{release.release}, {libtorch}: an operator that is newer than that fails there at load. "
        "Exporting with that torch is certain",
    )


def _major_minor(version: str | None) -> tuple[str, ...] | None:
    found = _RELEASE.match(version or "")
    return found.groups() if found else None
