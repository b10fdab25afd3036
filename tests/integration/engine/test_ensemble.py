"""Ensembles on a repository on disk: loads, answers, reloads and failures, with real models."""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from tests.support.repository_builder import RepositoryBuilder
from tests.support.requests import make_request, tensor

from naiad.backends.registry import BackendRegistry
from naiad.clock import SystemClock
from naiad.engine.engine import Engine, EngineOptions, IndexEntry, ModelControlMode
from naiad.engine.loader import Loader, LoaderOptions
from naiad.errors import InvalidArgumentError, NotFoundError
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


async def test_unloading_an_ensemble_leaves_its_steps(engine: Engine) -> None:
    await load(engine, "both")
    await engine.unload_model("both", unload_dependents=False)
    await until_unloaded(engine, "both")
    assert await states(engine) == {
        "both": ModelState.UNAVAILABLE,
        "one": ModelState.READY,
        "two": ModelState.READY,
    }


async def test_unloading_with_dependents_takes_the_steps_that_nobody_asked_for(
    engine: Engine, repository: RepositoryBuilder
) -> None:
    repository.add_model("nested", chain("nested", "both", "one"))
    await load(engine, "two", "nested")
    await engine.unload_model("nested", unload_dependents=True)
    await until_unloaded(engine, "nested", "both", "one")
    assert engine.is_model_ready("two")


async def test_a_step_that_another_ensemble_calls_stays(
    engine: Engine, repository: RepositoryBuilder
) -> None:
    repository.add_model("other", chain("other", "two"))
    await load(engine, "both", "other")
    await engine.unload_model("both", unload_dependents=True)
    await until_unloaded(engine, "both", "one")
    assert values(await infer(engine, "other", 1)) == {"OUT": [3]}


async def test_an_ensemble_stops_with_its_step_and_comes_back_with_it(engine: Engine) -> None:
    await load(engine, "both")
    await engine.unload_model("two", unload_dependents=False)
    await until_unloaded(engine, "both", "two")
    with pytest.raises(NotFoundError, match="depends on 'two' which has no loaded version"):
        engine.find("both")
    assert engine.is_ready()  # as after any unload; Triton sees it so, too
    await load(engine, "two")
    assert engine.is_ready()
    assert values(await infer(engine, "both")) == {"OUT": [3]}


async def test_an_ensemble_follows_a_step_that_is_reloaded(
    engine: Engine, repository: RepositoryBuilder
) -> None:
    await load(engine, "both")
    write_later(repository.add_sum("two", 20))
    await load(engine, "two")
    assert values(await infer(engine, "both")) == {"OUT": [21]}


async def test_loading_an_ensemble_again_loads_a_step_that_has_changed(
    engine: Engine, repository: RepositoryBuilder
) -> None:
    await load(engine, "both")
    write_later(repository.add_sum("two", 20))
    await load(engine, "both")
    assert values(await infer(engine, "both")) == {"OUT": [21]}


async def test_polling_follows_steps_that_change_and_steps_that_appear(
    repository: RepositoryBuilder,
) -> None:
    repository.add_model("later", chain("later", "one", "three"))
    poller = make_engine(repository, ModelControlMode.POLL)
    failures = await poller.start()
    try:
        assert list(failures) == ["later"]
        write_later(repository.add_sum("two", 20))
        repository.add_sum("three", 3)
        for _ in range(2):  # a folder must be the same twice
            await poller.poll()
        assert values(await infer(poller, "both")) == {"OUT": [21]}
        assert values(await infer(poller, "later")) == {"OUT": [4]}
    finally:
        await poller.stop()


async def test_polling_loads_no_step_that_is_still_being_copied(
    repository: RepositoryBuilder,
) -> None:
    poller = make_engine(repository, ModelControlMode.POLL)
    await poller.start()
    try:
        repository.add_model("new", chain("new", "one", "copied"))
        for amount in (10, 20, 30):
            # The ensemble is the same in each look, its step's folder is not.
            write_later(repository.add_sum("copied", amount))
            await poller.poll()
            lines = await poller.index(ready_only=False)
            assert IndexEntry("copied") in lines
        [failure] = [line.reason for line in await poller.index(ready_only=False) if line.reason]
        assert "contains models that are not available or ambiguous: copied" in failure
        await poller.poll()
        assert values(await infer(poller, "new")) == {"OUT": [31]}
        # What serves goes on while its next version is copied, whatever else is loaded.
        write_later(repository.add_sum("copied", 40))
        write_later(repository.add_model("both", chain("both", "one", "copied")))
        await poller.poll()
        write_later(repository.add_sum("copied", 50))
        await poller.poll()
        assert values(await infer(poller, "both")) == {"OUT": [31]}
        await poller.poll()
        assert values(await infer(poller, "both")) == {"OUT": [51]}
    finally:
        await poller.stop()


