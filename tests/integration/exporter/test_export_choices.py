"""What is decided before the export: the batch axis, names, the repository's own state.

TorchScript is the quickest format; none of this depends on it.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from naiad.errors import AlreadyExistsError, InvalidArgumentError, UnsupportedError
from naiad.exporter.export import export
from naiad.exporter.options import ExportOptions
from naiad.exporter.quiet import quiet
from naiad.exporter.result import ExportResult
from naiad.inference.comparison import Tolerance
from naiad.model_config.text_format import parse_config
from naiad.repository.golden import read_cases

pytestmark = pytest.mark.slow


def publish(folder: Path, model: nn.Module, *args: Any, **options: Any) -> ExportResult:
    return export(
        model, args, name="net", repository=folder, format="torchscript",
        options=ExportOptions(**options),
    )  # fmt: skip


class Centered(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0)


class Added(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y


class Mean(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean()


@pytest.mark.parametrize(
    ("model", "args", "reason"),
    [
        (Centered(), (torch.randn(1, 3),), "depends on the other rows of its batch"),
        (Added(), (torch.randn(2, 3), torch.randn(1, 3)), "axis 0 has different sizes"),
        (Added(), (torch.randn(2, 3), torch.tensor(1.0)), "input 'y' is a scalar"),
        (Mean(), (torch.randn(2, 3),), "output 'output__0' has the shape"),
        (nn.Bilinear(2, 2, 2), (torch.randn(2), torch.randn(2)), "the model fails"),
    ],
)
def test_without_a_batch_axis_max_batch_size_is_0_and_the_reason_is_said(
    tmp_path: Path, model: nn.Module, args: tuple[torch.Tensor, ...], reason: str
) -> None:
    result = publish(tmp_path, model, *args)
    assert result.max_batch_size == 0
    assert reason in result.notes[0]
    assert "max_batch_size" not in result.config_text
    assert "dynamic_batching" not in result.config_text
    assert next(read_cases(result.path)).batch_size == 0
    with pytest.raises(InvalidArgumentError, match=r"cannot be served in batches: .*max_batch_si"):
        publish(tmp_path, model, *args, max_batch_size=4)


def test_train_mode_is_told_where_it_changes_answers(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout())
    told = publish(tmp_path, model, torch.randn(2, 3)).notes
    assert any("in train mode (BatchNorm1d, Dropout)" in note for note in told)
    for harmless in (model.eval(), nn.Linear(3, 4)):
        notes = publish(tmp_path, harmless, torch.randn(2, 3)).notes
        assert not any("train mode" in note for note in notes)


def test_a_scalar_result_gets_an_axis_because_the_protocol_has_none(tmp_path: Path) -> None:
    result = publish(tmp_path, Mean(), torch.randn(2, 3))
    assert result.outputs[0].shape == (1,)


def test_max_batch_size_bounds_config_and_golden_cases(tmp_path: Path) -> None:
    result = publish(tmp_path, nn.Linear(3, 2), torch.randn(5, 3), max_batch_size=2)
    assert result.max_batch_size == 2
    assert {case.batch_size for case in read_cases(result.path)} == {1, 2}


def test_an_example_of_more_rows_raises_the_default(tmp_path: Path) -> None:
    assert publish(tmp_path, nn.Linear(3, 2), torch.randn(12, 3)).max_batch_size == 12


def test_instance_count_and_batcher_reach_the_config(tmp_path: Path) -> None:
    result = publish(
        tmp_path, nn.Linear(3, 2), torch.randn(1, 3), instance_count=3, dynamic_batching=False
    )
    config = parse_config(result.config_text, "config.pbtxt")
    assert config.instance_group[0].count == 3
    assert not config.HasField("dynamic_batching")


def test_labels_go_to_the_output_with_as_many_classes(tmp_path: Path) -> None:
    file = tmp_path / "labels.txt"
    file.write_text("cat\ndog\n")
    result = publish(tmp_path / "repository", nn.Linear(3, 2), torch.randn(1, 3), labels=file)
    config = parse_config((result.path.parent / "config.pbtxt").read_text(), "config.pbtxt")
    label_file = result.path.parent / config.output[0].label_filename
    assert label_file.read_text() == "cat\ndog\n"
    with pytest.raises(InvalidArgumentError, match=r"3 labels, and no output has"):
        publish(tmp_path, nn.Linear(3, 2), torch.randn(1, 3), labels=["a", "b", "c"])


def test_versions_count_up_and_are_replaced_only_when_asked(tmp_path: Path) -> None:
    arguments = (nn.Linear(3, 2), torch.randn(1, 3))
    assert [publish(tmp_path, *arguments).version for _ in range(2)] == [1, 2]
    with pytest.raises(AlreadyExistsError):
        publish(tmp_path, *arguments, version=2)
    assert publish(tmp_path, *arguments, version=2, overwrite=True).version == 2


def test_a_config_that_a_person_changed_outlives_a_version_of_the_same_interface(
    tmp_path: Path,
) -> None:
    publish(tmp_path, nn.Linear(3, 2), torch.randn(1, 3))
    file = tmp_path / "net" / "config.pbtxt"
    file.write_text(file.read_text().replace("max_batch_size: 8", "max_batch_size: 32"))
    kept = publish(tmp_path, nn.Linear(3, 2), torch.randn(1, 3))
    assert "max_batch_size: 32" in file.read_text()
    assert kept.max_batch_size == 32
    assert "config.pbtxt was kept" in kept.notes[-1]
    replaced = publish(tmp_path, nn.Linear(5, 2), torch.randn(1, 5))
    assert "config.pbtxt was replaced" in replaced.notes[-1]
    assert "dims: [ 5 ]" in file.read_text()


class Random(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(3)


def test_a_model_that_draws_random_numbers_is_refused_and_leaves_them_alone(
    tmp_path: Path,
) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    with pytest.raises(InvalidArgumentError, match=r"answers the same input differently"):
        publish(tmp_path, Random(), torch.randn(2, 3, generator=torch.Generator()))
    assert torch.equal(torch.get_rng_state(), before)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls: torch.Tensor
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls = self.calls + 1
        return x.add_(1)


def test_buffers_and_inputs_that_the_model_writes_to_stay_as_they_were(tmp_path: Path) -> None:
    net, x = Counting(), torch.zeros(2, 3)
    calls = net.calls
    result = publish(tmp_path, net, x)
    assert net.calls is calls
    assert net.calls.item() == 0
    assert x.sum() == 0
    with quiet():
        module = torch.jit.load(result.path / "model.pt")  # type: ignore[no-untyped-call]
    assert module(x)[0].sum() == 6
    assert x.sum() == 0


def test_torchscript_stays_torchscript(tmp_path: Path) -> None:
    with quiet():
        scripted = torch.jit.script(nn.Linear(3, 2))
    assert publish(tmp_path, scripted, torch.randn(1, 3)).max_batch_size == 8
    with pytest.raises(UnsupportedError, match="TorchScript already"):
        export(scripted, (torch.randn(1, 3),), name="net", repository=tmp_path)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(2, 3, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states: torch.Tensor = self.lstm(x)[0]
        return states[:, -1]


def test_an_axis_that_the_capture_fixes_is_named(tmp_path: Path) -> None:
    dynamic = {"x": {0: "batch", 1: "frames"}}
    with pytest.raises(UnsupportedError, match=r"it fixes 'frames' to 4\. .*torchscript"):
        export(
            Recurrent(), (torch.randn(1, 4, 2),), name="net", repository=tmp_path, format="pt2",
            options=ExportOptions(dynamic=dynamic),
        )  # fmt: skip
    result = publish(tmp_path, Recurrent(), torch.randn(1, 4, 2), dynamic=dynamic)
    assert result.inputs[0].shape == (-1, -1, 2)


class Masked(nn.Module):
    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return (ids * mask).sum(1, keepdim=True)


def test_an_axis_that_varies_with_another_is_named_with_it(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"axis 1 of mask has the size 7 too: .* the name 'tokens'"
    ):
        publish(
            tmp_path, Masked(), torch.ones(2, 7), torch.ones(2, 7),
            dynamic={"ids": {0: "batch", 1: "tokens"}},
        )  # fmt: skip


class Even(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(-1, 2, 4).sum(1)


def test_an_axis_that_cannot_vary_is_refused_with_the_models_own_reason(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"'width' cannot be dynamic.*example's 8"):
        publish(tmp_path, Even(), torch.randn(1, 8), dynamic={"x": {1: "width"}})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dynamic": {"z": {0: "batch"}}}, "has no input 'z'; its inputs are x, y"),
        ({"dynamic": {"x": {5: "tokens"}}}, "input 'x' has no axis 5"),
        ({"dynamic": {"x": {1: "the tokens"}}}, "cannot name axis 1"),
        ({"dynamic": {"x": {1: "n"}, "y": {0: "n"}}}, "'n' is 2 in one input .* and 3 in another"),
        ({"input_names": ["a"]}, "1 input names are given, but the model has 2"),
        ({"input_names": ["a", "a"]}, "must differ"),
        ({"output_names": ["x"]}, "'x' is the name of an input and of an output"),
    ],
)
def test_options_that_do_not_fit_the_model(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        publish(tmp_path, Added(), torch.randn(2, 3), torch.randn(2, 3), **options)
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_a_model_with_an_example_is_refused(tmp_path: Path) -> None:
    x = torch.randn(2, 3)
    for model, args, message in (
        (nn.Linear, (x,), "got the class Linear, not a module"),
        ({"weight": x}, (x,), "got a dict.*load_state_dict"),
        (nn.Linear(3, 2), x, "args is a Tensor"),
        (nn.Linear(3, 2), (), "missing a required argument: 'input'"),
        (nn.Linear(3, 2), (torch.randn(2, 5),), "fails on its own example.*shapes"),
        (Added(), (x, 1.0), None),
        (Added(), (1.0, 2.0), "holds no tensor"),
        (nn.Linear(3, 2, device="meta"), (x,), r"on the device meta.*module\.cpu"),
    ):
        if message is not None:
            with pytest.raises(InvalidArgumentError, match=message):
                export(model, args, name="net", repository=tmp_path)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match=r"complex64.*v2 protocol cannot carry"):
        publish(tmp_path, Added(), x.to(torch.complex64), x)
    with pytest.raises(InvalidArgumentError, match="path traversal"):
        export(Added(), (x, x), name="../net", repository=tmp_path)
    with pytest.raises(InvalidArgumentError, match="no format 'tensorrt'; choose one of onnx"):
        export(Added(), (x, x), name="net", repository=tmp_path, format="tensorrt")  # type: ignore[arg-type]


def test_a_tolerance_of_ones_own(tmp_path: Path) -> None:
    result = publish(
        tmp_path, nn.Linear(3, 2), torch.randn(1, 3), tolerances={"FP32": Tolerance(1e-2, 1e-3)}
    )
    assert result.max_difference <= 1e-3


def test_the_same_export_gives_the_same_bytes(tmp_path: Path) -> None:
    layer, x = nn.Linear(3, 2), torch.randn(1, 3)
    one, other = (publish(tmp_path / name, layer, x) for name in ("a", "b"))
    assert [case.inputs["input"].tolist() for case in read_cases(one.path)] == [
        case.inputs["input"].tolist() for case in read_cases(other.path)
    ]
