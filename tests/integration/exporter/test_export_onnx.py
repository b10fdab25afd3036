"""What goes wrong between PyTorch and ONNX, net by net."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from naiad.errors import UnsupportedError
from naiad.exporter.agreement import DisagreementError
from naiad.exporter.export import export
from naiad.exporter.onnx import OnnxFormat
from naiad.exporter.options import ExportOptions
from naiad.exporter.plan import make_plan
from naiad.exporter.quiet import quiet
from naiad.exporter.result import ExportResult
from naiad.repository.golden import read_cases, read_manifest
from naiad.source_model.model import SourceModel

pytestmark = pytest.mark.slow

Exporter = Callable[..., ExportResult]


@pytest.fixture
def to_onnx(tmp_path: Path) -> Exporter:
    def run(model: nn.Module, *args: Any, **options: Any) -> ExportResult:
        torch.manual_seed(0)
        return export(
            model, args, name="net", repository=tmp_path, options=ExportOptions(**options)
        )

    return run


def ask(result: ExportResult, **inputs: Any) -> list[Any]:
    session = onnxruntime.InferenceSession(
        result.path / "model.onnx", providers=["CPUExecutionProvider"]
    )
    found: list[Any] = session.run(None, inputs)
    return found


class WeightedSum(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return a + 10 * b + 100 * c


def test_one_tensor_for_three_inputs_stays_three_inputs(to_onnx: Exporter) -> None:
    same = torch.ones(1, 2)
    result = to_onnx(WeightedSum(), same, same, same)
    one, two, three = (np.full((1, 2), value, np.float32) for value in (1, 2, 3))
    assert ask(result, a=one, b=two, c=three)[0].tolist() == [[321, 321]]


def test_a_linear_layer_is_one_file_that_batches(to_onnx: Exporter) -> None:
    layer = nn.Linear(4, 3)
    result = to_onnx(layer, torch.randn(1, 4))
    assert [name for name in result.files if "golden" not in name] == ["model.onnx", "naiad.json"]
    assert result.max_batch_size == 8
    assert result.inputs[0].shape == (-1, 4)
    assert result.inputs[0].axes == {0: "batch"}
    assert [(t.name, t.datatype) for t in result.outputs] == [("output__0", "FP32")]
    assert "dynamic_batching { }" in result.config_text
    for rows in (1, 3, 8):
        x = torch.randn(rows, 4)
        np.testing.assert_allclose(
            ask(result, input=x.numpy())[0], layer(x).detach().numpy(), rtol=1e-5, atol=1e-6
        )
    cases = list(read_cases(result.path))
    assert {case.batch_size for case in cases} == {1, 2, 3, 8}
    assert cases[0].name == "example"


def test_the_file_says_nothing_about_the_machine_that_wrote_it(to_onnx: Exporter) -> None:
    result = to_onnx(nn.Linear(4, 3), torch.randn(1, 4))
    assert __file__.encode() not in (result.path / "model.onnx").read_bytes()
    assert b"site-packages" not in (result.path / "model.onnx").read_bytes()


class Named(NamedTuple):
    total: torch.Tensor
    twice: torch.Tensor


class ManyShapesOfOutput(nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        return {"named": Named(x.sum(1, keepdim=True), x * 2), "none": None, "list": [x + 1, x - 1]}


def test_outputs_keep_their_keys_and_fields(to_onnx: Exporter) -> None:
    result = to_onnx(ManyShapesOfOutput(), torch.randn(2, 4))
    names = [record.name for record in result.outputs]
    assert names == ["named_total", "named_twice", "list_0", "list_1"]
    x = np.ones((1, 4), np.float32)
    total, twice, above, below = ask(result, x=x)
    assert (total[0, 0], twice[0, 0], above[0, 0], below[0, 0]) == (4, 2, 2, 0)


class Colliding(nn.Module):
    """Its output is called as an inner value, and it passes an input through, twice."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, a: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = torch.relu(self.linear(a))
        return {"linear": hidden, "relu": hidden, "a": a, "add": a}


