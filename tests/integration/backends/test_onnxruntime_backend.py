"""The onnxruntime backend on models that the test builds."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from naiad.backends.base import ModelSource
from naiad.backends.onnxruntime.backend import OnnxRuntimeBackend
from naiad.backends.onnxruntime.options import make_run_options, make_session_options
from naiad.errors import InternalError, InvalidArgumentError, NaiadError, UnsupportedError
from naiad.inference import datatypes
from naiad.inference.datatypes import Datatype
from naiad.model_config.schema import ModelConfig, ModelInput, ModelOutput

Dims = Sequence[int | str]

ONNX_TYPES = {
    "BOOL": TensorProto.BOOL,
    "UINT8": TensorProto.UINT8,
    "UINT16": TensorProto.UINT16,
    "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64,
    "INT8": TensorProto.INT8,
    "INT16": TensorProto.INT16,
    "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64,
    "FP16": TensorProto.FLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "BYTES": TensorProto.STRING,
    "BF16": TensorProto.BFLOAT16,
}


def save(path: Path, model: onnx.ModelProto) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)


def make_model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    initializers: Sequence[onnx.TensorProto] = (),
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(initializers))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return model


def identity(onnx_type: int, dims: Dims) -> onnx.ModelProto:
    return make_model(
        [helper.make_node("Identity", ["IN"], ["OUT"])],
        [helper.make_tensor_value_info("IN", onnx_type, dims)],
        [helper.make_tensor_value_info("OUT", onnx_type, dims)],
    )


def make_source(
    directory: Path,
    datatype: str = "TYPE_FP32",
    dims: Sequence[int] = (-1,),
    max_batch_size: int = 8,
    parameters: Mapping[str, str] | None = None,
) -> ModelSource:
    config = ModelConfig(
        name="m",
        backend="onnxruntime",
        max_batch_size=max_batch_size,
        input=[ModelInput(name="IN", data_type=datatype, dims=dims)],
        output=[ModelOutput(name="OUT", data_type=datatype, dims=dims)],
    )
    for key, value in (parameters or {}).items():
        config.parameters[key].string_value = value
    return ModelSource("m", 1, config, directory)


def run(source: ModelSource, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    instance = OnnxRuntimeBackend().load(source).create_instance(0)
    (output,) = instance.execute({"IN": array}, ["OUT"])
    assert tuple(output.shape) == output.data.shape
    return output.data


def values_of(datatype: Datatype) -> npt.NDArray[Any]:
    if datatype is datatypes.BYTES:
        return np.array([[b"", "\N{SNOWMAN}".encode()], [b"a\x00b", b"x" * 1000]], np.object_)
    if datatype is datatypes.BF16:
        return np.array([[0x3F80, 0xC000], [0x0000, 0x7F80]], np.uint16)
    return np.array([[0, 1], [1, 0]]).astype(datatype.dtype)


@pytest.mark.parametrize("name", ONNX_TYPES)
def test_carries_every_datatype(name: str, tmp_path: Path) -> None:
    datatype = datatypes.BY_NAME[name]
    save(tmp_path / "model.onnx", identity(ONNX_TYPES[name], ["batch", 2]))
    rows = values_of(datatype)
    source = make_source(tmp_path, datatype.config_name, [2])
    instance = OnnxRuntimeBackend().load(source).create_instance(0)
    (output,) = instance.execute({"IN": rows}, ["OUT"])
    assert output.datatype is datatype
    assert output.data.dtype == datatype.dtype
    np.testing.assert_array_equal(output.data, rows)
    (empty,) = instance.execute({"IN": rows[:0]}, ["OUT"])
    assert empty.data.shape == (0, 2)


def test_bf16_arithmetic_happens_in_bf16(tmp_path: Path) -> None:
    model = make_model(
        [
            helper.make_node("Cast", ["IN"], ["wide"], to=TensorProto.FLOAT),
            helper.make_node("Add", ["wide", "wide"], ["twice"]),
            helper.make_node("Cast", ["twice"], ["OUT"], to=TensorProto.BFLOAT16),
        ],
        [helper.make_tensor_value_info("IN", TensorProto.BFLOAT16, ["batch", 2])],
        [helper.make_tensor_value_info("OUT", TensorProto.BFLOAT16, ["batch", 2])],
    )
    save(tmp_path / "model.onnx", model)
    doubled = run(make_source(tmp_path, "TYPE_BF16", [2]), np.array([[0x3F80, 0xC000]], np.uint16))
    np.testing.assert_array_equal(doubled, [[0x4000, 0xC080]])


def test_a_scalar_is_a_vector_of_one_to_clients(tmp_path: Path) -> None:
    save(tmp_path / "model.onnx", identity(TensorProto.FLOAT, []))
    source = make_source(tmp_path, dims=[1], max_batch_size=0)
    np.testing.assert_array_equal(run(source, np.array([3], np.float32)), [3])


def test_elements_need_not_be_utf8(tmp_path: Path) -> None:
    save(tmp_path / "model.onnx", identity(TensorProto.STRING, ["batch", 1]))
    source = make_source(tmp_path, "TYPE_STRING", [1])
    elements = np.array([[b"\xff\xfe"], [b"a\0b\0"], ["\N{SNOWMAN}".encode()]], np.object_)
    assert run(source, elements).tolist() == elements.tolist()


def test_completes_a_config_that_says_nothing(tmp_path: Path) -> None:
    save(tmp_path / "model.onnx", identity(TensorProto.FLOAT, ["batch", 3]))
    source = ModelSource("m", 1, ModelConfig(name="m"), tmp_path)
    OnnxRuntimeBackend().complete_config(source)
    assert source.config.max_batch_size == 4
    assert [(t.name, list(t.dims)) for t in source.config.input] == [("IN", [3])]
    assert [(t.name, list(t.dims)) for t in source.config.output] == [("OUT", [3])]
    assert source.config.HasField("dynamic_batching")


def test_the_servers_setting_decides_the_completed_batch_size(tmp_path: Path) -> None:
    save(tmp_path / "model.onnx", identity(TensorProto.FLOAT, ["batch", 3]))
    settings = {"default-max-batch-size": "16"}
    source = ModelSource("m", 1, ModelConfig(name="m"), tmp_path, settings)
    OnnxRuntimeBackend().complete_config(source)
    assert source.config.max_batch_size == 16


def test_completing_a_complete_config_needs_no_file(tmp_path: Path) -> None:
    OnnxRuntimeBackend().complete_config(make_source(tmp_path))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InternalError, match=r"failed to stat file .*model\.onnx"):
        OnnxRuntimeBackend().load(make_source(tmp_path))


def test_default_model_filename_and_directories_are_found(tmp_path: Path) -> None:
    save(tmp_path / "other.onnx" / "other.onnx", identity(TensorProto.FLOAT, ["batch", "n"]))
    source = make_source(tmp_path)
    source.config.default_model_filename = "other.onnx"
    np.testing.assert_array_equal(run(source, np.ones((1, 2), np.float32)), [[1, 1]])


def test_a_broken_file_gives_tritons_text(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"this is no protobuf message")
    with pytest.raises(InternalError) as failure:
        OnnxRuntimeBackend().load(make_source(tmp_path))
    path = tmp_path / "model.onnx"
    assert failure.value.message == (
        f"onnx runtime error 7: Load model from {path} failed:Protobuf parsing failed."
    )


def test_a_config_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "model.onnx", identity(TensorProto.FLOAT, ["batch", "n"]))
    with pytest.raises(InvalidArgumentError) as failure:
        OnnxRuntimeBackend().load(make_source(tmp_path, "TYPE_INT32"))
    assert failure.value.message == (
        "unable to load model 'm', configuration expects datatype TYPE_INT32 for input 'IN', "
        "model provides TYPE_FP32"
    )


def sequence_model() -> onnx.ModelProto:
    return make_model(
        [helper.make_node("SequenceConstruct", ["IN"], ["OUT"])],
        [helper.make_tensor_value_info("IN", TensorProto.FLOAT, ["batch"])],
        [helper.make_tensor_sequence_value_info("OUT", TensorProto.FLOAT, ["batch"])],
    )


def optional_model() -> onnx.ModelProto:
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, ["batch"])
    optional = helper.make_optional_type_proto(tensor)
    return make_model(
        [helper.make_node("Optional", ["IN"], ["OUT"])],
        [helper.make_tensor_value_info("IN", TensorProto.FLOAT, ["batch"])],
        [helper.make_value_info("OUT", optional)],
    )


def map_model() -> onnx.ModelProto:
    """What skl2onnx makes of a classifier: a map of probabilities for each row."""
    labels = onnx.TypeProto()
    labels.map_type.key_type = TensorProto.INT64
    labels.map_type.value_type.tensor_type.elem_type = TensorProto.FLOAT
    model = make_model(
        [helper.make_node("ZipMap", ["IN"], ["OUT"], domain="ai.onnx.ml", classlabels_int64s=[3])],
        [helper.make_tensor_value_info("IN", TensorProto.FLOAT, ["batch", 1])],
        [helper.make_value_info("OUT", helper.make_sequence_type_proto(labels))],
    )
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    return model


@pytest.mark.parametrize(
    ("build", "kind"),
    [
        (sequence_model, "seq(tensor(float))"),
        (optional_model, "optional(tensor(float))"),
        (map_model, "seq(map(int64,tensor(float)))"),
    ],
)
def test_what_is_no_tensor_is_refused(
    build: Callable[[], onnx.ModelProto], kind: str, tmp_path: Path
) -> None:
    save(tmp_path / "model.onnx", build())
    with pytest.raises(UnsupportedError) as failure:
        OnnxRuntimeBackend().load(make_source(tmp_path))
    assert f"output 'OUT' is a {kind}; only tensors" in failure.value.message
    source = make_source(tmp_path)
    source.config.ClearField("output")
    with pytest.raises(UnsupportedError, match="only tensors of the protocol's datatypes"):
        OnnxRuntimeBackend().complete_config(source)


def test_a_failing_operator_gives_tritons_text(tmp_path: Path) -> None:
    model = make_model(
        [helper.make_node("Reshape", ["IN", "shape"], ["OUT"])],
        [helper.make_tensor_value_info("IN", TensorProto.FLOAT, ["batch", "n"])],
        [helper.make_tensor_value_info("OUT", TensorProto.FLOAT, ["batch", "n"])],
        [helper.make_tensor("shape", TensorProto.INT64, [2], [-1, 4])],
    )
    save(tmp_path / "model.onnx", model)
    source = make_source(tmp_path)
    source.config.output[0].dims[:] = [4]
    with pytest.raises(InternalError, match=r"^onnx runtime error \d+: Non-zero status code"):
        run(source, np.ones((1, 3), np.float32))


def test_an_optional_input_has_the_models_value(tmp_path: Path) -> None:
    model = make_model(
        [helper.make_node("Add", ["IN", "bias"], ["OUT"])],
        [
            helper.make_tensor_value_info("IN", TensorProto.FLOAT, ["n"]),
            helper.make_tensor_value_info("bias", TensorProto.FLOAT, [1]),
        ],
        [helper.make_tensor_value_info("OUT", TensorProto.FLOAT, ["n"])],
        [helper.make_tensor("bias", TensorProto.FLOAT, [1], [100.0])],
    )
    save(tmp_path / "model.onnx", model)
    source = make_source(tmp_path, max_batch_size=0)
    source.config.input.add(name="bias", data_type="TYPE_FP32", dims=[1], optional=True)
    instance = OnnxRuntimeBackend().load(source).create_instance(0)
    one = np.ones(2, np.float32)
    (without,) = instance.execute({"IN": one}, ["OUT"])
    (given,) = instance.execute({"IN": one, "bias": np.array([5], np.float32)}, ["OUT"])
    np.testing.assert_array_equal(without.data, [101, 101])
    np.testing.assert_array_equal(given.data, [6, 6])


def test_an_output_is_the_memory_that_onnxruntime_wrote_it_to(tmp_path: Path) -> None:
    save(tmp_path / "model.onnx", identity(TensorProto.FLOAT, ["batch", "n"]))
    instance = OnnxRuntimeBackend().load(make_source(tmp_path)).create_instance(0)
    (output,) = instance.execute({"IN": np.ones((4, 1 << 16), np.float32)}, ["OUT"])
    # What numpy has copied, it owns.
    assert not output.data.flags.owndata
    assert not isinstance(output.data.base, np.ndarray)


def test_only_wanted_outputs_are_given(tmp_path: Path) -> None:
    model = make_model(
        [
            helper.make_node("Neg", ["IN"], ["A"]),
            helper.make_node("Cast", ["IN"], ["B"], to=TensorProto.BFLOAT16),
        ],
        [helper.make_tensor_value_info("IN", TensorProto.FLOAT, ["batch", "n"])],
        [
            helper.make_tensor_value_info("A", TensorProto.FLOAT, ["batch", "n"]),
            helper.make_tensor_value_info("B", TensorProto.BFLOAT16, ["batch", "n"]),
        ],
    )
    save(tmp_path / "model.onnx", model)
    source = ModelSource("m", 1, ModelConfig(name="m"), tmp_path)
    backend = OnnxRuntimeBackend()
    backend.complete_config(source)
    instance = backend.load(source).create_instance(0)
    rows = {"IN": np.ones((1, 1), np.float32)}
    assert [t.name for t in instance.execute(rows, ["A"])] == ["A"]
    b, a = instance.execute(rows, ["B", "A"])
    assert (b.name, b.data.item(), a.name, a.data.item()) == ("B", 0x3F80, "A", -1.0)


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("intra_op_thread_count", "many", "must be a number of at least 0, got 'many'"),
        ("execution_mode", "2", "Expected values for  execution_mode are 0 or 1 but got 2 ."),
        ("enable_mem_arena", "perhaps", "must be true or false, got 'perhaps'"),
    ],
)
def test_parameters_that_can_not_be_are_refused(
    key: str, value: str, text: str, tmp_path: Path
) -> None:
    save(tmp_path / "model.onnx", identity(TensorProto.FLOAT, ["batch", "n"]))
    with pytest.raises(InvalidArgumentError) as failure:
        OnnxRuntimeBackend().load(make_source(tmp_path, parameters={key: value}))
    assert text in failure.value.message


def test_every_parameter_is_taken(tmp_path: Path) -> None:
    save(tmp_path / "model.onnx", identity(TensorProto.FLOAT, ["batch", "n"]))
    parameters = {
        "intra_op_thread_count": "2",
        "inter_op_thread_count": "2",
        "execution_mode": "1",
        "enable_mem_arena": "1",
        "enable_mem_pattern": "false",
        "memory.enable_memory_arena_shrinkage": "cpu:0",
        "session.use_device_allocator_for_initializers": "1",
        "session.intra_op.allow_spinning": "1",
    }
    source = make_source(tmp_path, parameters=parameters)
    source.config.optimization.graph.level = -1
    np.testing.assert_array_equal(run(source, np.ones((1, 2), np.float32)), [[1, 1]])


@pytest.mark.parametrize(
    ("key", "value", "option", "expected"),
    [
        ("intra_op_thread_count", "3", "intra_op_num_threads", 3),
        ("intra_op_thread_count", "0", "intra_op_num_threads", 7),
        ("inter_op_thread_count", "2", "inter_op_num_threads", 2),
        ("inter_op_thread_count", "0", "inter_op_num_threads", 0),
        ("execution_mode", "0", "execution_mode", onnxruntime.ExecutionMode.ORT_SEQUENTIAL),
        ("execution_mode", "1", "execution_mode", onnxruntime.ExecutionMode.ORT_PARALLEL),
        ("enable_mem_arena", "0", "enable_cpu_mem_arena", False),
        ("enable_mem_arena", "1", "enable_cpu_mem_arena", True),
        ("enable_mem_pattern", "0", "enable_mem_pattern", False),
        ("enable_mem_pattern", "1", "enable_mem_pattern", True),
    ],
)
def test_a_parameter_is_the_option_that_triton_makes_of_it(
    key: str, value: str, option: str, expected: object, tmp_path: Path
) -> None:
    source = replace(make_source(tmp_path, parameters={key: value}), core_count=7)
    assert getattr(make_session_options(source), option) == expected


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        (0, onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL),
        (-1, onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC),
        (1, onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED),
        (2, onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL),
    ],
)
def test_a_level_of_the_graph_is_tritons(
    level: int, expected: onnxruntime.GraphOptimizationLevel, tmp_path: Path
) -> None:
    source = make_source(tmp_path)
    source.config.optimization.graph.level = level
    assert make_session_options(source).graph_optimization_level == expected


def test_the_shrinkage_of_the_arena_is_an_option_of_every_run(tmp_path: Path) -> None:
    key = "memory.enable_memory_arena_shrinkage"
    options = make_run_options(make_source(tmp_path, parameters={key: "cpu:0"}))
    assert options is not None
    assert options.get_run_config_entry(key) == "cpu:0"
    assert make_run_options(make_source(tmp_path)) is None


@pytest.mark.parametrize(
    "key", ["session.intra_op.allow_spinning", "session.inter_op.allow_spinning"]
)
def test_threads_spin_only_for_a_model_that_asks_for_it(key: str, tmp_path: Path) -> None:
    quiet = make_session_options(make_source(tmp_path))
    asking = make_session_options(make_source(tmp_path, parameters={key: "1"}))
    assert quiet.get_session_config_entry(key) == "0"
    assert asking.get_session_config_entry(key) == "1"


def test_nothing_is_printed_about_a_failing_model(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.onnx").write_bytes(b"broken")
    with pytest.raises(InternalError):
        OnnxRuntimeBackend().load(make_source(tmp_path))
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("", "")


def test_a_scalar_has_as_many_dims_of_one_as_the_config_says(tmp_path: Path) -> None:
    save(tmp_path / "model.onnx", identity(TensorProto.FLOAT, []))
    source = make_source(tmp_path, dims=[1, 1], max_batch_size=0)
    np.testing.assert_array_equal(run(source, np.array([[3]], np.float32)), [[3]])


def test_a_scalar_with_a_reshape_stays_one_to_the_model(tmp_path: Path) -> None:
    save(tmp_path / "model.onnx", identity(TensorProto.FLOAT, []))
    source = ModelSource("m", 1, ModelConfig(name="m"), tmp_path)
    OnnxRuntimeBackend().complete_config(source)
    assert source.config.input[0].HasField("reshape")
    np.testing.assert_array_equal(run(source, np.array(3, np.float32)), 3)


def test_a_model_without_inputs_gives_its_outputs(tmp_path: Path) -> None:
    value = helper.make_tensor("value", TensorProto.FLOAT, [2], [1.0, 2.0])
    model = make_model(
        [helper.make_node("Constant", [], ["OUT"], value=value)],
        [],
        [helper.make_tensor_value_info("OUT", TensorProto.FLOAT, [2])],
    )
    save(tmp_path / "model.onnx", model)
    source = ModelSource("m", 1, ModelConfig(name="m"), tmp_path)
    backend = OnnxRuntimeBackend()
    backend.complete_config(source)
    (output,) = backend.load(source).create_instance(0).execute({}, ["OUT"])
    np.testing.assert_array_equal(output.data, [1, 2])


def test_external_data_lies_beside_the_model(tmp_path: Path) -> None:
    weights = np.arange(2048, dtype=np.float32)
    model = make_model(
        [helper.make_node("Add", ["IN", "w"], ["OUT"])],
        [helper.make_tensor_value_info("IN", TensorProto.FLOAT, ["batch", 2048])],
        [helper.make_tensor_value_info("OUT", TensorProto.FLOAT, ["batch", 2048])],
        [onnx.numpy_helper.from_array(weights, "w")],
    )
    folder = tmp_path / "model.onnx"
    folder.mkdir()
    onnx.save(model, folder / "model.onnx", save_as_external_data=True, location="weights.bin")
    assert (folder / "weights.bin").stat().st_size == weights.nbytes
    np.testing.assert_array_equal(
        run(make_source(tmp_path, dims=[2048]), np.ones((1, 2048), np.float32)), [weights + 1]
    )


def save_lying_model(directory: Path) -> ModelSource:
    """Declares four numbers, and gives them in the shape that its input names."""
    model = make_model(
        [
            helper.make_node("Cast", ["IN"], ["shape"], to=TensorProto.INT64),
            helper.make_node("Reshape", ["numbers", "shape"], ["OUT"]),
        ],
        [helper.make_tensor_value_info("IN", TensorProto.FLOAT, ["n"])],
        [helper.make_tensor_value_info("OUT", TensorProto.FLOAT, [4])],
        [helper.make_tensor("numbers", TensorProto.FLOAT, [4], [1.0, 2.0, 3.0, 4.0])],
    )
    save(directory / "model.onnx", model)
    source = make_source(directory, max_batch_size=0)
    source.config.output[0].dims[:] = [4]
    return source


def test_an_output_of_another_shape_than_declared_is_passed_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = save_lying_model(tmp_path)
    np.testing.assert_array_equal(run(source, np.array([2, 2], np.float32)), [[1, 2], [3, 4]])
    assert "has the shape [2,2], which its config declares as [4]" in caplog.text


def test_a_parameter_makes_another_shape_an_error(tmp_path: Path) -> None:
    source = save_lying_model(tmp_path)
    source.config.parameters["strict_output_shapes"].string_value = "true"
    np.testing.assert_array_equal(run(source, np.array([4], np.float32)), [1, 2, 3, 4])
    with pytest.raises(InternalError, match=r"has the shape \[2,2\]"):
        run(source, np.array([2, 2], np.float32))


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("missing.so", InvalidArgumentError, "there is no op_library_filename 'missing.so'"),
        ("../../outside.so", InvalidArgumentError, "is outside of the model folder"),
        ("/etc/hostname", InvalidArgumentError, "is outside of the model folder"),
        ("broken.so", InternalError, "onnx runtime error 1: Failed to load library"),
    ],
)
def test_a_library_of_operators_that_can_not_be_loaded_is_refused(
    name: str, kind: type[NaiadError], text: str, tmp_path: Path
) -> None:
    version = tmp_path / "m" / "1"
    save(version / "model.onnx", identity(TensorProto.FLOAT, ["batch", "n"]))
    (tmp_path / "outside.so").write_bytes(b"no library")
    (tmp_path / "m" / "broken.so").write_bytes(b"no library")
    source = make_source(version)
    source.config.model_operations.op_library_filename.append(name)
    with pytest.raises(kind) as failure:
        OnnxRuntimeBackend().load(source)
    assert text in failure.value.message


def test_an_accelerator_that_is_not_installed_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "model.onnx", identity(TensorProto.FLOAT, ["batch", "n"]))
    source = make_source(tmp_path)
    accelerators = source.config.optimization.execution_accelerators
    accelerators.cpu_execution_accelerator.add(name="openvino")
    with pytest.raises(UnsupportedError, match="Install onnxruntime-openvino in place of"):
        OnnxRuntimeBackend().load(source)


@pytest.mark.slow
def test_the_global_thread_pool_serves_all_models_of_the_process(tmp_path: Path) -> None:
    # In a process of its own: the pools can't be made twice, nor taken away.
    save(tmp_path / "model.onnx", identity(TensorProto.FLOAT, ["batch", "n"]))
    script = f"""
