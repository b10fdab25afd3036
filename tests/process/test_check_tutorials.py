"""The model repositories of two tutorials that many have copied: checked, mended, served, asked."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.process.test_check import check
from tests.process.test_serve_command import PORTS, ServeProcess
from tests.process.test_tritonserver_command import post
from tests.support.repository_builder import RepositoryBuilder

pytestmark = pytest.mark.slow

# The dims hold the batch axis, which max_batch_size adds by itself.
CLASSIFIER = """\
name: "text_classifier"
platform: "onnxruntime_onnx"
max_batch_size: 8
input [
  {
    name: "input_ids"
    data_type: TYPE_INT64
    dims: [ -1, -1 ]
  }
]
output [
  {
    name: "logits"
    data_type: TYPE_FP32
    dims: [ -1, 5 ]
  }
]
"""
# Names of TorchScript's convention, a file of another name, and batches of a model of batch 1.
RESNET = """\
name: "resnet"
platform: "onnxruntime_onnx"
max_batch_size : 32
input [
  {
    name: "input__0"
    data_type: TYPE_FP32
    dims: [ 3, 224, 224 ]
    reshape { shape: [ 1, 3, 224, 224 ] }
  }
]
output [
  {
    name: "output__0"
    data_type: TYPE_FP32
    dims: [ 1, 1000 ,1, 1]
    reshape { shape: [ 1, 1000 ] }
  }
]
"""
WEIGHTS = np.random.default_rng(5).standard_normal((8, 5)).astype(np.float32)


def make_model(nodes: list[onnx.NodeProto], value: Any, result: Any, **constants: Any) -> bytes:
    graph = helper.make_graph(
        nodes,
        "graph",
        [value],
        [result],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    content: bytes = helper.make_model(
        graph, opset_imports=opsets, ir_version=8
    ).SerializeToString()
    return content


def classifier() -> bytes:
    return make_model(
        [
            helper.make_node("Gather", ["table", "input_ids"], ["rows"]),
            helper.make_node("ReduceMean", ["rows"], ["mean"], axes=[1], keepdims=0),
            helper.make_node("MatMul", ["mean", "weights"], ["logits"]),
        ],
        helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "tokens"]),
        helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 5]),
        table=np.eye(64, 8, dtype=np.float32),
        weights=WEIGHTS,
    )


def resnet() -> bytes:
    return make_model(
        [
            helper.make_node("GlobalAveragePool", ["input.1"], ["pooled"]),
            helper.make_node("Flatten", ["pooled"], ["flat"]),
            helper.make_node("MatMul", ["flat", "head"], ["191"]),
        ],
        helper.make_tensor_value_info("input.1", TensorProto.FLOAT, [1, 3, 224, 224]),
        helper.make_tensor_value_info("191", TensorProto.FLOAT, [1, 1000]),
        head=np.full((3, 1000), 2, np.float32),
    )


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    builder = RepositoryBuilder(tmp_path)
    builder.add_onnx("text_classifier", classifier(), CLASSIFIER)
    builder.add_onnx("resnet", resnet(), RESNET, filename="resnet18.onnx")
    return tmp_path


@pytest.fixture
def started() -> Iterator[list[ServeProcess]]:
    processes: list[ServeProcess] = []
    yield processes
    for process in processes:
        process.close()


def test_a_tutorials_repository_serves_after_its_corrections(
    repository: Path, started: list[ServeProcess]
) -> None:
    found = check(repository, "--json", "-")
    assert found.returncode == 1
    models = {model["model"]: model["findings"] for model in json.loads(found.stdout)["models"]}
    assert [(f["code"], f["line"]) for f in models["text_classifier"]] == [
        ("batch-axis-in-dims", 8),
        ("batch-axis-in-dims", 15),
    ]
    codes = {(f["code"], f["line"]) for f in models["resnet"]}
    assert codes >= {
        ("model-file", 1),
        ("cannot-batch", 3),
        ("unknown-input", 6),
        ("unknown-output", 14),
    }
    assert check(repository, "--fix").returncode == 0
    assert check(repository).returncode == 0

    server = ServeProcess([*PORTS, str(repository)])
    started.append(server)
    tokens = {"name": "input_ids", "datatype": "INT64", "shape": [2, 3], "data": [0, 1, 2, 7, 7, 7]}
    answer = post(f"{server.http}/v2/models/text_classifier/infer", {"inputs": [tokens]})
    expected = np.stack([WEIGHTS[:3].mean(0), WEIGHTS[7]])
    np.testing.assert_allclose(
        np.reshape(answer["outputs"][0]["data"], (2, 5)), expected, rtol=1e-5
    )
    image = {
        "name": "input.1",
        "datatype": "FP32",
        "shape": [3, 224, 224],
        "data": [0.5] * (3 * 224 * 224),
    }
    answer = post(f"{server.http}/v2/models/resnet/infer", {"inputs": [image]})
    assert answer["outputs"][0]["shape"] == [1, 1000, 1, 1]
    assert answer["outputs"][0]["data"][:2] == pytest.approx([3, 3], rel=1e-4)
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
