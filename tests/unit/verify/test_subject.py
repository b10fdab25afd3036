from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from naiad.errors import NotFoundError
from naiad.inference.comparison import Tolerance
from naiad.repository.golden import (
    GoldenCase,
    Manifest,
    TensorRecord,
    digest_files,
    write_cases,
    write_manifest,
)
from naiad.verify.hops import Executions
from naiad.verify.subject import Subject, find_unverified, find_versions

X = np.array([[1.0, 2.0]], dtype=np.float32)


def write_version(repository: Path, model: str, version: int = 1) -> Path:
    """A version as the exporter leaves it, with a file that is no real model."""
    folder = repository / model / str(version)
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(b"weights")
    cases = [
        GoldenCase(name, 1, "example", {"x": X}, {"y": X * 2}) for name in ("example", "second")
    ]
    records = write_cases(folder, cases)
    tensor = TensorRecord("x", "FP32", (-1, 2), {0: "batch"})
    manifest = Manifest(
        format="onnx",
        model_file="model.onnx",
        max_batch_size=8,
        source={},
        versions={},
        files=digest_files(folder),
        inputs=(tensor,),
        outputs=(replace(tensor, name="y"),),
        tolerances={"y": Tolerance(0.0, 0.5)},
        cases=records,
        notes=(),
    )
    write_manifest(folder, manifest)
    return folder


def test_an_untouched_version_has_its_cases_and_no_problems(tmp_path: Path) -> None:
    write_version(tmp_path, "m")
    subject = Subject.load(tmp_path, "m", 1)
    assert subject.problems == []
    assert [case.name for case in subject.cases] == ["example", "second"]
    assert subject.artifact() == tmp_path / "m" / "1" / "model.onnx"
    assert subject.inputs() == {"x": "FP32"}
    assert subject.outputs() == {"y": "FP32"}


def test_a_changed_file_is_named(tmp_path: Path) -> None:
    folder = write_version(tmp_path, "m")
    (folder / "model.onnx").write_bytes(b"other weights")
    subject = Subject.load(tmp_path, "m", 1)
    assert subject.changed == ("model.onnx",)
    assert subject.repository() == tmp_path


def test_changed_and_missing_files_are_named(tmp_path: Path) -> None:
    folder = write_version(tmp_path, "m")
    (folder / "model.onnx").write_bytes(b"other weights")
    (folder / "golden" / "000.safetensors").unlink()
    missing, changed = sorted(Subject.load(tmp_path, "m", 1).problems)
    assert missing == "golden/000.safetensors is missing, naiad.json lists it"
    assert changed.startswith("model.onnx is not the file that was exported: its sha256 is ")


def test_the_cases_after_a_changed_one_are_still_there(tmp_path: Path) -> None:
    folder = write_version(tmp_path, "m")
    (folder / "golden" / "000.safetensors").write_bytes(b"no tensors")
    subject = Subject.load(tmp_path, "m", 1)
    (problem,) = subject.problems
    assert problem.startswith("golden/000.safetensors is not the file that was exported")
    assert [case.name for case in subject.cases] == ["second"]


def test_a_case_that_cannot_be_read_is_a_problem_even_with_a_right_hash(tmp_path: Path) -> None:
    folder = write_version(tmp_path, "m")
    (folder / "golden" / "000.safetensors").write_bytes(b"no tensors")
    subject = Subject.load(tmp_path, "m", 1)
    write_manifest(folder, replace(subject.manifest, files=digest_files(folder)))
    (problem,) = Subject.load(tmp_path, "m", 1).problems
    assert "cannot read" in problem


def test_versions_are_found_by_their_manifest_in_the_order_of_numbers(tmp_path: Path) -> None:
    for version in (10, 2):
        write_version(tmp_path, "b", version)
    write_version(tmp_path, "a")
    (tmp_path / "foreign" / "1").mkdir(parents=True)
    assert find_versions(tmp_path, []) == [("a", 1), ("b", 2), ("b", 10)]
    assert find_unverified(tmp_path) == []
    (tmp_path / "foreign" / "config.pbtxt").touch()
    assert find_unverified(tmp_path) == ["foreign"]
    assert find_versions(tmp_path, ["b"]) == [("b", 2), ("b", 10)]


def test_nothing_to_verify_says_why(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"no model in .* has golden cases"):
        find_versions(tmp_path, [])
    with pytest.raises(NotFoundError, match="there is no model repository"):
        find_versions(tmp_path / "nowhere", [])
    with pytest.raises(NotFoundError, match="there is no model 'm'"):
        find_versions(tmp_path, ["m"])
    (tmp_path / "m" / "1").mkdir(parents=True)
    with pytest.raises(NotFoundError, match="model 'm' has no version with golden cases"):
        find_versions(tmp_path, ["m"])


def test_executions_between_two_readings() -> None:
    before = Executions(10, 8, {1: 6, 2: 2})
    after = Executions(16, 10, {1: 6, 2: 3, 4: 1})
    between = after.since(before)
    assert between == Executions(6, 2, {2: 1, 4: 1})
    assert between.has_mixed()
    assert not Executions(2, 2, {1: 2}).has_mixed()