def test_names_are_those_of_the_model_whatever_the_graph_calls_its_values(
    to_onnx: Exporter,
) -> None:
    net = Colliding()
    result = to_onnx(net, torch.randn(2, 3))
    session = onnxruntime.InferenceSession(
        result.path / "model.onnx", providers=["CPUExecutionProvider"]
    )
    assert [value.name for value in session.get_inputs()] == ["a"]
    names = [value.name for value in session.get_outputs()]
    assert names == ["linear", "relu", "a_output", "add"]
    assert any("'a_output'" in note for note in result.notes)
    x = torch.randn(3, 3)
    linear, relu, passed, again = ask(result, a=x.numpy())
    np.testing.assert_allclose(linear, torch.relu(net.linear(x)).detach().numpy(), atol=1e-6)
    assert (linear == relu).all()
    assert (passed == x.numpy()).all()
    assert (again == x.numpy()).all()


class Unused(nn.Module):
    def forward(self, used: torch.Tensor, unused: torch.Tensor) -> torch.Tensor:
        return used * 2


def test_the_config_follows_the_file_where_an_input_is_unused(to_onnx: Exporter) -> None:
    result = to_onnx(Unused(), torch.randn(2, 3), torch.randn(2, 5))
    graph = onnx.load(result.path / "model.onnx").graph
    assert [value.name for value in graph.input] == ["used", "unused"]
    assert [record.name for record in result.inputs] == ["used", "unused"]


def test_an_encoder_layer_runs_at_other_batch_sizes_and_lengths(to_onnx: Exporter) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    result = to_onnx(layer, torch.randn(1, 5, 8), dynamic={"src": {0: "rows", 1: "tokens"}})
    assert result.inputs[0].shape == (-1, -1, 8)
    assert result.inputs[0].axes == {0: "rows", 1: "tokens"}
    assert result.max_difference < 1e-5
    lengths = {case.inputs["src"].shape[1] for case in read_cases(result.path)}
    assert lengths == {4, 5, 6}
    assert layer.training


def test_attention_runs_at_other_batch_sizes_and_lengths(to_onnx: Exporter) -> None:
    layer = nn.MultiheadAttention(8, 2, batch_first=True)
    query, key = torch.randn(1, 5, 8), torch.randn(1, 3, 8)
    result = to_onnx(
        layer, query, key, key,
        dynamic={"query": {0: "rows", 1: "asked"}, "key": {0: "rows", 1: "known"},
                 "value": {0: "rows", 1: "known"}},
    )  # fmt: skip
    assert [record.shape for record in result.outputs] == [(-1, -1, 8), (-1, -1, -1)]
    assert {case.inputs["key"].shape[0] for case in read_cases(result.path)} > {1, 2}
    assert result.max_difference < 1e-5


