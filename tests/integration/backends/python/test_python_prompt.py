"""Batches that the loop gives to a process itself, while the process ends, stops or is full."""

import asyncio
import os
import random
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from tests.support.python_models import Asked, floats, serving, texts, write_model
from tests.support.requests import make_request, tensor

from naiad.backends.base import Answer, ModelResponse, ModelSource
from naiad.backends.python.backend import PythonBackend
from naiad.backends.python.instance import PythonInstance
from naiad.engine.engine import Engine
from naiad.inference.request import InferRequest
from naiad.inference.tensor import Tensor
from naiad.model_config.normalize import normalize_config
from naiad.model_config.text_format import parse_config

pytestmark = pytest.mark.slow

TIMEOUT_S = 300
DOUBLE = """
class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", 2 * r.inputs()[0].as_numpy())])
            for r in requests
        ]
"""
# Runs until nobody waits for its answer.
PATIENT = """
import time

class TritonPythonModel:
    def execute(self, requests):
        for r in requests:
            while not r.is_cancelled():
                time.sleep(0.001)
        return [pb_utils.InferenceResponse([r.inputs()[0]]) for r in requests]
"""


class FakeBatch:
    """A batch of one request; what the instance asks of it calls the test.

    Attributes:
        responses: to the request.
        finishes: how often the instance was given back.
        on_inputs: called, and with how many times before, when the inputs are asked for.
        on_respond: called before a response is taken.
    """

    def __init__(self, given: Tensor | None = None) -> None:
        self.requests: Sequence[InferRequest] = [make_request(given or floats(1.0))]
        self.responses: list[ModelResponse] = []
        self.finishes = 0
        self.is_over = threading.Event()
        self.on_inputs: Callable[[int], None] = lambda _: None
        self.on_respond: Callable[[], None] = lambda: None
        self._asked = 0

    def inputs(self, request: InferRequest) -> Mapping[str, Tensor]:
        self._asked += 1
        self.on_inputs(self._asked - 1)
        return request.inputs

    def wanted(self, _: InferRequest) -> Sequence[str]:
        return ["OUT"]

    def respond(self, _: InferRequest, response: ModelResponse) -> None:
        self.on_respond()
        self.responses.append(response)

    def finish(
        self, answers: Sequence[Answer] = (), rescheduled: Sequence[InferRequest] = ()
    ) -> None:
        assert not rescheduled
        self.responses += [response for _, response in answers]
        self.finishes += 1
        self.is_over.set()

    def begin(self, instance: PythonInstance) -> bool:
        """As the engine does it; whether the loop could."""
        is_begun = instance.begin_at_once(self)
        if not is_begun:
            instance.execute_requests(self)
        return is_begun

    def the_response(self) -> ModelResponse:
        """The only one, of a batch that was finished once."""
        assert self.is_over.wait(TIMEOUT_S)
        assert self.finishes == 1
        (response,) = self.responses
        assert response.is_final
        return response


