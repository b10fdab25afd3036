"""The openvino backend on models that the test builds."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper
from tests.support.repository_builder import identity_model, mlp_model

from naiad.backends.base import ModelSource
from naiad.backends.cores import kept_to
from naiad.errors import InternalError, InvalidArgumentError, NaiadError, UnsupportedError
from naiad.inference import datatypes
from naiad.inference.datatypes import BY_NAME, BYTES, FP32, Datatype
from naiad.model_config.schema import ModelConfig, ModelInput, ModelOutput

openvino = pytest.importorskip("openvino", reason="the extra openvino is not installed")

from naiad.backends.openvino.backend import OpenVinoBackend  # noqa: E402
from naiad.backends.openvino.options import make_properties  # noqa: E402


def make_source(
    folder: Path,
    model: bytes,
    datatype: Datatype = FP32,
    dims: Sequence[int] = (-1,),
    max_batch_size: int = 8,
    parameters: Mapping[str, str] | None = None,
) -> ModelSource:
    """The ONNX file is the model itself; `as_ir` makes an IR of it."""
    version = folder / "m" / "1"
    version.mkdir(parents=True)
    (version / "model.onnx").write_bytes(model)
    config = ModelConfig(
        name="m",
        backend="openvino",
        default_model_filename="model.onnx",
        max_batch_size=max_batch_size,
        input=[ModelInput(name="IN", data_type=datatype.config_name, dims=dims)],
        output=[ModelOutput(name="OUT", data_type=datatype.config_name, dims=dims)],
    )
    for key, value in (parameters or {}).items():
        config.parameters[key].string_value = value
    return ModelSource("m", 1, config, version, thread_count=2)


def as_ir(source: ModelSource) -> ModelSource:
    model = openvino.Core().read_model(source.version_directory / "model.onnx")
    openvino.save_model(model, source.version_directory / "model.xml", compress_to_fp16=False)
    source.config.default_model_filename = "model.xml"
    return source


def run(source: ModelSource, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    instance = OpenVinoBackend().load(source).create_instance(0)
    (output,) = instance.execute({"IN": array}, ["OUT"])
    assert tuple(output.shape) == output.data.shape
    return output.data


@pytest.mark.parametrize("form", ["onnx", "ir"])
@pytest.mark.parametrize("name", [name for name in BY_NAME if name != "BYTES"])
def test_carries_every_datatype_but_text(name: str, form: str, tmp_path: Path) -> None:
    datatype = BY_NAME[name]
    source = make_source(tmp_path, identity_model(datatype, ["batch", 2]), datatype, [2])
    if form == "ir":
        as_ir(source)
    rows = np.array([[0, 1], [1, 0]]).astype(datatype.dtype)
    if datatype is datatypes.BF16:
        rows = np.array([[0x3F80, 0xC000], [0, 0x7F80]], np.uint16)
    rows.flags.writeable = False

    given = run(source, rows)

    assert given.dtype == datatype.dtype
    np.testing.assert_array_equal(given, rows)


def test_text_is_refused_with_what_to_do(tmp_path: Path) -> None:
    source = make_source(tmp_path, identity_model(BYTES), BYTES)
    with pytest.raises(UnsupportedError, match="can be served by the backend onnxruntime"):
        OpenVinoBackend().load(source)


def test_computes_what_numpy_computes(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    weights = [random.standard_normal(shape).astype(np.float32) for shape in ((6, 32), (32, 3))]
    source = as_ir(make_source(tmp_path, mlp_model(weights), dims=[6]))
    source.config.output[0].dims[:] = [3]
    rows = random.standard_normal((5, 6)).astype(np.float32)

    wanted = np.maximum(rows @ weights[0], 0) @ weights[1]

    np.testing.assert_allclose(run(source, rows), wanted, rtol=1e-5, atol=1e-5)


def test_completes_a_config_that_says_nothing(tmp_path: Path) -> None:
    source = as_ir(make_source(tmp_path, identity_model(FP32, ["batch", 3])))
    config = source.config
    config.ClearField("input")
    config.ClearField("output")
    config.max_batch_size = 0

    OpenVinoBackend().complete_config(source)

    assert config.max_batch_size == 4
    assert [(t.name, list(t.dims)) for t in config.input] == [("IN", [3])]
    assert [(t.name, list(t.dims)) for t in config.output] == [("OUT", [3])]


def test_a_scalar_stays_one_to_the_model(tmp_path: Path) -> None:
    source = make_source(tmp_path, identity_model(FP32, []), dims=[1], max_batch_size=0)
    source.config.input[0].reshape.SetInParent()
    source.config.output[0].reshape.SetInParent()
    np.testing.assert_array_equal(run(source, np.array(3, np.float32)), 3)


def test_a_batch_of_one_in_the_file_is_opened(tmp_path: Path) -> None:
    source = as_ir(make_source(tmp_path, identity_model(FP32, [1, 3]), dims=[3]))
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    np.testing.assert_array_equal(run(source, rows), rows)


def test_a_batch_of_one_stays_where_the_config_says_so(tmp_path: Path) -> None:
    parameters = {"SKIP_OV_DYNAMIC_BATCHSIZE": "YES"}
    model = identity_model(FP32, [1, 3])
    source = make_source(tmp_path, model, dims=[3], parameters=parameters)
    with pytest.raises(InvalidArgumentError, match="for the model to support batching the shape"):
        OpenVinoBackend().load(source)


def test_a_batch_that_can_not_be_opened_says_what_to_do(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Add", ["IN", "c"], ["sum"]),
         helper.make_node("Reshape", ["sum", "shape"], ["OUT"])],
        "g",
        [helper.make_tensor_value_info("IN", TensorProto.FLOAT, [1, 3])],
        [helper.make_tensor_value_info("OUT", TensorProto.FLOAT, [1, 3])],
        [helper.make_tensor("c", TensorProto.FLOAT, [2, 1, 3], [0.0] * 6),
         helper.make_tensor("shape", TensorProto.INT64, [2], [2, 3])],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    source = make_source(tmp_path, model.SerializeToString(), dims=[3])
    with pytest.raises(NaiadError, match=r"batch|dimension"):
        OpenVinoBackend().load(source)


def test_threads_and_precision_have_their_defaults_and_triton_names(tmp_path: Path) -> None:
    source = make_source(tmp_path, identity_model())
    assert make_properties(source) == {
        "INFERENCE_NUM_THREADS": 2,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
    }
    for key, value in {
        "INFERENCE_NUM_THREADS": "1",
        "PERFORMANCE_HINT": "THROUGHPUT",
        "HINT_BF16": "YES",
        "NUM_STREAMS": "1",
        "COMPILATION_NUM_THREADS": "1",
    }.items():
        source.config.parameters[key].string_value = value
    assert make_properties(source) == {
        "INFERENCE_NUM_THREADS": 1,
        "PERFORMANCE_HINT": "THROUGHPUT",
        "INFERENCE_PRECISION_HINT": "bf16",
        "NUM_STREAMS": "1",
    }
    np.testing.assert_array_equal(run(source, np.ones((1, 2), np.float32)), [[1, 1]])


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("INFERENCE_NUM_THREADS", "all", "must be a number of at least 0, got 'all'"),
        ("HINT_BF16", "perhaps", "must be YES or NO, got 'PERHAPS'"),
        ("CPU_EXTENSION_PATH", "../../lib.so", "no CPU_EXTENSION_PATH '../../lib.so' in the model"),
        ("CPU_EXTENSION_PATH", "missing.so", "no CPU_EXTENSION_PATH 'missing.so' in the model"),
        ("PERFORMANCE_HINT", "FAST", "openvino error: "),
    ],
)
def test_parameters_that_can_not_be_are_refused(
    key: str, value: str, text: str, tmp_path: Path
) -> None:
    source = make_source(tmp_path, identity_model(), parameters={key: value})
    (tmp_path / "lib.so").write_bytes(b"no library")
    with pytest.raises(NaiadError) as failure:
        OpenVinoBackend().load(source).create_instance(0)
    assert text in failure.value.message


def test_a_thread_that_is_kept_to_cores_stays_on_them(tmp_path: Path) -> None:
    cores = frozenset({max(os.sched_getaffinity(0))})
    source = make_source(tmp_path, identity_model())
    source = replace(source, thread_count=5, core_count=8, cores=(cores, None))
    model = OpenVinoBackend().load(source)
    with kept_to(cores):
        instance = model.create_instance(0)
        instance.execute({"IN": np.ones((2, 3), np.float32)}, ["OUT"])
        assert os.sched_getaffinity(0) == cores
    counts = [
        make_properties(source.for_instance(index))["INFERENCE_NUM_THREADS"] for index in (0, 1)
    ]
    assert counts == [1, 5]


def test_a_broken_file_is_an_error_in_one_line(tmp_path: Path) -> None:
    source = make_source(tmp_path, b"this is no model")
    with pytest.raises(InternalError) as failure:
        OpenVinoBackend().load(source)
    assert failure.value.message.startswith("openvino error: Unable to read the model")
    assert "\n" not in failure.value.message


def test_an_input_of_the_batch_before_is_not_taken_for_one_that_is_missing(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Add", ["IN", "IN2"], ["OUT"])],
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["b", 2]) for n in ("IN", "IN2")],
        [helper.make_tensor_value_info("OUT", TensorProto.FLOAT, ["b", 2])],
    )
    model: onnx.ModelProto = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    source = make_source(tmp_path, model.SerializeToString(), dims=[2])
    source.config.input.add(name="IN2", data_type="TYPE_FP32", dims=[2])
    instance = OpenVinoBackend().load(source).create_instance(0)
    one = np.ones((1, 2), np.float32)
    (output,) = instance.execute({"IN": one, "IN2": one}, ["OUT"])
    np.testing.assert_array_equal(output.data, [[2, 2]])
    with pytest.raises(InvalidArgumentError, match="input 'IN2' of model 'm' is missing"):
        instance.execute({"IN": one}, ["OUT"])