class DataDependent(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if bool(x.sum() > 0) else x - 2


def test_a_branch_on_values_is_refused_and_torchscript_named(to_onnx: Exporter) -> None:
    with pytest.raises(UnsupportedError, match=r"decides by the values.*torch\.where.*torchscript"):
        to_onnx(DataDependent(), torch.ones(2, 3), max_batch_size=0)


class UnknownOperator(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.special.bessel_j0(x)
        return y


def test_an_unknown_operator_is_named_with_alternatives(to_onnx: Exporter) -> None:
    with pytest.raises(UnsupportedError, match=r"bessel_j0.*pt2 or torchscript"):
        to_onnx(UnknownOperator(), torch.ones(2, 3))


def test_another_opset_than_the_one_asked_for_is_an_error(
    to_onnx: Exporter, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedError, match=r"opset 17 was asked for and torch\.onnx wrote"):
        to_onnx(nn.Mish(), torch.randn(2, 4), opset=17)  # an operator since opset 18
    assert not list(tmp_path.iterdir())


def test_an_opset_that_torch_writes(to_onnx: Exporter) -> None:
    result = to_onnx(nn.Linear(4, 3), torch.randn(2, 4), opset=18)
    model = onnx.load(result.path / "model.onnx")
    assert next(entry.version for entry in model.opset_import if not entry.domain) == 18


def test_bfloat16_is_refused_and_half_precision_runs(to_onnx: Exporter) -> None:
    with pytest.raises(UnsupportedError, match=r"bfloat16.*pt2 or torchscript"):
        to_onnx(nn.Linear(4, 3).bfloat16(), torch.randn(2, 4).bfloat16())
    result = to_onnx(nn.Linear(4, 3).half(), torch.randn(2, 4).half())
    assert result.inputs[0].datatype == "FP16"


class TopTwo(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return torch.topk(x, 2)


def test_ties_of_topk_are_judged_by_their_values(to_onnx: Exporter) -> None:
    result = to_onnx(TopTwo(), torch.tensor([[1.0, 5.0, 5.0, 5.0, 2.0]]))
    assert [record.name for record in result.outputs] == ["values", "indices"]
    assert [record.datatype for record in result.outputs] == ["FP32", "INT64"]


class Spectrum(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.fft.rfft(x)
        return y


def test_complex_outputs_are_pairs_of_numbers(to_onnx: Exporter) -> None:
    result = to_onnx(Spectrum(), torch.randn(2, 8))
    assert result.outputs[0].shape == (-1, 5, 2)
    assert any("complex" in note for note in result.notes)


class Detector(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nonzero(x > 0)


def test_the_number_of_hits_is_dynamic_and_may_be_none(to_onnx: Exporter) -> None:
    result = to_onnx(Detector(), torch.randn(2, 3))
    assert result.max_batch_size == 0
    assert "max_batch_size" not in result.config_text
    assert result.outputs[0].shape == (-1, 2)
    assert ask(result, x=np.full((2, 3), -1, np.float32))[0].shape == (0, 2)


class Shrinking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 2, 3, stride=2)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        shrunk: torch.Tensor = self.conv(image)
        return shrunk


def test_an_axis_whose_size_is_an_expression_is_variable(to_onnx: Exporter) -> None:
    result = to_onnx(
        Shrinking(), torch.rand(1, 3, 17, 16), dynamic={"image": {2: "height", 3: "width"}}
    )
    assert result.inputs[0].shape == (-1, 3, -1, -1)
    assert result.inputs[0].axes == {0: "batch", 2: "height", 3: "width"}
    assert result.outputs[0].shape == (-1, 2, -1, -1)
    assert "dims: [ 3, -1, -1 ]" in result.config_text


class FixedRows(nn.Module):
    """Works at any batch in eager mode, by numbers that an export keeps."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = int(np.prod(x.shape[:1]))
        return torch.cat([x, torch.zeros(rows, 1)], dim=1)


def test_a_fixed_batch_is_an_error_that_says_what_to_do(to_onnx: Exporter) -> None:
    with pytest.raises((UnsupportedError, DisagreementError), match="max_batch_size"):
        to_onnx(FixedRows(), torch.randn(1, 3))


class Tagger(nn.Module):
    def __init__(self, layer: Callable[..., nn.RNNBase], *, is_hasty: bool = False) -> None:
        super().__init__()
        self.recurrent = layer(2, 3, 1, batch_first=True, bidirectional=True)
        self.is_hasty = is_hasty

    def forward(self, frames: torch.Tensor) -> dict[str, torch.Tensor]:
        states: torch.Tensor = self.recurrent(frames)[0]
        if self.is_hasty and float(frames.sum()) > 0:
            states = states * 2
        return {"tags": states, "last": states[:, -1]}


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU])
def test_a_recurrent_layer_takes_any_length(
    to_onnx: Exporter, layer: Callable[..., nn.RNNBase]
) -> None:
    model = Tagger(layer).eval()
    result = to_onnx(model, torch.randn(1, 4, 2), dynamic={"frames": {0: "batch", 1: "length"}})
    assert result.inputs[0].shape == (-1, -1, 2)
    assert dict(result.inputs[0].axes) == {0: "batch", 1: "length"}
    assert any("older exporter" in note for note in result.notes)
    for shape in ((1, 1, 2), (3, 9, 2), (8, 30, 2)):
        frames = torch.randn(shape)
        tags, last = ask(result, frames=frames.numpy())
        np.testing.assert_allclose(tags, model(frames)["tags"].detach(), rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(last, tags[:, -1])


def test_a_recurrent_layer_of_one_length_is_captured_as_any_model(to_onnx: Exporter) -> None:
    result = to_onnx(Tagger(nn.LSTM), torch.randn(1, 4, 2))
    assert result.inputs[0].shape == (-1, 4, 2)
    assert not any("older exporter" in note for note in result.notes)


def test_a_branch_on_values_beside_a_recurrent_layer_is_refused_and_not_traced(
    to_onnx: Exporter, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedError, match="decides by the values"):
        to_onnx(
            Tagger(nn.GRU, is_hasty=True), torch.rand(1, 4, 2),
            max_batch_size=0, dynamic={"frames": {1: "length"}},
        )  # fmt: skip
    assert list(tmp_path.iterdir()) == []


def test_renamed_inputs_take_their_axes_by_either_name(to_onnx: Exporter) -> None:
    for key in ("ids", "used"):
        result = to_onnx(
            Unused(), torch.randn(2, 3), torch.randn(2, 5),
            input_names=["ids", "mask"], output_names=["scores"],
            dynamic={key: {0: "batch", 1: "tokens"}},
        )  # fmt: skip
        assert [record.name for record in result.inputs] == ["ids", "mask"]
        assert result.inputs[0].shape == (-1, -1)
        assert result.outputs[0].name == "scores"


class Options(nn.Module):
    def forward(
        self,
        x: torch.Tensor,
        scale: float,
        bias: torch.Tensor | None = None,
        extra: dict[str, torch.Tensor] | None = None,
    ) -> torch.Tensor:
        y = x * scale
        if bias is not None:
            y = y + bias
        return y if extra is None else y + extra["more"]


def test_numbers_and_none_become_constants_and_are_named(to_onnx: Exporter) -> None:
    result = to_onnx(Options(), torch.ones(2, 3), 2.5, None)
    assert [record.name for record in result.inputs] == ["x"]
    notes = " ".join(result.notes)
    assert "the argument scale=2.5 is not a tensor" in notes
    assert "bias=None" in notes
    assert ask(result, x=np.ones((1, 3), np.float32))[0].tolist() == [[2.5, 2.5, 2.5]]


def test_a_dict_argument_gives_an_input_for_each_key(to_onnx: Exporter) -> None:
    result = to_onnx(Options(), torch.ones(2, 3), 1.0, torch.ones(2, 3), {"more": torch.ones(2, 3)})
    assert [record.name for record in result.inputs] == ["x", "bias", "more"]
    inputs = {name: np.full((1, 3), i, np.float32) for i, name in enumerate(("x", "bias", "more"))}
    assert ask(result, **inputs)[0].tolist() == [[3, 3, 3]]


class Counts(nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        return {"y": x, "count": 3}


def test_a_python_number_among_the_outputs_is_refused(to_onnx: Exporter) -> None:
    with pytest.raises(UnsupportedError, match=r"\['count'\] is a Python int \(3\)"):
        to_onnx(Counts(), torch.ones(2, 3))


class PartlyFrozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Dropout(0.5)
        self.second = nn.Dropout(0.5)
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.second(self.first(self.norm(x)))
        return y


def test_the_model_is_exported_in_eval_mode_and_left_as_it_was(to_onnx: Exporter) -> None:
    net = PartlyFrozen()
    net.train()
    net.second.eval()
    x = torch.randn(4, 3)
    before = net.norm.state_dict()["running_mean"].clone()
    result = to_onnx(net, x)
    assert [m.training for m in (net, net.first, net.second, net.norm)] == [True, True, False, True]
    assert torch.equal(net.norm.state_dict()["running_mean"], before)
    net.eval()
    expected = net(x).detach().numpy()
    np.testing.assert_allclose(ask(result, x=x.numpy())[0], expected, atol=1e-6)


def test_weights_above_the_limit_lie_beside_the_model(tmp_path: Path) -> None:
    plan = make_plan(SourceModel(nn.Linear(300, 300), (torch.randn(2, 300),)), ExportOptions())
    path = tmp_path / "model.onnx"
    with quiet():
        OnnxFormat(inline_limit_bytes=1000).write(plan, path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model.onnx", "model.onnx.data"]
    run = OnnxFormat().open(path, {"input": "FP32"})
    assert run({"input": np.ones((3, 300), np.float32)})[0].shape == (3, 300)


def test_the_manifest_says_where_the_version_comes_from(to_onnx: Exporter) -> None:
    result = to_onnx(nn.Linear(4, 3), torch.randn(1, 4), source="my.nets:make")
    manifest = read_manifest(result.path)
    assert manifest.source == {
        "callable": "my.nets:make",
        "class": "torch.nn.modules.linear.Linear",
    }
    assert {"naiad", "torch", "onnx", "onnxruntime"} <= set(manifest.versions)
    assert set(manifest.files) == set(result.files) - {"naiad.json"}
    assert manifest.tolerances["output__0"].rtol == 1e-4
    assert manifest.max_batch_size == 8


class FrozenTagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(2, 3, batch_first=True)
        self.frozen, self.live = nn.Dropout(0.5), nn.Dropout(0.5)

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        states: torch.Tensor = self.live(self.frozen(self.recurrent(frames)[0]))
        return states


def test_the_older_exporter_does_not_turn_dropout_on_again(to_onnx: Exporter) -> None:
    model = FrozenTagger()
    model.frozen.eval()
    result = to_onnx(model, torch.randn(1, 4, 2), dynamic={"frames": {0: "batch", 1: "length"}})
    assert any("older exporter" in note for note in result.notes)
    assert [part.training for part in (model, model.frozen, model.live)] == [True, False, True]


class Resizing(nn.Module):
    def forward(self, image: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        return nn.functional.interpolate(image, size=like.shape[2:], mode="bilinear")


def test_a_size_may_come_from_another_tensor(to_onnx: Exporter) -> None:
    result = to_onnx(
        Resizing(), torch.rand(1, 2, 6, 8), torch.rand(1, 1, 9, 5),
        dynamic={"like": {0: "batch", 2: "height", 3: "width"}},
    )  # fmt: skip
    image, like = torch.rand(3, 2, 6, 8), torch.rand(3, 1, 4, 11)
    found = ask(result, image=image.numpy(), like=like.numpy())[0]
    np.testing.assert_allclose(found, Resizing()(image, like), atol=1e-5)


class Folded(nn.Module):
    """Batch normalisation after a convolution, and pixels into channels, in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.unshuffle = nn.PixelUnshuffle(2)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        channels: torch.Tensor = self.unshuffle(self.norm(self.conv(image)))
        return channels


def test_normalisation_is_folded_rightly(to_onnx: Exporter) -> None:
    model = Folded()
    for _ in range(3):
        # Statistics that are not those of a new layer.
        model(torch.randn(4, 3, 8, 8) * 3 + 2)
    result = to_onnx(model, torch.randn(1, 3, 8, 8))
    image = torch.randn(2, 3, 8, 8)
    np.testing.assert_allclose(
        ask(result, image=image.numpy())[0], model.eval()(image).detach(), atol=1e-5
    )


class Odd(nn.Module):
    """Where libraries are known to part: infinities, NaN, halves, integers below zero."""

    def forward(self, x: torch.Tensor, n: torch.Tensor) -> dict[str, torch.Tensor]:
        return {
            "softmax": x.softmax(1),
            "max": x.amax(1),
            "round": x.round(),
            "floor": torch.div(n, 3, rounding_mode="floor"),
            "trunc": torch.div(n, 3, rounding_mode="trunc"),
            "rest": torch.remainder(n, 3),
        }


def test_odd_numbers_are_the_same_on_both_sides(to_onnx: Exporter) -> None:
    result = to_onnx(Odd(), torch.randn(2, 3), torch.tensor([[-7, 7, 5], [0, -1, 1]]))
    inf, nan = float("inf"), float("nan")
    x = torch.tensor([[-inf, -inf, -inf], [nan, 1, 2], [0.5, 1.5, -2.5]])
    n = torch.tensor([[-7, -6, -5], [-1, 0, 1], [5, 6, 7]])
    expected = Odd()(x, n)
    for record, found in zip(result.outputs, ask(result, x=x.numpy(), n=n.numpy()), strict=True):
        np.testing.assert_allclose(found.reshape(expected[record.name].shape),
                                   expected[record.name], rtol=1e-6)  # fmt: skip
