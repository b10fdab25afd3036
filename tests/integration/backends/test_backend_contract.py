"""What every backend must do, on one model: OUTPUT0 is INPUT0, FP32, of any shape."""

import gc
import os
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
import onnx
import pytest

from naiad.backends.base import Backend, Instance, LoadedModel, ModelSource
from naiad.backends.child.backend import ChildBackend
from naiad.backends.registry import BackendRegistry
from naiad.errors import NaiadError
from naiad.inference import datatypes
from naiad.model_config.schema import DataType, ModelConfig, ModelInput, ModelOutput


def build_onnx(directory: Path) -> None:
    def describe(name: str) -> onnx.ValueInfoProto:
        return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", "n"])

    node = onnx.helper.make_node("Identity", ["INPUT0"], ["OUTPUT0"])
    graph = onnx.helper.make_graph([node], "g", [describe("INPUT0")], [describe("OUTPUT0")])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.save(model, directory / "model.onnx")


def build_openvino(directory: Path) -> None:
    openvino = pytest.importorskip("openvino", reason="the extra openvino is not installed")
    build_onnx(directory)
    model = openvino.Core().read_model(directory / "model.onnx")
    openvino.save_model(model, directory / "model.xml", compress_to_fp16=False)


def build_torchscript(directory: Path) -> None:
    # 3 s and 200 MiB: only for the cases that need it.
    import torch  # noqa: PLC0415

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        module = torch.jit.script(torch.nn.Identity())
        torch.jit.save(module, directory / "model.pt")


def build_for_child(directory: Path) -> None:
    build_torchscript(directory)


def build_module_file(directory: Path) -> None:
    code = "import torch\nclass Same(torch.nn.Identity):\n    pass\n"
    (directory / "model.py").write_text(code, encoding="utf-8")


def build_nothing(directory: Path) -> None:
    """The identity backend has no file."""


