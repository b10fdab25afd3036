import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch._inductor
from torch import nn

from naiad.errors import InvalidArgumentError, UnsupportedError
from naiad.repository.golden import GoldenCase
from naiad.verify.artifact import open_artifact
from naiad.verify.hops import HopFailedError

pytestmark = pytest.mark.slow

ROWS = {
    "a": np.array([[1.0, 2.0], [3.0, 4.0]], dtype=np.float32),
    "b": np.array([[10.0, 20.0], [30.0, 40.0]], dtype=np.float32),
}
NAMES = {"a": "FP32", "b": "FP32"}


class TwoOfEach(nn.Module):
    """Inputs and outputs that can't be exchanged unnoticed."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return a - 2 * b, a * b


class Named(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"product": a * b, "difference": a - 2 * b}


def quietly(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call(*args, **kwargs)


def example() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(2, 2), torch.rand(2, 2)


def export_onnx(path: Path) -> None:
    quietly(
        torch.onnx.export, TwoOfEach(), example(), path, dynamo=True, verbose=False,
        input_names=["a", "b"], output_names=["difference", "product"],
    )  # fmt: skip


def export_pt(path: Path) -> None:
    quietly(quietly(torch.jit.trace, TwoOfEach(), example()).save, str(path))


def export_pt2(path: Path) -> None:
    torch.export.save(torch.export.export(TwoOfEach(), example()), path)


def export_compiled(path: Path) -> None:
    program = torch.export.export(TwoOfEach(), example())
    quietly(torch._inductor.aoti_compile_and_package, program, package_path=str(path))


def case(inputs: Mapping[str, Any] = ROWS) -> GoldenCase:
    return GoldenCase("example", 2, "fixed", inputs, {})


@pytest.mark.parametrize(
    ("name", "export"),
    [("model.onnx", export_onnx), ("model.pt", export_pt), ("model.pt2", export_pt2)],
)
def test_each_format_runs_alone_and_names_its_outputs(
    tmp_path: Path, name: str, export: Callable[[Path], None]
) -> None:
    path = tmp_path / name
    export(path)
    outputs = open_artifact(path, NAMES, ["difference", "product"]).run(case())
    np.testing.assert_array_equal(outputs["difference"], ROWS["a"] - 2 * ROWS["b"])
    np.testing.assert_array_equal(outputs["product"], ROWS["a"] * ROWS["b"])


@pytest.mark.full  # a C++ compiler runs for ten seconds and more
@pytest.mark.skipif(shutil.which("g++") is None, reason="AOTInductor needs a C++ compiler")
def test_a_compiled_package_runs_alone(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    export_compiled(path)
    outputs = open_artifact(path, NAMES, ["difference", "product"]).run(case())
    np.testing.assert_allclose(outputs["difference"], ROWS["a"] - 2 * ROWS["b"], rtol=1e-6)


def test_outputs_of_a_dict_go_by_key_and_not_by_place(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    quietly(quietly(torch.jit.script, Named()).save, str(path))
    outputs = open_artifact(path, NAMES, ["difference", "product"]).run(case())
    np.testing.assert_array_equal(outputs["difference"], ROWS["a"] - 2 * ROWS["b"])


def test_bfloat16_travels_as_bit_patterns(tmp_path: Path) -> None:
    class Double(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    path = tmp_path / "model.pt"
    quietly(quietly(torch.jit.script, Double()).save, str(path))
    # 1.5 is 0x3FC0 in BF16, 3.0 is 0x4040.
    patterns = np.array([[0x3FC0]], dtype=np.uint16)
    outputs = open_artifact(path, {"x": "BF16"}, ["y"]).run(case({"x": patterns}))
    assert outputs["y"].dtype == np.uint16
    assert outputs["y"].tolist() == [[0x4040]]


@pytest.mark.parametrize("name", ["model.onnx", "model.pt", "model.pt2"])
def test_a_file_that_does_not_load_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"not a model")
    with pytest.raises(InvalidArgumentError, match=f"{name}' does not load"):
        quietly(open_artifact, path, NAMES, ["y"])


def test_an_unknown_suffix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"verify knows \.onnx, \.pt and \.pt2"):
        open_artifact(tmp_path / "model.plan", NAMES, ["y"])


@pytest.mark.parametrize(
    ("name", "export"),
    [("model.onnx", export_onnx), ("model.pt", export_pt), ("model.pt2", export_pt2)],
)
def test_inputs_that_do_not_fit_fail_the_hop_and_not_the_program(
    tmp_path: Path, name: str, export: Callable[[Path], None]
) -> None:
    path = tmp_path / name
    export(path)
    hop = open_artifact(path, NAMES, ["difference", "product"])
    wrong = {"a": np.ones((2, 3), dtype=np.float32), "b": np.ones((2, 5), dtype=np.float32)}
    with pytest.raises(HopFailedError):
        hop.run(case(wrong))


def test_another_number_of_outputs_than_recorded_fails_the_hop(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    export_pt(path)
    with pytest.raises(HopFailedError, match="returned 2 tensors, the golden cases have 1"):
        open_artifact(path, NAMES, ["y"]).run(case())
