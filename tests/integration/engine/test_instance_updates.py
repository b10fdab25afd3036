"""A change of ``instance_group`` alone adds and removes instances of a version that serves."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
from tests.integration.engine.test_executor import FakeInstance, Harness, harness_with, values
from tests.integration.engine.test_sequences import Harness as SequenceHarness
from tests.integration.engine.test_sequences import SumInstance, started
from tests.support.python_models import Asked, floats, serving, value, write_model
from tests.support.repository_builder import RepositoryBuilder
from tests.support.requests import make_request, tensor

from naiad.backends.registry import BackendRegistry
from naiad.clock import SystemClock
from naiad.engine.engine import Engine, EngineOptions, ModelControlMode
from naiad.engine.loader import Loader, LoaderOptions
from naiad.engine.model import Model
from naiad.engine.warmup import WarmupSample
from naiad.errors import InvalidArgumentError, NaiadError
from naiad.inference.response import InferResponse
from naiad.scheduling.default import DefaultScheduler
from naiad.scheduling.rate_limiter import ResourceLimit

GROUP = "count: {} kind: KIND_CPU"


def set_groups(folder: Path, *groups: str) -> None:
    """Write a config that differs in its instance groups alone."""
    config = folder / "config.pbtxt"
    text = config.read_text().partition("instance_group")[0]
    ticks = config.stat().st_mtime_ns + 10**9
    config.write_text(f"{text}instance_group [ {', '.join(f'{{ {g} }}' for g in groups)} ]\n")
    # Two writes within one tick of the file system's clock must still differ.
    os.utime(config, ns=(ticks, ticks))


# The executor by itself, with instances whose gates the test holds.


async def test_new_instances_take_requests_and_others_finish_theirs() -> None:
    harness = harness_with(DefaultScheduler())
    held = await harness.hold()
    new = FakeInstance()
    await harness.executor.join({1: new}, ())
    assert not new.executed
    waiting = harness.send(1)[1]
    harness.executor.set_instances({1})
    assert [values(await waiting)[0], len(new.executed)] == [[2], 1]
    # The one that was taken away has a request, and is closed once it is answered.
    settled = asyncio.ensure_future(harness.executor.settle())
    assert values(await harness.send(2)[1])[0] == [4]
    assert not settled.done()
    assert not harness.instance.is_closed
    harness.instance.gate.set()
    assert values(await held)[0] == [0]
    await settled
    assert harness.instance.is_closed
    assert [values(await harness.send(3)[1])[0], len(new.executed)] == [[6], 3]
    await harness.executor.drain()
    await harness.executor.close()
    assert new.is_closed


async def test_instances_that_are_not_taken_are_closed() -> None:
    harness = Harness()
    new = FakeInstance()
    await harness.executor.join({1: new}, ())
    harness.executor.set_instances({0})
    await harness.executor.settle()
    assert new.is_closed
    assert values(await harness.send(3)[1])[0] == [6]
    await harness.executor.drain()
    await harness.executor.close()


async def test_an_executor_closes_those_that_have_not_left_yet() -> None:
    harness = harness_with(DefaultScheduler())
    held = await harness.hold()
    new = FakeInstance()
    await harness.executor.join({1: new}, ())
    harness.executor.set_instances({1})
    drained = asyncio.ensure_future(harness.executor.drain())
    harness.instance.gate.set()
    await held
    await drained
    await harness.executor.close()
    assert harness.instance.is_closed
    assert new.is_closed


@pytest.mark.parametrize("sample", [3.0, -1.0])
async def test_a_new_instance_is_warmed_up_beside_the_load(sample: float) -> None:
    harness = Harness()
    held = await harness.hold()
    new = FakeInstance()
    warmup = WarmupSample("w", 2, 1, {"IN": tensor("IN", np.array([[sample]], np.float32))})
    if sample < 0:
        with pytest.raises(InvalidArgumentError, match="failed to run warmup sample 'w'"):
            await harness.executor.join({1: new}, [warmup])
        assert new.is_closed
        harness.executor.set_instances({0})
    else:
        await harness.executor.join({1: new}, [warmup])
        assert len(new.executed) == 2
        harness.executor.set_instances({0, 1})
        assert values(await harness.send(5)[1])[0] == [10]
    harness.instance.gate.set()
    await held
    await harness.executor.drain()
    await harness.executor.close()


@pytest.mark.parametrize("strategy", ["direct { }", "oldest { max_candidate_sequences: 1 }"])
async def test_a_sequence_keeps_its_instance_until_it_ends(strategy: str) -> None:
    harness = SequenceHarness(strategy, count=2, max_batch_size=1)
    old = list(harness.instances)
    assert await harness.infer(1, 10, "s") == 10
    gone, free = old if old[0].batches else old[::-1]
    new = SumInstance()
    harness.instances.append(new)
    await harness.executor.join({2: new}, ())
    harness.executor.set_instances({2})
    # The other one has no sequence.
    await harness.executor.settle()
    assert await harness.infer(2, 5, "s") == 5
    assert await harness.infer(1, 1) == 11
    gone.gate.clear()
    last = harness.send(1, 1, "e")[1]
    await started(gone)
    assert await harness.infer(2, 5, "e") == 10
    settled = asyncio.ensure_future(harness.executor.settle())
    gone.gate.set()
    assert (await last).outputs[0].data.item() == 12
    await settled
    assert (len(gone.batches), len(free.batches), len(new.batches)) == (3, 0, 2)
    await harness.close()


# An engine with models of a repository.


class Repository:
    """The model ``m``, which adds 1."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.folder = RepositoryBuilder(path).add_sum("m", 1, versions=(1, 2))
        config = self.folder / "config.pbtxt"
        policy = "version_policy { all { } }\n"
        config.write_text(config.read_text().partition("instance_group")[0] + policy)
        set_groups(self.folder, GROUP.format(2))


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


