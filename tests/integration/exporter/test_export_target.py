"""``target``: what a release of Triton runs is written, and what it does not is refused."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from tests.support.wheels import require_wheel
from torch import nn

from naiad.errors import InvalidArgumentError, UnsupportedError
from naiad.exporter.export import FormatName, export
from naiad.exporter.options import ExportOptions
from naiad.exporter.result import ExportResult
from naiad.repository.golden import read_cases, read_manifest

pytestmark = pytest.mark.slow


def publish(folder: Path, form: FormatName = "onnx", **options: int | str) -> ExportResult:
    settings = ExportOptions(**options)  # type: ignore[arg-type]
    return export(
        nn.Sequential(nn.Linear(4, 3), nn.GELU()), (torch.randn(2, 4),), name="net",
        repository=folder, format=form, options=settings,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("target", "opset", "ir"),
    [("triton:24.01", 19, 9), ("triton:24.04", 20, 9), ("triton:2.51.0", 20, 10)],
)
def test_opset_and_ir_follow_the_table(tmp_path: Path, target: str, opset: int, ir: int) -> None:
    result = publish(tmp_path, target=target)
    model = onnx.load(result.path / "model.onnx")
    assert next(entry.version for entry in model.opset_import if not entry.domain) == opset
    assert model.ir_version <= ir
    onnx.checker.check_model(model)
    assert read_manifest(result.path).source["target"] == target
    assert any(note.startswith("for Triton 2") for note in result.notes)


def test_an_opset_of_ones_own_within_the_release(tmp_path: Path) -> None:
    assert "ONNX opset 18" in publish(tmp_path, target="triton:24.10", opset=18).notes
    with pytest.raises(UnsupportedError, match=r"24\.10 runs ONNX up to opset 21 .*and opset 22"):
        publish(tmp_path, target="triton:24.10", opset=22)


@pytest.mark.parametrize(
    ("form", "message"),
    [("pt2", r"no release of Triton serves programs"), ("aoti", r"libtorch of Triton 24\.10 is 2")],
)
def test_formats_that_the_release_cannot_run_are_refused_before_anything(
    tmp_path: Path, form: FormatName, message: str
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        publish(tmp_path, form, target="triton:24.10")
    assert not list(tmp_path.iterdir())


def test_torchscript_of_another_torch_is_no_certain_thing(tmp_path: Path) -> None:
    notes = publish(tmp_path, "torchscript", target="triton:24.10").notes
    assert any("meant for the libtorch of Triton 24.10, 2.5.0a0" in note for note in notes)


def test_an_unknown_release(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="unknown target 'triton:19'"):
        publish(tmp_path, target="triton:19")


ASK = """
import sys
import numpy, onnxruntime
assert onnxruntime.__version__ == "1.19.2", onnxruntime.__version__
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
print(session.run(None, {"input": numpy.load(sys.argv[2])})[0].tolist())
"""


@pytest.mark.full
def test_the_onnxruntime_of_the_release_loads_and_answers(tmp_path: Path) -> None:
    """That of Triton 24.10 itself, out of its wheel."""
    folder = require_wheel("onnxruntime==1.19.2")
    result = publish(tmp_path / "models", target="triton:24.10")
    case = next(read_cases(result.path))
    np.save(tmp_path / "x.npy", case.inputs["input"])
    done = subprocess.run(
        [sys.executable, "-c", ASK, str(result.path / "model.onnx"), str(tmp_path / "x.npy")],
        capture_output=True, text=True, check=False, env={"PYTHONPATH": str(folder)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(
        json.loads(done.stdout), case.outputs["output__0"], rtol=1e-4, atol=1e-5
    )
