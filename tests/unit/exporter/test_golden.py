"""The record of a version: written, read, and refused when damaged."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from naiad.errors import InvalidArgumentError, NotFoundError
from naiad.inference.comparison import Array, Tolerance
from naiad.repository.golden import (
    GoldenCase,
    Manifest,
    TensorRecord,
    digest_files,
    read_cases,
    read_manifest,
    write_cases,
    write_manifest,
)


def objects(elements: list[Any], shape: tuple[int, ...]) -> Array:
    array = np.empty(len(elements), dtype=np.object_)
    array[:] = elements
    return array.reshape(shape)


CASES = (
    GoldenCase(
        "example",
        2,
        "example",
        {"text": objects([b"", b"caf\xc3\xa9", b"\x00", b"long" * 9], (2, 2))},
        {
            "y": np.arange(6, dtype=np.float32).reshape(2, 3),
            "b": np.array([0x3F80, 0x4000], np.uint16),
        },
    ),
    GoldenCase(
        "transposed",
        3,
        "normal",
        {"text": objects([b"a"] * 6, (3, 2))},
        {"y": np.arange(9, dtype=np.float32).reshape(3, 3).T, "b": np.zeros(3, np.uint16)},
    ),
    GoldenCase(
        "empty",
        0,
        "normal",
        {"text": objects([], (0, 2))},
        {"y": np.zeros((0, 3), np.float32), "b": np.array(7, np.uint16)},
    ),
)


@pytest.fixture
def version(tmp_path: Path) -> Path:
    (tmp_path / "model.onnx").write_bytes(b"the model")
    records = write_cases(tmp_path, CASES)
    manifest = Manifest(
        format="onnx",
        model_file="model.onnx",
        max_batch_size=8,
        source={"callable": "nets:make", "class": "nets.Net"},
        versions={"torch": "2.13.0"},
        files=digest_files(tmp_path),
        inputs=(TensorRecord("text", "BYTES", (-1, 2), {0: "batch"}),),
        outputs=(
            TensorRecord("y", "FP32", (-1, 3), {}),
            TensorRecord("b", "BF16", (-1,), {}),
        ),
        tolerances={"y": Tolerance(1e-4, 1e-5), "b": Tolerance(4e-2, 1e-2)},
        cases=records,
        notes=("a note",),
    )
    write_manifest(tmp_path, manifest)
    assert read_manifest(tmp_path) == manifest
    return tmp_path


def edit(version: Path, **changes: Any) -> None:
    path = version / "naiad.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_cases_come_back_as_they_were(version: Path) -> None:
    for case, expected in zip(read_cases(version), CASES, strict=True):
        assert (case.name, case.batch_size, case.values) == (
            expected.name, expected.batch_size, expected.values,
        )  # fmt: skip
        for found, wanted in ((case.inputs, expected.inputs), (case.outputs, expected.outputs)):
            assert list(found) == list(wanted)
            for name, array in wanted.items():
                assert found[name].dtype == array.dtype
                assert found[name].shape == array.shape
                assert found[name].tolist() == array.tolist()


def test_numpy_and_safetensors_alone_can_read_them(version: Path) -> None:
    stored = load_file(version / "golden" / "000.safetensors")
    assert stored["outputs/y"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert stored["inputs/text"].tobytes() == b"caf\xc3\xa9\x00" + b"long" * 9
    assert stored["lengths:inputs/text"].tolist() == [[0, 5], [1, 36]]


def test_the_hashes_cover_every_file_but_the_manifest(version: Path) -> None:
    assert set(read_manifest(version).files) == {
        "model.onnx", "golden/000.safetensors", "golden/001.safetensors", "golden/002.safetensors",
    }  # fmt: skip


def test_a_version_without_a_manifest(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"no naiad\.json: it holds no golden cases"):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": 2}, "schema 2; this version of naiad reads schema 1"),
        ({"cases": None}, "is damaged"),
        ({"cases": [{"name": "x"}]}, "lacks 'file'"),
        ({"tolerances": []}, "is damaged"),
        ({"inputs": [{"name": "x", "datatype": "FP8", "shape": [1], "axes": {}}]}, "FP8"),
    ],
)
def test_a_damaged_manifest(version: Path, changes: dict[str, Any], message: str) -> None:
    edit(version, **changes)
    with pytest.raises(InvalidArgumentError, match=message):
        read_manifest(version)


@pytest.mark.parametrize("text", ["", "[]", "{", "nothing"])
def test_a_manifest_that_is_no_json_object(version: Path, text: str) -> None:
    (version / "naiad.json").write_text(text)
    with pytest.raises(InvalidArgumentError, match=r"naiad\.json"):
        read_manifest(version)


def test_a_golden_file_that_was_changed_is_not_trusted(version: Path) -> None:
    path = version / "golden" / "001.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    cases = read_cases(version)
    assert next(cases).name == "example"
    with pytest.raises(InvalidArgumentError, match=r"001\.safetensors is not the file"):
        next(cases)


def test_a_golden_file_that_is_gone(version: Path) -> None:
    (version / "golden" / "000.safetensors").unlink()
    with pytest.raises(NotFoundError, match="'example' is missing"):
        next(read_cases(version))


def test_a_manifest_does_not_lead_outside_of_its_folder(version: Path) -> None:
    case = {"name": "x", "file": "../../secret", "batch_size": 1, "values": ""}
    edit(version, cases=[case])
    with pytest.raises(InvalidArgumentError, match=r"outside: \.\./\.\./secret"):
        next(read_cases(version))


def test_size_on_disk() -> None:
    assert CASES[0].byte_size() == (42 + 4 * 8) + 6 * 4 + 2 * 2
