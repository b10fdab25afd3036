"""Models in the server's process: the same answers, by a shorter way."""

from pathlib import Path

import numpy as np
import pytest
from tests.support.python_models import (
    ECHO,
    Asked,
    ask,
    error,
    floats,
    serving,
    texts,
    value,
    write_model,
)
from tests.support.repository_builder import RepositoryBuilder
from tests.support.requests import tensor

from naiad.engine.engine import ModelControlMode

IN_PROCESS = 'parameters { key: "IN_PROCESS" value { string_value: "true" } }\n'
DECOUPLED = "model_transaction_policy { decoupled: true }\n"


STREAM = """
import threading

class TritonPythonModel:
    def execute(self, requests):
        for r in requests:
            thread = threading.Thread(target=self.answer, args=(
                r.get_response_sender(), r.inputs()[0].as_numpy()))
            thread.start()

    def answer(self, sender, data):
        for i in range(int(data[0])):
            out = pb_utils.Tensor("OUT", np.array([i], np.float32))
            sender.send(pb_utils.InferenceResponse([out]))
        sender.send(flags=1)
"""


async def test_tensors_come_back(tmp_path: Path) -> None:
    write_model(tmp_path, "echo", ECHO, extra=IN_PROCESS)
    write_model(tmp_path, "words", ECHO, extra=IN_PROCESS, datatype="TYPE_STRING")
    async with serving(tmp_path) as engine:
        data = np.arange(100_000, dtype=np.float32)
        response = await ask(engine, "echo", tensor("IN", data))
        np.testing.assert_array_equal(response.outputs[0].data, data)
        assert not np.shares_memory(response.outputs[0].data, data)
        assert await value(engine, "words", texts("a", "")) == ["a", ""]
        assert engine.find("echo").statistics.success.count == 1


async def test_models_of_one_process_have_their_own_neighbours(tmp_path: Path) -> None:
    source = """
    from helper import NUMBER

    class TritonPythonModel:
        def execute(self, requests):
            from .late import MORE
            out = pb_utils.Tensor("OUT", np.array([NUMBER + MORE], np.float32))
            return [pb_utils.InferenceResponse([out]) for _ in requests]
    """
    for name, number in (("a", 1), ("b", 2)):
        write_model(tmp_path, name, source, extra=IN_PROCESS)
        (tmp_path / name / "1" / "helper.py").write_text(f"NUMBER = {number}\n")
        (tmp_path / name / "1" / "late.py").write_text(f"MORE = {10 * number}\n")
    async with serving(tmp_path) as engine:
        assert await value(engine, "a", floats(0)) == [11]
        assert await value(engine, "b", floats(0)) == [22]


async def test_responses_come_from_any_thread(tmp_path: Path) -> None:
    write_model(tmp_path, "stream", STREAM, extra=IN_PROCESS + DECOUPLED)
    async with serving(tmp_path) as engine:
        responses = await Asked(engine, "stream", floats(5)).send().all()
        numbers = [r.outputs[0].data[0] for r in responses if r.outputs]
        assert numbers == [0, 1, 2, 3, 4]
        assert responses[-1].is_final


async def test_errors_are_those_of_a_process(tmp_path: Path) -> None:
    write_model(
        tmp_path,
        "wrong",
        """
        import sys

        class TritonPythonModel:
            def execute(self, requests):
                if requests[0].inputs()[0].as_numpy()[0] == 1:
                    raise ValueError("boom")
                if requests[0].inputs()[0].as_numpy()[0] == 2:
                    sys.exit(3)
                return [None]
        """,
        extra=IN_PROCESS,
    )
    async with serving(tmp_path) as engine:
        head = "Internal: Failed to process the request(s) for model 'wrong_0_0', message: "
        assert await error(engine, "wrong", floats(1)) == head + "ValueError: boom"
        assert await error(engine, "wrong", floats(2)) == head + "SystemExit: 3"
        assert "let go of the request" in await error(engine, "wrong", floats(3))


async def test_a_model_learns_that_its_client_has_gone(tmp_path: Path) -> None:
    write_model(
        tmp_path,
        "endless",
        """
        import threading, time

        class TritonPythonModel:
            def execute(self, requests):
                sender = requests[0].get_response_sender()
                out = pb_utils.Tensor("OUT", np.zeros(1, np.float32))
                sender.send(pb_utils.InferenceResponse([out]))
                while not sender.is_cancelled():
                    time.sleep(0.001)
                sender.send(flags=1)
        """,
        extra=IN_PROCESS + DECOUPLED,
    )
    async with serving(tmp_path) as engine:
        asked = Asked(engine, "endless", floats(1)).send()
        await asked.until(1)
        asked.cancel()


async def test_a_model_asks_others_and_the_repository(tmp_path: Path) -> None:
    RepositoryBuilder(tmp_path).add_sum("one", 1)
    write_model(tmp_path, "stream", STREAM, extra=IN_PROCESS + DECOUPLED)
    write_model(
        tmp_path,
        "asks",
        """
        class TritonPythonModel:
            def initialize(self, args):
                pb_utils.load_model("one")
                self.family = pb_utils.MetricFamily("asked", "d", pb_utils.MetricFamily.COUNTER)
                self.metric = self.family.Metric()

            def execute(self, requests):
                x = requests[0].inputs()[0].as_numpy().reshape(1, -1)
                def make(name, data):
                    return pb_utils.InferenceRequest(model_name=name,
                        requested_output_names=["OUT"], inputs=[pb_utils.Tensor("IN", data)])
                one = make("one", x).exec().output_tensors()[0].as_numpy()
                many = len([t for a in make("stream", x[0]).exec(decoupled=True)
                            for t in a.output_tensors()])
                itself = make("asks", x[0]).exec()
                assert "would wait for ever" in itself.error().message()
                self.metric.increment(3)
                ready = pb_utils.is_model_ready("one") and not pb_utils.is_model_ready("two")
                values = [one[0, 0], many, ready, self.metric.value()]
                out = pb_utils.Tensor("OUT", np.array(values, np.float32))
                pb_utils.Logger.log_info("asked")
                return [pb_utils.InferenceResponse([out])]
        """,
        extra=IN_PROCESS,
    )
    async with serving(tmp_path, ModelControlMode.EXPLICIT) as engine:
        await engine.load_model("stream", None, {})
        await engine.load_model("asks", None, {})
        assert await value(engine, "asks", floats(4)) == [5, 4, 1, 3]
        (family,) = engine.custom_metrics.read()
        assert family.metrics[0].value == 3


@pytest.mark.parametrize(
    ("key", "value"),
    [("EXECUTION_ENV_PATH", "$$TRITON_MODEL_DIRECTORY/env"), ("EXECUTE_TIMEOUT_MS", "1")],
)
async def test_what_needs_a_process_is_refused(tmp_path: Path, key: str, value: str) -> None:
    extra = IN_PROCESS + f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
    write_model(tmp_path, "echo", ECHO, extra=extra)
    async with serving(tmp_path, ModelControlMode.EXPLICIT) as engine:
        with pytest.raises(Exception, match=f"parameter '{key}' needs a process of its own"):
            await engine.load_model("echo", None, {})


async def test_a_model_that_does_not_start_says_why(tmp_path: Path) -> None:
    write_model(tmp_path, "broken", "raise KeyError('x')", extra=IN_PROCESS)
    async with serving(tmp_path, ModelControlMode.EXPLICIT) as engine:
        with pytest.raises(Exception, match="KeyError: 'x'"):
            await engine.load_model("broken", None, {})
