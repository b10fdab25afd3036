"""Timeouts in the queues of decoupled models and of the steps of ensembles, to the nanosecond."""

import asyncio

import numpy as np
import pytest
from tests.support.fake_clock import FakeClock
from tests.support.fake_time_loop import ROUNDING_NS, run
from tests.support.requests import make_request, tensor

from naiad.backends.base import ModelResponse, RequestBatch
from naiad.engine.ensemble import EnsembleExecutor
from naiad.engine.executor import Executor
from naiad.engine.model import Model
from naiad.engine.schedulers import make_scheduler
from naiad.engine.validation import validate_request
from naiad.inference.request import InferRequest
from naiad.inference.response import InferResponse
from naiad.inference.statistics import FailureReason
from naiad.inference.tensor import Tensor
from naiad.model_config.normalize import fill_defaults
from naiad.model_config.schema import ModelConfig
from naiad.model_config.signature import ModelSignature
from naiad.model_config.text_format import parse_config

MS = 1_000_000
DECOUPLED = "model_transaction_policy { decoupled: true }"
EXPIRED = "Request timeout expired"


def model_config(name: str, timeout_ms: int, *, more: str = DECOUPLED) -> ModelConfig:
    config = parse_config(
        f'name: "{name}" max_batch_size: 1 {more} '
        'input { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] } '
        'output { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] } dynamic_batching { '
        f"default_queue_policy {{ default_timeout_microseconds: {timeout_ms * 1000} "
        "allow_timeout_override: true } }",
        name,
    )
    fill_defaults(config)
    return config


def ensemble_config(*models: str) -> ModelConfig:
    names = ["IN", *(f"T{index}" for index in range(1, len(models))), "OUT"]
    steps = ", ".join(
        f'{{ model_name: "{model}" model_version: -1 '
        f'input_map {{ key: "IN" value: "{names[index]}" }} '
        f'output_map {{ key: "OUT" value: "{names[index + 1]}" }} }}'
        for index, model in enumerate(models)
    )
    return parse_config(
        f'name: "e" platform: "ensemble" max_batch_size: 1 {DECOUPLED} '
        'input { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] } '
        'output { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] } '
        f"ensemble_scheduling {{ step [ {steps} ] }}",
        "e",
    )


class BusyInstance:
    """Keeps what it gets until the test answers."""

    is_ready = True
    is_lost = False
    failure = ""

    def __init__(self) -> None:
        self.batch: RequestBatch | None = None
        self.has_batch = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def watch(self, on_change: object) -> None:
        """Nothing changes."""

    def execute_requests(self, batch: RequestBatch) -> None:
        self.batch = batch
        self._loop.call_soon_threadsafe(self.has_batch.set)

    def answer(self, *, is_final: bool) -> None:
        assert self.batch is not None
        for request in self.batch.requests:
            out: list[Tensor] = [tensor("OUT", np.ones((1, 1), np.float32))]
            self.batch.respond(request, ModelResponse(out, is_final=is_final))

    def finish(self) -> None:
        assert self.batch is not None
        batch, self.batch = self.batch, None
        self.has_batch.clear()
        batch.finish()

    def cancel(self, request: InferRequest) -> None:
        """Nobody does."""

    def close(self) -> None:
        """Nothing is held."""


class Harness:
    """Models with busy instances, ensembles of them, and when each request was answered."""

    def __init__(self, clock: FakeClock, *configs: ModelConfig) -> None:
        self.clock = clock
        self.instances = {config.name: BusyInstance() for config in configs}
        self.executors = {config.name: self._make_executor(config) for config in configs}
        self.models = {
            config.name: Model(
                config,
                1,
                ModelSignature.from_config(config),
                {},
                self.executors[config.name],
                None,
            )
            for config in configs
        }
        self.answered: dict[int, list[tuple[int, InferResponse]]] = {}
        self.progress = asyncio.Event()

    def _make_executor(self, config: ModelConfig) -> Executor:
        signature = ModelSignature.from_config(config)
        scheduler = make_scheduler(config, instance_count=1)
        return Executor(1, signature, scheduler, [self.instances[config.name]], self.clock)

    def find(self, name: str, version: int, namespace: str = "") -> Model:
        return self.models[name]

    def infer(self, model: Model, request: InferRequest) -> None:
        validate_request(model.signature, request)
        model.executor.submit(request)

    def cancel(self, model: Model, request: InferRequest) -> None:
        model.executor.cancel(request)

    def next_trace_id(self) -> int:
        return 1

    def ensemble(self, *models: str) -> EnsembleExecutor:
        return EnsembleExecutor(1, ensemble_config(*models), self, self.clock)

    def send(self, executor: Executor | EnsembleExecutor, number: int, timeout_us: int = 0) -> None:
        answers = self.answered.setdefault(number, [])

        def note(response: InferResponse) -> None:
            answers.append((self.clock.time_ns, response))
            self.progress.set()

        request = make_request(tensor("IN", np.zeros((1, 1), np.float32)), on_response=note)
        request.timeout_us = timeout_us
        executor.submit(request)

    async def until(self, number: int, count: int = 1) -> tuple[int, InferResponse]:
        while len(self.answered[number]) < count:
            self.progress.clear()
            await self.progress.wait()
        return self.answered[number][count - 1]

    async def close(self, *busy: str) -> None:
        for name in busy:
            self.instances[name].answer(is_final=True)
            self.instances[name].finish()
        for executor in self.executors.values():
            await executor.drain()
            await executor.close()


