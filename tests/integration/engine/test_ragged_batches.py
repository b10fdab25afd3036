"""Requests of different shapes in one execution, by models of several backends."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from tests.support.repository_builder import RepositoryBuilder
from tests.support.requests import make_request, tensor

from naiad.backends.registry import BackendRegistry
from naiad.clock import SystemClock
from naiad.engine.engine import Engine, EngineOptions, ModelControlMode
from naiad.engine.loader import Loader, LoaderOptions
from naiad.errors import InvalidArgumentError, NaiadError
from naiad.inference.response import InferResponse

# Long enough that what is sent together runs together; a full batch doesn't wait for it.
BATCHING = "dynamic_batching { max_queue_delay_microseconds: 2000000 }"
SCATTER = """
batch_output {
  kind: BATCH_SCATTER_WITH_INPUT_SHAPE target_name: "OUT" source_input: "IN"
}
"""


@pytest.fixture
def repository(tmp_path: Path) -> RepositoryBuilder:
    return RepositoryBuilder(tmp_path)


@pytest.fixture
async def engine(repository: RepositoryBuilder) -> AsyncIterator[Engine]:
    options = EngineOptions("naiad", "1", ModelControlMode.EXPLICIT)
    loader = Loader(LoaderOptions((repository.path,)), BackendRegistry())
    engine = Engine(options, loader, SystemClock())
    yield engine
    await engine.stop()


def config_of(
    backend: str = "onnxruntime", extra: str = "", *, out_dims: str = "-1", max_batch_size: int = 4
) -> str:
    return (
        f'backend: "{backend}" max_batch_size: {max_batch_size} '
        'input { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true } '
        f'output {{ name: "OUT" data_type: TYPE_FP32 dims: [ {out_dims} ] }} '
        f"instance_group {{ kind: KIND_CPU }} {BATCHING} {extra}"
    )


def doubling_model() -> bytes:
    """``OUT = IN + IN`` of vectors."""
    return make_model([helper.make_node("Add", ["IN", "IN"], ["OUT"])], ["IN"])


def make_model(nodes: list[onnx.NodeProto], inputs: list[str], rank: int = 1) -> bytes:
    shape = [None] * rank
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None]) for name in inputs]
    out = helper.make_tensor_value_info("OUT", TensorProto.FLOAT, shape)
    graph = helper.make_graph(nodes, "g", values, [out])
    model: onnx.ModelProto = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    serialized: bytes = model.SerializeToString()
    return serialized


def sending(
    engine: Engine, name: str, **inputs: npt.NDArray[np.float32]
) -> asyncio.Future[InferResponse]:
    answer: asyncio.Future[InferResponse] = asyncio.get_running_loop().create_future()
    request = make_request(
        *(tensor(key, array) for key, array in inputs.items()), on_response=answer.set_result
    )
    engine.infer(engine.find(name), request)
    return answer


async def infer_all(
    engine: Engine, name: str, inputs: list[npt.NDArray[np.float32]]
) -> list[npt.NDArray[np.float32]]:
    answers = [sending(engine, name, IN=given) for given in inputs]
    outputs = []
    for response in await asyncio.gather(*answers):
        assert response.error is None, response.error
        [output] = response.outputs
        assert output.shape == output.data.shape
        outputs.append(output.data)
    return outputs


def ramp(*shape: int) -> npt.NDArray[np.float32]:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + sum(shape)


LENGTHS = [(1, 3), (1, 1), (1, 5), (1, 2)]


async def test_the_elements_of_all_requests_are_one_vector_and_cut_apart_again(
    repository: RepositoryBuilder, engine: Engine
) -> None:
    repository.add_onnx("double", doubling_model(), config_of(extra=SCATTER))
    await engine.load_model("double", None, {})
    given = [ramp(*shape) for shape in LENGTHS]
    outputs = await infer_all(engine, "double", given)
    for output, data in zip(outputs, given, strict=True):
        np.testing.assert_array_equal(output, data + data)
    assert engine.find("double").statistics.execution_count == 1
    # Also alone, a request's input is a vector.
    [alone] = await infer_all(engine, "double", [ramp(4, 2)])
    np.testing.assert_array_equal(alone, 2 * ramp(4, 2))


async def test_a_model_without_a_batch_axis_gets_a_vector_too(
    repository: RepositoryBuilder, engine: Engine
) -> None:
    repository.add_onnx("double", doubling_model(), config_of(extra=SCATTER, max_batch_size=0))
    await engine.load_model("double", None, {})
    assert [output.tolist() for output in await infer_all(engine, "double", [ramp(3)])] == [
        [6, 8, 10]
    ]


@pytest.mark.parametrize(
    ("kind", "shapes", "expected"),
    [
        ("BATCH_ELEMENT_COUNT", LENGTHS, [3, 1, 5, 2]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT", LENGTHS, [3, 4, 9, 11]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO", LENGTHS, [0, 3, 4, 9, 11]),
        ("BATCH_MAX_ELEMENT_COUNT_AS_SHAPE", LENGTHS, [0] * 5),
        ("BATCH_ITEM_SHAPE_FLATTEN", LENGTHS, [3, 1, 5, 2]),
        # Elements are counted by request, and shapes by row.
        ("BATCH_ELEMENT_COUNT", [(1, 3), (3, 2)], [3, 6]),
        ("BATCH_ITEM_SHAPE_FLATTEN", [(1, 3), (3, 2)], [3, 2, 2, 2]),
    ],
)
@pytest.mark.parametrize("datatype", ["INT32", "FP32"])
async def test_batch_inputs_tell_the_model_where_requests_begin(
    kind: str,
    shapes: list[tuple[int, ...]],
    expected: list[int],
    datatype: str,
    repository: RepositoryBuilder,
    engine: Engine,
) -> None:
    name = f"{kind}_{len(shapes)}"
    nodes = [
        # A row of the batch input for each row of the batch, which COUNTS has one of each.
        helper.make_node("Cast", ["MORE"], ["more"], to=TensorProto.FLOAT),
        helper.make_node("Shape", ["ROWS"], ["rows"], end=1),
        helper.make_node("Shape", ["MORE"], ["width"]),
        helper.make_node("Concat", ["rows", "width"], ["wanted"], axis=0),
        helper.make_node("Expand", ["more", "wanted"], ["OUT"]),
    ]
    kinds = {"IN": TensorProto.FLOAT, "ROWS": TensorProto.FLOAT}
    kinds["MORE"] = TensorProto.INT32 if datatype == "INT32" else TensorProto.FLOAT
    ranks = {"ROWS": 2}
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info(key, kinds[key], [None] * ranks.get(key, 1))
            for key in kinds
        ],
        [helper.make_tensor_value_info("OUT", TensorProto.FLOAT, [None, None])],
    )
    model: onnx.ModelProto = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    extra = (
        'input { name: "ROWS" data_type: TYPE_FP32 dims: [ 1 ] } '
        f'batch_input {{ kind: {kind} target_name: "MORE" data_type: TYPE_{datatype} '
        'source_input: "IN" }'
    )
    repository.add_onnx(name, model.SerializeToString(), config_of(extra=extra))
    await engine.load_model(name, None, {})
    answers = [
        sending(engine, name, IN=ramp(*shape), ROWS=np.ones((shape[0], 1), np.float32))
        for shape in shapes
    ]
    for response, shape in zip(await asyncio.gather(*answers), shapes, strict=True):
        assert response.error is None
        assert response.outputs[0].data.tolist() == [expected] * shape[0]
    assert engine.find(name).statistics.execution_count == 1


async def test_item_shapes_come_one_row_each(repository: RepositoryBuilder, engine: Engine) -> None:
    config = (
        'backend: "onnxruntime" max_batch_size: 4 '
        'input { name: "IN" data_type: TYPE_FP32 dims: [ -1, -1 ] allow_ragged_batch: true } '
        'output { name: "OUT" data_type: TYPE_FP32 dims: [ 2 ] } '
        'batch_input { kind: BATCH_ITEM_SHAPE target_name: "SHAPES" data_type: TYPE_FP32 '
        'source_input: "IN" } ' + BATCHING
    )
    graph = helper.make_graph(
        [helper.make_node("Identity", ["SHAPES"], ["OUT"])],
        "g",
        [
            helper.make_tensor_value_info("IN", TensorProto.FLOAT, [None]),
            helper.make_tensor_value_info("SHAPES", TensorProto.FLOAT, [None, 2]),
        ],
        [helper.make_tensor_value_info("OUT", TensorProto.FLOAT, [None, 2])],
    )
    model: onnx.ModelProto = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    repository.add_onnx("shapes", model.SerializeToString(), config)
    await engine.load_model("shapes", None, {})
    outputs = await infer_all(engine, "shapes", [ramp(2, 1, 2), ramp(1, 1, 2), ramp(1, 3, 1)])
    assert [output.tolist() for output in outputs] == [[[1, 2], [1, 2]], [[1, 2]], [[3, 1]]]


async def test_an_input_that_is_not_ragged_still_keeps_shapes_apart(
    repository: RepositoryBuilder, engine: Engine
) -> None:
    nodes = [
        helper.make_node("ReduceSum", ["IN"], ["sum"], keepdims=0),
        helper.make_node("Add", ["sum", "OTHER"], ["OUT"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("IN", TensorProto.FLOAT, [None]),
            helper.make_tensor_value_info("OTHER", TensorProto.FLOAT, [None, None]),
        ],
        [helper.make_tensor_value_info("OUT", TensorProto.FLOAT, [None, None])],
    )
    model: onnx.ModelProto = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    extra = 'input { name: "OTHER" data_type: TYPE_FP32 dims: [ -1 ] }'
    repository.add_onnx("sum", model.SerializeToString(), config_of(extra=extra, max_batch_size=2))
    await engine.load_model("sum", None, {})
    ones = np.ones((1, 1), np.float32)
    answers = [
        sending(engine, "sum", IN=ramp(1, length), OTHER=np.repeat(ones, width, 1))
        for length, width in [(1, 2), (3, 2), (2, 1), (4, 1)]
    ]
    sums = [response.outputs[0].data.tolist() for response in await asyncio.gather(*answers)]
    assert sums == [[[18, 18]], [[18, 18]], [[34]], [[34]]]
    assert engine.find("sum").statistics.execution_count == 2


async def test_a_reshape_is_of_each_request(repository: RepositoryBuilder, engine: Engine) -> None:
    config = (
        'backend: "onnxruntime" max_batch_size: 3 '
        'input { name: "IN" data_type: TYPE_FP32 dims: [ -1, 2 ] allow_ragged_batch: true '
        "reshape { shape: [ -1, 1, 2 ] } } "
        'output { name: "OUT" data_type: TYPE_FP32 dims: [ -1, 2 ] '
        "reshape { shape: [ -1, 1, 2 ] } } " + SCATTER + BATCHING
    )
    repository.add_onnx("double", doubling_model(), config)
    await engine.load_model("double", None, {})
    given = [ramp(1, 3, 2), ramp(2, 1, 2)]
    outputs = await infer_all(engine, "double", given)
    for output, data in zip(outputs, given, strict=True):
        np.testing.assert_array_equal(output, 2 * data)


class Marking(torch.nn.Module):
    def forward(self, given: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        """The last element of each request changes its sign."""
        is_end = torch.isin(torch.arange(given.shape[0]), ends - 1)
        return torch.where(is_end, -given, given)


@pytest.mark.slow
async def test_an_exported_program_is_given_ragged_batches(
    repository: RepositoryBuilder, engine: Engine
) -> None:
    extra = SCATTER + (
        'batch_input { kind: BATCH_ACCUMULATED_ELEMENT_COUNT target_name: "ends" '
        'data_type: TYPE_INT32 source_input: "IN" }'
    )
    # An exported program names its results for the operators that they come from.
    config = config_of("pytorch", extra).replace('"IN"', '"given"').replace('"OUT"', '"where"')
    folder = repository.add_model("marks", config)
    program = torch.export.export(
        Marking(),
        (torch.ones(11), torch.tensor([5, 11], dtype=torch.int32)),
        dynamic_shapes=({0: torch.export.Dim("elements")}, {0: torch.export.Dim("requests")}),
    )
    torch.export.save(program, folder / "1" / "model.pt2")
    await engine.load_model("marks", None, {})
    answers = [sending(engine, "marks", given=ramp(*shape)) for shape in LENGTHS]
    for response, shape in zip(await asyncio.gather(*answers), LENGTHS, strict=True):
        assert response.error is None
        expected = ramp(*shape)
        expected[0, -1] *= -1
        np.testing.assert_array_equal(response.outputs[0].data, expected)
    assert engine.find("marks").statistics.execution_count == 1


async def test_the_identity_backend_answers_each_request_in_its_shape(
    repository: RepositoryBuilder, engine: Engine
) -> None:
    text = config_of("identity").replace('"IN"', '"INPUT0"').replace('"OUT"', '"OUTPUT0"')
    repository.add_model("same", text)
    await engine.load_model("same", None, {})
    answers = [sending(engine, "same", INPUT0=ramp(*shape)) for shape in LENGTHS]
    for response, shape in zip(await asyncio.gather(*answers), LENGTHS, strict=True):
        np.testing.assert_array_equal(response.outputs[0].data, ramp(*shape))
    assert engine.find("same").statistics.execution_count == 1


@pytest.mark.slow
async def test_a_python_model_sees_requests_of_different_shapes_together(
    repository: RepositoryBuilder, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    code = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        count = np.full((1, 1), len(requests), np.float32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", count)]) for _ in requests]
"""
    repository.add_model("count", config_of("python", SCATTER), {"1/model.py": code})
    await engine.load_model("count", None, {})
    outputs = await infer_all(engine, "count", [ramp(*shape) for shape in LENGTHS])
    assert [output.tolist() for output in outputs] == [[[4]]] * 4
    assert "batch_input and batch_output have no effect" in caplog.text


