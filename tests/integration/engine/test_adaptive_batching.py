"""A model that is to keep a latency, in an engine with real threads."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
from tests.support.repository_builder import RepositoryBuilder
from tests.support.requests import make_request, tensor

from naiad.backends.registry import BackendRegistry
from naiad.clock import SystemClock
from naiad.engine.engine import Engine, EngineOptions, ModelControlMode
from naiad.engine.loader import Loader, LoaderOptions
from naiad.errors import InvalidArgumentError
from naiad.inference.response import InferResponse
from naiad.inference.statistics import BatchTuning

PARAMETER = 'parameters { key: "naiad.batching" value { string_value: "%s" } }'


def make_engine(path: Path, extra: str = "", target_latency_ms: int = 0) -> Engine:
    RepositoryBuilder(path).add_model(
        "m",
        f"""backend: "identity" max_batch_size: 8 dynamic_batching {{ }} {extra}
        input {{ name: "INPUT0" data_type: TYPE_FP32 dims: [ 1 ] }}
        output {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 1 ] }}""",
    )
    loader = Loader(LoaderOptions((path,), target_latency_ms=target_latency_ms), BackendRegistry())
    return Engine(EngineOptions("naiad", "1", ModelControlMode.EXPLICIT), loader, SystemClock())


async def infer(engine: Engine, value: float) -> float:
    answer: asyncio.Future[InferResponse] = asyncio.get_running_loop().create_future()
    request = make_request(
        tensor("INPUT0", np.array([[value]], np.float32)), on_response=answer.set_result
    )
    engine.infer(engine.find("m"), request)
    response = await answer
    assert response.error is None, response.error
    return float(response.outputs[0].data[0, 0])


@pytest.mark.parametrize(
    ("extra", "default_ms", "target_ns"),
    [(PARAMETER % "{target_latency_ms: 20}", 5, 20_000_000), ("", 5, 5_000_000), ("", 0, 0)],
)
async def test_the_choice_is_in_the_statistics_and_answers_are_right(
    tmp_path: Path, extra: str, default_ms: int, target_ns: int
) -> None:
    engine = make_engine(tmp_path, extra, default_ms)
    await engine.load_model("m", None, {})
    tuning = engine.find("m").statistics.tuning
    assert tuning == (BatchTuning(target_ns, 4, 0) if target_ns else None)
    for start in range(0, 160, 16):
        values = [float(start + index) for index in range(16)]
        assert await asyncio.gather(*(infer(engine, value) for value in values)) == values
    if tuning is not None:
        assert tuning.max_rows == 8
    await engine.stop()


async def test_a_parameter_that_makes_no_sense_fails_the_load(tmp_path: Path) -> None:
    engine = make_engine(tmp_path, PARAMETER % "fast")
    with pytest.raises(InvalidArgumentError, match=r"must be '\{target_latency_ms: N\}'"):
        await engine.load_model("m", None, {})
    await engine.stop()
