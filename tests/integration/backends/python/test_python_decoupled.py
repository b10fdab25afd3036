"""Any number of responses to a request, at any time and from any thread."""

from pathlib import Path

import pytest
from tests.support.python_models import Asked, ask, error, floats, serving, value, write_model

from naiad.inference.response import InferResponse

pytestmark = pytest.mark.slow

DECOUPLED = "model_transaction_policy { decoupled: true }\n"

# As many responses as the input says, with the numbers from 0 on.
REPEAT = """
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL

class TritonPythonModel:
    def execute(self, requests):
        for r in requests:
            n = int(r.inputs()[0].as_numpy()[0])
            sender = r.get_response_sender()
            for i in range(n):
                out = pb_utils.Tensor("OUT", np.array([i], np.float32))
                sender.send(pb_utils.InferenceResponse([out]))
            sender.send(flags=FINAL)
"""

# The same from a thread, after execute has returned.
THREADED = """
import threading

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL

class TritonPythonModel:
    def execute(self, requests):
        for r in requests:
            thread = threading.Thread(target=self.answer, args=(
                r.get_response_sender(), int(r.inputs()[0].as_numpy()[0])))
            thread.start()

    def answer(self, sender, n):
        for i in range(n):
            out = pb_utils.Tensor("OUT", np.array([i], np.float32))
            sender.send(pb_utils.InferenceResponse([out]), FINAL if i == n - 1 else 0)
"""

# The same as a coroutine.
ASYNC = """
import asyncio

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL

class TritonPythonModel:
    async def execute(self, requests):
        for r in requests:
            n = int(r.inputs()[0].as_numpy()[0])
            if n < 0:
                raise ValueError("negative")
            sender = r.get_response_sender()
            for i in range(n):
                await asyncio.sleep(0.01)
                out = pb_utils.Tensor("OUT", np.array([i], np.float32))
                sender.send(pb_utils.InferenceResponse([out]))
            sender.send(flags=FINAL)
"""


def numbers(responses: list[InferResponse]) -> list[float]:
    for response in responses:
        assert response.error is None, response.error
    return [x for r in responses for output in r.outputs for x in output.data.tolist()]


@pytest.mark.parametrize("source", [REPEAT, THREADED, ASYNC])
async def test_a_request_has_as_many_responses_as_the_model_sends(
    tmp_path: Path, source: str
) -> None:
    write_model(tmp_path, "repeat", source, extra=DECOUPLED)
    async with serving(tmp_path) as engine:
        asked = [Asked(engine, "repeat", floats(n)).send() for n in (3, 1, 50)]
        for one, n in zip(asked, (3, 1, 50), strict=True):
            responses = await one.all()
            assert numbers(responses) == list(range(n))
            assert [r.is_final for r in responses] == [False] * (len(responses) - 1) + [True]
        statistics = engine.find("repeat").statistics
        assert statistics.success.count == statistics.inference_count == 3


async def test_a_request_may_have_no_response_at_all(tmp_path: Path) -> None:
    write_model(tmp_path, "repeat", REPEAT, extra=DECOUPLED)
    async with serving(tmp_path) as engine:
        (only,) = await Asked(engine, "repeat", floats(0)).send().all()
        assert only.is_final
        assert not only.outputs
        assert only.error is None


# The first request ends after the second one, which comes when it has begun.
MEETING = """
import asyncio

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL

class TritonPythonModel:
    def initialize(self, args):
        self.second_is_here = asyncio.Event()

    async def execute(self, requests):
        (r,) = requests
        number = r.inputs()[0].as_numpy()
        sender = r.get_response_sender()
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", number)]))
        if number[0] == 1:
            await self.second_is_here.wait()
        self.second_is_here.set()
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", number)]), FINAL)
"""


async def test_coroutines_of_a_decoupled_model_run_side_by_side(tmp_path: Path) -> None:
    write_model(tmp_path, "meeting", MEETING, extra=DECOUPLED)
    async with serving(tmp_path) as engine:
        first = Asked(engine, "meeting", floats(1)).send()
        await first.until(1)
        second = Asked(engine, "meeting", floats(2)).send()
        assert numbers(await second.all()) == [2, 2]
        assert numbers(await first.all()) == [1, 1]


async def test_an_exception_of_a_coroutine_of_a_decoupled_model(tmp_path: Path) -> None:
    write_model(tmp_path, "repeat", ASYNC, extra=DECOUPLED)
    async with serving(tmp_path) as engine:
        text = await error(engine, "repeat", floats(-1))
        assert text.endswith("'repeat_0_0', message: ValueError: negative")


async def test_unload_waits_for_responses_that_are_still_to_come(tmp_path: Path) -> None:
    write_model(tmp_path, "repeat", ASYNC, extra=DECOUPLED)
    async with serving(tmp_path) as engine:
        asked = Asked(engine, "repeat", floats(20)).send()
        await asked.until(1)
    assert numbers(asked.responses) == list(range(20))


async def test_a_decoupled_model_must_not_return_responses(tmp_path: Path) -> None:
    write_model(
        tmp_path,
        "returns",
        """
        class TritonPythonModel:
            def execute(self, requests):
                return [pb_utils.InferenceResponse([]) for _ in requests]
        """,
        extra=DECOUPLED,
    )
    async with serving(tmp_path) as engine:
        assert (await error(engine, "returns", floats(1))).endswith(
            "message: Python model 'returns_0_0' is using the decoupled mode and the execute "
            "function must return None."
        )


