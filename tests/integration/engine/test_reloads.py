"""Reloads under constant load: no request fails, and no answer is of a version that was gone."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest
from tests.support.repository_builder import RepositoryBuilder
from tests.support.requests import make_request, tensor

from naiad.backends.registry import BackendRegistry
from naiad.clock import SystemClock
from naiad.engine.engine import Engine, EngineOptions, ModelControlMode
from naiad.engine.loader import Loader, LoaderOptions
from naiad.inference.response import InferResponse

ASKERS = 4
Reload = Callable[[Engine], Awaitable[None]]


def write(path: Path, amount: int) -> None:
    folder = RepositoryBuilder(path).add_sum("m", amount)
    for file in folder.rglob("*"):
        # Two writes within one tick of the file system's clock must still differ.
        os.utime(file, ns=(amount * 10**9, amount * 10**9))


async def ask(engine: Engine) -> float:
    answer: asyncio.Future[InferResponse] = asyncio.get_running_loop().create_future()
    zeros = tensor("IN", np.zeros((1, 1), np.float32))
    engine.infer(engine.find("m"), make_request(zeros, on_response=answer.set_result))
    response = await answer
    assert response.error is None
    return float(response.outputs[0].data[0, 0])


async def reload_by_call(engine: Engine) -> None:
    await engine.load_model("m", None, {})


async def reload_by_poll(engine: Engine) -> None:
    await engine.poll()
    await engine.poll()


class Load:
    """Requests without a pause; each answer must be of a version that served meanwhile."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._tasks: list[asyncio.Task[None]] = []
        self._is_over = False
        # What the repository says, and what surely serves.
        self.newest = self.oldest = 1
        self.count = 0

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._ask()) for _ in range(ASKERS)]

    async def stop(self) -> None:
        self._is_over = True
        await asyncio.gather(*self._tasks)

    async def _ask(self) -> None:
        while not self._is_over:
            oldest = self.oldest
            answer = await ask(self._engine)
            assert oldest <= answer <= self.newest
            self.count += 1


@pytest.mark.parametrize("reloads", [12, pytest.param(50, marks=pytest.mark.full)])
@pytest.mark.parametrize(
    ("mode", "reload"),
    [
        (ModelControlMode.EXPLICIT, reload_by_call),
        (ModelControlMode.POLL, reload_by_poll),
    ],
)
async def test_a_reload_costs_no_request(
    tmp_path: Path, mode: ModelControlMode, reload: Reload, reloads: int
) -> None:
    write(tmp_path, 1)
    options = EngineOptions("naiad", "1", mode, startup_models=("m",), poll_interval_s=3600)
    engine = Engine(options, Loader(LoaderOptions((tmp_path,)), BackendRegistry()), SystemClock())
    assert await engine.start() == {}
    load = Load(engine)
    load.start()
    for amount in range(2, reloads + 2):
        write(tmp_path, amount)
        load.newest = amount
        await reload(engine)
        assert await ask(engine) == amount
        load.oldest = amount
    await load.stop()
    assert load.count > ASKERS * reloads
    await engine.stop()