SLOW = """backend: "identity" max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
parameters { key: "creation_delay_sec" value { string_value: "1" } }
"""


@pytest.mark.slow
async def test_a_step_is_unloaded_after_the_ensembles_that_are_loading_on_it(
    repository: RepositoryBuilder, engine: Engine
) -> None:
    repository.add_model("slow", SLOW)
    steps: list[Step] = [
        ("slow", -1, [("INPUT0", "IN")], [("OUTPUT0", "t")]),
        ("one", -1, [("IN", "t")], [("OUT", "OUT")]),
    ]
    repository.add_model("inner", ensemble("inner", steps))
    repository.add_model("outer", chain("outer", "inner", "two"))
    loading = asyncio.create_task(load(engine, "outer"))
    while not any(
        line.name == "slow" and line.state is ModelState.LOADING
        for line in await engine.index(ready_only=False)
    ):
        pass
    await engine.unload_model("slow", unload_dependents=False)
    await loading
    assert [engine.is_model_ready(name) for name in ("slow", "inner", "outer")] == [False] * 3
    await until_unloaded(engine, "slow", "inner", "outer")
    assert engine.is_ready()  # somebody wanted it so
    with pytest.raises(NotFoundError, match="ensemble 'outer' depends on 'inner'"):
        engine.find("outer")
    await load(engine, "slow")
    assert values(await infer(engine, "outer")) == {"OUT": [3]}


async def test_everything_loads_at_the_start_whatever_the_order(
    repository: RepositoryBuilder,
) -> None:
    repository.add_model("a_nested", chain("a_nested", "both", "z_last"))
    repository.add_model("z_last", chain("z_last", "one"))
    made = make_engine(repository, ModelControlMode.NONE)
    assert await made.start() == {}
    try:
        assert values(await infer(made, "a_nested")) == {"OUT": [4]}
    finally:
        await made.stop()


async def test_steps_run_the_version_that_they_name(
    engine: Engine, repository: RepositoryBuilder
) -> None:
    policy = "version_policy { all {} }"
    repository.add_sum("many", 1, versions=(1,), extra=policy)
    repository.add_sum("many", 10, versions=(2,), extra=policy)
    pinned = [
        ("many", 1, [("IN", "IN")], [("OUT", "t")]),
        ("many", -1, [("IN", "t")], [("OUT", "OUT")]),
    ]
    repository.add_model("pinned", ensemble("pinned", pinned))
    await load(engine, "pinned")
    assert values(await infer(engine, "pinned")) == {"OUT": [11]}


FAILURES = {
    "missing": (
        chain("missing", "one", "nothere", "nowhere"),
        "ensemble missing contains models that are not available or ambiguous: nothere, nowhere",
    ),
    "version": (
        ensemble("version", [("one", 9, [("IN", "IN")], [("OUT", "OUT")])]),
        "ensemble 'version' depends on 'one' whose required version 9 is not loaded.",
    ),
    "self": (
        chain("self", "self"),
        "circular dependency between ensembles: self -> ... -> self -> self",
    ),
    "ring": (
        chain("ring", "ring_b"),
        "circular dependency between ensembles: ring_b -> ... -> ring -> ring_b",
    ),
    "caller": (
        chain("caller", "missing"),
        "ensemble 'caller' depends on 'missing' which is not valid. Model 'missing' failed with "
        "error: ensemble missing contains models that are not available or ambiguous: nothere, "
        "nowhere",
    ),
    "datatype": (
        ensemble("datatype", [("one", -1, [("IN", "IN")], [("OUT", "OUT")])], datatype="TYPE_INT8"),
        "in ensemble datatype, ensemble tensor IN: inconsistent data type: TYPE_INT8 is inferred "
        "from model datatype while TYPE_FP32 is inferred from model one",
    ),
}


