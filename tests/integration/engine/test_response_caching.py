"""The response cache of an engine over a repository on disk, with real models."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
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

CACHED = "response_cache { enable: true }"
OPTIONS = EngineOptions("naiad", "1", ModelControlMode.EXPLICIT, response_cache_bytes=1 << 20)
BOTH = f"""
name: "both" platform: "ensemble" max_batch_size: 8 {CACHED}
input {{ name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }}
output {{ name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }}
ensemble_scheduling {{
  step {{ model_name: "one" model_version: -1
    input_map {{ key: "IN" value: "IN" }} output_map {{ key: "OUT" value: "t" }} }}
  step {{ model_name: "two" model_version: -1
    input_map {{ key: "IN" value: "t" }} output_map {{ key: "OUT" value: "OUT" }} }}
}}
"""


@pytest.fixture
def repository(tmp_path: Path) -> RepositoryBuilder:
    """``one`` adds 1 with a cache, ``two`` adds 2 without, and ``both`` caches both."""
    made = RepositoryBuilder(tmp_path / "repository")
    made.add_sum("one", 1, extra=CACHED)
    made.add_sum("two", 2)
    made.add_model("both", BOTH)
    return made


def make_engine(repository: RepositoryBuilder, options: EngineOptions = OPTIONS) -> Engine:
    loader = Loader(LoaderOptions((repository.path,)), BackendRegistry())
    return Engine(options, loader, SystemClock())


@pytest.fixture
async def engine(repository: RepositoryBuilder) -> AsyncIterator[Engine]:
    made = make_engine(repository)
    await made.start()
    await made.load_model("both", None, {})
    yield made
    await made.stop()


async def infer(engine: Engine, name: str, value: float) -> InferResponse:
    answer: asyncio.Future[InferResponse] = asyncio.get_running_loop().create_future()
    request = make_request(
        tensor("IN", np.array([[value]], np.float32)), on_response=answer.set_result
    )
    engine.infer(engine.find(name), request)
    return await answer


async def ask(engine: Engine, name: str, value: float) -> float:
    response = await infer(engine, name, value)
    assert response.error is None, response.error
    return float(response.outputs[0].data[0, 0])


def counts(engine: Engine, name: str) -> tuple[int, int, int]:
    """Hits, misses, executions."""
    statistics = engine.find(name).statistics
    return statistics.cache_hit.count, statistics.cache_miss.count, statistics.execution_count


async def test_a_reload_does_not_give_the_old_answers(
    engine: Engine, repository: RepositoryBuilder
) -> None:
    assert [await ask(engine, "one", 1) for _ in range(2)] == [2, 2]
    assert counts(engine, "one") == (1, 1, 1)
    repository.add_sum("one", 100, extra=CACHED)
    await engine.load_model("one", None, {})
    assert await ask(engine, "one", 1) == 101
    assert counts(engine, "one") == (0, 1, 1)


async def test_an_ensemble_is_cached_as_a_whole_and_by_its_steps(engine: Engine) -> None:
    assert [await ask(engine, "both", 1) for _ in range(3)] == [4, 4, 4]
    assert counts(engine, "both") == (2, 1, 1)
    assert counts(engine, "one") == (0, 1, 1)
    assert await ask(engine, "one", 1) == 2
    assert counts(engine, "one") == (1, 1, 1)
    assert counts(engine, "two") == (0, 0, 1)


async def test_an_ensemble_forgets_when_a_step_is_reloaded(
    engine: Engine, repository: RepositoryBuilder
) -> None:
    assert await ask(engine, "both", 1) == 4
    repository.add_sum("two", 200)
    await engine.load_model("two", None, {})
    assert await ask(engine, "both", 1) == 202


async def test_an_ensemble_of_a_decoupled_step_can_not_be_cached(
    engine: Engine, repository: RepositoryBuilder
) -> None:
    repository.add_sum("two", 2, extra="model_transaction_policy { decoupled: true }")
    repository.add_model("again", BOTH.replace('"both"', '"again"'))
    text = "Response Cache does not currently support model again with 'decoupled' transaction"
    with pytest.raises(InvalidArgumentError, match=text):
        await engine.load_model("again", None, {})


async def test_a_hit_of_an_ensemble_has_its_parameters(engine: Engine) -> None:
    answers = [await infer(engine, "both", 1) for _ in range(2)]
    assert counts(engine, "both")[0] == 1
    assert answers[0].parameters
    assert answers[0].parameters == answers[1].parameters


async def test_without_a_cache_in_the_server_the_log_says_so(
    repository: RepositoryBuilder, caplog: pytest.LogCaptureFixture
) -> None:
    engine = make_engine(repository, replace(OPTIONS, response_cache_bytes=0))
    await engine.start()
    await engine.load_model("one", None, {})
    assert [await ask(engine, "one", 1) for _ in range(2)] == [2, 2]
    assert counts(engine, "one") == (0, 0, 2)
    assert "model 'one': its config enables the response cache, and this server has none" in (
        caplog.text
    )
    await engine.stop()
