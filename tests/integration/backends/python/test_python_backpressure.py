"""Models that send more than the next step of an ensemble takes are held up."""

from pathlib import Path

import pytest
from tests.support.python_models import Asked, floats, serving, write_model
from tests.support.repository_builder import RepositoryBuilder

pytestmark = pytest.mark.slow

COUNT = 60
LIMIT = 2

# Says after each response how many it has sent.
SEND_ALL = """
        def send_all(self, sender, n):
            for i in range(n):
                out = pb_utils.Tensor("OUT", np.array([i], np.float32))
                sender.send(pb_utils.InferenceResponse([out]))
                with open({progress!r}, "a") as file:
                    file.write(".")
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
INSIDE = """
    class TritonPythonModel:
        def execute(self, requests):
            for r in requests:
                self.send_all(r.get_response_sender(), int(r.inputs()[0].as_numpy()[0]))
"""
THREADED = """
    import threading

    class TritonPythonModel:
        def execute(self, requests):
            for r in requests:
                n = int(r.inputs()[0].as_numpy()[0])
                threading.Thread(
                    target=self.send_all, args=(r.get_response_sender(), n)
                ).start()
"""
# Answers with how many were sent when it got the response, of which there must be some first.
TAKER = """
    import os

    class TritonPythonModel:
        def execute(self, requests):
            answers = []
            for r in requests:
                while (sent := self.count()) < {least}:
                    pass
                out = pb_utils.Tensor("OUT", np.array([sent], np.float32))
                answers.append(pb_utils.InferenceResponse([out]))
            return answers

        def count(self):
            return os.path.getsize({progress!r}) if os.path.exists({progress!r}) else 0
"""
DECOUPLED = "model_transaction_policy { decoupled: true }\n"
IN_PROCESS = 'parameters { key: "IN_PROCESS" value { string_value: "true" } }\n'


def write_ensemble(path: Path, source: str, extra: str, limit: int, least: int = 0) -> None:
    progress = str(path.parent / "progress")
    write_model(
        path, "source", source + SEND_ALL.format(progress=progress), extra=DECOUPLED + extra
    )
    write_model(path, "taker", TAKER.format(progress=progress, least=least))
    tensors = "[ { name: %r data_type: TYPE_FP32 dims: [ -1 ] } ]"
    RepositoryBuilder(path).add_model(
        "pair",
        f'name: "pair" platform: "ensemble" {DECOUPLED} input {tensors % "IN"} '
        f"output {tensors % 'OUT'} ensemble_scheduling {{ max_inflight_requests: {limit} "
        'step [ { model_name: "source" model_version: -1 input_map { key: "IN" value: "IN" } '
        'output_map { key: "OUT" value: "T" } }, { model_name: "taker" model_version: -1 '
        'input_map { key: "IN" value: "T" } output_map { key: "OUT" value: "OUT" } } ] }',
        {"{version}/empty": ""},
    )


async def leads(path: Path) -> list[float]:
    """By how much the sender was ahead, at each response that was taken."""
    async with serving(path) as engine:
        responses = await Asked(engine, "pair", floats(COUNT)).send().all()
    sent = [r.outputs[0].data.item() for r in responses if r.outputs]
    assert len(sent) == COUNT
    return [count - index for index, count in enumerate(sent)]


@pytest.mark.parametrize("source", [INSIDE, THREADED])
@pytest.mark.parametrize("extra", ["", IN_PROCESS])
async def test_a_sender_waits_for_room_in_the_next_step(
    tmp_path: Path, source: str, extra: str
) -> None:
    path = tmp_path / "models"
    write_ensemble(path, source, extra, LIMIT)
    # Those that are under way, and one that waits.
    assert max(await leads(path)) <= LIMIT + 1


async def test_a_sender_that_nobody_holds_up_runs_ahead(tmp_path: Path) -> None:
    path = tmp_path / "models"
    # Nothing is taken before all is sent.
    write_ensemble(path, INSIDE, "", 0, least=COUNT)
    assert max(await leads(path)) == COUNT


@pytest.mark.parametrize("extra", ["", IN_PROCESS])
async def test_a_sender_goes_on_when_its_request_is_cancelled(tmp_path: Path, extra: str) -> None:
    path = tmp_path / "models"
    write_ensemble(path, INSIDE, extra, 1)
    async with serving(path) as engine:
        asked = Asked(engine, "pair", floats(COUNT)).send()
        await asked.until(2)
        asked.cancel()
        # Its one instance is free again.
        responses = await Asked(engine, "pair", floats(1)).send().all()
        assert len([response for response in responses if response.outputs]) == 1
    assert (tmp_path / "progress").stat().st_size == COUNT + 1