CASES = [
    pytest.param("identity", build_nothing, id="identity"),
    pytest.param("onnxruntime", build_onnx, id="onnxruntime"),
    pytest.param("openvino", build_openvino, id="openvino"),
    pytest.param("pytorch", build_torchscript, id="pytorch", marks=pytest.mark.slow),
    pytest.param("pytorch", build_module_file, id="pytorch-class", marks=pytest.mark.slow),
    # A process that imports torch for each instance: minutes.
    pytest.param("pytorch", build_for_child, id="pytorch-child", marks=pytest.mark.full),
    # What the above is made of, around a backend that is there at once.
    pytest.param("child", build_nothing, id="child", marks=pytest.mark.slow),
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "backend_name" in metafunc.fixturenames:
        metafunc.parametrize(("backend_name", "build"), CASES)


def get_backend(name: str) -> Backend:
    return ChildBackend("identity", ()) if name == "child" else BackendRegistry().get(name)


@pytest.fixture
def source(backend_name: str, build: Callable[[Path], None], tmp_path: Path) -> ModelSource:
    build(tmp_path)
    config = ModelConfig(
        name="same",
        backend="identity" if backend_name == "child" else backend_name,
        runtime="model.py" if build is build_module_file else "",
        max_batch_size=8,
        input=[ModelInput(name="INPUT0", data_type="TYPE_FP32", dims=[-1])],
        output=[ModelOutput(name="OUTPUT0", data_type="TYPE_FP32", dims=[-1])],
    )
    if build is build_for_child:
        config.parameters["IN_PROCESS"].string_value = "false"
    return ModelSource("same", 1, config, tmp_path)


@pytest.fixture
def model(source: ModelSource, backend_name: str) -> LoadedModel:
    backend = get_backend(backend_name)
    backend.complete_config(source)
    return backend.load(source)


def make_instance(model: LoadedModel, index: int = 0) -> Instance:
    """One of the kind that gets whole batches; backends that get requests have another contract."""
    instance = model.create_instance(index)
    assert hasattr(instance, "execute")
    return cast("Instance", instance)


@pytest.mark.parametrize("shape", [(1, 3), (4, 3), (1, 7), (0, 3), (2, 0)])
def test_answers_in_the_shape_it_is_asked_in(model: LoadedModel, shape: tuple[int, int]) -> None:
    rows = np.arange(shape[0] * shape[1], dtype=np.float32).reshape(shape)
    rows.flags.writeable = False
    (output,) = make_instance(model).execute({"INPUT0": rows}, ["OUTPUT0"])
    assert output.name == "OUTPUT0"
    assert output.datatype is datatypes.FP32
    assert tuple(output.shape) == shape
    np.testing.assert_array_equal(output.data, rows)


def test_reads_a_buffer_that_may_not_be_written(model: LoadedModel) -> None:
    body = np.array([[1, 2]], np.float32).tobytes()
    rows = np.frombuffer(body, np.float32).reshape(1, 2)
    (output,) = make_instance(model).execute({"INPUT0": rows}, ["OUTPUT0"])
    np.testing.assert_array_equal(output.data, [[1, 2]])


def test_a_missing_input_is_an_error_with_a_message(model: LoadedModel) -> None:
    with pytest.raises(NaiadError) as failure:
        make_instance(model).execute({}, ["OUTPUT0"])
    assert failure.value.message


def test_an_instance_works_on_after_a_failure(model: LoadedModel) -> None:
    instance = make_instance(model)
    with pytest.raises(NaiadError):
        instance.execute({}, ["OUTPUT0"])
    (output,) = instance.execute({"INPUT0": np.ones((1, 2), np.float32)}, ["OUTPUT0"])
    np.testing.assert_array_equal(output.data, [[1, 1]])


def test_instances_run_side_by_side_in_their_threads(model: LoadedModel) -> None:
    answers: dict[int, float] = {}

    def work(index: int) -> None:
        instance = make_instance(model, index)
        for _ in range(20):
            rows = np.full((1, 4), index, np.float32)
            (output,) = instance.execute({"INPUT0": rows}, ["OUTPUT0"])
            assert (output.data == index).all()
        answers[index] = float(output.data.sum())
        instance.close()

    threads = [threading.Thread(target=work, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    model.close()
    assert answers == {0: 0.0, 1: 4.0, 2: 8.0}


def test_an_output_outlives_its_instance(model: LoadedModel) -> None:
    instance = make_instance(model)
    (output,) = instance.execute({"INPUT0": np.full((2, 3), 5, np.float32)}, ["OUTPUT0"])
    instance.close()
    model.close()
    np.testing.assert_array_equal(output.data, np.full((2, 3), 5))


def test_a_config_of_another_datatype_is_refused(source: ModelSource, backend_name: str) -> None:
    if backend_name == "pytorch":
        pytest.skip("neither a TorchScript file nor a class says what datatypes it takes")
    source.config.output[0].data_type = DataType.TYPE_INT32
    backend = get_backend(backend_name)
    with pytest.raises(NaiadError) as failure:
        backend.load(source).create_instance(0)
    assert "OUTPUT0" in failure.value.message


def test_a_closed_instance_leaves_the_others_alone(model: LoadedModel) -> None:
    first, second = make_instance(model), make_instance(model, 1)
    first.close()
    (output,) = second.execute({"INPUT0": np.ones((1, 2), np.float32)}, ["OUTPUT0"])
    np.testing.assert_array_equal(output.data, [[1, 1]])


def test_an_output_stays_when_its_input_is_gone(model: LoadedModel) -> None:
    rows = np.full((64, 64), 7, np.float32)
    (output,) = make_instance(model).execute({"INPUT0": rows}, ["OUTPUT0"])
    del rows
    # What takes freed memory, if any of it was freed.
    others = [np.zeros((64, 64), np.float32) for _ in range(8)]
    np.testing.assert_array_equal(output.data, np.full_like(others[0], 7))


def test_batches_of_many_sizes_keep_their_rows(model: LoadedModel) -> None:
    instance = make_instance(model)
    answers = []
    for rows in (8, 1, 3, 8, 2):
        given = np.arange(rows * 5, dtype=np.float32).reshape(rows, 5)
        (output,) = instance.execute({"INPUT0": given}, ["OUTPUT0"])
        answers.append((given, output.data))
    # Compared at the end: an execution must not write into the outputs of one before.
    for given, answer in answers:
        np.testing.assert_array_equal(answer, given)


@pytest.mark.slow
@pytest.mark.timeout(900)  # for a machine that does other things meanwhile
@pytest.mark.parametrize("cycles", [pytest.param(6), pytest.param(200, marks=pytest.mark.full)])
def test_loading_and_unloading_leaves_no_memory_and_no_threads(
    source: ModelSource, backend_name: str, cycles: int
) -> None:
    if backend_name == "child" or "IN_PROCESS" in source.config.parameters:
        pytest.skip("a process for each instance: child/test_child_backend.py has fewer of them")
    backend = get_backend(backend_name)
    rows = np.ones((8, 32768), np.float32)  # 1 MiB

    def cycle() -> None:
        model = backend.load(source)
        instances = [make_instance(model, index) for index in range(2)]
        for instance in instances:
            instance.execute({"INPUT0": rows}, ["OUTPUT0"])
            instance.close()
        model.close()

    # What a framework allocates once, it allocates in the first cycles.
    for _ in range(6):
        cycle()
    memory, threads = resident_bytes(), thread_count()
    for _ in range(cycles):
        cycle()
    # The inputs and outputs of the cycles alone are 24 and 800 MiB.
    assert resident_bytes() - memory < 16 << 20
    # One that has been joined stays in the system's list for another moment.
    deadline = time.monotonic() + 60  # noqa: TID251 - a test's own patience
    while thread_count() > threads:
        assert time.monotonic() < deadline  # noqa: TID251


def resident_bytes() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def thread_count() -> int:
    return len(os.listdir("/proc/self/task"))
