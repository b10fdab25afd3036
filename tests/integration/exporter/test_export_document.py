"""docs/reference/export.md: its recipe works, and its words are those of the command."""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import torch
from click.testing import CliRunner
from torch import nn

from naiad.cli.export import export
from naiad.errors import InvalidArgumentError
from naiad.exporter.recipe import read_recipe
from naiad.exporter.request import ALL_FORMATS, FORMAT_NAMES

pytestmark = pytest.mark.slow

TEXT = (Path(__file__).parents[3] / "docs" / "reference" / "export.md").read_text(encoding="utf-8")
NETS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, frames):
        return {"scores": self.linear(frames).amax(1)}

def make():
    return Net(), (torch.randn(1, 5, 4),)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "nets.py").write_text(NETS)
    (tmp_path / "naiad.toml").write_text(recipe())
    (tmp_path / "weights").mkdir()
    torch.save({f"linear.{k}": v for k, v in nn.Linear(4, 3).state_dict().items()},
               tmp_path / "weights" / "net.pt")  # fmt: skip
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    sys.modules.pop("nets", None)


def recipe() -> str:
    found = re.search(r"```toml\n(.*?)```", TEXT, re.DOTALL)
    assert found is not None
    return found[1]


def test_its_recipe_exports_its_models(folder: Path) -> None:
    result = CliRunner().invoke(export, ["--recipe", str(folder / "naiad.toml")])
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in (folder / "models").iterdir()) == [
        "scores_onnx", "scores_torchscript", "weights",
    ]  # fmt: skip


def test_it_names_every_format_and_option_as_it_is() -> None:
    for form in (*FORMAT_NAMES, ALL_FORMATS):
        assert f"| `{form}` |" in TEXT
    options = {name for option in export.params if isinstance(option, click.Option)
               for name in option.opts}  # fmt: skip
    assert set(re.findall(r"--[a-z][a-z-]*", TEXT)) <= options


def test_the_recipes_other_keys_are_keys(tmp_path: Path) -> None:
    listed = TEXT.partition("A model's other keys are")[2].partition("Every model is tried")[0]
    keys = set(re.findall(r"`([a-z_]+)`", listed))
    assert len(keys) > 10
    (tmp_path / "naiad.toml").write_text(
        "[models.a]\nsource='a:b'\nrepository='r'\n" + "\n".join(f"{key} = {{}}" for key in keys)
    )
    # A key that does not exist would be named first; these are of the wrong kind only.
    with pytest.raises(InvalidArgumentError, match="has to be"):
        read_recipe(tmp_path / "naiad.toml")
    assert tomllib.loads(recipe())["models"].keys() == {"scores", "weights"}
