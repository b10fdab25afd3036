"""Findings about values of a config, and their blocks."""

import json

import pytest

from naiad.inference.datatypes import FP32, INT64
from naiad.model_config.complete import ArtifactSignature, ArtifactTensor
from naiad.model_config.config_text import ConfigText
from naiad.model_config.diagnose import (
    Diagnosis,
    Finding,
    diagnose_settings,
    format_finding,
    locate,
    nearest,
)
from naiad.model_config.diagnose_tensors import Evidence, diagnose_tensors
from naiad.model_config.json_format import format_fields_json
from naiad.model_config.text_format import parse_config

SIGNATURE = ArtifactSignature(
    [ArtifactTensor("tokens", INT64, (-1, -1))], [ArtifactTensor("scores", FP32, (-1, 5))]
)


def diagnose(text: str, signature: ArtifactSignature = SIGNATURE) -> Diagnosis:
    diagnosis = Diagnosis(parse_config(text, "config.pbtxt"))
    has_size = "max_batch_size" in text
    diagnose_tensors(diagnosis, Evidence(signature, "model.onnx", has_size))
    return diagnosis


def codes(diagnosis: Diagnosis) -> list[str]:
    return [finding.code for finding in diagnosis.findings()]


def tensors(dims: str, name: str = "tokens", extra: str = "") -> str:
    tensor = f'{{ name: "{name}" data_type: TYPE_INT64 dims: {dims} {extra} }}'
    return f"max_batch_size: 8\ninput [ {tensor} ]"


@pytest.mark.parametrize(
    ("dims", "expected"),
    [
        ("[ -1 ]", []),
        ("[ -1, -1 ]", ["batch-axis-in-dims"]),
        ("[ 1, 16 ]", ["batch-axis-in-dims"]),
        ("[ 16 ]", ["fixed-dim"]),
        ("[ 0 ]", ["dims-differ"]),
        ("[ -1, -1, -1 ]", ["rank-differs"]),
        ("[ ]", ["rank-differs"]),
    ],
)
def test_dims(dims: str, expected: list[str]) -> None:
    diagnosis = diagnose(tensors(dims))

    assert codes(diagnosis) == expected
    assert list(diagnosis.result().input[0].dims) == [-1]


def test_reshape_is_what_the_model_sees() -> None:
    signature = ArtifactSignature([ArtifactTensor("tokens", INT64, (-1,))], [])

    assert codes(diagnose(tensors("[ 1 ]", extra="reshape { shape: [ ] }"), signature)) == []
    assert codes(diagnose(tensors("[ 1 ]"), signature)) == ["rank-differs"]


def test_scalar_gets_a_reshape() -> None:
    signature = ArtifactSignature([ArtifactTensor("tokens", INT64, (-1,))], [])

    (finding,) = diagnose(tensors("[ 2 ]"), signature).findings()

    assert "dims: [ 1 ]" in finding.block
    assert "reshape { }" in finding.block


def test_unknown_shape_is_not_judged() -> None:
    signature = ArtifactSignature([ArtifactTensor("tokens", None, None)], [])

    assert codes(diagnose(tensors("[ 7, 7 ]"), signature)) == []


def test_optional_input_may_be_a_value_in_the_graph() -> None:
    text = (
        tensors("[ -1 ]") + '\ninput [ { name: "k" data_type: TYPE_FP32 dims: 1 optional: true } ]'
    )

    assert codes(diagnose(text)) == []


def test_block_is_of_the_whole_correction() -> None:
    diagnosis = diagnose(tensors("[ -1, -1 ]", name="token").replace("INT64", "INT32"))

    assert codes(diagnosis) == ["unknown-input", "datatype-differs", "batch-axis-in-dims"]
    blocks = {finding.block for finding in diagnosis.findings()}
    assert blocks == {
        'input [\n  {\n    name: "tokens"\n    data_type: TYPE_INT64\n    dims: [ -1 ]\n  }\n]'
    }


