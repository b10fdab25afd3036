"""Models of several backends through the engine: what the backends' own tests can't see."""

import asyncio
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper
from tests.support.repository_builder import RepositoryBuilder, identity_model
from tests.support.requests import make_request, tensor

from naiad.backends.registry import BackendRegistry
from naiad.clock import SystemClock
from naiad.engine.engine import Engine, EngineOptions, ModelControlMode
from naiad.engine.loader import Loader, LoaderOptions
from naiad.errors import InvalidArgumentError
from naiad.inference.datatypes import FP32
from naiad.inference.response import InferResponse


@pytest.fixture
def repository(tmp_path: Path) -> RepositoryBuilder:
    return RepositoryBuilder(tmp_path)


@pytest.fixture
async def engine(repository: RepositoryBuilder) -> Engine:
    options = EngineOptions("naiad", "1", ModelControlMode.EXPLICIT)
    loader = Loader(LoaderOptions((repository.path,)), BackendRegistry())
    return Engine(options, loader, SystemClock())


async def infer(engine: Engine, name: str, **inputs: npt.NDArray[np.float32]) -> InferResponse:
    await engine.load_model(name, None, {})
    answer: asyncio.Future[InferResponse] = asyncio.get_running_loop().create_future()
    request = make_request(
        *(tensor(key, array) for key, array in inputs.items()), on_response=answer.set_result
    )
    engine.infer(engine.find(name, -1), request)
    response = await answer
    await engine.stop()
    assert response.error is None
    return response


@pytest.mark.parametrize("shape", [(), (1,)])
async def test_a_scalar_is_asked_for_as_one_or_as_a_vector(
    shape: tuple[int, ...], repository: RepositoryBuilder, engine: Engine
) -> None:
    repository.add_onnx("scalar", identity_model(FP32, []))
    response = await infer(engine, "scalar", IN=np.full(shape, 3, np.float32))
    (output,) = response.outputs
    assert (tuple(output.shape), output.data.tolist()) == ((1,), [3.0])


async def test_a_model_without_inputs_answers(
    repository: RepositoryBuilder, engine: Engine
) -> None:
    value = helper.make_tensor("value", TensorProto.FLOAT, [2], [1.0, 2.0])
    graph = helper.make_graph(
        [helper.make_node("Constant", [], ["OUT"], value=value)],
        "g",
        [],
        [helper.make_tensor_value_info("OUT", TensorProto.FLOAT, [2])],
    )
    model: onnx.ModelProto = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    repository.add_onnx("constant", model.SerializeToString())
    response = await infer(engine, "constant")
    assert response.outputs[0].data.tolist() == [1, 2]


async def test_an_openvino_model_needs_no_config(
    repository: RepositoryBuilder, engine: Engine
) -> None:
    openvino = pytest.importorskip("openvino", reason="the extra openvino is not installed")
    folder = repository.add_model("ir")
    model = openvino.Core().read_model(identity_model())
    openvino.save_model(model, folder / "1" / "model.xml", compress_to_fp16=False)
    response = await infer(engine, "ir", IN=np.ones((2, 3), np.float32))
    assert response.outputs[0].data.tolist() == [[1, 1, 1], [1, 1, 1]]


@pytest.mark.parametrize(
    "file", ["model.savedmodel/saved_model.pb", "model.graphdef", "model.keras", "model.h5"]
)
async def test_a_tensorflow_model_says_how_to_convert_it(
    file: str, repository: RepositoryBuilder, engine: Engine
) -> None:
    repository.add_model("net", files={"{version}/" + file: b"anything"})
    with pytest.raises(InvalidArgumentError, match=r"python -m tf2onnx\.convert --saved-model"):
        await engine.load_model("net", None, {})
    await engine.stop()
