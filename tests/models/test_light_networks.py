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
from tests.models.conftest import ModelServer
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


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_gives_the_reference_output_exactly(name: str, server: ModelServer) -> None:
    folder = light_folder()
    graph = onnx.load(folder / f"{name}.onnx").graph
    constants = {tensor.name for tensor in graph.initializer}
    (given,) = [value for value in graph.input if value.name not in constants]
    shape = [dim.dim_value for dim in given.type.tensor_type.shape.dim]
    reference = onnx.TensorProto.FromString((folder / f"{name}_output_0.pb").read_bytes())
    wanted = numpy_helper.to_array(reference)

    server.load(name, folder / f"{name}.onnx")
    outputs = server.infer(name, {given.name: np.ones(shape, np.float32)})

    # Names have slashes, as Caffe2 gave them: gpu_0/data_0.
    (output,) = outputs.values()
    assert list(outputs) == [graph.output[0].name]
    np.testing.assert_array_equal(output, wanted)


def test_every_network_of_the_wheel_is_tested() -> None:
    found = {path.stem for path in light_folder().glob("light_*.onnx")}
    assert found == {parameters.values[0] for parameters in NETWORKS}
