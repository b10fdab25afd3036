"""A model with operators that onnxruntime does not have, from a library in its folder."""

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tests.support.wheels import require_wheel

from naiad.backends.base import ModelSource
from naiad.backends.onnxruntime.backend import OnnxRuntimeBackend
from naiad.errors import InternalError
from naiad.model_config.schema import ModelConfig

pytestmark = pytest.mark.slow
DOMAIN = "ai.onnx.contrib"


def upper_model() -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("StringUpper", ["IN"], ["OUT"], domain=DOMAIN)],
        "g",
        [helper.make_tensor_value_info("IN", TensorProto.STRING, ["batch", 1])],
        [helper.make_tensor_value_info("OUT", TensorProto.STRING, ["batch", 1])],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def make_source(folder: Path) -> ModelSource:
    version = folder / "shout" / "1"
    version.mkdir(parents=True)
    onnx.save(upper_model(), version / "model.onnx")
    return ModelSource("shout", 1, ModelConfig(name="shout"), version)


def test_a_library_in_the_model_folder_brings_its_operators(tmp_path: Path) -> None:
    wheel = require_wheel("onnxruntime-extensions==0.15.2", "onnxruntime_extensions/*")
    (library,) = (wheel / "onnxruntime_extensions").glob("_extensions_pydll.*.so")
    source = make_source(tmp_path)
    shutil.copy(library, tmp_path / "shout" / "operators.so")
    source.config.model_operations.op_library_filename.append("operators.so")
    backend = OnnxRuntimeBackend()
    backend.complete_config(source)
    model = backend.load(source)

    for index in range(2):
        instance = model.create_instance(index)
        (output,) = instance.execute({"IN": np.array([[b"quiet"]], np.object_)}, ["OUT"])
        assert output.data.tolist() == [[b"QUIET"]]


def test_without_the_library_the_operator_is_named(tmp_path: Path) -> None:
    with pytest.raises(InternalError, match="StringUpper"):
        OnnxRuntimeBackend().complete_config(make_source(tmp_path))
