"""``naiad verify --source`` takes a model from wherever ``naiad export`` does."""

import json
import sys
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import save_file
from torch import nn

from naiad.cli.export import export
from naiad.cli.verify import verify

pytestmark = pytest.mark.slow

NETS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 3)
        self.norm = nn.BatchNorm1d(3)

    def forward(self, left, right):
        return torch.tanh(self.norm(self.first(left) - 2 * right))

class Vector(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return x.unsqueeze(-1) * self.weight

def bare():
    torch.manual_seed(7)
    return Net()
"""
INPUTS = ("--input", "left:FP32:2,4", "--input", "right:FP32:2,3")
CLASS = ("--class", "verified_nets:Net")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a model as a state dict, safetensors, TorchScript and a ``.mar``."""
    (tmp_path / "verified_nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    import verified_nets  # type: ignore[import-not-found]  # noqa: PLC0415

    model = verified_nets.bare().eval()
    torch.save({"model_state": model.state_dict()}, "net.pt")
    save_file(model.state_dict(), "net.safetensors")
    torch.save(verified_nets.Vector().state_dict(), "vector.pt")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted: nn.Module = torch.jit.script(model)
        torch.jit.save(scripted, "scripted.pt")
    _archive(tmp_path / "net.mar", model)
    other = verified_nets.bare()
    nn.init.zeros_(other.first.weight)
    torch.save(other.state_dict(), "other.pt")
    yield tmp_path
    sys.modules.pop("verified_nets", None)


def _archive(path: Path, model: nn.Module) -> None:
    """As torch-model-archiver writes it from a class and its weights."""
    torch.save(model.state_dict(), path.with_name("archived.pt"))
    source = NETS.partition("class Vector")[0]
    with zipfile.ZipFile(path, "w") as archive:
        manifest = {
            "model": {
                "modelName": "net", "serializedFile": "archived.pt", "modelFile": "net.py",
                "handler": "base_handler", "modelVersion": "1.0",
            }
        }  # fmt: skip
        archive.writestr("MAR-INF/MANIFEST.json", json.dumps(manifest))
        archive.writestr("net.py", source)
        archive.write(path.with_name("archived.pt"), "archived.pt")


def run(command: Any, *arguments: str) -> Result:
    return CliRunner().invoke(command, list(arguments), env={"COLUMNS": "200"})


def exported(*source: str, example: tuple[str, ...] = INPUTS) -> None:
    common = ("--name", "net", "--repository", "models", "--format", "torchscript")
    result = run(export, *source, *example, *common)
    assert result.exit_code == 0, result.output


def verified(*source: str) -> Result:
    return run(verify, "models", "net", "--file-only", "--json", "report.json", "--source", *source)


SOURCES = {
    "state dict": ("net.pt", *CLASS),
    "safetensors": ("net.safetensors", *CLASS),
    "TorchScript": ("scripted.pt",),
    "archive": ("net.mar",),
    "callable": ("verified_nets:bare",),
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_the_source_of_an_export_is_asked_again(folder: Path, source: tuple[str, ...]) -> None:
    exported(*source)
    result = verified(*source)
    assert result.exit_code == 0, result.output
    (model,) = json.loads((folder / "report.json").read_text())["models"]
    assert model["rows"][0]["hop"] == "PyTorch eager again"
    assert model["causes"] == []


def test_other_weights_are_another_source(folder: Path) -> None:
    exported("net.pt", *CLASS)
    result = verified("other.pt", *CLASS)
    assert result.exit_code == 1
    assert "'other.pt' is not the model that was exported" in " ".join(result.output.split())


def test_a_fault_is_put_into_a_model_that_is_a_file(folder: Path) -> None:
    exported("net.pt", *CLASS)
    import verified_nets  # noqa: PLC0415

    model = verified_nets.bare().train()
    example = (torch.randn(2, 4), torch.randn(2, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.trace(model, example), "models/net/1/model.pt")  # type: ignore[no-untyped-call]
    result = verified("net.pt", *CLASS)
    assert result.exit_code == 1
    causes = json.loads((folder / "report.json").read_text())["models"][0]["causes"]
    assert {cause["cause"] for cause in causes} == {"files changed since the export", "train mode"}


def test_an_input_that_got_an_axis_needs_an_example(folder: Path) -> None:
    source = ("vector.pt", "--class", "verified_nets:Vector")
    exported(*source, example=("--input", "x:FP32:2"))
    result = verified(*source)
    assert result.exit_code == 2
    assert "holds no example inputs" in result.output
    described = verified(*source, "--input", "x:FP32:2")
    assert described.exit_code == 0, described.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("net.pt",), "name the class that they belong to with --class"),
        (("nothing.pt", *CLASS), "there is no file nothing.pt"),
        (("verified_nets:bare", *CLASS), "a MODULE:CALLABLE loads its own weights"),
    ],
)
def test_a_source_that_does_not_load_is_no_difference(
    folder: Path, arguments: tuple[str, ...], message: str
) -> None:
    exported("net.pt", *CLASS)
    result = verified(*arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_what_describes_a_source_needs_one(folder: Path) -> None:
    result = run(verify, "models", *CLASS)
    assert result.exit_code == 2
    assert "--class describes a --source, which is missing" in result.output
