"""fp16 and int8: kept only if asked for, measured, and held to a tolerance that says so."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from naiad.errors import InvalidArgumentError, UnsupportedError
from naiad.exporter.agreement import DisagreementError
from naiad.exporter.export import export
from naiad.exporter.options import ExportOptions
from naiad.exporter.result import ExportResult
from naiad.inference.comparison import Tolerance, default_tolerance
from naiad.repository.golden import read_cases, read_manifest

pytestmark = pytest.mark.slow


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"scores": self.layers(x)}


def publish(folder: Path, model: nn.Module, **options: object) -> ExportResult:
    return export(
        model, (torch.randn(1, 64),), name="net", repository=folder,
        options=ExportOptions(**options),  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.mark.parametrize(("kind", "part"), [("fp16", 0.6), ("int8", 0.35)])
def test_a_smaller_file_is_measured_and_its_tolerance_says_so(
    tmp_path: Path, kind: str, part: float
) -> None:
    exact = publish(tmp_path / "exact", Classifier())
    assert exact.optimization is None
    model = Classifier()
    result = publish(tmp_path / "small", model, optimize=kind)
    done = result.optimization
    assert done is not None
    assert done.kind == kind
    assert done.after.bytes == result.files["model.onnx"] < part * done.before.bytes
    assert 0 < done.before.max_abs < done.after.max_abs == result.max_difference
    assert min(done.before.run_ns, done.after.run_ns) > 0
    assert [file for file in result.files if not file.startswith("golden")] == [
        "model.onnx", "naiad.json",
    ]  # fmt: skip

    # Names and datatypes are those of the exact file.
    assert result.inputs == exact.inputs
    assert result.outputs == exact.outputs
    manifest = read_manifest(result.path)
    assert manifest.source["optimize"] == kind
    assert manifest.tolerances["scores"].atol > default_tolerance("FP32").atol
    told = " ".join(manifest.notes)
    assert f"golden tolerances are wide enough for {kind}: 'scores' rtol" in told
    assert f"{done.before.bytes:,} -> {done.after.bytes:,} bytes" in told

    # The golden outputs are still eager PyTorch's own.
    session = onnxruntime.InferenceSession(
        result.path / "model.onnx", providers=["CPUExecutionProvider"]
    )
    for case in read_cases(result.path):
        x = torch.from_numpy(case.inputs["x"])
        np.testing.assert_allclose(
            case.outputs["scores"], model(x)["scores"].detach(), rtol=1e-5, atol=1e-6
        )
        found = session.run(None, dict(case.inputs))[0]
        assert not np.array_equal(found, case.outputs["scores"])


def test_int8_weights_are_stored_as_integers_and_batches_are_warned_of(tmp_path: Path) -> None:
    result = publish(tmp_path, Classifier(), optimize="int8")
    stored = {t.data_type for t in onnx.load(result.path / "model.onnx").graph.initializer}
    assert onnx.TensorProto.INT8 in stored
    assert any("depends a little on the other rows" in note for note in result.notes)


class Sensitive(Classifier):
    """Rounding of its first layer is all that is left at the end."""

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        scores = self.layers(x)
        return {"scores": torch.sin(scores * 1e5)}


@pytest.mark.parametrize("kind", ["fp16", "int8"])
def test_another_models_answers_are_not_published(tmp_path: Path, kind: str) -> None:
    with pytest.raises(DisagreementError):
        publish(tmp_path, Sensitive(), optimize=kind, tolerances={"FP32": Tolerance(1e-3, 1e-3)})
    assert not list(tmp_path.iterdir())


class Large(Classifier):
    """Its weights are beyond what half precision holds."""

    def __init__(self) -> None:
        super().__init__()
        self.large = nn.Parameter(torch.full((64, 3), 1e6))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"scores": x @ self.large}


def test_weights_that_half_precision_cannot_hold_are_told(tmp_path: Path) -> None:
    with pytest.raises(DisagreementError, match=r"fp16 moves the output 'scores' by .*Leave opt"):
        publish(tmp_path, Large(), optimize="fp16")
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_made_smaller(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="int8 finds nothing in the model"):
        publish(tmp_path, nn.ReLU(), optimize="int8")
    with pytest.raises(InvalidArgumentError, match="optimize fp16 is for the format onnx"):
        export(nn.Linear(3, 2), (torch.ones(1, 3),), name="net", repository=tmp_path,
               format="pt2", options=ExportOptions(optimize="fp16"))  # fmt: skip