async def test_the_death_of_the_process_ends_requests_whose_execute_has_returned(
    tmp_path: Path,
) -> None:
    write_model(
        tmp_path,
        "dies",
        """
        import os

        class TritonPythonModel:
            senders = []

            def execute(self, requests):
                if len(self.senders) == 1:
                    os._exit(2)
                self.senders += [r.get_response_sender() for r in requests]
        """,
        extra=DECOUPLED,
    )
    async with serving(tmp_path) as engine:
        first = Asked(engine, "dies", floats(0)).send()
        second = Asked(engine, "dies", floats(0)).send()
        for asked in (first, second):
            (response,) = await asked.all()
            assert "exit code 2" in str(response.error)


async def test_a_model_learns_that_its_client_has_gone(tmp_path: Path) -> None:
    write_model(
        tmp_path,
        "endless",
        """
        class TritonPythonModel:
            seen = 0

            def execute(self, requests):
                for r in requests:
                    sender = r.get_response_sender()
                    out = pb_utils.Tensor("OUT", np.array([self.seen], np.float32))
                    if r.inputs()[0].as_numpy()[0] == 0:
                        sender.send(pb_utils.InferenceResponse([out]), 1)
                        continue
                    sender.send(pb_utils.InferenceResponse([out]))
                    while not sender.is_cancelled():
                        pass
                    assert r.is_cancelled()
                    TritonPythonModel.seen += 1
                    sender.send(flags=1)
        """,
        extra=DECOUPLED,
    )
    async with serving(tmp_path) as engine:
        asked = Asked(engine, "endless", floats(1)).send()
        await asked.until(1)
        asked.cancel()
        assert await value(engine, "endless", floats(0)) == [1]
        assert len(asked.responses) == 1
        assert engine.find("endless").statistics.failures["CANCELED"] == 1  # type: ignore[index]


SENDER = """
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL

class TritonPythonModel:
    def execute(self, requests):
        (r,) = requests
        sender = r.get_response_sender()
        response = pb_utils.InferenceResponse([])
        try:
            {body}
            text = "nothing was raised"
        except pb_utils.TritonModelException as error:
            text = str(error)
        out = pb_utils.Tensor("OUT", np.array([text], np.object_))
        answer = pb_utils.InferenceResponse([out], parameters={{"text": text}})
        {end}
"""


@pytest.mark.parametrize(
    ("body", "is_decoupled", "expected"),
    [
        ("sender.send(response, 7)", True, "Unable to send response. Unsupported flag provided."),
        (
            "sender.send()",
            True,
            "Inference Response object must be provided when the response flags is set to zero.",
        ),
        (
            "sender.send(flags=FINAL)",
            False,
            "Unable to send response. Non-decoupled model cannot send complete final before "
            "sending a response.",
        ),
    ],
)
async def test_what_a_sender_refuses(
    tmp_path: Path, *, body: str, is_decoupled: bool, expected: str
) -> None:
    source = SENDER.format(body=body, end="sender.send(answer, FINAL)")
    extra = DECOUPLED if is_decoupled else ""
    write_model(tmp_path, "sender", source, extra=extra, output_datatype="TYPE_STRING")
    async with serving(tmp_path) as engine:
        assert await value(engine, "sender", floats(0)) == [expected]


@pytest.mark.parametrize(
    ("body", "is_decoupled", "expected"),
    [
        (
            "sender.send(flags=FINAL); sender.send(response)",
            True,
            "Unable to send response. Response sender has been closed.",
        ),
        (
            "sender.send(response); sender.send(response, FINAL)",
            False,
            "Unable to send response. Non-decoupled model cannot send more than one response.",
        ),
    ],
)
async def test_what_a_sender_refuses_after_it_has_answered(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    *,
    body: str,
    is_decoupled: bool,
    expected: str,
) -> None:
    end = "pb_utils.Logger.log_error(text); sender.send(flags=FINAL) if not {} else None"
    source = SENDER.format(body=body, end=end.format(is_decoupled))
    extra = DECOUPLED if is_decoupled else ""
    write_model(tmp_path, "sender", source, extra=extra, output_datatype="TYPE_STRING")
    async with serving(tmp_path) as engine:
        await Asked(engine, "sender", floats(0)).send().all()
    # The engine has stopped, so everything that the model wrote is here.
    assert f"] {expected}" in caplog.text


async def test_a_model_that_is_not_decoupled_may_answer_by_sender_later(tmp_path: Path) -> None:
    write_model(
        tmp_path,
        "later",
        """
        import threading

        class TritonPythonModel:
            def execute(self, requests):
                for r in requests:
                    threading.Timer(0.05, self.answer, (r.get_response_sender(),)).start()

            def answer(self, sender):
                out = pb_utils.Tensor("OUT", np.ones(1, np.float32))
                sender.send(pb_utils.InferenceResponse([out]), 1)
        """,
    )
    async with serving(tmp_path) as engine:
        assert await value(engine, "later", floats(0)) == [1]


async def test_a_coroutine_of_an_ordinary_model_returns_its_responses(tmp_path: Path) -> None:
    write_model(
        tmp_path,
        "m",
        """
        import asyncio

        class TritonPythonModel:
            async def execute(self, requests):
                await asyncio.sleep(0)
                return [
                    pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy())])
                    for r in requests
                ]
        """,
    )
    async with serving(tmp_path) as engine:
        response = await ask(engine, "m", floats(1, 2))
        assert response.outputs[0].data.tolist() == [1, 2]
