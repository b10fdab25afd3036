"""Requests that a model does not finish at once: they run again, in batches with others."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
from tests.support.python_models import Asked, error, serving, write_model
from tests.support.requests import tensor

from naiad.engine.engine import Engine, ModelControlMode
from naiad.errors import UnavailableError

pytestmark = pytest.mark.slow

IN_PROCESS = 'parameters { key: "IN_PROCESS" value { string_value: "true" } }\n'
DECOUPLED = "model_transaction_policy { decoupled: true }\n"
ITERATIVE = "sequence_batching { iterative_sequence: true %s }\n"

places = pytest.mark.parametrize("place", ["", IN_PROCESS], ids=["process", "in_process"])

# Counts down to 0, one answer in each execution; says how many requests were together.
COUNT_DOWN = """
class TritonPythonModel:
    def initialize(self, args):
        self.left = {}

    def execute(self, requests):
        for r in requests:
            key = r.correlation_id()
            if r.flags() & 1:
                self.left[key] = int(r.inputs()[0].as_numpy().ravel()[0])
            self.left[key] -= 1
            numbers = np.array([[self.left[key], len(requests), r.flags()]], np.float32)
            answer = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", numbers)])
            if self.left[key] > 0:
                r.get_response_sender().send(answer)
                r.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            else:
                del self.left[key]
                r.get_response_sender().send(answer, flags=1)
"""


def counting(engine: Engine, count: float) -> Asked:
    return Asked(engine, "count", tensor("IN", np.array([[count]], np.float32)))


@places
@pytest.mark.parametrize("strategy", ["direct { }", "oldest { max_candidate_sequences: 4 }"])
async def test_every_execution_of_a_generation_answers_it(
    tmp_path: Path, place: str, strategy: str
) -> None:
    extra = place + DECOUPLED + ITERATIVE % strategy
    write_model(tmp_path, "count", COUNT_DOWN, extra=extra, max_batch_size=4)
    async with serving(tmp_path) as engine:
        asked = [counting(engine, count).send() for count in (3, 1, 2)]
        answers = [
            [response.outputs[0].data[0].tolist() for response in await one.all()] for one in asked
        ]
        # They run together from the first, and those that are done make room.
        assert answers == [
            [[2, 3, 1], [1, 2, 0], [0, 1, 0]],
            [[0, 3, 1]],
            [[1, 3, 1], [0, 2, 0]],
        ]
        statistics = engine.find("count").statistics
    assert (statistics.success.count, statistics.execution_count) == (3, 3)
    assert statistics.pending_count == 0


@places
async def test_more_generations_than_slots_wait_for_one_that_ends(
    tmp_path: Path, place: str
) -> None:
    extra = place + DECOUPLED + ITERATIVE % ""
    write_model(tmp_path, "count", COUNT_DOWN, extra=extra, max_batch_size=2)
    async with serving(tmp_path) as engine:
        asked = [counting(engine, 4).send() for _ in range(6)]
        for one in asked:
            lefts = [int(response.outputs[0].data[0, 0]) for response in await one.all()]
            assert lefts == [3, 2, 1, 0]
        statistics = engine.find("count").statistics
    assert statistics.execution_count == 12


@places
async def test_a_model_with_one_response_gives_it_when_it_is_done(
    tmp_path: Path, place: str
) -> None:
    source = """
    class TritonPythonModel:
        def initialize(self, args):
            self.runs = 0

        def execute(self, requests):
            self.runs += 1
            if self.runs < 3:
                for r in requests:
                    r.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                return [None for _ in requests]
            out = pb_utils.Tensor("OUT", np.array([self.runs], np.float32))
            return [pb_utils.InferenceResponse([out]) for _ in requests]
    """
    write_model(tmp_path, "count", source, extra=place + ITERATIVE % "")
    async with serving(tmp_path) as engine:
        (response,) = (
            await Asked(engine, "count", tensor("IN", np.ones(1, np.float32))).send().all()
        )
        assert response.outputs[0].data.tolist() == [3]


@places
async def test_a_response_for_a_request_that_runs_again_is_an_error(
    tmp_path: Path, place: str
) -> None:
    source = """
    class TritonPythonModel:
        def execute(self, requests):
            for r in requests:
                r.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            out = pb_utils.Tensor("OUT", np.ones(1, np.float32))
            return [pb_utils.InferenceResponse([out]) for _ in requests]
    """
    write_model(tmp_path, "count", source, extra=place + ITERATIVE % "")
    async with serving(tmp_path) as engine:
        text = await error(engine, "count", tensor("IN", np.ones(1, np.float32)))
        assert "Expected a None object in the execute function return list for reschduled" in text


@places
@pytest.mark.parametrize(
    "scheduling",
    ["", "dynamic_batching { }\n", "sequence_batching { direct { } }\n"],
    ids=["default", "dynamic", "sequence"],
)
async def test_only_iterative_sequences_run_requests_again(
    tmp_path: Path, place: str, scheduling: str
) -> None:
    extra = place + DECOUPLED + scheduling
    write_model(tmp_path, "count", COUNT_DOWN, extra=extra, max_batch_size=2)
    async with serving(tmp_path) as engine:
        one = counting(engine, 3)
        one.request.correlation_id, one.request.sequence_start = 7, True
        # Without a sequence batcher the flags are the model's business, and so are these.
        responses = await one.send().all()
        assert [response.error is None for response in responses] == [True, False]
        refusal = responses[-1].error
        assert refusal is not None
        assert refusal.message.startswith(
            "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is "
            "not configured to handle such a flag."
        )


@places
async def test_a_cancelled_generation_ends(tmp_path: Path, place: str) -> None:
    extra = place + DECOUPLED + ITERATIVE % ""
    write_model(tmp_path, "count", COUNT_DOWN, extra=extra, max_batch_size=1)
    async with serving(tmp_path) as engine:
        endless = counting(engine, 1e9).send()
        await endless.until(1)
        # It has the only slot.
        after = counting(engine, 2).send()
        endless.cancel()
        assert len(await after.all()) == 2
        statistics = engine.find("count").statistics
        assert (statistics.success.count, statistics.fail.count) == (1, 1)


async def test_an_unload_lets_a_generation_end(tmp_path: Path) -> None:
    write_model(tmp_path, "count", COUNT_DOWN, extra=DECOUPLED + ITERATIVE % "", max_batch_size=1)
    async with serving(tmp_path, ModelControlMode.EXPLICIT) as engine:
        await engine.load_model("count", None, {})
        running, late = counting(engine, 50).send(), counting(engine, 1)
        await running.until(1)
        unload = asyncio.ensure_future(engine.unload_model("count", unload_dependents=False))
        assert len(await running.all()) == 50
        await unload
        with pytest.raises(UnavailableError):
            late.send()
