"""Ensembles on a repository on disk: loads, answers, reloads and failures, with real models."""

import asyncio
from collections.abc import AsyncIterator, Sequence
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
from naiad.inference.states import ModelState

Map = tuple[str, str]
Step = tuple[str, int, Sequence[Map], Sequence[Map]]


def ensemble(
    name: str,
    steps: Sequence[Step],
    *,
    inputs: Sequence[str] = ("IN",),
    outputs: Sequence[str] = ("OUT",),
    max_batch_size: int = 8,
    datatype: str = "TYPE_FP32",
    dims: str = "-1",
) -> str:
    """The config of an ensemble of models with one kind of tensor."""

    def tensors(names: Sequence[str]) -> str:
        return ", ".join(f'{{ name: "{n}" data_type: {datatype} dims: [ {dims} ] }}' for n in names)

    text = f'name: "{name}" platform: "ensemble" max_batch_size: {max_batch_size}\n'
    text += f"input [ {tensors(inputs)} ] output [ {tensors(outputs)} ] ensemble_scheduling {{\n"
    for model, version, read, written in steps:
        text += f'step {{ model_name: "{model}" model_version: {version}'
        for field, pairs in (("input_map", read), ("output_map", written)):
            for key, value in pairs:
                text += f' {field} {{ key: "{key}" value: "{value}" }}'
        text += " }\n"
    return text + "}"


def chain(name: str, *models: str) -> str:
    """Models with IN and OUT, one after the other."""
    names = ["IN", *(f"t{index}" for index in range(1, len(models))), "OUT"]
    return ensemble(
        name,
        [
            (model, -1, [("IN", names[index])], [("OUT", names[index + 1])])
            for index, model in enumerate(models)
        ],
    )


@pytest.fixture
def repository(tmp_path: Path) -> RepositoryBuilder:
    """``one`` and ``two`` add 1 and 2, and ``both`` calls them in turn."""
    made = RepositoryBuilder(tmp_path / "repository")
    made.add_sum("one", 1)
    made.add_sum("two", 2)
    made.add_model("both", chain("both", "one", "two"))
    return made


def make_engine(
    repository: RepositoryBuilder, mode: ModelControlMode = ModelControlMode.EXPLICIT
) -> Engine:
    options = EngineOptions("naiad", "1", mode, poll_interval_s=3600)
    loader = Loader(LoaderOptions((repository.path,)), BackendRegistry())
    return Engine(options, loader, SystemClock())


@pytest.fixture
async def engine(repository: RepositoryBuilder) -> AsyncIterator[Engine]:
    made = make_engine(repository)
    await made.start()
    yield made
    await made.stop()


async def load(engine: Engine, *names: str) -> None:
    for name in names:
        await engine.load_model(name, None, {})


async def infer(
    engine: Engine, name: str, *values: float, output_names: Sequence[str] | None = None
) -> InferResponse:
    answer: asyncio.Future[InferResponse] = asyncio.get_running_loop().create_future()
    model = engine.find(name)
    rows = np.array(values or (0,), np.float32).reshape(-1, 1)
    request = make_request(
        *(tensor(spec, rows) for spec in model.signature.inputs),
        request_id="r",
        output_names=output_names,
        on_response=answer.set_result,
    )
    engine.infer(model, request)
    return await answer


def values(response: InferResponse) -> dict[str, list[float]]:
    assert response.error is None, response.error
    return {output.name: output.data.ravel().tolist() for output in response.outputs}


async def states(engine: Engine) -> dict[str, ModelState | None]:
    return {line.name: line.state for line in await engine.index(ready_only=False)}


async def test_loading_an_ensemble_loads_its_steps(engine: Engine) -> None:
    await load(engine, "both")
    assert values(await infer(engine, "both", 1, 2)) == {"OUT": [4, 5]}
    assert set((await states(engine)).values()) == {ModelState.READY}
