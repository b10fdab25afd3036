"""``naiad check`` as a user runs it."""

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from tests.support.python_models import write_model
from tests.support.repository_builder import RepositoryBuilder, mlp_model

pytestmark = pytest.mark.slow

RECORDED = Path(__file__).parent.parent / "conformance" / "recorded"
CONFIG = """\
# A team's comment.
max_batch_size: 8
input [ { name: "IN" data_type: TYPE_FP32 dims: [ -1, 16 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 5 ] } ]
"""


def check(*arguments: str | Path, columns: str = "80") -> "subprocess.CompletedProcess[str]":
    command = Path(sys.executable).with_name("naiad")
    return subprocess.run(
        ["env", f"COLUMNS={columns}", command, "check", *arguments],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    RepositoryBuilder(tmp_path).add_onnx("m", mlp_model([np.eye(16, 5)]), CONFIG)
    return tmp_path


def test_findings_then_fix_then_clean(repository: Path, tmp_path: Path) -> None:
    junit = tmp_path / "report.xml"

    found = check(repository, "--junit", junit)
    assert found.returncode == 1, found.stderr
    assert f"{repository}/m/config.pbtxt:3:43" in found.stdout.splitlines()
    assert "dims: [ 16 ]" in found.stdout
    assert ET.parse(junit).getroot().get("failures") == "1"

    fixed = check(repository, "m", "--fix")
    assert fixed.returncode == 0, fixed.stdout
    assert (repository / "m" / "config.pbtxt").read_text() == CONFIG.replace("[ -1, 16 ]", "[ 16 ]")

    clean = check(repository, "--json", "-")
    assert clean.returncode == 0, clean.stdout
    (model,) = json.loads(clean.stdout)["models"]
    assert [run["batch_size"] for run in model["runs"]] == [1, 2, 8]
    assert model["findings"] == []


@pytest.mark.parametrize("columns", ["0", "20"])
def test_a_narrow_terminal_gets_whole_places(repository: Path, columns: str) -> None:
    done = check(repository, columns=columns)
    assert f"{repository}/m/config.pbtxt:3:43" in done.stdout.splitlines()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["nowhere"], "nowhere"),
        ([".", "nothing"], "no model 'nothing'"),
        ([".", "--target", "triton:1"], "unknown target 'triton:1'"),
        ([".", "--example", "x"], "--example takes"),
    ],
)
def test_what_cannot_be_run(arguments: Sequence[str], text: str) -> None:
    done = check(*arguments)

    assert done.returncode == 2
    assert text in done.stderr
    assert "Traceback" not in done.stderr


def test_models_that_triton_loads_are_clean(tmp_path: Path) -> None:
    shutil.copytree(RECORDED / "repository", tmp_path / "repository")

    done = check(tmp_path / "repository", "--json", "-")

    models = json.loads(done.stdout)["models"]
    assert len(models) == 66
    # These two have label files of another length than their output, on purpose.
    found = {(m["model"], f["code"]) for m in models for f in m["findings"]}
    assert found == {("labels", "label-count"), ("labels_nb", "label-count")}
    assert not any(run["error"] for model in models for run in model["runs"])


# Triton loads these, too.
FINE = {"cache_no_server", "dyn_mb0", "good", "no_inputs_cfg"}


def test_models_that_triton_refuses_have_findings(tmp_path: Path) -> None:
    shutil.copytree(RECORDED / "repository_failing", tmp_path / "repository")

    done = check(tmp_path / "repository", "--json", "-")

    models = json.loads(done.stdout)["models"]
    assert done.returncode == 1
    clean = {model["model"] for model in models if not model["findings"]}
    # A scalar without batching, which Triton refuses, runs here.
    assert clean - {"nb_scalar"} == FINE
    assert not [model for model in models if model["could_not_run"]]


FAILING = """
class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        return {}["weights"]
"""


def test_the_traceback_of_a_python_model_is_told_once_and_its_line_is_the_place(
    tmp_path: Path,
) -> None:
    write_model(tmp_path, "m", FAILING)
    code = tmp_path / "m" / "1" / "model.py"
    line = code.read_text().splitlines().index('        return {}["weights"]') + 1
    result = check(tmp_path)
    assert result.returncode == 1
    assert result.stderr == ""
    assert f"{code}:{line}:1" in result.stdout.splitlines()
    assert result.stdout.count("Traceback (most recent call last)") == 1
    (model,) = json.loads(check(tmp_path, "--json", "-").stdout)["models"]
    assert [(found["code"], found["file"], found["line"]) for found in model["findings"]] == [
        ("run-failed", str(code), line)
    ]
    assert len(model["log"]) == 1
