"""Models that ask others: requests, streams, the repository, and circles."""

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest
from tests.support.python_models import (
    TIMEOUT_S,
    Array,
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

from naiad.engine.engine import Engine, ModelControlMode
from naiad.inference.trace import Trace, TraceLevel, TraceSubject

pytestmark = pytest.mark.slow

IN_PROCESS = 'parameters { key: "IN_PROCESS" value { string_value: "true" } }\n'
DECOUPLED = "model_transaction_policy { decoupled: true }\n"

# Asks the model that its parameter names, and answers with what that answers.
FORWARD = """
class TritonPythonModel:
    def execute(self, requests):
        found = []
        for r in requests:
            import json
            name = json.loads(r.parameters())["model"]
            data = r.inputs()[0].as_numpy()
            if name in ("one", "both"):
                data = data.reshape(1, -1)
            inner = pb_utils.InferenceRequest(
                request_id=r.request_id(), model_name=name, requested_output_names=["OUT"],
                inputs=[pb_utils.Tensor("IN", data)],
            )
            response = inner.exec()
            if response.has_error():
                found.append(pb_utils.InferenceResponse(error=response.error()))
            else:
                out = pb_utils.get_output_tensor_by_name(response, "OUT")
                found.append(pb_utils.InferenceResponse([out]))
        return found
"""

REPEAT = """
class TritonPythonModel:
    def execute(self, requests):
        for r in requests:
            sender = r.get_response_sender()
            for i in range(int(r.inputs()[0].as_numpy()[0])):
                out = pb_utils.Tensor("OUT", np.array([i], np.float32))
                sender.send(pb_utils.InferenceResponse([out]))
            sender.send(flags=1)
"""

ENSEMBLE = """
name: "both" platform: "ensemble" max_batch_size: 8
input [ { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] } ]
ensemble_scheduling {
  step { model_name: "one" model_version: -1
    input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "t" } }
  step { model_name: "one" model_version: -1
    input_map { key: "IN" value: "t" } output_map { key: "OUT" value: "OUT" } }
}
"""


async def forward(engine: Engine, target: str, data: Array) -> object:
    asked = Asked(engine, "forward", tensor("IN", data), request_id="outer")
    asked.request.parameters = {"model": target}
    (response,) = await asked.send().all()
    return response.error.reason() if response.error else response.outputs[0].data.tolist()


async def test_a_model_asks_onnx_models_ensembles_and_other_python_models(tmp_path: Path) -> None:
    builder = RepositoryBuilder(tmp_path)
    builder.add_sum("one", 1)
    builder.add_model("both", ENSEMBLE)
    write_model(tmp_path, "forward", FORWARD)
    write_model(
        tmp_path,
        "double",
        """
        class TritonPythonModel:
            def execute(self, requests):
                return [pb_utils.InferenceResponse([
                    pb_utils.Tensor("OUT", 2 * r.inputs()[0].as_numpy())]) for r in requests]
        """,
    )
    large = np.ones((100_000), np.float32)
    async with serving(tmp_path) as engine:
        assert await forward(engine, "one", np.array([1, 2], np.float32)) == [[2, 3]]
        assert await forward(engine, "both", np.array([1, 2], np.float32)) == [[3, 4]]
        assert await forward(engine, "double", np.array([4], np.float32)) == [8]
        assert await forward(engine, "one", large) == [(large + 1).tolist()]


@pytest.mark.parametrize("in_process", ["", IN_PROCESS])
async def test_what_a_model_asks_is_part_of_its_trace(tmp_path: Path, in_process: str) -> None:
    RepositoryBuilder(tmp_path).add_sum("one", 1)
    write_model(
        tmp_path,
        "traced",
        """
        class TritonPythonModel:
            def execute(self, requests):
                (r,) = requests
                x = pb_utils.Tensor("IN", r.inputs()[0].as_numpy().reshape(1, -1))
                for options in ({"trace": r.trace()}, {}):
                    answer = pb_utils.InferenceRequest(
                        model_name="one", requested_output_names=["OUT"], inputs=[x],
                        request_id="inner", **options).exec()
                    assert not answer.has_error()
                assert r.trace().get_context() is None
                return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", x.as_numpy()[0])])]
        """,
        extra=in_process,
    )
    async with serving(tmp_path) as engine:
        asked = Asked(engine, "traced", floats(1))
        trace = Trace(7, TraceLevel.TIMESTAMPS, TraceSubject("traced", 1, ""), None)
        asked.request.trace = trace
        (response,) = await asked.send().all()
        assert response.error is None
        # Of the two requests, the one that was given the trace.
        (child,) = trace.children
        assert (child.parent_id, child.subject) == (7, TraceSubject("one", 1, "inner"))
        assert "COMPUTE_START" in [name for name, _ in child.stamps]


async def test_errors_pass_through(tmp_path: Path) -> None:
    write_model(tmp_path, "forward", FORWARD)
    write_model(
        tmp_path,
        "refuse",
        """
        class TritonPythonModel:
            def execute(self, requests):
                no = pb_utils.TritonError("no", pb_utils.TritonError.UNSUPPORTED)
                return [pb_utils.InferenceResponse(error=no) for r in requests]
        """,
    )
    write_model(tmp_path, "takes_int8", FORWARD, datatype="TYPE_INT8")
    write_model(tmp_path, "repeat", REPEAT, extra=DECOUPLED)
    async with serving(tmp_path) as engine:
        one = np.ones(1, np.float32)
        assert await forward(engine, "refuse", one) == "Unsupported: no"
        assert await forward(engine, "nobody", one) == (
            "Internal: Model nobody - Error when running inference: Request for unknown model: "
            "'nobody' is not found"
        )
        assert "data-type" in str(await forward(engine, "takes_int8", one))
        assert "Please use 'decoupled=True' argument" in str(await forward(engine, "repeat", one))


async def test_answers_of_a_decoupled_model_are_an_iterator(tmp_path: Path) -> None:
    write_model(tmp_path, "repeat", REPEAT, extra=DECOUPLED)
    write_model(
        tmp_path,
        "sum",
        """
        class TritonPythonModel:
            def execute(self, requests):
                found = []
                for r in requests:
                    inner = pb_utils.InferenceRequest(
                        model_name="repeat", requested_output_names=["OUT"], inputs=r.inputs())
                    responses = inner.exec(decoupled=True)
                    seen = [t.as_numpy()[0] for a in responses for t in a.output_tensors()]
                    again = [t.as_numpy()[0] for a in responses for t in a.output_tensors()]
                    assert seen == again
                    out = pb_utils.Tensor("OUT", np.array([sum(seen), len(seen)], np.float32))
                    found.append(pb_utils.InferenceResponse([out]))
                return found
        """,
    )
    async with serving(tmp_path) as engine:
        assert await value(engine, "sum", floats(5)) == [10, 5]
        assert await value(engine, "sum", floats(0)) == [0, 0]


async def test_coroutines_ask_side_by_side(tmp_path: Path) -> None:
    RepositoryBuilder(tmp_path).add_sum("one", 1)
    write_model(tmp_path, "repeat", REPEAT, extra=DECOUPLED)
    write_model(
        tmp_path,
        "many",
        """
        import asyncio

        class TritonPythonModel:
            async def execute(self, requests):
                def make(name, x):
                    return pb_utils.InferenceRequest(
                        model_name=name, requested_output_names=["OUT"],
                        inputs=[pb_utils.Tensor("IN", x.astype(np.float32))])
                calls = [make("one", np.array([[i]])).async_exec() for i in range(20)]
                answers = await asyncio.gather(*calls)
                total = sum(a.output_tensors()[0].as_numpy()[0, 0] for a in answers)
                async def stream():
                    return await make("repeat", np.array([3])).async_exec(decoupled=True)
                count = sum(len(a.output_tensors()) for a in await stream())
                out = pb_utils.Tensor("OUT", np.array([total, count], np.float32))
                return [pb_utils.InferenceResponse([out]) for _ in requests]
        """,
    )
    async with serving(tmp_path) as engine:
        assert await value(engine, "many", floats(0)) == [210, 3]


async def test_an_iterator_that_is_cancelled_tells_the_model(tmp_path: Path) -> None:
    write_model(
        tmp_path,
        "endless",
        """
        class TritonPythonModel:
            def execute(self, requests):
                (r,) = requests
                obeys = bool(r.inputs()[0].as_numpy()[0])
                sender = r.get_response_sender()
                out = pb_utils.Tensor("OUT", np.ones(1, np.float32))
                sender.send(pb_utils.InferenceResponse([out]))
                while not sender.is_cancelled():
                    pass
                if obeys:
                    error = pb_utils.TritonError("stopped", pb_utils.TritonError.CANCELLED)
                    sender.send(pb_utils.InferenceResponse(error=error), flags=1)
                    return
                for _ in range(3):
                    sender.send(pb_utils.InferenceResponse([out]))
                sender.send(flags=1)
        """,
        extra=DECOUPLED,
    )
    write_model(
        tmp_path,
        "stops",
        """
        class TritonPythonModel:
            def execute(self, requests):
                inner = pb_utils.InferenceRequest(model_name="endless",
                    requested_output_names=["OUT"], inputs=requests[0].inputs())
                responses = inner.exec(decoupled=True)
                next(responses)
                responses.cancel()
                texts = [r.error().message() if r.has_error() else str(len(r.output_tensors()))
                         for r in responses]
                out = pb_utils.Tensor("OUT", np.array(texts, np.object_))
                return [pb_utils.InferenceResponse([out])]
        """,
        output_datatype="TYPE_STRING",
    )
    async with serving(tmp_path) as engine:
        assert await value(engine, "stops", floats(1)) == ["stopped"]
        # A model may go on all the same, and then its answers are not kept back.
        assert await value(engine, "stops", floats(0)) == ["1", "1", "1", "0"]


async def test_bls_needs_execute(tmp_path: Path) -> None:
    write_model(
        tmp_path,
        "early",
        """
        class TritonPythonModel:
            def initialize(self, args):
                pb_utils.InferenceRequest(
                    model_name="x", requested_output_names=[], inputs=[]).exec()
        """,
    )
    async with serving(tmp_path, ModelControlMode.EXPLICIT) as engine:
        with pytest.raises(Exception, match="BLS is only supported during the 'execute' function"):
            await engine.load_model("early", None, {})


async def test_bls_is_over_when_a_model_cleans_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_model(
        tmp_path,
        "late",
        """
        class TritonPythonModel:
            def execute(self, requests):
                return [pb_utils.InferenceResponse([]) for _ in requests]

            def finalize(self):
                pb_utils.InferenceRequest(
                    model_name="late", requested_output_names=[], inputs=[]).exec()
        """,
    )
    async with serving(tmp_path):
        pass
    assert "BLS is only supported during the 'execute' function" in caplog.text


async def test_a_model_that_can_only_wait_for_itself_is_told_so(tmp_path: Path) -> None:
    write_model(tmp_path, "forward", FORWARD)
    async with serving(tmp_path) as engine:
        text = await forward(engine, "forward", np.ones(1, np.float32))
        # The inner request has no parameters, so it would not get as far as asking.
        assert text == (
            "Unavailable: the request to model 'forward' would wait for ever: each of its "
            "instances waits for a model that waits for it. Give the model more instances, or "
            "don't let it ask for itself"
        )


async def test_a_circle_of_two_models_is_found(tmp_path: Path) -> None:
    for name, other in (("ping", "pong"), ("pong", "ping")):
        write_model(
            tmp_path,
            name,
            f"""
            class TritonPythonModel:
                def execute(self, requests):
                    inner = pb_utils.InferenceRequest(model_name="{other}",
                        requested_output_names=["OUT"], inputs=requests[0].inputs())
                    response = inner.exec()
                    return [pb_utils.InferenceResponse(error=response.error())]
            """,
        )
    async with serving(tmp_path) as engine:
        assert "would wait for ever" in await error(engine, "ping", floats(1))
        assert "would wait for ever" in await error(engine, "pong", floats(1))


async def test_asking_itself_works_where_another_instance_is_free(tmp_path: Path) -> None:
    write_model(
        tmp_path,
        "faculty",
        """
        class TritonPythonModel:
            def execute(self, requests):
                n = requests[0].inputs()[0].as_numpy()
                if n[0] > 1:
                    inner = pb_utils.InferenceRequest(model_name="faculty",
                        requested_output_names=["OUT"], inputs=[pb_utils.Tensor("IN", n - 1)])
                    n = n * inner.exec().output_tensors()[0].as_numpy()
                return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", n)])]
        """,
        extra="instance_group [ { count: 3 kind: KIND_CPU } ]",
    )
    async with serving(tmp_path) as engine:
        assert await value(engine, "faculty", floats(3)) == [6]


async def test_the_death_of_a_model_frees_whoever_waits_for_it(tmp_path: Path) -> None:
    write_model(tmp_path, "forward", FORWARD)
    write_model(
        tmp_path,
        "dies",
        "import os\nclass TritonPythonModel:\n    def execute(self, requests): os._exit(1)",
    )
    async with serving(tmp_path) as engine:
        text = await forward(engine, "dies", np.ones(1, np.float32))
        assert text == "Internal: Stub process 'dies_0_0' is not healthy. It ended with exit code 1"


async def test_a_model_loads_and_unloads_others(tmp_path: Path) -> None:
    RepositoryBuilder(tmp_path).add_sum("one", 1)
    write_model(
        tmp_path,
        "control",
        """
        import json

        class TritonPythonModel:
            def initialize(self, args):
                self.was_ready = pb_utils.is_model_ready("one")
                pb_utils.load_model("one")

            def execute(self, requests):
                order = requests[0].inputs()[0].as_numpy()[0].decode()
                seen = [self.was_ready, pb_utils.is_model_ready("one"),
                        pb_utils.is_model_ready("one", "1"), pb_utils.is_model_ready("one", "2")]
                for call in (lambda: pb_utils.load_model("nope"),
                             lambda: pb_utils.is_model_ready("one", "x")):
                    try:
                        call()
                    except pb_utils.TritonModelException as error:
                        seen.append(str(error))
                pb_utils.unload_model("one")
                seen.append(pb_utils.is_model_ready("one"))
                out = pb_utils.Tensor("OUT", np.array([json.dumps(seen)], np.object_))
                return [pb_utils.InferenceResponse([out])]
        """,
        datatype="TYPE_STRING",
    )
    async with serving(tmp_path, ModelControlMode.EXPLICIT) as engine:
        await engine.load_model("control", None, {})
        (text,) = await value(engine, "control", texts("go"))
        seen = json.loads(text)
        assert seen[:4] == [False, True, True, False]
        assert seen[4] == (
            "Failed to load model: failed to load 'nope', failed to poll from model repository"
        )
        assert "version should be an integral value > 0" in seen[5]
        assert seen[6] is False


async def test_many_requests_at_once_go_through_a_model_that_asks(tmp_path: Path) -> None:
    RepositoryBuilder(tmp_path).add_sum("one", 1)
    write_model(
        tmp_path, "forward", FORWARD, extra="instance_group [ { count: 2 kind: KIND_CPU } ]"
    )
    async with serving(tmp_path) as engine:
        answers = await asyncio.gather(
            *(forward(engine, "one", np.array([n], np.float32)) for n in range(100))
        )
        assert answers == [[[n + 1]] for n in range(100)]
        assert (await ask(engine, "one", tensor("IN", np.array([[0]], np.float32)))).error is None


ASKS_WHILE_IT_LOADS = """
class TritonPythonModel:
    def initialize(self, args):
        self.said = "nothing"
        try:
            pb_utils.{call}("{other}")
        except Exception as error:
            self.said = str(error)

    def execute(self, requests):
        out = pb_utils.Tensor("OUT", np.array([self.said], np.object_))
        return [pb_utils.InferenceResponse([out])]
"""


@pytest.mark.parametrize("call", ["load_model", "unload_model"])
async def test_a_model_that_asks_for_itself_while_it_loads_is_refused(
    tmp_path: Path, call: str
) -> None:
    source = ASKS_WHILE_IT_LOADS.format(call=call, other="m")
    write_model(tmp_path, "m", source, output_datatype="TYPE_STRING")
    async with serving(tmp_path, ModelControlMode.EXPLICIT) as engine:
        # An unload of what is not known yet has nothing to wait for.
        for _ in range(2):
            await asyncio.wait_for(engine.load_model("m", None, {}), TIMEOUT_S)
            (tmp_path / "m" / "1" / "model.py").touch()
        (said,) = await value(engine, "m", floats(0))
        assert "model 'm' would wait for ever: it asks for 'm' while it loads" in said


async def test_models_that_load_each_other_load(tmp_path: Path) -> None:
    for name, other in (("a", "b"), ("b", "c"), ("c", "a")):
        source = ASKS_WHILE_IT_LOADS.format(call="load_model", other=other)
        write_model(tmp_path, name, source, output_datatype="TYPE_STRING")
    async with serving(tmp_path, ModelControlMode.EXPLICIT) as engine:
        loads = (engine.load_model(name, None, {}) for name in ("a", "c", "b"))
        await asyncio.wait_for(asyncio.gather(*loads), TIMEOUT_S)
        said = [(await value(engine, name, floats(0)))[0] for name in ("a", "b", "c")]
        assert sum("would wait for ever" in text for text in said) == 1
        assert said.count("nothing") == 2
