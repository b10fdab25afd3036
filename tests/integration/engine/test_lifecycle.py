"""Loads, reloads, failures and unloads on a repository on disk, with the real backends."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from tests.support.repository_builder import RepositoryBuilder, add_model
from tests.support.requests import make_request, tensor

from naiad.backends.registry import BackendRegistry
from naiad.clock import SystemClock
from naiad.engine.engine import Engine, EngineOptions, IndexEntry, ModelControlMode
from naiad.engine.loader import Loader, LoaderOptions
from naiad.errors import InternalError, InvalidArgumentError, NotFoundError, UnavailableError
from naiad.inference.response import InferResponse
from naiad.inference.states import ModelState

CONFIG = """name: "m" backend: "onnxruntime" max_batch_size: 8
input [ { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
"""
BROKEN_TEXT = CONFIG.replace("max_batch_size", "max_batch_sise")
WRONG_TYPE = CONFIG.replace("TYPE_FP32", "TYPE_INT32")


class Repository:
    """A folder with the model ``m``, which adds a number to its input."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._builder = RepositoryBuilder(path)
        self._ticks = 1_000_000_000

    def write(self, amount: float, config: str = CONFIG, versions: Sequence[int] = (1,)) -> None:
        self._builder.add_onnx("m", add_model(amount), config, versions)
        # Two writes within one tick of the file system's clock must still differ.
        self._ticks += 1_000_000_000
        for path in (self.path / "m").rglob("*"):
            os.utime(path, ns=(self._ticks, self._ticks))


def make_engine(path: Path, mode: ModelControlMode = ModelControlMode.EXPLICIT) -> Engine:
    options = EngineOptions("naiad", "1", mode, poll_interval_s=3600)
    loader = Loader(LoaderOptions((path,)), BackendRegistry())
    return Engine(options, loader, SystemClock())


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    made = Repository(tmp_path)
    made.write(1)
    return made


@pytest.fixture
async def engine(repository: Repository) -> AsyncIterator[Engine]:
    made = make_engine(repository.path)
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def poller(repository: Repository) -> AsyncIterator[Engine]:
    made = make_engine(repository.path, ModelControlMode.POLL)
    await made.start()
    yield made
    await made.stop()


async def load(engine: Engine, config_json: str | None = None) -> None:
    await engine.load_model("m", config_json, {})


async def added(engine: Engine, version: int = -1) -> float:
    """What the model adds to zero."""
    answer: asyncio.Future[InferResponse] = asyncio.get_running_loop().create_future()
    request = make_request(
        tensor("IN", np.zeros((1, 1), np.float32)), on_response=answer.set_result
    )
    engine.infer(engine.find("m", version), request)
    response = await answer
    assert response.error is None
    return float(response.outputs[0].data[0, 0])


async def index(engine: Engine) -> list[IndexEntry]:
    return await engine.index(ready_only=False)


async def test_a_model_that_was_never_loaded_has_only_a_name(engine: Engine) -> None:
    assert await index(engine) == [IndexEntry("m")]
    assert engine.is_ready()
    with pytest.raises(NotFoundError, match=r"^Request for unknown model: 'm' is not found$"):
        engine.find("m")


async def test_a_reload_swaps_to_what_the_repository_says(
    engine: Engine, repository: Repository
) -> None:
    await load(engine)
    assert await added(engine) == 1
    repository.write(2)
    await load(engine)
    assert await added(engine) == 2


async def test_a_load_of_what_is_loaded_changes_nothing(engine: Engine) -> None:
    await load(engine)
    model = engine.find("m")
    await load(engine)
    assert engine.find("m") is model


@pytest.mark.parametrize("config", [BROKEN_TEXT, WRONG_TYPE])
async def test_a_failed_reload_leaves_the_old_version_serving(
    engine: Engine, repository: Repository, config: str
) -> None:
    await load(engine)
    repository.write(2, config)
    for _ in range(2):  # the second load of the same files must fail, too
        with pytest.raises((InternalError, InvalidArgumentError)):
            await load(engine)
    assert await added(engine) == 1
    assert engine.is_ready()
    repository.write(3)
    await load(engine)
    assert await added(engine) == 3


@pytest.mark.parametrize(
    ("config", "state", "reason"),
    [
        (BROKEN_TEXT, "'m' is not found", "max_batch_size"),
        (WRONG_TYPE, "'m' has no available versions", "datatype"),
    ],
)
async def test_a_failure_leaves_its_reason_everywhere(
    engine: Engine, repository: Repository, config: str, state: str, reason: str
) -> None:
    repository.write(1, config)
    with pytest.raises((InternalError, InvalidArgumentError), match=reason):
        await load(engine)
    [line] = await index(engine)
    assert line.state is ModelState.UNAVAILABLE
    assert reason in line.reason
    with pytest.raises(NotFoundError, match=f"{state}. It failed to load: .*{reason}"):
        engine.find("m")


async def test_a_failed_load_does_not_make_the_server_unready_for_good(
    engine: Engine, repository: Repository
) -> None:
    repository.write(1, WRONG_TYPE)
    with pytest.raises(InvalidArgumentError):
        await load(engine)
    assert not engine.is_ready()
    await engine.unload_model("m", unload_dependents=False)
    assert engine.is_ready()
    [line] = await index(engine)
    assert "datatype" in line.reason
    with pytest.raises(NotFoundError, match=r"has no available versions$"):
        engine.find("m")


async def test_a_model_without_versions_says_so(engine: Engine, repository: Repository) -> None:
    for path in (repository.path / "m/1").iterdir():
        path.unlink()
    (repository.path / "m/1").rmdir()
    with pytest.raises(InvalidArgumentError, match="at least one version must be available"):
        await load(engine)
    with pytest.raises(NotFoundError, match="'m' has no available versions"):
        engine.find("m")


async def test_an_overriding_config_stays_while_the_files_are_unchanged(
    engine: Engine, repository: Repository
) -> None:
    await load(engine, '{"backend": "onnxruntime", "max_batch_size": 3}')
    assert engine.model_config("m").max_batch_size == 3
    await load(engine)
    assert engine.model_config("m").max_batch_size == 3
    repository.write(1)
    await load(engine)
    assert engine.model_config("m").max_batch_size == 8


async def test_versions_that_the_policy_drops_are_unloaded(
    engine: Engine, repository: Repository
) -> None:
    await load(engine)
    repository.write(5, versions=(2,))
    await load(engine)
    assert await added(engine) == 5
    with pytest.raises(UnavailableError, match="version 1 is not at ready state"):
        engine.find("m", 1)


async def test_an_unload_answers_what_was_accepted(engine: Engine) -> None:
    await load(engine)
    answer = asyncio.create_task(added(engine))
    await asyncio.sleep(0)
    await engine.unload_model("m", unload_dependents=False)
    with pytest.raises(NotFoundError, match="has no available versions"):
        engine.find("m")
    assert await answer == 1


async def test_an_idle_model_is_gone_when_its_unload_returns(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine an instance may take longer to close than an unload waits for it.
    monkeypatch.setattr("naiad.engine.lifecycle._UNLOAD_WAIT_S", 60)
    for _ in range(5):
        await load(engine)
        await engine.unload_model("m", unload_dependents=False)
        assert engine.is_ready()
        [line] = await index(engine)
        assert (line.state, line.reason) == (ModelState.UNAVAILABLE, "unloaded")


async def test_without_explicit_control_clients_load_nothing(repository: Repository) -> None:
    engine = make_engine(repository.path, ModelControlMode.NONE)
    await engine.start()
    with pytest.raises(UnavailableError, match="explicit model load / unload is not allowed"):
        await load(engine)
    await engine.stop()


async def test_polling_loads_what_changed_once_it_is_still(
    poller: Engine, repository: Repository
) -> None:
    assert await added(poller) == 1
    repository.write(2)
    await poller.poll()
    assert await added(poller) == 1
    repository.write(3)  # still being written
    await poller.poll()
    assert await added(poller) == 1
    await poller.poll()
    assert await added(poller) == 3


async def test_polling_keeps_what_serves_when_the_change_is_broken(
    poller: Engine, repository: Repository
) -> None:
    repository.write(2, BROKEN_TEXT)
    for _ in range(3):
        await poller.poll()
    assert await added(poller) == 1
    repository.write(4)
    for _ in range(2):
        await poller.poll()
    assert await added(poller) == 4


async def test_polling_unloads_what_is_gone(poller: Engine, repository: Repository) -> None:
    (repository.path / "m").rename(repository.path.parent / "elsewhere")
    await poller.poll()
    with pytest.raises(NotFoundError):
        poller.find("m")
    (repository.path.parent / "elsewhere").rename(repository.path / "m")
    for _ in range(2):
        await poller.poll()
    assert await added(poller) == 1


async def test_first_loads_side_by_side_make_one_model(engine: Engine) -> None:
    before = set(threading.enumerate())
    await asyncio.gather(*(load(engine) for _ in range(5)))
    instances = [t for t in set(threading.enumerate()) - before if t.name.startswith("m_")]
    assert len(instances) == 1
    assert await added(engine) == 1


async def test_reloads_under_load_cost_no_request(engine: Engine, repository: Repository) -> None:
    await load(engine)
    is_done = False
    answers: list[float] = []

    async def ask() -> None:
        while not is_done:
            answers.append(await added(engine))

    askers = [asyncio.create_task(ask()) for _ in range(4)]
    for amount in range(2, 12):
        repository.write(amount)
        await load(engine)
        assert await added(engine) == amount
    is_done = True
    await asyncio.gather(*askers)
    assert set(answers) <= set(range(1, 12))