@pytest.fixture
def instance(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[PythonInstance]:
    write_model(tmp_path, "m", getattr(request, "param", DOUBLE))
    config = parse_config((tmp_path / "m" / "config.pbtxt").read_text(), "config.pbtxt")
    normalize_config(config, directory_name="m", artifact_names=["model.py"])
    loaded = PythonBackend().load(ModelSource("m", 1, config, tmp_path / "m" / "1"))
    made = loaded.create_instance(0)
    assert isinstance(made, PythonInstance)
    yield made
    made.close()
    loaded.close()


class Killer:
    """Ends the process of an instance, and knows when it is back."""

    def __init__(self, instance: PythonInstance) -> None:
        self._instance = instance
        self._change = threading.Event()
        instance.watch(self._change.set)

    def kill(self) -> None:
        """Return when the process is gone and its batches have failed."""
        process = self._instance._process
        assert process is not None
        process.kill("the test wants it")
        assert process.ended.wait(TIMEOUT_S)

    def wait_until_back(self) -> None:
        while not self._instance.is_ready:
            assert self._change.wait(TIMEOUT_S)
            self._change.clear()


def doubles(instance: PythonInstance) -> bool:
    batch = FakeBatch(floats(3.0))
    batch.begin(instance)
    return bool(batch.the_response().outputs[0].data.tolist() == [6.0])


def holds_nothing(instance: PythonInstance) -> bool:
    return not (instance._batches or instance._requests or instance._keys_of)


# Asked for at first to see whether they are small, and then to encode them.
@pytest.mark.parametrize("when", [0, 1])
def test_a_process_that_ends_while_a_batch_is_begun_answers_it_once(
    instance: PythonInstance, when: int
) -> None:
    killer = Killer(instance)
    batch = FakeBatch()
    batch.on_inputs = lambda count: killer.kill() if count == when else None
    batch.begin(instance)
    response = batch.the_response()
    # By the thread, the next process may have got it.
    assert response.error is None or "is not healthy. The test wants it" in response.error.message
    assert response.error is not None or when == 0
    killer.wait_until_back()
    assert doubles(instance)
    assert holds_nothing(instance)


def test_a_batch_that_is_just_failing_is_not_taken_back(instance: PythonInstance) -> None:
    killer = Killer(instance)
    is_failing, is_begun = threading.Event(), threading.Event()
    process = instance._process
    assert process is not None
    batch = FakeBatch()

    def end(count: int) -> None:
        if count == 1:
            process.kill("the test wants it")
            assert is_failing.wait(TIMEOUT_S)

    def respond() -> None:
        is_failing.set()
        assert is_begun.wait(TIMEOUT_S)

    batch.on_inputs, batch.on_respond = end, respond
    # It has failed with its process, so nobody else may run it.
    assert instance.begin_at_once(batch)
    is_begun.set()
    assert batch.the_response().error is not None
    killer.wait_until_back()
    assert doubles(instance)
    assert holds_nothing(instance)


def test_a_small_batch_needs_no_thread(instance: PythonInstance) -> None:
    batch = FakeBatch(floats(3.0))
    assert instance.begin_at_once(batch)
    assert batch.the_response().outputs[0].data.tolist() == [6.0]
    assert holds_nothing(instance)


def test_a_batch_that_can_not_be_encoded_fails_alone(instance: PythonInstance) -> None:
    def fail(_: int) -> None:
        raise ValueError("no such shape")

    batch = FakeBatch()
    batch.on_inputs = fail
    assert not batch.begin(instance)
    error = batch.the_response().error
    assert error is not None
    assert error.message == "model 'm_0_0': no such shape"
    assert doubles(instance)
    assert holds_nothing(instance)


def test_inputs_that_the_server_adds_count(instance: PythonInstance) -> None:
    # As the state of a sequence, which is none of the client's tensors.
    batch = FakeBatch()
    state = tensor("IN", np.ones(100_000, np.float32))
    batch.on_inputs = lambda _: batch.requests[0].inputs.update(IN=state)
    assert not instance.begin_at_once(batch)
    assert holds_nothing(instance)
    assert instance._process is not None
    assert instance._process.channel.region is not None
    assert instance._process.channel.region.used_bytes() == 0


def test_a_process_that_does_not_read_holds_nobody_up(instance: PythonInstance) -> None:
    process = instance._process
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)
    begun = []
    try:
        # More than the socket takes: 16 kB each.
        while (batch := FakeBatch(tensor("IN", np.ones(4000, np.float32)))) and (
            instance.begin_at_once(batch)
        ):
            begun.append(batch)
            instance.cancel(batch.requests[0])
    finally:
        os.kill(process.pid, signal.SIGCONT)
    assert batch.finishes == 0
    assert begun
    for batch in begun:
        assert batch.the_response().outputs[0].data.sum() == 8000
    assert doubles(instance)
    assert holds_nothing(instance)


# Before the instance can find the request, and before its process has it.
@pytest.mark.parametrize("instance", [PATIENT], indirect=True)
@pytest.mark.parametrize("when", [0, 1])
@pytest.mark.parametrize("size", [1, 100_000])
def test_a_request_that_is_cancelled_while_it_is_begun_is_told_so(
    instance: PythonInstance, when: int, size: int
) -> None:
    batch = FakeBatch(tensor("IN", np.ones(size, np.float32)))
    (request,) = batch.requests

    def cancel(count: int) -> None:
        if count == when:
            request.is_given_up = True
            instance.cancel(request)

    batch.on_inputs = cancel
    batch.begin(instance)
    assert batch.the_response().error is None
    assert holds_nothing(instance)


