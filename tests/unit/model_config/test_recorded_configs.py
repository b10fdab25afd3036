"""Configs that a real Triton 2.51 answered, loaded, or refused to load."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import helper

from naiad.errors import NaiadError
from naiad.inference.datatypes import BYTES, Datatype, from_dtype
from naiad.model_config.complete import (
    ArtifactSignature,
    ArtifactTensor,
    check_against_artifact,
    complete_config,
)
from naiad.model_config.json_format import config_to_json, parse_config_json
from naiad.model_config.normalize import normalize_config
from naiad.model_config.schema import ModelConfig
from naiad.model_config.text_format import format_config, parse_config
from naiad.model_config.validate import validate_config, validate_for_load

_RECORDED = Path(__file__).parents[2] / "conformance" / "recorded"


def _cases(group: str) -> Iterator[dict[str, Any]]:
    with (_RECORDED / "http_cases.jsonl").open(encoding="utf-8") as lines:
        for line in lines:
            case = json.loads(line)
            if case["group"] == group:
                yield case


def _answers() -> dict[str, Any]:
    return {
        case["request"]["path"].split("/")[3]: json.loads(case["response"]["body_text"])
        for case in _cases("config")
        if case["response"]["status"] == 200
    }


def _load_answers() -> dict[str, tuple[int, str]]:
    """Status and error text of each load, by model."""
    answers = {}
    for case in _cases("failing_load"):
        parts = case["request"]["path"].split("/")
        if parts[-1] == "load":
            text = case["response"]["body_text"]
            answers[parts[-2]] = (
                case["response"]["status"],
                json.loads(text)["error"] if text else "",
            )
    return answers


def _models(repository: str) -> list[str]:
    return sorted(path.name for path in (_RECORDED / repository).iterdir() if path.is_dir())


def _read(folder: Path) -> tuple[ModelConfig, Path | None]:
    """The normalized and early validated config, and the first version folder."""
    path = folder / "config.pbtxt"
    config = parse_config(path.read_text("utf-8"), str(path)) if path.exists() else ModelConfig()
    versions = sorted(entry for entry in folder.iterdir() if entry.is_dir())
    names = [entry.name for entry in versions[0].iterdir()] if versions else []
    normalize_config(config, directory_name=folder.name, artifact_names=names)
    validate_config(config)
    return config, versions[0] if versions else None


def _signature(path: Path) -> ArtifactSignature:
    graph = onnx.load(str(path)).graph
    with_values = {tensor.name for tensor in graph.initializer}
    tensors = [_tensor(value) for value in graph.input]
    return ArtifactSignature(
        [tensor for tensor in tensors if tensor.name not in with_values],
        [_tensor(value) for value in graph.output],
        [tensor for tensor in tensors if tensor.name in with_values],
    )


def _tensor(value: Any) -> ArtifactTensor:
    kind = value.type.tensor_type
    shape = tuple(dim.dim_value if dim.HasField("dim_value") else -1 for dim in kind.shape.dim)
    datatype: Datatype | None = BYTES
    if kind.elem_type != onnx.TensorProto.STRING:
        datatype = from_dtype(helper.tensor_dtype_to_np_dtype(kind.elem_type))
    return ArtifactTensor(value.name, datatype, shape)


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    return _answers()


@pytest.fixture(scope="module")
def load_answers() -> dict[str, tuple[int, str]]:
    return _load_answers()


def _sort_tensors(answer: dict[str, Any]) -> dict[str, Any]:
    # Triton completes tensors in the order of a hash map; ours is that of the model.
    for role in ("input", "output"):
        answer[role].sort(key=lambda tensor: tensor["name"])
    return answer


@pytest.mark.parametrize("name", _models("repository"))
def test_a_model_that_triton_loads_is_answered_as_triton_answers_it(
    name: str, answers: dict[str, Any]
) -> None:
    config, version = _read(_RECORDED / "repository" / name)
    if config.backend == "onnxruntime" and version is not None:
        signature = _signature(version / config.default_model_filename)
        complete_config(config, signature)
        check_against_artifact(config, signature)
    validate_for_load(config)

    answer = config_to_json(config)

    assert parse_config(format_config(config), "text") == config
    assert parse_config_json(json.dumps(answer)) == config
    if name in answers:
        assert list(answer) == list(answers[name])
        assert _sort_tensors(answer) == _sort_tensors(answers[name])


@pytest.mark.parametrize("name", _models("repository_failing"))
def test_a_model_that_triton_refuses_early_is_refused_early(
    name: str, load_answers: dict[str, tuple[int, str]]
) -> None:
    status, _ = load_answers[name]
    if status == 500:  # "failed to poll from model repository"
        with pytest.raises(NaiadError):
            _read(_RECORDED / "repository_failing" / name)
    else:
        _read(_RECORDED / "repository_failing" / name)


_DIFFERENCES = [
    name
    for name, (status, text) in _load_answers().items()
    if status == 400
    and "Invalid argument: " in text
    and "version 1 is at" in text
    # These are found by running the model, finding its backend, or loading other models. The
    # scalar is a difference on purpose: see docs/reference/differences.md.
    and not name.startswith(("ens_", "warm_", "unknown_backend", "nb_scalar"))
]


@pytest.mark.parametrize("name", _DIFFERENCES)
def test_a_config_that_does_not_fit_its_model_is_refused_with_the_recorded_text(
    name: str, load_answers: dict[str, tuple[int, str]]
) -> None:
    config, version = _read(_RECORDED / "repository_failing" / name)
    assert version is not None
    signature = _signature(version / config.default_model_filename)
    complete_config(config, signature)

    with pytest.raises(NaiadError) as caught:  # noqa: PT012  (Triton checks in these two steps)
        validate_for_load(config)
        check_against_artifact(config, signature)

    assert load_answers[name][1] == (
        f"load failed for model '{name}': version 1 is at UNAVAILABLE state: "
        f"{caught.value.reason()};\n"
    )