@pytest.fixture
async def engine(repository: Repository) -> AsyncIterator[Engine]:
    made = Engine(
        EngineOptions("naiad", "1", ModelControlMode.EXPLICIT, resource_limits=()),
        Loader(LoaderOptions((repository.path,)), BackendRegistry()),
        SystemClock(),
    )
    await made.start()
    await made.load_model("m", None, {})
    yield made
    await made.stop()


def models(engine: Engine) -> list[Model]:
    return list(engine.statistics("m"))


async def ask(engine: Engine, version: int = -1) -> float:
    answer: asyncio.Future[InferResponse] = asyncio.get_running_loop().create_future()
    zeros = tensor("IN", np.zeros((1, 1), np.float32))
    engine.infer(engine.find("m", version), make_request(zeros, on_response=answer.set_result))
    response = await answer
    assert response.error is None, response.error
    return float(response.outputs[0].data[0, 0])


async def test_only_the_instances_of_a_version_change(
    engine: Engine, repository: Repository, caplog: pytest.LogCaptureFixture
) -> None:
    before = models(engine)
    assert await ask(engine) == 1
    caplog.set_level("INFO")
    for groups, made in (
        ((GROUP.format(3),), 1),
        ((GROUP.format(1),), 0),
        ((f'name: "n" {GROUP.format(1)}', GROUP.format(1)), 1),
        ((f'host_policy: "p" {GROUP.format(1)}',), 1),
    ):
        caplog.clear()
        set_groups(repository.folder, *groups)
        await engine.load_model("m", None, {})
        assert models(engine) == before
        assert len(engine.model_config("m", 1).instance_group) == len(groups)
        # Of both versions.
        assert caplog.text.count("TRITONBACKEND_ModelInstanceInitialize") == 2 * made
        assert "TRITONBACKEND_ModelInitialize" not in caplog.text
        assert [await ask(engine, 1), await ask(engine, 2)] == [1, 1]
    # The counters go on.
    assert before[0].statistics.inference_count + before[1].statistics.inference_count == 9


