"""Arguments and results of every shape, in the documented order, in each format."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

from naiad.errors import UnsupportedError
from naiad.exporter.export import FormatName, export
from naiad.exporter.options import ExportOptions
from naiad.repository.golden import read_cases

pytestmark = pytest.mark.slow

FORMATS: list[FormatName] = ["onnx", "torchscript", "pt2"]


@dataclass
class Boxes:
    corners: torch.Tensor
    scores: torch.Tensor | None


class Pair(NamedTuple):
    first: torch.Tensor
    rest: tuple[torch.Tensor, ...]


class Everything(nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        return {
            "boxes": Boxes(x + 1, None),
            "nested": [x + 2, (x + 3, {"deep": x + 4})],
            "none": None,
            "pair": Pair(x + 5, (x + 6, x + 7)),
            "row": x.sum(1),
        }


ORDER = [
    "boxes_corners", "nested_0", "nested_1_0", "nested_1_1_deep", "pair_first", "pair_rest_0",
    "pair_rest_1", "row",
]  # fmt: skip


@pytest.mark.parametrize("form", FORMATS)
def test_results_are_flattened_depth_first_and_named_by_their_path(
    tmp_path: Path, form: FormatName
) -> None:
    result = export(
        Everything(), (torch.randn(2, 3),), name="net", repository=tmp_path, format=form
    )
    assert [record.name for record in result.outputs] == ORDER
    case = next(read_cases(result.path))
    for number, name in enumerate(ORDER[:-1], 1):
        np.testing.assert_allclose(case.outputs[name], case.inputs["x"] + number, rtol=1e-6)
    # One number a row: the protocol has it as a last axis of 1.
    assert case.outputs["row"].shape == (2, 1)


class Unnamed(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return x, [x + 1, (x + 2,)], Boxes(x + 3, x + 4)


@pytest.mark.parametrize("form", FORMATS)
def test_results_without_names_are_numbered_among_all(tmp_path: Path, form: FormatName) -> None:
    result = export(Unnamed(), (torch.randn(2, 3),), name="net", repository=tmp_path, format=form)
    names = [record.name for record in result.outputs]
    # TorchScript numbers all of them where one has a number, as Triton's backend reads them.
    named = ["output__0", "output__1", "output__2", "corners", "scores"]
    assert names == ([f"output__{i}" for i in range(5)] if form == "torchscript" else named)
    case = next(read_cases(result.path))
    for number, name in enumerate(names):
        np.testing.assert_allclose(case.outputs[name], case.inputs["x"] + number, rtol=1e-6)


class Scalar(nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"average": x.mean(), "best": x.argmax()}


@pytest.mark.parametrize("form", FORMATS)
def test_a_scalar_result_has_an_axis_of_1(tmp_path: Path, form: FormatName) -> None:
    result = export(Scalar(), (torch.randn(2, 3),), name="net", repository=tmp_path, format=form)
    assert [(r.name, r.shape, r.datatype) for r in result.outputs] == [
        ("average", (1,), "FP32"), ("best", (1,), "INT64"),
    ]  # fmt: skip
    assert result.max_batch_size == 0


class Optional(nn.Module):
    def forward(
        self,
        x: torch.Tensor,
        scale: float = 2.0,
        boxes: Boxes | None = None,
        unused: torch.Tensor | None = None,
    ) -> torch.Tensor:
        y = x * scale
        return y if boxes is None else y + boxes.corners


@pytest.mark.parametrize("form", FORMATS)
def test_arguments_are_flattened_likewise_and_unused_ones_stay(
    tmp_path: Path, form: FormatName
) -> None:
    x = torch.randn(2, 3)
    result = export(
        Optional(), (x, 3.0, Boxes(x, None), x), name="net", repository=tmp_path, format=form
    )
    assert [record.name for record in result.inputs] == ["x", "corners", "unused"]
    told = " ".join(result.notes)
    assert "the argument scale=3.0 is not a tensor: it is a constant" in told
    assert "boxes['scores']=None" in told
    case = next(read_cases(result.path))
    np.testing.assert_allclose(
        case.outputs["output__0"], case.inputs["x"] * 3 + case.inputs["corners"], rtol=1e-6
    )


def test_an_argument_that_is_left_out_is_no_input(tmp_path: Path) -> None:
    result = export(Optional(), (torch.randn(2, 3),), name="net", repository=tmp_path, format="pt2")
    assert [record.name for record in result.inputs] == ["x"]


class Says(nn.Module):
    def __init__(self, value: object) -> None:
        super().__init__()
        self.value = value

    def forward(self, x: torch.Tensor) -> Any:
        return {"y": x, "more": [self.value]}


@pytest.mark.parametrize(
    ("value", "shown"), [(3, r"int \(3\)"), (0.5, "float"), ("cat", "str"), (object(), "object")]
)
def test_python_values_among_the_results_are_refused(
    tmp_path: Path, value: object, shown: str
) -> None:
    with pytest.raises(UnsupportedError, match=rf"\['more'\]\[0\] is a Python {shown}.*leave it"):
        export(Says(value), (torch.ones(2, 3),), name="net", repository=tmp_path)


def test_numpy_arguments_are_refused_with_the_way(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"argument x is a ndarray.*torch\.from_numpy"):
        export(Optional(), (np.ones((2, 3)),), name="net", repository=tmp_path)


def test_an_empty_batch_runs_in_onnx_and_in_a_program(tmp_path: Path) -> None:
    layer = nn.Linear(4, 3)
    forms: list[FormatName] = ["onnx", "pt2"]
    for form in forms:
        result = export(
            layer, (torch.randn(1, 4),), name=form, repository=tmp_path, format=form,
            options=ExportOptions(max_batch_size=4),
        )  # fmt: skip
        empty = torch.zeros(0, 4)
        if form == "pt2":
            found = torch.export.load(result.path / "model.pt2").module()(empty)[0]
        else:
            session = onnxruntime.InferenceSession(
                result.path / "model.onnx", providers=["CPUExecutionProvider"]
            )
            found = session.run(None, {"input": empty.numpy()})[0]
        assert tuple(found.shape) == (0, 3)


def test_the_result_reads_as_one_line(tmp_path: Path) -> None:
    result = export(
        nn.Linear(4, 3), (torch.randn(1, 4),), name="net", repository=tmp_path, format="pt2"
    )
    assert str(result).startswith(f"net, version 1 (pt2) in {result.path}: input")
    assert str(result).endswith("largest difference 0")
    assert "\n" not in str(result)