def check_expired(answer: tuple[int, InferResponse], due_ns: int, text: str = EXPIRED) -> None:
    at_ns, response = answer
    assert response.is_final
    assert response.error is not None
    assert response.error.message == text
    assert 0 <= at_ns - due_ns <= ROUNDING_NS


@pytest.mark.parametrize("is_streaming", [False, True])
def test_a_request_of_a_decoupled_model_is_answered_at_its_deadline(is_streaming: bool) -> None:
    async def scenario(clock: FakeClock) -> None:
        harness = Harness(clock, model_config("m", 10))
        executor, instance = harness.executors["m"], harness.instances["m"]
        harness.send(executor, -1)
        await instance.has_batch.wait()
        if is_streaming:
            # Whatever the request that runs has been sent, it has the instance.
            instance.answer(is_final=False)
            await harness.until(-1)
        begun_ns = clock.time_ns
        harness.send(executor, 0)
        harness.send(executor, 1, 3000)
        check_expired(await harness.until(1), begun_ns + 3 * MS)
        check_expired(await harness.until(0), begun_ns + 10 * MS)
        assert executor.statistics.failures[FailureReason.REJECTED] == 2
        await harness.close("m")
        assert [r.is_final for _, r in harness.answered[-1]] == [False] * is_streaming + [True]

    run(scenario)


def test_a_request_that_runs_has_no_deadline() -> None:
    async def scenario(clock: FakeClock) -> None:
        harness = Harness(clock, model_config("m", 10))
        harness.send(harness.executors["m"], 0)
        await harness.instances["m"].has_batch.wait()
        await asyncio.sleep(3600)
        assert harness.answered[0] == []
        await harness.close("m")
        _, response = await harness.until(0)
        assert response.error is None

    run(scenario)


def test_a_request_of_an_ensemble_is_answered_at_the_deadline_of_its_first_step() -> None:
    async def scenario(clock: FakeClock) -> None:
        harness = Harness(clock, model_config("a", 10))
        ensemble = harness.ensemble("a")
        harness.send(harness.executors["a"], -1)
        await harness.instances["a"].has_batch.wait()
        begun_ns = clock.time_ns
        harness.send(ensemble, 0)
        # The client's own, passed down.
        harness.send(ensemble, 1, 4000)
        text = f"in ensemble 'e', {EXPIRED}"
        check_expired(await harness.until(1), begun_ns + 4 * MS, text)
        check_expired(await harness.until(0), begun_ns + 10 * MS, text)
        await ensemble.drain()
        await harness.close("a")

    run(scenario)


@pytest.mark.parametrize("is_streaming", [False, True])
def test_each_step_has_a_deadline_of_its_own(is_streaming: bool) -> None:
    async def scenario(clock: FakeClock) -> None:
        harness = Harness(clock, model_config("a", 10), model_config("b", 7, more=""))
        ensemble = harness.ensemble("a", "b")
        first, second = harness.instances["a"], harness.instances["b"]
        harness.send(harness.executors["b"], -1)
        await second.has_batch.wait()
        harness.send(ensemble, 0)
        await first.has_batch.wait()
        # As long as it takes: nothing waits in a queue.
        await asyncio.sleep(1)
        begun_ns = clock.time_ns
        first.answer(is_final=not is_streaming)
        if is_streaming:
            # The ensemble has failed, and its answer waits for the step that still runs.
            await asyncio.sleep(1)
            assert harness.answered[0] == []
            begun_ns = clock.time_ns - 7 * MS
            first.answer(is_final=True)
        first.finish()
        check_expired(await harness.until(0), begun_ns + 7 * MS, f"in ensemble 'e', {EXPIRED}")
        await ensemble.drain()
        await harness.close("b")

    run(scenario)