@pytest.mark.parametrize("size", [1, 100_000])
@pytest.mark.parametrize("in_process", ["true", "false"])
async def test_a_request_that_is_cancelled_once_it_has_left_the_queue_ends(
    tmp_path: Path, size: int, in_process: str
) -> None:
    extra = f'parameters {{ key: "IN_PROCESS" value {{ string_value: "{in_process}" }} }}\n'
    write_model(tmp_path, "m", PATIENT, extra=extra)
    async with serving(tmp_path) as engine:
        statistics = engine.find("m").statistics
        asked = Asked(engine, "m", tensor("IN", np.ones(size, np.float32))).send()
        await asyncio.sleep(0)
        assert statistics.pending_count == 0
        asked.cancel()
    # The engine has stopped, so the model has noticed.
    assert statistics.fail.count == 1
    assert asked.responses == []


# Does what the request says; echoes what it is given otherwise.
ERRATIC = """
import os, signal

class TritonPythonModel:
    def execute(self, requests):
        found = []
        for r in requests:
            order = r.inputs()[0].as_numpy()[0].decode().split(" ")[0]
            if order == "exit":
                os._exit(3)
            if order == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if order == "raise":
                raise ValueError("as told")
            if order == "close":
                from naiad_stub.host import binding
                binding.get()._channel.hang_up()
            out = pb_utils.Tensor("OUT", r.inputs()[0].as_numpy())
            found.append(pb_utils.InferenceResponse([out]))
        return found
"""
# The same, answered by a thread after `execute` has returned, in three parts.
LATE = """
import threading

class TritonPythonModel(TritonPythonModel):
    def execute(self, requests):
        answers = super().execute(requests)
        threading.Thread(target=self.answer, args=(requests, answers)).start()

    def answer(self, requests, answers):
        for request, answer in zip(requests, answers):
            sender = request.get_response_sender()
            sender.send(answer)
            sender.send(answer)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
DECOUPLED = "model_transaction_policy { decoupled: true }\n"
FATES = ("", "", "", "", "", "", "large", "large", "raise", "exit", "kill", "close")


async def ask_erratically(
    engine: Engine, choose: random.Random, count: int, part_count: int
) -> None:
    sent: list[tuple[str, Asked, bool]] = []
    for number in range(count):
        order = choose.choice(FATES)
        text = f"{order} {number}" + ("x" * 30_000 if order == "large" else "")
        asked = Asked(engine, "m", texts(text)).send()
        for _ in range(choose.randrange(4)):
            await asyncio.sleep(0)
        # Also one that waits, runs or is answered.
        is_cancelled = choose.random() < 0.2 and not asked.responses
        if is_cancelled:
            asked.cancel()
        sent.append((text, asked, is_cancelled))
        if choose.random() < 0.3:
            await asyncio.wait([asyncio.ensure_future(asked.is_over.wait())], timeout=0.01)
    for text, asked, is_cancelled in sent:
        if is_cancelled:
            continue
        responses = await asked.all()
        assert [response.is_final for response in responses] == [
            *[False] * (len(responses) - 1),
            True,
        ]
        for response in responses:
            if response.error is not None:
                assert re.search("is not healthy|ValueError: as told$", response.error.message)
            for output in response.outputs:
                assert output.data[0].decode() == text
        assert responses[-1].error is not None or len(responses) == part_count
    assert all(not asked.responses for _, asked, is_cancelled in sent if is_cancelled)


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(n, marks=pytest.mark.full) for n in range(2, 20))]
)
@pytest.mark.parametrize("is_decoupled", [False, True])
async def test_whatever_happens_each_request_is_answered_once(
    tmp_path: Path, seed: int, *, is_decoupled: bool
) -> None:
    extra = "instance_group [ { count: 2 kind: KIND_CPU } ]\n"
    write_model(
        tmp_path,
        "m",
        ERRATIC + LATE * is_decoupled,
        datatype="TYPE_STRING",
        extra=extra + DECOUPLED * is_decoupled,
    )
    async with serving(tmp_path) as engine:
        count = 40
        await ask_erratically(engine, random.Random(seed), count, 3 if is_decoupled else 1)
        statistics = engine.find("m").statistics
    # All that were cancelled are counted, too, once the engine has stopped.
    assert statistics.pending_count == 0
    assert statistics.success.count + statistics.fail.count == count
