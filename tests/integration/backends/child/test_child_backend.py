"""A backend's models in processes of their own, with a backend that is imported quickly."""

import dataclasses
import gc
import logging
import os
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper
from tests.support.repository_builder import identity_model

from naiad.backends.base import Backend, Instance, ModelSource
from naiad.backends.child.backend import ChildBackend
from naiad.backends.onnxruntime.backend import OnnxRuntimeBackend
from naiad.errors import NaiadError
from naiad.inference.datatypes import BF16, BYTES, Datatype
from naiad.model_config.normalize import normalize_config
from naiad.model_config.schema import ModelConfig, ModelInput, ModelOutput

pytestmark = pytest.mark.slow


def make_source(directory: Path, content: bytes, datatype: str = "TYPE_FP32") -> ModelSource:
    (directory / "model.onnx").write_bytes(content)
    config = ModelConfig(
        name="m",
        backend="onnxruntime",
        max_batch_size=8,
        input=[ModelInput(name="IN", data_type=datatype, dims=[-1])],
        output=[ModelOutput(name="OUT", data_type=datatype, dims=[-1])],
    )
    config.instance_group.add(name="m", kind="KIND_CPU", count=2)
    return ModelSource("m", 1, config, directory, thread_count=1, core_count=1)


def copy_of(source: ModelSource) -> ModelSource:
    config = ModelConfig()
    config.CopyFrom(source.config)
    return dataclasses.replace(source, config=config)


def make_instance(backend: Backend, source: ModelSource, index: int = 0) -> Instance:
    return cast("Instance", backend.load(source).create_instance(index))


def in_child() -> ChildBackend:
    return ChildBackend("onnxruntime", ())


def test_the_process_completes_the_config_as_the_server_would(tmp_path: Path) -> None:
    source = make_source(tmp_path, identity_model())
    source.config.ClearField("input")
    source.config.ClearField("output")
    normalize_config(source.config, directory_name="m", artifact_names=["model.onnx"])
    other = copy_of(source)
    in_child().complete_config(source)
    OnnxRuntimeBackend().complete_config(other)
    assert source.config == other.config
    assert source.config.input[0].name == "IN"


@pytest.mark.parametrize("name", ["IN", "NONESUCH"])
def test_a_failure_of_the_load_has_the_text_and_kind_that_it_has_in_the_server(
    tmp_path: Path, name: str
) -> None:
    content = identity_model() if name == "NONESUCH" else b"no model"
    source = make_source(tmp_path, content)
    source.config.input[0].name = name

    def failure_of(backend: Backend) -> NaiadError:
        with pytest.raises(NaiadError) as failure:
            backend.load(source).create_instance(0)
        return failure.value

    here, there = failure_of(OnnxRuntimeBackend()), failure_of(in_child())
    assert (type(there), there.message) == (type(here), here.message)


@pytest.mark.parametrize(
    ("datatype", "array"),
    [
        (BYTES, np.array([[b"", b"\xff\x00text"]], np.object_)),
        (BF16, np.array([[0x3F80, 0x4000]], np.uint16)),
    ],
)
def test_datatypes_that_numpy_lacks_cross(
    tmp_path: Path, datatype: Datatype, array: npt.NDArray[Any]
) -> None:
    source = make_source(tmp_path, identity_model(datatype), datatype.config_name)
    instance = make_instance(in_child(), source, 1)
    (output,) = instance.execute({"IN": array}, ["OUT"])
    instance.close()
    assert output.datatype is datatype
    np.testing.assert_array_equal(output.data, array)


def test_a_failure_of_a_batch_has_the_text_that_it_has_in_the_server(tmp_path: Path) -> None:
    source = make_source(tmp_path, identity_model())
    rows = {"IN": np.ones((1, 2, 3), np.float32)}

    def failure_of(backend: Backend) -> NaiadError:
        instance = make_instance(backend, source)
        with pytest.raises(NaiadError) as failure:
            instance.execute(rows, ["OUT"])
        instance.close()
        return failure.value

    here, there = failure_of(OnnxRuntimeBackend()), failure_of(in_child())
    assert (type(there), there.message) == (type(here), here.message)


def test_what_the_backend_logs_is_in_the_servers_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = helper.make_node("Concat", ["IN", "IN"], ["OUT"], axis=1)
    tensors = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", length])
        for name, length in (("IN", "n"), ("OUT", 2))
    ]
    graph = helper.make_graph([node], "g", tensors[:1], tensors[1:])
    model: onnx.ModelProto = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    source = make_source(tmp_path, model.SerializeToString())
    source.config.output[0].dims[:] = [2]
    instance = make_instance(in_child(), source)
    with caplog.at_level(logging.WARNING):
        instance.execute({"IN": np.ones((1, 2), np.float32)}, ["OUT"])
        instance.close()
    assert "output 'OUT' of model 'm' has the shape [4], which its config declares as [2]" in (
        caplog.text
    )


def test_an_instance_that_was_closed_leaves_nothing(tmp_path: Path) -> None:
    source = make_source(tmp_path, identity_model())
    rows = {"IN": np.ones((8, 32768), np.float32)}  # 1 MiB, through shared memory

    def cycle() -> None:
        instance = make_instance(in_child(), source)
        instance.execute(rows, ["OUT"])
        instance.close()

    def held() -> tuple[int, int, int]:
        gc.collect()
        regions = Path("/proc/self/maps").read_text().count("/memfd:naiad")
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), regions

    cycle()
    before = held()
    for _ in range(4):
        cycle()
    # The threads that saw to the processes end a moment after those.
    deadline = time.monotonic() + 60  # noqa: TID251 - a test's own patience
    while any(now > was for now, was in zip(held(), before, strict=True)):
        assert time.monotonic() < deadline, (held(), before)  # noqa: TID251