def test_finding_as_people_read_it() -> None:
    text = tensors("[ -1, -1 ]")
    (finding,) = diagnose(text).findings()
    line, column = ConfigText(text).find(finding.path)

    place, problem, why, heading, *block = format_finding(finding, f"config.pbtxt:{line}:{column}")

    assert place == "config.pbtxt:2:48"
    assert problem == "[batch-axis-in-dims] The input 'tokens' has the dims [-1, -1]."
    assert "max_batch_size 8 puts the batch axis in front" in why
    assert heading == "Corrected:"
    assert block[0] == "  input ["


def test_block_as_json() -> None:
    (finding,) = diagnose(tensors("[ -1, -1 ]")).findings(format_fields_json)

    assert json.loads("{" + finding.block + "}") == {
        "input": [{"name": "tokens", "data_type": "TYPE_INT64", "dims": [-1]}]
    }


def test_fork_leaves_the_first_as_it_is() -> None:
    first = Diagnosis(parse_config(tensors("[ 3, 3 ]"), "c"))
    fork = first.fork()

    diagnose_tensors(fork, Evidence(SIGNATURE, "model.onnx", has_max_batch_size=True))

    assert codes(fork) == ["batch-axis-in-dims"]
    assert codes(first) == []
    assert first.result() == first.declared


def test_ignored_code() -> None:
    text = 'parameters { key: "naiad.check.ignore" value { string_value: "fixed-dim, no-gpu" } }\n'
    diagnosis = Diagnosis(parse_config(text, "c"))

    diagnosis.add(Finding("fixed-dim", "", ""))
    diagnosis.add(Finding("no-gpu", "", ""))

    assert codes(diagnosis) == ["no-gpu"]


@pytest.mark.parametrize(
    ("text", "gpu_ids", "code", "block"),
    [
        ("instance_group { kind: KIND_GPU }", (), "no-gpu", "kind: KIND_CPU"),
        ("instance_group { kind: KIND_GPU gpus: [ 0, 2 ] }", (0, 1), "gpu-id", "gpus: [ 0 ]"),
        ("instance_group { kind: KIND_GPU gpus: 7 }", (1,), "gpu-id", "gpus: [ 1 ]"),
        ("instance_group { kind: KIND_CPU gpus: 0 }", (0,), "gpus-without-kind", "KIND_CPU"),
        ("instance_group { gpus: 0 }", (), "gpu-id", "instance_group"),
        ("max_batch_size: -3", (), "max-batch-size-negative", "max_batch_size: 0"),
        (
            "dynamic_batching { priority_levels: 2 }",
            (),
            "priority-level",
            "default_priority_level: 1",
        ),
        (
            "max_batch_size: 8 dynamic_batching { preferred_batch_size: [ 16, 4, 0 ] }",
            (),
            "preferred-size",
            "preferred_batch_size: [ 4 ]",
        ),
        (
            "max_batch_size: 8 sequence_batching { oldest { preferred_batch_size: 9 } }",
            (),
            "preferred-size",
            "preferred_batch_size: [ 8 ]",
        ),
        ('input { name: "a" } input { name: "a" }', (), "duplicate-name", "take this input out"),
    ],
)
def test_settings(text: str, gpu_ids: tuple[int, ...], code: str, block: str) -> None:
    diagnosis = Diagnosis(parse_config(text, "c"))

    diagnose_settings(diagnosis, gpu_ids)

    (finding,) = diagnosis.findings()
    assert finding.code == code
    assert block in finding.block


def test_gpus_that_are_not_known_are_not_judged() -> None:
    diagnosis = Diagnosis(parse_config("instance_group { kind: KIND_GPU gpus: 9 }", "c"))

    diagnose_settings(diagnosis, None)

    assert diagnosis.findings() == []


def test_locate() -> None:
    config = parse_config('input { name: "a" } output { name: "b" } dynamic_batching { }', "c")

    assert locate("model output 'b' must specify 'dims' for m", config) == ("output", 0)
    assert locate("dynamic batching preferred size must be positive for m", config) == (
        "dynamic_batching",
        "preferred_batch_size",
    )
    for text in (
        "metric identifier must specify non-empty 'family'",
        "histogram options must specify 'buckets' in strictly ascending order",
    ):
        assert locate(text, config) == ("model_metrics",)
    assert locate("something else", config) == ()


def test_nearest() -> None:
    assert nearest("INPUT_ID", ["mask", "input_ids"]) == "input_ids"
    assert nearest("x", ["mask", "input_ids"]) is None
