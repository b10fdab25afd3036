"""``naiad export`` as it is typed."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args, get_type_hints

import click
import pytest
import torch
from click.testing import CliRunner, Result

from naiad.cli.export import export
from naiad.cli.export_report import phrase_for_shell
from naiad.exporter.export import FORMATS
from naiad.exporter.options import ExportOptions
from naiad.repository.golden import read_cases, read_manifest

pytestmark = pytest.mark.slow

NETS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, 2)

    def forward(self, input_ids, mask):
        return {"pooled": (self.embedding(input_ids) * mask.unsqueeze(-1)).sum(1)}

class Branch(nn.Module):
    def forward(self, x):
        return x * 2 if x.sum() > 0 else x - 2

def make():
    return Net()

def example():
    ids = torch.tensor([[1, 9, 3]])
    return {"input_ids": ids, "mask": torch.ones_like(ids)}

def both():
    return Net(), (torch.tensor([[1, 9, 3]]), torch.tensor([[1, 1, 0]]))

class Alone(nn.Module):
    def forward(self, x):
        return x - x.mean(0)

def alone():
    return Alone(), (torch.ones(2, 3),)

def branch():
    return Branch(), (torch.ones(2, 3),)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "command_nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    sys.modules.pop("command_nets", None)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(export, list(arguments), env={"COLUMNS": "200"})


def test_a_module_of_the_current_folder_becomes_a_version(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    result = run(
        "command_nets:make", "--args", "command_nets:example", "--name", "net",
        "--repository", "repository", "--dynamic", "input_ids:batch,tokens",
        "--dynamic", "mask:batch,tokens", "--max-batch-size", "4",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    version = folder / "repository" / "net" / "1"
    assert (version / "model.onnx").is_file()
    assert (version / "naiad.json").is_file()
    config = (folder / "repository" / "net" / "config.pbtxt").read_text()
    assert "max_batch_size: 4" in config
    assert "dims: [ -1 ]" in config
    for text in ("net, version 1 (onnx)", "input_ids", "[batch, tokens]", "model.onnx", "example"):
        assert text in result.stdout
    # The steps are for the line beside the spinner, and not for a handler of the root logger.
    assert not [record for record in caplog.records if record.name.startswith("naiad")]


def test_ranges_instances_and_the_way_to_torchscript_reach_the_export(folder: Path) -> None:
    result = run(
        "command_nets:both", "--name", "net", "--repository", "repository", "--format",
        "torchscript", "--torchscript", "trace", "--instance-count", "3",
        "--range", "input_ids:4,5",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "traced, as asked" in result.stdout
    assert "count: 3" in (folder / "repository" / "net" / "config.pbtxt").read_text()
    drawn = [
        case.inputs["input_ids"]
        for case in read_cases(folder / "repository" / "net" / "1")
        if case.values in {"normal", "uniform"}
    ]
    assert {int(number) for ids in drawn for number in ids.reshape(-1)} == {4, 5}


def test_what_comes_next_is_said(folder: Path) -> None:
    result = run("command_nets:both", "--name", "net", "--repository", "my models")
    assert "[batch, 2]" in result.stdout
    assert "rows of input_ids and mask are as long as in the example" in result.stdout
    assert "--dynamic input_ids:batch,tokens --dynamic mask:batch,tokens" in result.stdout
    assert "Next: naiad serve 'my models', and" in result.stdout
    assert "naiad infer net --example" in result.stdout
    again = run("command_nets:both", "--name", "net", "--repository", "my models", "--version", "1")
    assert again.exit_code == 2
    assert "--overwrite" in again.stderr


def test_a_repository_that_cannot_be_written_is_told_in_a_line(folder: Path) -> None:
    (folder / "taken").write_text("a file")
    result = run("command_nets:both", "--name", "net", "--repository", "taken/models")
    assert result.exit_code == 1
    assert result.stderr.startswith("naiad export: cannot write the version: ")
    assert result.stderr.endswith("'taken/models'\n")


def test_the_choices_are_those_of_the_export() -> None:
    choices = {
        option.name: tuple(option.type.choices)
        for option in export.params
        if isinstance(option.type, click.Choice)
    }
    assert choices["format_name"] == (*FORMATS, "all")
    assert choices["torchscript"] == get_args(get_type_hints(ExportOptions)["torchscript"])


def test_a_file_that_cannot_be_made_exits_with_1(folder: Path) -> None:
    result = run("command_nets:branch", "--name", "net", "--repository", "r")
    assert result.exit_code == 1
    assert "naiad export: the model decides by the values" in result.stderr
    assert not (folder / "r").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no_such_module:make", "--name", "a/b"], "invalid model name 'a/b'"),
        (["command_nets"], "not of the form MODULE:CALLABLE"),
        (["command_nets.both"], "MODULE:CALLABLE; did you mean command_nets:both?"),
        (["no_such_module:make"], "no Python module 'no_such_module'"),
        (["command_nets:make"], "--args MODULE:CALLABLE"),
        (["command_nets:both", "--dynamic", "mask"], "not of the form INPUT:AXIS,AXIS"),
        (["command_nets:both", "--dynamic", "mask:,"], "not of the form INPUT:AXIS,AXIS"),
        (["command_nets:both", "--dynamic", "mask:a", "--dynamic", "mask:b"], "twice"),
        (["command_nets:both", "--range", "mask:1"], "not of the form INPUT:LOWEST,HIGHEST"),
        (["command_nets:both", "--range", "mask:1,0"], "ends at 0.0, below its start 1.0"),
        (["command_nets:both", "--range", "msk:0,1"], "has no input 'msk'"),
        (["command_nets:both", "--torchscript", "both"], "both"),
        (["command_nets:both", "--format", "tensorrt"], "tensorrt"),
        (["command_nets:both", "--opset", "3"], "--opset"),
        (["command_nets:both", "--target", "triton:19"], "unknown target 'triton:19'"),
        (["command_nets:both", "--tolerance", "FP32:1"], "not of the form DATATYPE:RTOL,ATOL"),
        (["command_nets:both", "--optimize", "fp16", "--format", "pt2"], "--optimize fp16 is for"),
        (["command_nets:both", "--input-name", "a"], "1 input names are given"),
        (
            ["command_nets:both", "--input-name", "a", "--input-name", "b", "--output-name", "a"],
            "Give --output-name (or --input-name)",
        ),
        (["command_nets:both", "--class", "command_nets:Net"], "is no file"),
        (["command_nets:make"], "--input NAME:DATATYPE:SHAPE"),
        (["lost.pt"], "there is no file lost.pt"),
        (["command_nets:alone", "--max-batch-size", "3"], "give --max-batch-size 0"),
        ([], "SOURCE is missing"),
        (["command_nets:both", "--labels", "missing.txt"], "missing.txt"),
    ],
)
def test_wrong_use_exits_with_2(folder: Path, arguments: list[str], message: str) -> None:
    result = run("--name", "net", "--repository", "r", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr.replace("\n", " ")
    assert not (folder / "r").exists()


def test_labels_that_do_not_fit_are_told_before_the_model_is_captured(folder: Path) -> None:
    (folder / "labels.txt").write_text("a\nb\n")
    result = run("command_nets:branch", "--name", "net", "--repository", "r", "--max-batch-size",
                 "0", "--labels", "labels.txt")  # fmt: skip
    assert result.exit_code == 2
    # The capture would have failed, too: at the branch on values.
    assert "there are 2 labels, and no output has as many" in result.stderr
    assert not (folder / "r").exists()


def test_a_state_dict_with_its_class_becomes_a_version(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sys.path.insert(0, str(folder))
    module = importlib.import_module("command_nets")
    torch.save({"model_state": module.Net().state_dict()}, folder / "net.pt")
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/naiad", "export", "net.pt", "--name", "a b"])
    result = run(
        "net.pt", "--class", "command_nets:Net", "--input", "input_ids:INT64:1,3",
        "--input", "mask:INT64:1,3", "--range", "input_ids:0,9", "--name", "net",
        "--repository", "r", "--target", "triton:24.10", "--optimize", "fp16",
        "--tolerance", "FP32:1e-2,1e-2",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "below the key 'model_state' of net.pt" in result.stdout
    assert "for Triton 24.10: ONNX opset up to 21" in result.stdout
    assert "- fp16: " in result.stdout
    manifest = read_manifest(folder / "r" / "net" / "1")
    assert manifest.source["callable"] == "net.pt"
    assert manifest.source["command"] == "naiad export net.pt --name 'a b'"
    assert manifest.tolerances["pooled"].rtol == 1e-2


def test_every_format_that_carries_the_model_is_compared(folder: Path) -> None:
    result = run("command_nets:branch", "--name", "net", "--repository", "r", "--format", "all",
                 "--max-batch-size", "0")  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "- not onnx: the model decides by the values" in result.stdout
    assert "- not pt2: " in result.stdout
    assert "- not aoti: " in result.stdout
    assert [path.name for path in (folder / "r").iterdir()] == ["net_torchscript"]
    assert "net_torchscript 1" in result.stdout
    assert "Next: naiad serve r, and" in result.stdout
    assert "largest difference" in result.stdout


RECIPE = """
repository = "models"