import threading, os
from pathlib import Path
import numpy as np
from naiad.backends.base import ModelSource
from naiad.backends.onnxruntime.backend import OnnxRuntimeBackend
from naiad.model_config.schema import ModelConfig

settings = {{"enable-global-threadpool": "1", "intra_op_thread_count": "3"}}
backend = OnnxRuntimeBackend()
counts = []
for index in range(3):
    source = ModelSource(f"m{{index}}", 1, ModelConfig(), Path({str(tmp_path)!r}), settings, 4)
    backend.complete_config(source)
    instance = backend.load(source).create_instance(0)
    (output,) = instance.execute({{"IN": np.ones((1, 2), np.float32)}}, ["OUT"])
    assert output.data.tolist() == [[1, 1]]
    counts.append(len(os.listdir("/proc/self/task")))
assert counts[0] == counts[1] == counts[2], counts
"""
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=500
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("key", "value"), [("enable-global-threadpool", "maybe"), ("intra_op_thread_count", "-1")]
)
def test_settings_of_the_server_that_can_not_be_are_refused(
    key: str, value: str, tmp_path: Path
) -> None:
    save(tmp_path / "model.onnx", identity(TensorProto.FLOAT, ["batch", "n"]))
    source = replace(make_source(tmp_path), settings={key: value})
    with pytest.raises(InvalidArgumentError, match=f"--backend-config=onnxruntime,{key} must be"):
        OnnxRuntimeBackend().load(source)


def test_a_session_has_as_many_threads_as_cores_that_it_is_kept_to(tmp_path: Path) -> None:
    save(tmp_path / "model.onnx", identity(TensorProto.FLOAT, ["batch", "n"]))
    cores = (frozenset({0, 1}), frozenset({2, 3, 4}), None)
    source = replace(make_source(tmp_path), core_count=8, cores=cores)
    options = [make_session_options(source.for_instance(index)) for index in range(3)]
    assert [option.intra_op_num_threads for option in options] == [2, 3, 8]


def test_instances_share_a_session_and_all_cores_unless_told_not_to(tmp_path: Path) -> None:
    save(tmp_path / "model.onnx", identity(TensorProto.FLOAT, ["batch", "n"]))

    def threads(parameters: Mapping[str, str]) -> tuple[int, int]:
        """How many a session gets, and how many more two instances bring."""
        source = replace(make_source(tmp_path, parameters=parameters), thread_count=3, core_count=6)
        count = make_session_options(source).intra_op_num_threads
        model = OnnxRuntimeBackend().load(source)
        before = len(os.listdir("/proc/self/task"))
        instances = [model.create_instance(index) for index in range(2)]
        more = len(os.listdir("/proc/self/task")) - before
        assert len(instances) == 2
        return count, more

    assert threads({}) == (6, 0)
    assert threads({"share_session_between_instances": "true"}) == (6, 0)
    # The second session has the caller's thread and two of its own.
    assert threads({"share_session_between_instances": "false"}) == (3, 2)
    assert threads({"intra_op_thread_count": "2"}) == (2, 0)
