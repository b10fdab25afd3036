"""The rate limiter of an engine, with real threads and the identity backend."""

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
from naiad.scheduling.rate_limiter import ResourceLimit

DELAY_MS = 20


def config(count: int, priority: int = 0, instance_count: int = 1, extra: str = "") -> str:
    return f"""
    backend: "identity" max_batch_size: 8 {extra}
    input {{ name: "INPUT0" data_type: TYPE_FP32 dims: [ 1 ] }}
    output {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 1 ] }}
    parameters {{ key: "execute_delay_ms" value {{ string_value: "{DELAY_MS}" }} }}
    instance_group {{ kind: KIND_CPU count: {instance_count} rate_limiter {{
      priority: {priority} resources {{ name: "R" count: {count} }} }} }}
    """


def make_engine(repository: RepositoryBuilder, *limits: ResourceLimit, on: bool = True) -> Engine:
    options = EngineOptions(
        "naiad", "1", ModelControlMode.EXPLICIT, resource_limits=limits if on else None
    )
    loader = Loader(LoaderOptions((repository.path,)), BackendRegistry())
    return Engine(options, loader, SystemClock())


@pytest.fixture
def repository(tmp_path: Path) -> RepositoryBuilder:
    return RepositoryBuilder(tmp_path / "repository")


def send(engine: Engine, name: str) -> asyncio.Future[InferResponse]:
    answer: asyncio.Future[InferResponse] = asyncio.get_running_loop().create_future()
    request = make_request(
        tensor("INPUT0", np.array([[1]], np.float32)), on_response=answer.set_result
    )
    engine.infer(engine.find(name), request)
    return answer


async def run_all(engine: Engine, *names: str) -> float:
    """Seconds that these requests take, sent at once."""
    start_ns = SystemClock().now_ns()
    for response in await asyncio.gather(*(send(engine, name) for name in names)):
        assert response.error is None, response.error
    return (SystemClock().now_ns() - start_ns) / 1e9


@pytest.mark.slow
@pytest.mark.parametrize("extra", ["", "dynamic_batching { }", "response_cache { enable: true }"])
async def test_models_that_share_a_resource_do_not_run_together(
    repository: RepositoryBuilder, extra: str
) -> None:
    repository.add_model("a", config(1, extra=extra))
    repository.add_model("b", config(1, instance_count=2))
    engine = make_engine(repository)
    await engine.start()
    for name in ("a", "b"):
        await engine.load_model(name, None, {})
    # One of `a` and four of `b`, each DELAY_MS, one after the other.
    assert await run_all(engine, "a", "b", "b", "b", "b") >= 5 * DELAY_MS / 1000
    await engine.stop()


@pytest.mark.slow
async def test_priority_gives_more_turns(repository: RepositoryBuilder) -> None:
    repository.add_model("often", config(1, priority=1))
    repository.add_model("seldom", config(1, priority=3))
    engine = make_engine(repository)
    await engine.start()
    for name in ("often", "seldom"):
        await engine.load_model(name, None, {})
    order: list[str] = []

    async def ask(name: str) -> None:
        await send(engine, name)
        order.append(name)

    await asyncio.gather(*(ask(name) for name in ["often"] * 9 + ["seldom"] * 9))
    last_often = max(place for place, name in enumerate(order) if name == "often")
    assert 2 <= order[:last_often].count("seldom") <= 4
    await engine.stop()


async def test_a_model_that_could_never_run_does_not_load(repository: RepositoryBuilder) -> None:
    repository.add_model("m", config(5))
    engine = make_engine(repository, ResourceLimit("R", 4))
    await engine.start()
    with pytest.raises(InvalidArgumentError, match='Resource count for "R" is limited to 4'):
        await engine.load_model("m", None, {})
    repository.add_model("m", config(4))
    await engine.load_model("m", None, {})
    await run_all(engine, "m")
    await engine.unload_model("m", unload_dependents=False)
    await engine.stop()


async def test_without_it_a_config_that_asks_for_it_is_warned_of(
    repository: RepositoryBuilder, caplog: pytest.LogCaptureFixture
) -> None:
    repository.add_model("m", config(5))
    engine = make_engine(repository, on=False)
    await engine.start()
    await engine.load_model("m", None, {})
    assert "rate_limiter has no effect without --rate-limit=execution_count" in caplog.text
    await run_all(engine, "m")
    await engine.stop()
