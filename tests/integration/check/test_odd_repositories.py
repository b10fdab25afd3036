"""Repositories that look right and are not, and right ones that look odd."""

from pathlib import Path

import numpy as np
import pytest
from tests.support.python_models import write_model
from tests.support.repository_builder import RepositoryBuilder, identity_model, mlp_model

from naiad.check.report import ExitCode, Report
from naiad.check.repository import CheckOptions, check_repository

pytestmark = pytest.mark.slow

MLP = mlp_model([np.eye(4, 4)])
CONFIG = """\
backend: "onnxruntime"
max_batch_size: 8
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] } ]
"""
STEP = (
    '{ model_name: "%s" model_version: -1 input_map { key: "IN" value: "IN" } '
    'output_map { key: "OUT" value: "OUT" } }'
)


def check(path: Path) -> Report:
    return check_repository(CheckOptions(path), lambda _: None)


def found(report: Report) -> list[tuple[str, str, int]]:
    """Code, file within its model and line."""
    return [
        (finding.code, Path(finding.file).name, finding.line)
        for model in report.models
        for finding in model.findings
    ]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12\n", "git lfs pull"),
        (b"\n<!DOCTYPE html><html><body>Not Found</body></html>", "a web page"),
        (b"PK\x03\x04" + bytes(100), "an archive, such as PyTorch writes"),
    ],
)
def test_what_lies_in_place_of_a_model_is_named(tmp_path: Path, content: bytes, said: str) -> None:
    RepositoryBuilder(tmp_path).add_onnx("m", content, CONFIG)
    report = check(tmp_path)
    assert found(report) == [("model-file", "model.onnx", 1)]
    assert said in report.models[0].findings[0].why


@pytest.mark.parametrize("target", ["nowhere.onnx", "model.onnx"])
def test_a_link_to_nothing_is_named_and_no_file_is_renamed(tmp_path: Path, target: str) -> None:
    folder = RepositoryBuilder(tmp_path).add_model("m", CONFIG)
    (folder / "1" / "model.onnx").symlink_to(target)
    report = check(tmp_path)
    assert found(report) == [("model-file", "model.onnx", 1)]
    (finding,) = report.models[0].findings
    assert f"a link to '{target}'" in finding.why
    assert not finding.is_fixable


def test_a_warmup_that_the_server_refuses_is_found(tmp_path: Path) -> None:
    warmup = (
        'model_warmup { name: "w" batch_size: 1 inputs { key: "OTHER" value '
        "{ data_type: TYPE_FP32 dims: 4 zero_data: true } } }\n"
    )
    RepositoryBuilder(tmp_path).add_onnx("m", MLP, CONFIG + warmup)
    assert found(check(tmp_path)) == [("load-failed", "config.pbtxt", 5)]


def test_ensembles_that_call_each_other_are_found_with_their_circle(tmp_path: Path) -> None:
    builder = RepositoryBuilder(tmp_path)
    text = CONFIG.replace('backend: "onnxruntime"', 'platform: "ensemble"')
    for name, step in (("a", "b"), ("b", "c"), ("c", "a"), ("outside", "a")):
        builder.add_model(name, f"{text}ensemble_scheduling {{ step [ {STEP % step} ] }}\n")
    report = check(tmp_path)
    assert found(report) == [("ensemble-step", "config.pbtxt", 5)] * 3
    assert report.models[0].findings[0].why.endswith("before itself: a -> b -> c -> a.")


PYTHON = """
class TritonPythonModel:
    def execute(self, requests):
        value = pb_utils.get_input_tensor_by_name(requests[0], "IN").as_numpy()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value.astype(np.float64))])]
"""
ASKS = """
class TritonPythonModel:
    def execute(self, requests):
        asked = pb_utils.InferenceRequest(
            model_name="other",
            requested_output_names=["OUT"],
            inputs=[pb_utils.get_input_tensor_by_name(requests[0], "IN")],
        ).exec()
        if asked.has_error():
            raise pb_utils.TritonModelException(asked.error().message())
        return [pb_utils.InferenceResponse(asked.output_tensors())]
"""


def test_another_datatype_than_the_config_has_is_found_and_corrected(tmp_path: Path) -> None:
    write_model(tmp_path, "m", PYTHON)
    fixed = check_repository(CheckOptions(tmp_path, fix=True), lambda _: None)
    assert fixed.exit_code() == ExitCode.CLEAN
    assert [code for code, _, _ in found(fixed)] == ["datatype-differs"]
    assert "TYPE_FP64" in (tmp_path / "m" / "config.pbtxt").read_text()


def test_a_model_that_asks_others_is_no_fault(tmp_path: Path) -> None:
    write_model(tmp_path, "m", ASKS)
    report = check(tmp_path)
    assert report.exit_code() == ExitCode.CLEAN
    assert not found(report)
    (run,) = report.models[0].runs
    assert not run.is_tried
    assert "asks a server for other models" in run.error
    # The process that asked is none the worse for the refusal.
    assert not report.models[0].log or "can't be read" not in report.models[0].log[0]


def test_inputs_that_are_too_large_to_try_are_no_fault(tmp_path: Path) -> None:
    sides = " ".join(
        f'{role} [ {{ name: "{name}" data_type: TYPE_FP32 dims: [ 16384, 16384 ] }} ]'
        for role, name in (("input", "IN"), ("output", "OUT"))
    )
    model = identity_model(shape=("batch", 16384, 16384))
    RepositoryBuilder(tmp_path).add_onnx("m", model, f"max_batch_size: 2 {sides}")
    report = check(tmp_path)
    assert not found(report)
    assert [run.is_tried for run in report.models[0].runs] == [False]
