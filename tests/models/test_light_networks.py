"""Nine ImageNet networks that the wheel of onnx carries: real graphs, made-up weights.

Licence: Apache-2.0. The weights are constants, so a file is a few kB; each comes with the output
for an input of ones, computed by others.
"""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from tests.conformance.onnx.suite import PATTERN, REQUIREMENT
from tests.models.conftest import Array, ModelServer
from tests.support.wheels import require_wheel

FULL = pytest.mark.full
NETWORKS = [
    pytest.param("light_squeezenet"),
    pytest.param("light_shufflenet"),
    pytest.param("light_bvlc_alexnet", marks=FULL),
    pytest.param("light_densenet121", marks=FULL),
    pytest.param("light_inception_v1", marks=FULL),
    pytest.param("light_inception_v2", marks=FULL),
    pytest.param("light_resnet50", marks=FULL),
    pytest.param("light_vgg19", marks=FULL),
    pytest.param("light_zfnet512", marks=FULL),
]


def light_folder() -> Path:
    return require_wheel(REQUIREMENT, PATTERN) / "onnx" / "backend" / "test" / "data" / "light"


def read_case(name: str) -> tuple[dict[str, Array], str, Array]:
    """The input of ones by name, the name of the output, and what it must be."""
    folder = light_folder()
    graph = onnx.load(folder / f"{name}.onnx").graph
    constants = {tensor.name for tensor in graph.initializer}
    (given,) = [value for value in graph.input if value.name not in constants]
    shape = [dim.dim_value for dim in given.type.tensor_type.shape.dim]
    reference = onnx.TensorProto.FromString((folder / f"{name}_output_0.pb").read_bytes())
    wanted: Array = numpy_helper.to_array(reference)
    return {given.name: np.ones(shape, np.float32)}, graph.output[0].name, wanted


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_gives_the_reference_output_exactly(name: str, server: ModelServer) -> None:
    inputs, output_name, wanted = read_case(name)

    server.load(name, light_folder() / f"{name}.onnx")
    outputs = server.infer(name, inputs)

    # Names have slashes, as Caffe2 gave them: gpu_0/data_0.
    assert list(outputs) == [output_name]
    np.testing.assert_array_equal(outputs[output_name], wanted)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_openvino_gives_the_reference_output_too(name: str, server: ModelServer) -> None:
    pytest.importorskip("openvino", reason="the extra openvino is not installed")
    inputs, output_name, wanted = read_case(name)
    config = 'backend: "openvino"\ndefault_model_filename: "model.onnx"\n'

    server.load(f"{name}_openvino", light_folder() / f"{name}.onnx", config)
    outputs = server.infer(f"{name}_openvino", inputs)

    # Another order of additions than that of the reference.
    np.testing.assert_allclose(outputs[output_name], wanted, rtol=1e-3, atol=1e-6)


def test_every_network_of_the_wheel_is_tested() -> None:
    found = {path.stem for path in light_folder().glob("light_*.onnx")}
    assert found == {parameters.values[0] for parameters in NETWORKS}
