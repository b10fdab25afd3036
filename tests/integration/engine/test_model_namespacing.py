"""Models of the same name in different repositories, and which of them an ensemble calls."""

import asyncio
import shutil
from collections.abc import AsyncIterator
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
from naiad.inference.states import ModelState

AMBIGUOUS = (
    "There are 2 identifiers of model '{}' in global map, model namespace must be provided to "
    "resolve ambiguity."
)


def ensemble(name: str, step: str) -> str:
    """The config of an ensemble of one step."""
    return f"""name: "{name}" platform: "ensemble" max_batch_size: 8
input [ {{ name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }} ]
output [ {{ name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }} ]
ensemble_scheduling {{ step {{
  model_name: "{step}" model_version: -1
  input_map {{ key: "IN" value: "IN" }} output_map {{ key: "OUT" value: "OUT" }}
}} }}"""


class Two:
    """Two repositories: ``step`` adds 1 in the first and 2 in the second, each with an ensemble."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.first = RepositoryBuilder(path / "first")
        self.second = RepositoryBuilder(path / "second")
        self.first.add_sum("step", 1)
        self.first.add_model("ens1", ensemble("ens1", "step"))
        self.second.add_sum("step", 2)
        self.second.add_model("ens2", ensemble("ens2", "step"))

    def engine(self, mode: ModelControlMode) -> Engine:
        options = LoaderOptions((self.first.path, self.second.path), is_namespaced=True)
        engine_options = EngineOptions("naiad", "1", mode, poll_interval_s=3600)
        return Engine(engine_options, Loader(options, BackendRegistry()), SystemClock())

    def take_step_away(self) -> None:
        shutil.move(self.first.path / "step", self.path / "away")

    def bring_step_back(self) -> None:
        shutil.move(self.path / "away", self.first.path / "step")


@pytest.fixture
def two(tmp_path: Path) -> Two:
    return Two(tmp_path)


@pytest.fixture
async def engine(two: Two) -> AsyncIterator[Engine]:
    made = two.engine(ModelControlMode.EXPLICIT)
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def poller(two: Two) -> AsyncIterator[Engine]:
    made = two.engine(ModelControlMode.POLL)
    assert await made.start() == {}
    yield made
    await made.stop()


async def added(engine: Engine, name: str) -> float:
    answer: asyncio.Future[InferResponse] = asyncio.get_running_loop().create_future()
    zeros = tensor("IN", np.zeros((1, 1), np.float32))
    engine.infer(engine.find(name), make_request(zeros, on_response=answer.set_result))
    response = await answer
    assert response.error is None
    assert response.model_name == name
    return float(response.outputs[0].data[0, 0])


async def load(engine: Engine, *names: str) -> None:
    for name in names:
        await engine.load_model(name, None, {})


async def test_each_ensemble_calls_the_step_of_its_own_repository(engine: Engine) -> None:
    await load(engine, "ens1", "ens2")
    assert (await added(engine, "ens1"), await added(engine, "ens2")) == (1, 2)
    assert engine.is_ready()


async def test_a_name_of_two_models_is_ambiguous(engine: Engine, two: Two) -> None:
    await load(engine, "ens1", "ens2")
    for ask in (engine.find, engine.model_metadata, engine.model_config, engine.statistics):
        with pytest.raises(InvalidArgumentError) as failure:
            ask("step")
        assert failure.value.message.startswith(AMBIGUOUS.format("step"))
        # Naiad's own advice.
        assert str(two.first.path) in failure.value.message
    assert not engine.is_model_ready("step")


async def test_a_name_of_one_model_needs_no_namespace(engine: Engine) -> None:
    await load(engine, "ens2")
    assert await added(engine, "step") == 2
    assert engine.model_metadata("step").versions == ("1",)


async def test_config_and_metrics_name_the_namespace(engine: Engine, two: Two) -> None:
    await load(engine, "ens1", "ens2")
    [step] = engine.model_config("ens1").ensemble_scheduling.step
    assert step.model_namespace == str(two.first.path)
    assert {(model.name, namespace) for namespace, model in engine.serving()} == {
        ("ens1", str(two.first.path)),
        ("step", str(two.first.path)),
        ("ens2", str(two.second.path)),
        ("step", str(two.second.path)),
    }


async def test_ensembles_of_one_name_load_together(engine: Engine, two: Two) -> None:
    for builder in (two.first, two.second):
        builder.add_model("both", ensemble("both", "step"))
    await load(engine, "both")
    with pytest.raises(InvalidArgumentError, match="2 identifiers of model 'both'"):
        engine.find("both")
    lines = [line for line in await engine.index(ready_only=True) if line.name == "both"]
    assert [line.state for line in lines] == [ModelState.READY] * 2
    # Each knows which step is its own, although neither can be asked by its name alone.
    own = [m.config for _, m in engine.serving() if m.name == "both"]
    namespaces = [config.ensemble_scheduling.step[0].model_namespace for config in own]
    assert namespaces == [str(two.first.path), str(two.second.path)]
    await engine.unload_model("both", unload_dependents=True)
    assert [line.name for line in await engine.index(ready_only=True)] == []


async def test_without_its_own_an_ensemble_takes_the_only_other(engine: Engine, two: Two) -> None:
    two.take_step_away()
    await load(engine, "ens1", "ens2")
    assert [await added(engine, name) for name in ("ens1", "ens2", "step")] == [2, 2, 2]
    two.bring_step_back()
    # The ensemble itself has not changed; what its step stands for has.
    await load(engine, "ens1")
    assert (await added(engine, "ens1"), await added(engine, "ens2")) == (1, 2)
    with pytest.raises(InvalidArgumentError, match="2 identifiers of model 'step'"):
        engine.find("step")


async def test_polling_follows_where_a_step_lies(poller: Engine, two: Two) -> None:
    assert (await added(poller, "ens1"), await added(poller, "ens2")) == (1, 2)
    two.take_step_away()
    await poller.poll()
    assert [await added(poller, name) for name in ("ens1", "ens2", "step")] == [2, 2, 2]
    two.bring_step_back()
    await poller.poll()
    # The folder may still be on its way.
    assert await added(poller, "ens1") == 2
    await poller.poll()
    assert (await added(poller, "ens1"), await added(poller, "ens2")) == (1, 2)
    assert poller.is_ready()


async def test_a_step_that_others_have_twice_is_ambiguous(engine: Engine, two: Two) -> None:
    third = RepositoryBuilder(two.path / "third")
    third.add_model("ens3", ensemble("ens3", "step"))
    options = LoaderOptions((two.first.path, two.second.path, third.path), is_namespaced=True)
    three = Engine(
        EngineOptions("naiad", "1", ModelControlMode.EXPLICIT),
        Loader(options, BackendRegistry()),
        SystemClock(),
    )
    await three.start()
    with pytest.raises(
        InvalidArgumentError,
        match="ensemble ens3 contains models that are not available or ambiguous: step",
    ):
        await load(three, "ens3")
    await three.stop()


async def test_failures_name_the_namespace(engine: Engine, two: Two) -> None:
    for builder in (two.first, two.second):
        builder.add_model("broken", None, {"1/model.onnx": b"not a model"})
    with pytest.raises(InvalidArgumentError) as failure:
        await load(engine, "broken")
    for builder in (two.first, two.second):
        assert f"load failed for model '{builder.path}::broken': " in failure.value.message


async def test_files_of_a_client_need_one_model_to_replace(two: Two) -> None:
    options = LoaderOptions(
        (two.first.path, two.second.path), is_namespaced=True, allow_file_override=True
    )
    engine = Engine(
        EngineOptions("naiad", "1", ModelControlMode.EXPLICIT),
        Loader(options, BackendRegistry()),
        SystemClock(),
    )
    await engine.start()
    model = (two.second.path / "step" / "1" / "model.onnx").read_bytes()
    config = '{"backend": "onnxruntime", "max_batch_size": 8}'
    with pytest.raises(InvalidArgumentError, match="2 identifiers of model 'step'"):
        await engine.load_model("step", config, {"1/model.onnx": model})
    await engine.load_model("new", config, {"1/model.onnx": model})
    assert await added(engine, "new") == 2
    await engine.stop()
