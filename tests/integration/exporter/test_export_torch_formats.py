"""TorchScript and .pt2: what each keeps of a model, and what it cannot."""

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from naiad.errors import UnsupportedError
from naiad.exporter.agreement import DisagreementError
from naiad.exporter.export import FormatName, export
from naiad.exporter.options import ExportOptions
from naiad.exporter.quiet import quiet
from naiad.exporter.result import ExportResult
from naiad.repository.golden import read_cases

pytestmark = pytest.mark.slow


def publish(
    folder: Path, model: nn.Module, args: tuple[Any, ...], form: FormatName, **options: Any
) -> ExportResult:
    return export(
        model, args, name="net", repository=folder, format=form, options=ExportOptions(**options)
    )


class DataDependent(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x * 2
        return x - 2


def test_script_keeps_a_branch_on_values(tmp_path: Path) -> None:
    result = publish(
        tmp_path, DataDependent(), (torch.ones(2, 3),), "torchscript", max_batch_size=0
    )
    assert any(note.startswith("scripted") for note in result.notes)
    with quiet():
        module = torch.jit.load(result.path / "model.pt")  # type: ignore[no-untyped-call]
    assert module(-torch.ones(2, 3))[0].tolist() == [[-3.0] * 3] * 2


def test_rows_that_decide_together_are_no_batch(tmp_path: Path) -> None:
    result = publish(tmp_path, DataDependent(), (torch.randn(2, 3),), "torchscript")
    assert result.max_batch_size == 0
    assert any("depends on the other rows" in note for note in result.notes)


def test_a_trace_with_a_baked_branch_is_never_published(tmp_path: Path) -> None:
    with pytest.raises(
        DisagreementError, match=r"output 'output__0' of the golden case .* differs by"
    ) as caught:
        publish(
            tmp_path / "repository", DataDependent(), (torch.ones(2, 3),), "torchscript",
            max_batch_size=0, torchscript="trace",
        )  # fmt: skip
    assert {difference.output for difference in caught.value.differences} == {"output__0"}
    assert not (tmp_path / "repository").exists()


class NeedsTrace(nn.Module):
    def forward(self, x: torch.Tensor, **more: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"padded": functional.pad(x, (0, 1)), "sum": x + more["y"]}


def test_what_cannot_be_scripted_is_traced_and_the_reason_said(tmp_path: Path) -> None:
    model, example = NeedsTrace(), (torch.randn(1, 3),)
    result = export(
        model, example, {"y": torch.randn(1, 3)}, name="net", repository=tmp_path,
        format="torchscript",
    )  # fmt: skip
    assert any("traced, because torch.jit.script cannot" in note for note in result.notes)
    assert [record.name for record in result.inputs] == ["x", "y"]
    assert [(r.name, r.shape) for r in result.outputs] == [("padded", (-1, 4)), ("sum", (-1, 3))]
    with pytest.raises(UnsupportedError, match=r"torch\.jit\.script cannot script"):
        export(
            model, example, {"y": torch.randn(1, 3)}, name="net", repository=tmp_path,
            format="torchscript", options=ExportOptions(torchscript="script"),
        )  # fmt: skip


def test_an_encoder_layer_becomes_torchscript(tmp_path: Path) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    result = publish(tmp_path, layer, (torch.randn(1, 5, 8),), "torchscript")
    assert result.max_difference < 1e-5
    assert layer.training


class TwoResults(nn.Module):
    def forward(
        self,
        input: torch.Tensor,  # noqa: A002  # what nn.Linear calls it
        other: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return input + other, input, (input * other).sum(1)


FORMATS: list[FormatName] = ["torchscript", "pt2"]


@pytest.mark.parametrize("form", FORMATS)
def test_positional_results_are_numbered_as_triton_numbers_them(
    tmp_path: Path, form: FormatName
) -> None:
    result = publish(tmp_path, TwoResults(), (torch.randn(1, 3), torch.randn(1, 3)), form)
    assert [record.name for record in result.outputs] == ["output__0", "output__1", "output__2"]
    assert [record.shape for record in result.outputs] == [(-1, 3), (-1, 3), (-1, 1)]
    assert [record.name for record in result.inputs][1] == "other"
    assert result.max_difference == 0


class Keyed(nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"mul": x * 2, "passed": x}


@pytest.mark.parametrize("form", FORMATS)
def test_keys_name_the_results(tmp_path: Path, form: FormatName) -> None:
    result = publish(tmp_path, Keyed(), (torch.randn(1, 3),), form)
    names = [record.name for record in result.outputs]
    assert names[1] == "passed"
    assert list(next(read_cases(result.path)).outputs) == names


@pytest.mark.parametrize("form", FORMATS)
def test_bfloat16_is_kept_as_bit_patterns(tmp_path: Path, form: FormatName) -> None:
    result = publish(tmp_path, nn.Linear(4, 3).bfloat16(), (torch.randn(1, 4).bfloat16(),), form)
    assert result.outputs[0].datatype == "BF16"
    assert "TYPE_BF16" in result.config_text
    case = next(read_cases(result.path))
    assert case.outputs["output__0"].dtype == np.uint16


def test_a_program_runs_at_every_batch_size(tmp_path: Path) -> None:
    layer = nn.Linear(4, 3)
    result = publish(tmp_path, layer, (torch.randn(1, 4),), "pt2")
    assert 'default_model_filename: "model.pt2"' in result.config_text
    program = torch.export.load(result.path / "model.pt2").module()
    for rows in (1, 3, 8):
        x = torch.randn(rows, 4)
        assert torch.equal(program(x)[0], layer(x))


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 4)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        states = self.embedding(input_ids) * attention_mask.unsqueeze(-1)
        mean: torch.Tensor = states.sum(1) / attention_mask.sum(1, keepdim=True).clamp(min=1)
        return mean


@pytest.mark.parametrize("form", FORMATS)
def test_token_ids_stay_in_the_range_of_the_example(tmp_path: Path, form: FormatName) -> None:
    ids = torch.tensor([[3, 9, 4, 5]])
    axes = {0: "batch", 1: "tokens"}
    result = publish(
        tmp_path, Tokens(), (ids, torch.ones_like(ids)), form,
        dynamic={"input_ids": axes, "attention_mask": axes}, ranges={"attention_mask": (0, 1)},
    )  # fmt: skip
    cases = list(read_cases(result.path))
    drawn = np.concatenate([case.inputs["input_ids"].reshape(-1) for case in cases])
    assert (drawn.min(), drawn.max()) == (3, 9)
    masks = np.concatenate([case.inputs["attention_mask"].reshape(-1) for case in cases[1:]])
    assert set(masks.tolist()) == {0, 1}
    assert {case.inputs["input_ids"].shape[1] for case in cases} == {3, 4, 5}
    assert result.inputs[0].shape == (-1, -1)


class WeightedSum(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return a + 10 * b + 100 * c


@pytest.mark.parametrize("form", FORMATS)
def test_one_tensor_for_three_inputs_stays_three_inputs(tmp_path: Path, form: FormatName) -> None:
    same = torch.ones(1, 2)
    result = publish(tmp_path, WeightedSum(), (same, same, same), form, torchscript="trace")
    cases = [[*case.inputs.values(), *case.outputs.values()] for case in read_cases(result.path)]
    # The example itself has one value for all three.
    assert any(not np.array_equal(a, b) for a, b, _c, _sum in cases)
    for a, b, c, weighted in cases:
        np.testing.assert_allclose(weighted, a + 10 * b + 100 * c, rtol=1e-4, atol=1e-4)


class Sizes(NamedTuple):
    width: int
    height: int


class HoldsATuple(nn.Module):
    """TorchScript knows named tuples, and not as attributes of a module."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes = Sizes(2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.sizes.width + self.sizes.height


def _without_source() -> nn.Module:
    """A module whose code is in no file, as one that was typed into a shell."""
    names: dict[str, Any] = {"nn": nn}
    code = "class Typed(nn.Module):\n    def forward(self, x):\n        return x * 2 + 3\n"
    exec(compile(code, "<typed>", "exec"), names)
    made: nn.Module = names["Typed"]()
    return made


@pytest.mark.parametrize("make", [HoldsATuple, _without_source])
def test_what_torchscript_cannot_read_is_traced_and_right(tmp_path: Path, make: Any) -> None:
    result = publish(tmp_path, make(), (torch.randn(1, 2),), "torchscript")
    assert any("traced, because torch.jit.script cannot" in note for note in result.notes)
    case = next(read_cases(result.path))
    np.testing.assert_allclose(
        next(iter(case.outputs.values())), case.inputs["x"] * 2 + 3, rtol=1e-6
    )


@pytest.mark.full  # a C++ compiler runs twice, for ten seconds and more
@pytest.mark.skipif(shutil.which("g++") is None, reason="AOTInductor needs a C++ compiler")
def test_a_compiled_package_rounds_up_only_as_its_example_did(tmp_path: Path) -> None:
    # torch's compiler leaves ceil_mode out where it changes nothing at the example's size, and its
    # package doesn't check that it is asked for such a size.
    pool = nn.MaxPool2d(2, 2, ceil_mode=True)
    options: dict[str, Any] = {"dynamic": {"input": {2: "height"}}, "max_batch_size": 0}
    with pytest.raises(DisagreementError, match="an example of odd sizes"):
        publish(tmp_path, pool, (torch.randn(1, 1, 8, 6),), "aoti", **options)
    result = publish(tmp_path, pool, (torch.randn(1, 1, 9, 6),), "aoti", **options)
    assert any("for this kind of CPU" in note for note in result.notes)
    assert {case.inputs["INPUT__0"].shape[2] % 2 for case in read_cases(result.path)} == {0, 1}
