"""The model file itself: can this runtime, or the release that it is meant for, open it?"""

import re
from pathlib import Path

from naiad.errors import NaiadError
from naiad.model_config.diagnose import Finding
from naiad.model_config.triton_release import TritonRelease
from naiad.repository.diagnose_folder import Layout
from naiad.repository.diagnose_onnx import report_ir, report_opset
from naiad.repository.golden import read_manifest
from naiad.repository.onnx_file import OnnxFile
from naiad.repository.torchscript_file import is_exported_program


def diagnose_target(
    layout: Layout, path: Path, head: OnnxFile | None, release: TritonRelease
) -> None:
    """Hold a model file against the release of Triton that it is meant for."""
    where = f"Triton {release.release} (ONNX Runtime {release.onnxruntime})"
    if head is not None and head.ir_version > release.onnx_ir:
        report_ir(layout, path, head.ir_version, release.onnx_ir, where)
    if head is not None and head.opset > release.onnx_opset:
        report_opset(layout, path, head.opset, release.onnx_opset, where)
    if path.suffix == ".pt2" and is_exported_program(path):
        layout.add(
            Finding(
                "target-format",
                "The file is an exported program of torch.export.",
                f"Triton {release.release} loads .pt2 files of AOT Inductor only. Export the "
                "model as ONNX or TorchScript.",
                block=f"naiad export --format onnx  # or torchscript, in place of {path.name}",
                is_fixable=False,
            ),
            path,
        )
    elif path.suffix == ".pt":
        _compare_torch(layout, path, release)


def _compare_torch(layout: Layout, path: Path, release: TritonRelease) -> None:
    try:
        version = read_manifest(path.parent).versions.get("torch", "")
    except NaiadError:
        return
    if release.pytorch and _minor(version) > _minor(release.pytorch):
        layout.add(
            Finding(
                "target-torch",
                f"The file was written by PyTorch {version}.",
                f"Triton {release.release} has PyTorch {release.pytorch}, and older ones need not "
                "read what newer ones write. Export with that version, or as ONNX.",
                block=f"pip install 'torch=={'.'.join(map(str, _minor(release.pytorch)))}.*'",
                is_fixable=False,
            ),
            path,
        )


def _minor(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