@pytest.mark.parametrize("name", FAILURES)
async def test_an_ensemble_that_can_not_run_says_why(
    engine: Engine, repository: RepositoryBuilder, name: str
) -> None:
    for key, (config, _) in FAILURES.items():
        repository.add_model(key, config)
    repository.add_model("ring_b", chain("ring_b", "ring"))
    text = FAILURES[name][1]
    with pytest.raises(InvalidArgumentError) as caught:
        await asyncio.wait_for(load(engine, name), 60)
    assert caught.value.message.startswith(f"load failed for model '{name}': {text}\n")
    (line,) = [line for line in await engine.index(ready_only=False) if line.name == name]
    cause = f"Invalid argument: {text}"
    assert line == IndexEntry(name, "", ModelState.UNAVAILABLE, cause, line.reason)
    assert line.reason.startswith(cause)
    with pytest.raises(NotFoundError, match=f"^Request for unknown model: '{name}' is not found"):
        engine.find(name)


async def test_two_ensembles_that_call_each_other_fail_together_at_the_start(
    repository: RepositoryBuilder,
) -> None:
    repository.add_model("ring_a", chain("ring_a", "ring_b"))
    repository.add_model("ring_b", chain("ring_b", "ring_a"))
    made = make_engine(repository, ModelControlMode.NONE)
    failures = await asyncio.wait_for(made.start(), 60)
    await made.stop()
    assert sorted(failures) == ["ring_a", "ring_b"]
    assert all("circular dependency between ensembles" in e.message for e in failures.values())


async def test_a_failed_step_is_quoted(engine: Engine, repository: RepositoryBuilder) -> None:
    repository.add_model("two", files={"1/model.onnx": b"no model"})
    with pytest.raises(InvalidArgumentError) as caught:
        await load(engine, "both")
    assert caught.value.message.startswith(
        "load failed for model 'both': ensemble 'both' depends on 'two' which has no loaded "
        "version. Model 'two' loading failed with error: version 1 is at UNAVAILABLE state: "
    )
    assert caught.value.message.endswith(";\n")


async def test_a_failed_reload_leaves_the_ensemble_that_serves(
    engine: Engine, repository: RepositoryBuilder
) -> None:
    await load(engine, "both")
    write_later(repository.add_model("both", chain("both", "one", "nothere")))
    with pytest.raises(InvalidArgumentError, match="not available or ambiguous: nothere"):
        await load(engine, "both")
    assert values(await infer(engine, "both")) == {"OUT": [3]}


async def test_outputs_have_the_labels_of_the_models_that_write_them(
    engine: Engine, repository: RepositoryBuilder
) -> None:
    folder = repository.add_sum("two", 2)
    config = (folder / "config.pbtxt").read_text()
    labelled = config.replace("output [ { ", 'output [ { label_filename: "names.txt" ')
    repository.add_model("two", labelled, {"names.txt": "cat\ndog\n"})
    await load(engine, "both")
    assert engine.find("both").labels == {"OUT": ["cat", "dog"]}


async def test_a_request_keeps_its_models_while_they_are_unloaded(engine: Engine) -> None:
    await load(engine, "both")
    answer = asyncio.ensure_future(infer(engine, "both", 1))
    await asyncio.sleep(0)  # the request is with the first step
    await engine.unload_model("two", unload_dependents=False)
    await engine.unload_model("one", unload_dependents=False)
    assert values(await answer) == {"OUT": [4]}
    await until_unloaded(engine, "one", "two", "both")


async def test_the_statistics_of_the_steps_count_too(engine: Engine) -> None:
    await load(engine, "both")
    await infer(engine, "both", 1, 2, 3)
    counted = {
        model.name: (model.statistics.inference_count, model.statistics.success.count)
        for model in engine.statistics()
    }
    assert counted == dict.fromkeys(("both", "one", "two"), (3, 1))
    times = engine.find("both").statistics
    parts = [engine.find(name).statistics.compute_infer.ns for name in ("one", "two")]
    assert times.compute_infer.ns == sum(parts)


async def until_unloaded(engine: Engine, *names: str) -> None:
    """Unloading finishes on the loop, and closing an instance takes a thread's time."""
    async with asyncio.timeout(60):
        while True:
            now = await states(engine)
            if all(now[name] is ModelState.UNAVAILABLE for name in names):
                return


_ticks = iter(range(2_000_000_000, 2**62, 1_000_000_000))


def write_later(folder: Path) -> None:
    """Give files a time of their own: two writes within one tick of the clock must differ."""
    ticks = next(_ticks)
    for path in folder.rglob("*"):
        os.utime(path, ns=(ticks, ticks))
