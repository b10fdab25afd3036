"""What is known of a model besides its config, and what a team may silence."""

import io
import json
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import torch
from rich.console import Console
from tests.support.repository_builder import RepositoryBuilder, add_model, mlp_model

import naiad
from naiad.check.report import ExitCode, ModelReport, Report, ReportedFinding, print_report
from naiad.check.repository import CheckOptions, check_repository
from naiad.errors import InvalidArgumentError, NotFoundError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning"),
]

CONFIG = """\
backend: "pytorch"
max_batch_size: 8
input [ { name: "x__0" data_type: TYPE_FP32 dims: [ -1, -1 ] } ]
output [ { name: "y__0" data_type: TYPE_FP32 dims: [ -1, -1 ] } ]
"""
IGNORED = 'parameters { key: "naiad.check.ignore" value { string_value: "%s" } }\n'
MLP_CONFIG = """\
backend: "onnxruntime"
max_batch_size: 8
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 16 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 5 ] } ]
"""


class Softmax(torch.nn.Module):
    """Runs on [batch, sentences, tokens] and on one axis less."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.softmax(-1)


def check(path: Path, **options: object) -> Report:
    return check_repository(CheckOptions(path, **options), lambda _: None)  # type: ignore[arg-type]


def codes(report: Report) -> list[str]:
    return [finding.code for finding in report.models[0].findings]


def add_softmax(path: Path, extra: str = "") -> None:
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(Softmax()), buffer)
    files = {"{version}/model.pt": buffer.getvalue()}
    RepositoryBuilder(path).add_model("m", CONFIG + extra, files)


def test_without_evidence_both_readings_are_shown_and_nothing_is_written(tmp_path: Path) -> None:
    add_softmax(tmp_path)

    report = check(tmp_path, fix=True)

    assert codes(report) == ["batch-axis-twice"]
    assert report.exit_code() is ExitCode.FINDINGS
    (finding,) = report.models[0].findings
    assert "x__0 [2, 8]" in finding.why
    assert "x__0 [1, 8, 8]" in finding.why
    assert (tmp_path / "m" / "config.pbtxt").read_text() == CONFIG


def test_parameter_silences_it(tmp_path: Path) -> None:
    add_softmax(tmp_path, IGNORED % "batch-axis-twice")

    report = check(tmp_path)

    assert report.exit_code() is ExitCode.CLEAN
    assert report.models[0].runs[1].inputs == {"x__0": (2, 8, 8)}


def test_example_settles_it(tmp_path: Path) -> None:
    add_softmax(tmp_path)

    assert codes(check(tmp_path, examples=["2,4,16"])) == []
    assert codes(check(tmp_path, examples=["x__0:2,16"])) == ["batch-axis-in-dims"] * 2


def test_golden_cases_settle_it(tmp_path: Path) -> None:
    example = (torch.randn(2, 4, 16),)
    naiad.export(Softmax(), example, name="m", repository=tmp_path, format="torchscript")
    path = tmp_path / "m" / "config.pbtxt"

    assert codes(check(tmp_path)) == []

    text = path.read_text()
    dims = next(line for line in text.splitlines() if "dims" in line)
    path.write_text(text.replace(dims, dims.replace("[ ", "[ -1, ")))
    report = check(tmp_path, fix=True)

    assert codes(report) == ["batch-axis-in-dims"] * 2
    assert "naiad.json" in report.models[0].findings[0].why
    assert report.exit_code() is ExitCode.CLEAN
    assert path.read_text() == text


def test_fixed_dim_can_be_wanted(tmp_path: Path) -> None:
    text = MLP_CONFIG.replace("[ 5 ]", "[ -1 ]").replace("[ 16 ]", "[ 4 ]")
    RepositoryBuilder(tmp_path).add_onnx("m", add_model(), text)
    assert codes(check(tmp_path)) == ["fixed-dim"]

    RepositoryBuilder(tmp_path).add_onnx("m", add_model(), text + IGNORED % "fixed-dim")
    assert check(tmp_path).exit_code() is ExitCode.CLEAN


def test_parameter_does_not_silence_what_fails(tmp_path: Path) -> None:
    text = MLP_CONFIG.replace("[ 5 ]", "[ 6 ]") + IGNORED % "dims-differ"
    RepositoryBuilder(tmp_path).add_onnx("m", mlp_model([np.eye(16, 5)]), text)

    assert codes(check(tmp_path)) == ["dims-differ"]


def test_gpu_ids_of_the_server(tmp_path: Path) -> None:
    groups = "instance_group [ { kind: KIND_GPU gpus: [ 0, 3 ] } ]\n"
    RepositoryBuilder(tmp_path).add_onnx("m", mlp_model([np.eye(16, 5)]), MLP_CONFIG + groups)

    report = check(tmp_path, gpu_ids=(0,))

    assert codes(report) == ["gpu-id"]
    assert "gpus: [ 0 ]" in report.models[0].findings[0].block


def test_gpus_of_a_target_are_not_known(tmp_path: Path) -> None:
    groups = "instance_group [ { kind: KIND_GPU gpus: [ 0, 1 ] } ]\n"
    RepositoryBuilder(tmp_path).add_onnx("m", mlp_model([np.eye(16, 5)]), MLP_CONFIG + groups)

    assert check(tmp_path, target="triton:24.10").exit_code() is ExitCode.CLEAN


def test_backend_of_the_target_only(tmp_path: Path) -> None:
    RepositoryBuilder(tmp_path).add_model(
        "m", 'backend: "tensorrt"\n', {"{version}/model.plan": b"x"}
    )

    report = check(tmp_path, target="triton:24.10")

    assert report.exit_code() is ExitCode.COULD_NOT_RUN
    assert "tensorrt" in report.models[0].could_not_run


def test_exported_program_is_no_file_for_triton(tmp_path: Path) -> None:
    linear, example = torch.nn.Linear(4, 2), (torch.randn(2, 4),)
    naiad.export(linear, example, name="m", repository=tmp_path, format="pt2")

    assert check(tmp_path).exit_code() is ExitCode.CLEAN
    assert codes(check(tmp_path, target="triton:2.51.0")) == ["target-format"]


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    text = MLP_CONFIG.replace("[ 5 ]", "[ -1, 5 ]")
    builder = RepositoryBuilder(tmp_path / ("a long folder name " * 8).strip())
    builder.add_onnx("bad", mlp_model([np.eye(16, 5)]), text)
    builder.add_onnx("good", mlp_model([np.eye(16, 5)]))
    return builder.path


def test_report_for_people(broken: Path) -> None:
    report = check(broken)
    console = Console(width=60, file=io.StringIO(), color_system=None)

    print_report(report, console)

    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    # The place stands alone, whatever the width.
    assert f"{broken}/bad/config.pbtxt:4:45" in lines
    assert any("batch-axis-in-dims" in line for line in lines)
    assert "      dims: [ 5 ]" in lines
    assert "ran batch 8: IN [8, 16] -> OUT [8, 5]" in lines
    assert lines[-1] == "2 models, 1 finding, 1 that --fix corrects"


def test_config_side_by_side(broken: Path) -> None:
    bad, good = check(broken).models

    assert row(bad, "output OUT") == ("TYPE_FP32 [-1, 5]", "TYPE_FP32 [5]", "TYPE_FP32 [5]")
    assert row(good, "max_batch_size") == ("", "4", "4")
    assert row(good, "input IN") == ("", "TYPE_FP32 [16]", "TYPE_FP32 [16]")
    assert {r.why for r in good.rows if r.field == "input IN"} == {"from the model"}


def row(model: ModelReport, field: str) -> tuple[str, str, str]:
    (found,) = (row for row in model.rows if row.field == field)
    return found.declared, found.inferred, found.effective


def test_report_for_machines(broken: Path) -> None:
    report = check(broken)

    document = json.loads(report.to_json())
    assert document["exit_code"] == 1
    assert [model["model"] for model in document["models"]] == ["bad", "good"]
    (finding,) = document["models"][0]["findings"]
    assert (finding["line"], finding["column"], finding["is_fixable"]) == (4, 45, True)

    suite = ET.fromstring(report.to_junit())
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    (failure,) = suite.findall("testcase[@name='bad']/failure")
    assert failure.get("type") == "batch-axis-in-dims"
    assert (failure.text or "").startswith(f"{broken}/bad/config.pbtxt:4:45\n")
    assert not suite.findall("testcase[@name='good']/*")


def test_fix_says_what_it_wrote(broken: Path) -> None:
    report = check(broken, models=["bad"], fix=True)

    assert report.exit_code() is ExitCode.CLEAN
    (finding,) = report.models[0].findings
    assert finding.is_fixed
    assert "dims: [ 5 ]" in (broken / "bad" / "config.pbtxt").read_text()
    assert ET.fromstring(report.to_junit()).get("failures") == "0"


def test_every_version_that_is_served_is_loaded(tmp_path: Path) -> None:
    policy = "version_policy { all { } }\n"
    builder = RepositoryBuilder(tmp_path)
    folder = builder.add_onnx("m", mlp_model([np.eye(16, 5)]), MLP_CONFIG + policy, [1, 2])
    assert check(tmp_path).exit_code() is ExitCode.CLEAN

    (folder / "1" / "model.onnx").write_bytes(mlp_model([np.eye(16, 6)]))
    report = check(tmp_path)

    assert codes(report) == ["load-failed"]
    assert report.models[0].findings[0].place() == f"{folder}/1:1:1"
    assert "Version 1" in report.models[0].findings[0].problem


def test_line_ends_stay(tmp_path: Path) -> None:
    text = MLP_CONFIG.replace("\n", "\r\n")
    folder = RepositoryBuilder(tmp_path).add_onnx("m", mlp_model([np.eye(16, 5)]))
    path = folder / "config.pbtxt"
    path.write_bytes(text.replace("[ 5 ]", "[ 6 ]").encode())

    assert check(tmp_path, fix=True).exit_code() is ExitCode.CLEAN
    assert path.read_bytes().decode() == text


def test_model_that_is_not_there(broken: Path) -> None:
    with pytest.raises(NotFoundError, match=r"no model 'x' in .*; it has bad, good"):
        check(broken, models=["x"])


@pytest.mark.parametrize("example", ["", "a:b", "x:-1,2", "1,,2"])
def test_example_that_is_none(broken: Path, example: str) -> None:
    with pytest.raises(InvalidArgumentError, match="--example takes"):
        check(broken, examples=[example])


def test_empty_repository_proves_nothing(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="holds no models"):
        check(tmp_path)


@pytest.mark.parametrize("width", [20, 40, 80])
def test_places_and_blocks_are_never_wrapped(broken: Path, width: int) -> None:
    report = check(broken)
    stream = io.StringIO()
    print_report(report, Console(file=stream, width=width, force_terminal=False))
    lines = stream.getvalue().splitlines()
    for finding in report.models[0].findings:
        assert finding.place() in lines
        assert all(f"  {line}" in lines for line in finding.block.splitlines())


def test_junit_is_xml_whatever_a_model_says() -> None:
    """By the attributes and elements that the schemas of Jenkins and of GitLab's parser share."""
    text = "\x1b[31mred\x00 <&> \ufffe"
    finding = ReportedFinding("run-failed", "c", 1, 1, text, text, text, is_fixable=False)
    models = [ModelReport(text, [finding, finding]), ModelReport("b", []), ModelReport("c", [])]
    suite = ET.fromstring(Report([*models, ModelReport("d", [], could_not_run=text)]).to_junit())
    assert suite.tag == "testsuite"
    assert suite.attrib == {
        "name": "naiad check", "tests": "4", "failures": "1", "errors": "0", "skipped": "1",
    }  # fmt: skip
    assert [case.tag for case in suite] == ["testcase"] * 4
    assert all(set(case.attrib) == {"classname", "name"} for case in suite)
    assert [[child.tag for child in case] for case in suite] == [
        ["failure", "failure"], [], [], ["skipped"],
    ]  # fmt: skip
    assert suite[0][0].attrib["message"].startswith("c:1:1: ")
    assert "red" in (suite[0][0].text or "")
