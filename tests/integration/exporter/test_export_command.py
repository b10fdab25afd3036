"""``naiad export`` as it is typed."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args, get_type_hints

import click
import pytest
from click.testing import CliRunner, Result

from naiad.cli.export import export
from naiad.exporter.export import FORMATS
from naiad.exporter.options import ExportOptions
from naiad.repository.golden import read_cases

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


def test_a_module_of_the_current_folder_becomes_a_version(folder: Path) -> None:
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
        (["command_nets:both", "--labels", "missing.txt"], "missing.txt"),
    ],
)
def test_wrong_use_exits_with_2(folder: Path, arguments: list[str], message: str) -> None:
    result = run("--name", "net", "--repository", "r", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr.replace("\n", " ")
    assert not (folder / "r").exists()