async def test_an_output_of_another_size_fails_the_batch_with_the_reason(
    repository: RepositoryBuilder, engine: Engine
) -> None:
    nodes = [helper.make_node("Concat", ["IN", "IN"], ["OUT"], axis=0)]
    repository.add_onnx("twice", make_model(nodes, ["IN"]), config_of(extra=SCATTER))
    await engine.load_model("twice", None, {})
    answers = [sending(engine, "twice", IN=ramp(*shape)) for shape in LENGTHS]
    for response in await asyncio.gather(*answers):
        assert response.error is not None
        assert "have 11 elements, and the model returned the shape [22]" in response.error.message


async def test_a_batch_input_of_an_unknown_input_is_refused(
    repository: RepositoryBuilder, engine: Engine
) -> None:
    config = config_of(extra=SCATTER.replace('"IN"', '"X"'))
    repository.add_onnx("double", doubling_model(), config)
    with pytest.raises(NaiadError, match="unknown source input name 'X'"):
        await engine.load_model("double", None, {})


async def test_a_file_that_takes_no_vector_is_refused(
    repository: RepositoryBuilder, engine: Engine
) -> None:
    repository.add_identity("same")
    await engine.load_model("same", None, {})
    (repository.path / "same" / "config.pbtxt").write_text(config_of())
    with pytest.raises(InvalidArgumentError, match=r"shape \[-1\] for ragged input 'IN'"):
        await engine.load_model("same", None, {})
