"""What a backend gets of inputs that their client can still change."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.support.requests import make_request

from naiad.clock import SystemClock
from naiad.engine.executor import Executor
from naiad.inference.datatypes import BF16, BOOL, FP16, FP32, INT64, UINT8, Datatype
from naiad.inference.response import InferResponse
from naiad.inference.tensor import SharedTensor, Tensor
from naiad.model_config.signature import ModelSignature, TensorSpec
from naiad.scheduling.dynamic import BatcherRules, DynamicBatcher


class KeepingInstance:
    """Keeps the inputs of the last batch."""

    def __init__(self) -> None:
        self.is_closed = False
        self.inputs: Mapping[str, npt.NDArray[Any]] = {}

    def execute(
        self, inputs: Mapping[str, npt.NDArray[Any]], output_names: Sequence[str]
    ) -> Sequence[Tensor]:
        self.inputs = inputs
        rows = len(inputs["IN"])
        return [Tensor("OUT", FP32, (rows, 1), np.zeros((rows, 1), np.float32))]

    def close(self) -> None:
        self.is_closed = True


async def run(datatype: Datatype, *arrays: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """What the backend gets of requests with these shared inputs, which share a batch."""
    signature = ModelSignature(
        "m", 8, [TensorSpec("IN", datatype, (2,))], [TensorSpec("OUT", FP32, (1,))]
    )
    instance = KeepingInstance()
    executor = Executor(1, signature, DynamicBatcher(BatcherRules(8)), [instance], SystemClock())
    answers: list[asyncio.Future[InferResponse]] = []
    for array in arrays:
        answer: asyncio.Future[InferResponse] = asyncio.get_running_loop().create_future()
        shared = SharedTensor("IN", datatype, array.shape, array)
        executor.submit(make_request(shared, on_response=answer.set_result))
        answers.append(answer)
    for answer in answers:
        assert (await answer).error is None
    await executor.drain()
    await executor.close()
    return instance.inputs["IN"]


@pytest.mark.parametrize("datatype", [INT64, UINT8])
async def test_integers_are_copied(datatype: Datatype) -> None:
    shared = np.array([[1, 2]], datatype.dtype)
    got = await run(datatype, shared)
    shared[:] = 99
    assert got.tolist() == [[1, 2]]


@pytest.mark.parametrize("datatype", [FP16, BF16, FP32])
async def test_floats_are_not_copied(datatype: Datatype) -> None:
    shared = np.array([[1, 2]], datatype.dtype)
    assert (await run(datatype, shared)) is shared


@pytest.mark.parametrize("count", [1, 2])
async def test_booleans_are_made_booleans_again(count: int) -> None:
    arrays = [np.array([[1, 0]], np.bool_) for _ in range(count)]
    for array in arrays:
        array.view(np.uint8)[0, 0] = 2  # by the client, after the request was decoded
    got = await run(BOOL, *arrays)
    assert got.view(np.uint8).tolist() == [[1, 0]] * count