async def test_a_config_of_the_load_request_changes_instances_too(engine: Engine) -> None:
    before = models(engine)
    config = (
        '{"max_batch_size": 8, "backend": "onnxruntime", "version_policy": {"all": {}}, '
        '"input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [-1]}], '
        '"output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [-1]}], '
        '"instance_group": [{"count": 4, "kind": "KIND_CPU"}]}'
    )
    await engine.load_model("m", config, {})
    assert models(engine) == before
    assert engine.model_config("m", 1).instance_group[0].count == 4


async def test_anything_else_that_changes_is_a_reload(
    engine: Engine, repository: Repository
) -> None:
    before = models(engine)
    config = repository.folder / "config.pbtxt"
    config.write_text("dynamic_batching { }\n" + config.read_text())
    set_groups(repository.folder, GROUP.format(3))
    await engine.load_model("m", None, {})
    assert not set(models(engine)) & set(before)


async def test_what_can_not_be_leaves_all_as_it_was(
    repository: Repository, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine(
        EngineOptions(
            "naiad", "1", ModelControlMode.EXPLICIT, resource_limits=(ResourceLimit("R", 4),)
        ),
        Loader(LoaderOptions((repository.path,)), BackendRegistry()),
        SystemClock(),
    )
    await engine.start()
    limit = 'rate_limiter {{ resources {{ name: "R" count: {} }} }}'
    set_groups(repository.folder, f"{GROUP.format(1)} {limit.format(2)}")
    await engine.load_model("m", None, {})
    before = models(engine)
    set_groups(repository.folder, f"{GROUP.format(1)} {limit.format(8)}")
    caplog.set_level("INFO")
    with pytest.raises(NaiadError, match=r'version 1 is at READY state: .*"R" is limited to 4'):
        await engine.load_model("m", None, {})
    # Nothing was made only to be thrown away.
    assert "TRITONBACKEND_ModelInstanceInitialize" not in caplog.text
    assert models(engine) == before
    assert engine.model_config("m", 1).instance_group[0].rate_limiter.resources[0].count == 2
    assert engine.is_ready()
    for count in (4, 1):
        set_groups(repository.folder, f"{GROUP.format(2)} {limit.format(count)}")
        await engine.load_model("m", None, {})
        assert models(engine) == before
        assert [await ask(engine, version) for version in (1, 2, 1, 2)] == [1] * 4
    await engine.stop()


@pytest.mark.parametrize("updates", [10, pytest.param(50, marks=pytest.mark.full)])
async def test_updates_under_load_cost_no_request(
    engine: Engine, repository: Repository, updates: int
) -> None:
    before = models(engine)
    is_over = False
    count = 0

    async def keep_asking() -> None:
        nonlocal count
        while not is_over:
            assert await ask(engine) == 1
            count += 1

    askers = [asyncio.create_task(keep_asking()) for _ in range(4)]
    for index in range(updates):
        extra = f'host_policy: "{index}" ' if index % 3 == 2 else ""
        set_groups(repository.folder, extra + GROUP.format(1 + index % 4))
        await engine.load_model("m", None, {})
    is_over = True
    await asyncio.gather(*askers)
    assert models(engine) == before
    assert count > updates


# Python models, which are processes.

COUNTED = """
import os, pathlib

LOG = pathlib.Path(__file__).parents[2] / "log"

class TritonPythonModel:
    def initialize(self, args):
        if (LOG.parent / "broken").exists():
            raise ValueError("no more of these")
        self.note("initialize")

    def note(self, event):
        with LOG.open("a") as file:
            file.write(event + "\\n")

    def execute(self, requests):
        pid = np.array([os.getpid()], np.float32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", pid)]) for _ in requests]

    def finalize(self):
        self.note("finalize")
"""


def counts(path: Path) -> tuple[int, int]:
    """How many instances began, and how many have ended."""
    events = (path / "log").read_text().split()
    return events.count("initialize"), events.count("finalize")


@pytest.mark.slow
async def test_processes_come_and_go(tmp_path: Path) -> None:
    write_model(tmp_path, "m", COUNTED, extra=f"instance_group [ {{ {GROUP.format(2)} }} ]")
    folder = tmp_path / "m"
    async with serving(tmp_path, ModelControlMode.EXPLICIT) as engine:
        await engine.load_model("m", None, {})
        assert counts(tmp_path) == (2, 0)
        known = {(await value(engine, "m", floats(0)))[0]}
        asked = [Asked(engine, "m", floats(0)).send() for _ in range(20)]
        for one in asked:
            known.add(float((await one.all())[0].outputs[0].data[0]))
        set_groups(folder, GROUP.format(1))
        await engine.load_model("m", None, {})
        assert counts(tmp_path) == (2, 1)
        assert (await value(engine, "m", floats(0)))[0] in known
        set_groups(folder, GROUP.format(2))
        (tmp_path / "broken").touch()
        with pytest.raises(NaiadError, match="no more of these"):
            await engine.load_model("m", None, {})
        assert counts(tmp_path) == (2, 1)
        assert (await value(engine, "m", floats(0)))[0] in known
        (tmp_path / "broken").unlink()
        await engine.load_model("m", None, {})
        assert counts(tmp_path) == (3, 1)
        await engine.unload_model("m", unload_dependents=False)
    assert counts(tmp_path) == (3, 3)


@pytest.mark.slow
async def test_processes_come_and_go_under_load(tmp_path: Path) -> None:
    write_model(tmp_path, "m", COUNTED, extra=f"instance_group [ {{ {GROUP.format(1)} }} ]")
    is_over = False
    seen = set()

    async def keep_asking(engine: Engine) -> None:
        while not is_over:
            seen.add((await value(engine, "m", floats(0)))[0])

    async with serving(tmp_path, ModelControlMode.EXPLICIT) as engine:
        await engine.load_model("m", None, {})
        askers = [asyncio.create_task(keep_asking(engine)) for _ in range(4)]
        for groups in ((GROUP.format(2),), (f'host_policy: "p" {GROUP.format(1)}',)):
            set_groups(tmp_path / "m", *groups)
            await engine.load_model("m", None, {})
        assert counts(tmp_path) == (3, 2)
        # Nobody but the new one is left to answer.
        assert (await value(engine, "m", floats(0)))[0] == (await value(engine, "m", floats(0)))[0]
        is_over = True
        await asyncio.gather(*askers)
        # The first, the new one, and perhaps the one that came and went.
        assert len(seen) in (2, 3)


PATIENT = """
import pathlib, threading

GATE = pathlib.Path(__file__).parents[2] / "gate"

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.answer, args=(request,)).start()

    def answer(self, request):
        sender = request.get_response_sender()
        value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        response = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value)])
        sender.send(response)
        if value[0]:
            with GATE.open() as pipe:  # a pipe: until somebody writes to it
                pipe.read()
        sender.send(response)
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


@pytest.mark.slow
async def test_a_process_that_leaves_answers_what_it_has_to_the_end(tmp_path: Path) -> None:
    extra = "model_transaction_policy { decoupled: true }\n"
    write_model(tmp_path, "m", PATIENT, extra=f"{extra}instance_group [ {{ {GROUP.format(1)} }} ]")
    os.mkfifo(tmp_path / "gate")
    async with serving(tmp_path, ModelControlMode.EXPLICIT) as engine:
        await engine.load_model("m", None, {})
        asked = Asked(engine, "m", floats(1)).send()
        await asked.until(1)
        set_groups(tmp_path / "m", f'host_policy: "p" {GROUP.format(1)}')
        load = asyncio.create_task(engine.load_model("m", None, {}))
        while len(engine.model_config("m").instance_group[0].host_policy) == 0:
            assert len(await Asked(engine, "m", floats(0)).send().all()) == 3
        assert len(await Asked(engine, "m", floats(0)).send().all()) == 3
        assert not load.done()
        await asyncio.to_thread((tmp_path / "gate").write_text, "go on")
        assert len(await asked.all()) == 3
        await load