[models.net]
source = "command_nets:both"
format = ["torchscript", "pt2"]
max_batch_size = 4

[models.branch]
source = "command_nets:branch"
max_batch_size = 0
"""


def test_a_recipe_exports_all_of_its_models_and_fails_with_one(folder: Path) -> None:
    (folder / "ci").mkdir()
    (folder / "ci" / "naiad.toml").write_text(RECIPE)
    result = run("--recipe", "ci/naiad.toml")
    assert result.exit_code == 1
    assert result.stderr.startswith("naiad export: branch: the model decides by the values")
    models = folder / "ci" / "models"
    assert sorted(path.name for path in models.iterdir()) == ["net_pt2", "net_torchscript"]
    assert "max_batch_size: 4" in (models / "net_pt2" / "config.pbtxt").read_text()

    one = run("--recipe", "ci/naiad.toml", "--name", "net", "--repository", "other")
    assert one.exit_code == 0, one.output
    assert (folder / "other" / "net_pt2" / "1").is_dir()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--name", "lost"], "has no model 'lost'; it has net, branch"),
        (["--opset", "18"], "--recipe says everything about its models: leave --opset out"),
        (["command_nets:both"], "leave SOURCE out"),
    ],
)
def test_what_does_not_go_with_a_recipe(folder: Path, arguments: list[str], message: str) -> None:
    (folder / "naiad.toml").write_text(RECIPE)
    result = run("--recipe", "naiad.toml", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (folder / "models").exists()


@pytest.mark.parametrize(
    ("message", "phrased"),
    [
        ("Set max_batch_size to 0", "give --max-batch-size 0"),
        ("fp16 is bad. Leave optimize out", "fp16 is bad. Leave --optimize out"),
        ("use the format pt2 or torchscript", "use the option --format pt2 or torchscript"),
        ("allow it: tolerances in ExportOptions", "allow it: --tolerance DATATYPE:RTOL,ATOL"),
        ("replace it (--overwrite, or overwrite=True).", "replace it (--overwrite)."),
        ("opset 22 was asked for", "--opset 22 was asked for"),
        ("nothing of that", "nothing of that"),
    ],
)
def test_messages_speak_of_what_is_typed(message: str, phrased: str) -> None:
    assert phrase_for_shell(message) == phrased
