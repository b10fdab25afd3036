"""Requests of an ensemble whose steps the test answers by hand."""

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest
from tests.support.fake_clock import FakeClock
from tests.support.requests import make_request, tensor

from naiad.engine.ensemble import EnsembleExecutor
from naiad.engine.model import Model
from naiad.engine.validation import validate_request
from naiad.engine.warmup import WarmupSample
from naiad.errors import InternalError, InvalidArgumentError, NaiadError, UnavailableError
from naiad.inference.pace import ResponsePace
from naiad.inference.request import InferRequest
from naiad.inference.response import InferResponse
from naiad.inference.statistics import FailureReason, ModelStatistics
from naiad.inference.tensor import Tensor
from naiad.inference.trace import Trace, TraceLevel, TraceSubject
from naiad.model_config.schema import ModelConfig
from naiad.model_config.signature import ModelSignature
from naiad.model_config.text_format import parse_config


def model_config(name: str, batch: int = 8, *, more: str = "", dims: str = "-1") -> ModelConfig:
    return parse_config(
        f'name: "{name}" max_batch_size: {batch} {more} '
        f'input [ {{ name: "IN" data_type: TYPE_FP32 dims: [ {dims} ] }} ] '
        f'output [ {{ name: "OUT" data_type: TYPE_FP32 dims: [ {dims} ] }} ]',
        name,
    )


def ensemble_config(
    *steps: tuple[str, str, str], outputs: str = "Y", batch: int = 8, more: str = ""
) -> ModelConfig:
    """Steps as (model, tensor read, tensor written)."""
    text = f'name: "e" platform: "ensemble" max_batch_size: {batch} {more}'
    text += ' input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ]'
    for name in outputs:
        text += f' output [ {{ name: "{name}" data_type: TYPE_FP32 dims: [ -1 ] }} ]'
    text += " ensemble_scheduling {"
    for model, read, written in steps:
        text += (
            f' step {{ model_name: "{model}" model_version: -1 input_map {{ key: "IN" value: '
            f'"{read}" }} output_map {{ key: "OUT" value: "{written}" }} }}'
        )
    return parse_config(text + " }", "e")


class FakeStep:
    """Keeps the requests that it gets."""

    def __init__(self) -> None:
        self.statistics = ModelStatistics()
        self.requests: list[InferRequest] = []
        self.cancelled: list[InferRequest] = []
        self.refusal: NaiadError | None = None
        self.is_drained = False

    def submit(self, request: InferRequest) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.requests.append(request)

    def cancel(self, request: InferRequest) -> None:
        self.cancelled.append(request)

    def problem(self) -> str:
        return ""

    async def warm_up(self, samples: Sequence[WarmupSample]) -> None:
        raise AssertionError

    async def drain(self) -> None:
        self.is_drained = True

    async def close(self) -> None:
        assert self.is_drained


class FakeModels:
    """The engine, as far as an ensemble knows it."""

    def __init__(self, *configs: ModelConfig) -> None:
        self.steps = {config.name: FakeStep() for config in configs}
        self.models = {
            config.name: Model(
                config, 1, ModelSignature.from_config(config), {}, self.steps[config.name], None
            )
            for config in configs
        }

    def find(self, name: str, version: int, namespace: str = "") -> Model:
        assert not namespace
        if name not in self.models:
            raise UnavailableError(f"no {name}")
        return self.models[name]

    def infer(self, model: Model, request: InferRequest) -> None:
        validate_request(model.signature, request)
        model.executor.submit(request)

    def cancel(self, model: Model, request: InferRequest) -> None:
        model.executor.cancel(request)

    def next_trace_id(self) -> int:
        return 77


class Harness:
    """An ensemble, its fake steps, and the responses so far."""

    def __init__(self, config: ModelConfig, *models: ModelConfig) -> None:
        self.clock = FakeClock()
        self.models = FakeModels(*models)
        self.executor = EnsembleExecutor(3, config, self.models, self.clock)
        self.responses: list[InferResponse] = []

    def request(
        self, *shape: int, output_names: Sequence[str] | None = None, request_id: str = "r"
    ) -> InferRequest:
        data = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        request = make_request(
            tensor("X", data),
            request_id=request_id,
            output_names=output_names,
            on_response=self.responses.append,
        )
        validate_request(self.executor.signature, request)
        return request

    def submit(self, *shape: int) -> InferRequest:
        request = self.request(*(shape or (2, 1)))
        self.executor.submit(request)
        return request

    def step(self, name: str, index: int = 0) -> InferRequest:
        return self.models.steps[name].requests[index]

    def answer(
        self,
        name: str,
        value: float | Tensor | NaiadError | None,
        *,
        index: int = 0,
        is_final: bool = True,
    ) -> None:
        request = self.step(name, index)
        error = value if isinstance(value, NaiadError) else None
        outputs: list[Tensor] = []
        if isinstance(value, Tensor):
            outputs = [value]
        elif isinstance(value, float):
            shape = request.inputs["IN"].shape
            outputs = [tensor("OUT", np.full(shape, value, np.float32))]
        response = InferResponse(name, 1, request.request_id, outputs, error)
        response.is_final = is_final
        request.on_response(response)

    def texts(self) -> list[tuple[str, bool]]:
        """Errors, or the first value of each output, and whether the response is the last."""
        return [
            (
                r.error.message
                if r.error is not None
                else ",".join(f"{t.name}={t.data.ravel()[0]:g}" for t in r.outputs),
                r.is_final,
            )
            for r in self.responses
        ]


def chain(*, more: str = "", source: str = "") -> Harness:
    """X -> a -> T -> b -> Y."""
    return Harness(
        ensemble_config(("a", "X", "T"), ("b", "T", "Y"), more=more),
        model_config("a", more=source),
        model_config("b"),
    )


DECOUPLED = "model_transaction_policy { decoupled: true }"


async def test_tensors_go_from_step_to_step_without_copies() -> None:
    harness = chain()
    request = harness.submit(2, 3)
    assert np.shares_memory(harness.step("a").inputs["IN"].data, request.inputs["X"].data)
    middle = tensor("OUT", np.ones((2, 3), np.float32))
    harness.answer("a", middle)
    assert np.shares_memory(harness.step("b").inputs["IN"].data, middle.data)
    assert harness.step("b").inputs["IN"].name == "IN"
    end = tensor("OUT", np.ones((2, 3), np.float32))
    harness.answer("b", end)
    (response,) = harness.responses
    assert (response.model_name, response.model_version, response.request_id) == ("e", 3, "r")
    assert np.shares_memory(response.outputs[0].data, end.data)
    assert response.outputs[0].name == "Y"


async def test_what_the_client_said_of_the_request_reaches_every_step() -> None:
    harness = chain()
    request = harness.request(1, 1)
    request.priority, request.timeout_us = 2, 300
    request.correlation_id, request.sequence_start, request.sequence_end = 5, True, False
    request.parameters = {"a": "x"}
    harness.executor.submit(request)
    harness.answer("a", 1.0)
    for name in "ab":
        step = harness.step(name)
        assert (step.request_id, step.priority, step.timeout_us) == ("r", 2, 300)
        assert (step.correlation_id, step.sequence_start, step.sequence_end) == (5, True, False)
        assert step.parameters == {"a": "x"}
    harness.answer("b", 1.0)
    assert harness.responses[0].parameters == {
        "sequence_id": 5,
        "sequence_start": True,
        "sequence_end": False,
    }


@pytest.mark.parametrize(("key", "sent"), [("s", "s"), (2**63 - 1, 2**63 - 1), (2**64 - 1, -1)])
async def test_the_sequence_id_of_an_answer_is_a_signed_number_as_in_triton(
    key: int | str, sent: int | str
) -> None:
    harness = chain()
    request = harness.request(1, 1)
    request.correlation_id = key
    harness.executor.submit(request)
    harness.answer("a", 1.0)
    harness.answer("b", 1.0)
    assert (harness.responses[0].parameters or {})["sequence_id"] == sent


async def test_branches_run_at_the_same_time() -> None:
    harness = Harness(
        ensemble_config(("a", "X", "Y"), ("b", "X", "Z"), outputs="YZ"),
        model_config("a"),
        model_config("b"),
    )
    harness.submit()
    assert harness.step("a") is not harness.step("b")
    harness.answer("b", 2.0)
    assert harness.responses == []
    harness.answer("a", 1.0)
    assert harness.texts() == [("Y=1,Z=2", True)]


async def test_the_error_of_a_step_keeps_its_code_and_names_the_ensemble() -> None:
    harness = chain()
    harness.submit()
    harness.answer("a", InternalError("it broke"))
    assert harness.texts() == [("in ensemble 'e', it broke", True)]
    assert type(harness.responses[0].error) is InternalError
    assert harness.models.steps["b"].requests == []
    # For the step and for the request, as in Triton.
    assert harness.executor.statistics.failures[FailureReason.OTHER] == 2
    assert harness.executor.statistics.fail.count == 2


async def test_an_error_waits_for_the_steps_that_still_read_the_request() -> None:
    harness = Harness(
        ensemble_config(("a", "X", "Y"), ("b", "X", "Z"), outputs="YZ"),
        model_config("a"),
        model_config("b"),
    )
    harness.submit()
    harness.answer("a", InternalError("first"))
    assert harness.responses == []
    harness.answer("b", InternalError("second"))
    assert harness.texts() == [("in ensemble 'e', first", True)]


async def test_a_first_step_that_refuses_refuses_the_request() -> None:
    harness = chain()
    harness.models.steps["a"].refusal = UnavailableError("Exceeds maximum queue size")
    with pytest.raises(UnavailableError, match=r"^in ensemble 'e', Exceeds maximum queue size$"):
        harness.submit()
    assert harness.responses == []
    assert harness.executor.statistics.fail.count == 2
    await asyncio.wait_for(harness.executor.drain(), 60)


async def test_a_later_step_that_refuses_is_an_answer() -> None:
    harness = chain()
    harness.models.steps["b"].refusal = UnavailableError("full")
    harness.submit()
    harness.answer("a", 1.0)
    assert harness.texts() == [("in ensemble 'e', full", True)]


async def test_a_model_that_is_gone_refuses_the_request() -> None:
    harness = chain()
    del harness.models.models["b"]
    with pytest.raises(UnavailableError, match=r"^in ensemble 'e', no b$"):
        harness.submit()
    # The other model is not held any more.
    await asyncio.wait_for(harness.models.models["a"].retire(), 60)


async def test_a_model_is_held_until_the_request_is_answered() -> None:
    harness = chain()
    harness.submit()
    retiring = asyncio.create_task(harness.models.models["b"].retire())
    await asyncio.sleep(0)
    assert not harness.models.steps["b"].is_drained
    harness.answer("a", 1.0)
    harness.answer("b", 1.0)
    await asyncio.wait_for(retiring, 60)
    assert harness.texts() == [("Y=1", True)]


async def test_cancelling_drops_the_steps_and_answers_nothing() -> None:
    harness = chain()
    request = harness.submit()
    step = harness.step("a")
    harness.executor.cancel(request)
    assert harness.models.steps["a"].cancelled == [step]
    assert harness.executor.statistics.failures[FailureReason.CANCELED] == 1
    await asyncio.wait_for(harness.executor.drain(), 60)
    await asyncio.wait_for(harness.models.models["a"].retire(), 60)
    assert harness.responses == []
    harness.executor.cancel(request)  # late, and of no effect
    assert harness.executor.statistics.fail.count == 1


async def test_draining_waits_for_requests_and_takes_no_more() -> None:
    harness = chain()
    harness.submit()
    draining = asyncio.create_task(harness.executor.drain())
    await asyncio.sleep(0)
    with pytest.raises(UnavailableError, match="stopped accepting new inference requests"):
        harness.submit()
    assert not draining.done()
    harness.answer("a", 1.0)
    harness.answer("b", 1.0)
    await asyncio.wait_for(draining, 60)


async def test_each_answer_of_a_decoupled_step_becomes_one_and_the_last_says_so() -> None:
    harness = chain(more=DECOUPLED, source=DECOUPLED)
    harness.submit()
    harness.answer("a", 1.0, is_final=False)
    harness.answer("b", 1.0)
    harness.answer("a", 2.0, is_final=False)
    harness.answer("a", None)
    assert harness.texts() == [("Y=1", False)]
    harness.answer("b", 2.0, index=1)
    assert harness.texts() == [("Y=1", False), ("Y=2", True)]
    assert harness.executor.statistics.success.count == 1


async def test_a_step_gets_no_more_at_once_than_max_inflight_requests() -> None:
    config = ensemble_config(("a", "X", "T"), ("b", "T", "Y"), more=DECOUPLED)
    config.ensemble_scheduling.max_inflight_requests = 1
    harness = Harness(config, model_config("a", more=DECOUPLED), model_config("b"))
    harness.submit()
    for value in (1.0, 2.0, 3.0):
        harness.answer("a", value, is_final=False)
    harness.answer("a", None)
    for index, value in enumerate((1.0, 2.0, 3.0)):
        assert len(harness.models.steps["b"].requests) == index + 1
        harness.answer("b", value, index=index)
    assert harness.texts() == [("Y=1", False), ("Y=2", False), ("Y=3", True)]


def backpressure(*names: str, limit: int = 1) -> Harness:
    """Steps in a row, of which only the last is not decoupled."""
    tensors = ["X", *(f"T{index}" for index in range(len(names) - 1)), "Y"]
    steps = [(name, tensors[i], tensors[i + 1]) for i, name in enumerate(names)]
    config = ensemble_config(*steps, more=DECOUPLED)
    config.ensemble_scheduling.max_inflight_requests = limit
    models = {name: model_config(name, more=DECOUPLED) for name in names[:-1]}
    models.setdefault(names[-1], model_config(names[-1]))
    return Harness(config, *models.values())


class Sender:
    """What a model's thread would do: it sends when it is let go on, and no sooner."""

    def __init__(self, harness: Harness, model: str, limit: int = 100) -> None:
        self._harness = harness
        self._model = model
        self._pace = harness.models.steps[model].requests[0].pace
        self._limit = limit
        self.sent = 0

    def send(self) -> None:
        assert self._pace is not None
        if self.sent == self._limit:
            return
        self.sent += 1
        self._pace.wait(self.send)
        self._harness.answer(self._model, float(self.sent), is_final=False)


async def test_the_sender_of_a_decoupled_step_is_held_up_while_the_next_has_no_room() -> None:
    harness = backpressure("a", "b", limit=2)
    harness.submit()
    sender = Sender(harness, "a")
    sender.send()
    # Two run, one has no room, and the fourth is not made.
    assert sender.sent == 3
    requests = harness.models.steps["b"].requests
    assert len(requests) == 2
    for index in range(5):
        assert requests[index].pace is None
        harness.answer("b", 1.0, index=index)
        assert sender.sent == 4 + index
        assert len(requests) == 3 + index


async def test_a_sender_two_steps_ahead_is_held_up_too() -> None:
    harness = backpressure("a", "b", "c")
    harness.submit()
    first = Sender(harness, "a")
    first.send()
    second = Sender(harness, "b")
    second.send()
    assert (first.sent, second.sent) == (2, 2)
    harness.answer("c", 1.0)
    # The second goes on; what the first has sent can't begin before the second has ended.
    assert (first.sent, second.sent) == (2, 3)


@pytest.mark.parametrize("is_cancelled", [True, False])
async def test_a_sender_goes_on_when_nobody_takes_what_it_sends(is_cancelled: bool) -> None:
    harness = backpressure("a", "b")
    request = harness.submit()
    pace = harness.models.steps["a"].requests[0].pace
    assert pace is not None
    sender = Sender(harness, "a", limit=2)
    sender.send()
    assert sender.sent == 2
    let_go: list[int] = []
    pace.wait(lambda: let_go.append(1))
    if is_cancelled:
        harness.executor.cancel(request)
    else:
        harness.answer("a", InternalError("it broke"))
    assert let_go == [1]
    pace.wait(lambda: let_go.append(2))
    assert let_go == [1, 2]


async def test_a_model_that_also_takes_what_it_sends_is_not_held_up() -> None:
    # Its one instance may be what the next step waits for.
    harness = backpressure("a", "a", "b")
    harness.submit()
    assert harness.models.steps["a"].requests[0].pace is None


async def test_without_max_inflight_requests_nobody_is_held_up() -> None:
    harness = chain(more=DECOUPLED, source=DECOUPLED)
    harness.submit()
    assert harness.models.steps["a"].requests[0].pace is None


async def test_an_ensemble_that_is_a_step_holds_its_own_steps_up() -> None:
    inner = Harness(
        ensemble_config(("a", "X", "Y"), more=DECOUPLED), model_config("a", more=DECOUPLED)
    )
    pace = ResponsePace()
    request = inner.request(1, 1)
    request.pace = pace
    inner.executor.submit(request)
    sender = Sender(inner, "a")
    sender.send()
    # The outer ensemble has the answer to take first.
    assert sender.sent == 1
    pace.go_on(1)
    assert sender.sent == 2


async def test_what_is_held_back_is_dropped_with_its_request() -> None:
    config = ensemble_config(("a", "X", "T"), ("b", "T", "Y"), more=DECOUPLED)
    config.ensemble_scheduling.max_inflight_requests = 1
    harness = Harness(config, model_config("a", more=DECOUPLED), model_config("b"))
    request = harness.submit()
    harness.answer("a", 1.0, is_final=False)
    harness.answer("a", 2.0, is_final=False)
    harness.executor.cancel(request)
    assert len(harness.models.steps["b"].cancelled) == 1
    assert len(harness.models.steps["b"].requests) == 1
    await asyncio.wait_for(harness.executor.drain(), 60)


async def test_the_end_of_a_decoupled_step_alone_ends_the_ensemble() -> None:
    harness = chain(more=DECOUPLED, source=DECOUPLED)
    harness.submit()
    harness.answer("a", 1.0, is_final=False)
    harness.answer("b", 1.0)
    harness.answer("a", None)
    assert harness.texts() == [("Y=1", False), ("", True)]


async def test_a_decoupled_step_may_answer_nothing() -> None:
    harness = chain(more=DECOUPLED, source=DECOUPLED)
    harness.submit()
    harness.answer("a", None)
    assert harness.texts() == [("", True)]


async def test_an_ensemble_that_must_answer_and_can_not_is_deadlocked() -> None:
    # The model became decoupled since the ensemble was held against it.
    harness = chain(source=DECOUPLED)
    harness.submit()
    harness.answer("a", None)
    assert harness.texts() == [
        (
            "in ensemble 'e', [request id: r] unexpected deadlock, at least one output is not set "
            "while no more ensemble steps can be made",
            True,
        )
    ]
    assert isinstance(harness.responses[0].error, InvalidArgumentError)


async def test_only_the_steps_of_the_wanted_outputs_run() -> None:
    harness = Harness(
        ensemble_config(("a", "X", "Y"), ("b", "X", "Z"), outputs="YZ"),
        model_config("a"),
        model_config("b"),
    )
    harness.executor.submit(harness.request(1, 1, output_names=["Z"]))
    assert harness.models.steps["a"].requests == []
    harness.answer("b", 2.0)
    assert harness.texts() == [("Z=2", True)]


async def test_a_batch_of_one_loses_its_axis_and_gets_it_back() -> None:
    harness = Harness(ensemble_config(("a", "X", "Y")), model_config("a", 0))
    harness.submit(1, 4)
    assert harness.step("a").inputs["IN"].shape == (4,)
    harness.answer("a", 1.0)
    assert harness.responses[0].outputs[0].data.shape == (1, 4)


async def test_a_larger_batch_is_refused_by_a_model_without_one() -> None:
    harness = Harness(ensemble_config(("a", "X", "Y")), model_config("a", 0))
    with pytest.raises(InvalidArgumentError, match=r"^in ensemble 'e', .*unexpected shape"):
        harness.submit(2, 4)


async def test_the_statistics_count_the_request_once_with_the_time_of_all_steps() -> None:
    harness = chain()
    request = harness.submit(3, 1)
    for name in "ab":
        times = harness.step(name).compute_times
        assert times is not None
        times.add(1, 20, 300)
        harness.clock.advance_us(1)
        harness.answer(name, 1.0)
    statistics = harness.executor.statistics
    assert (statistics.inference_count, statistics.execution_count) == (3, 1)
    assert (statistics.success.count, statistics.success.ns) == (1, 2000)
    assert (statistics.queue.count, statistics.queue.ns) == (1, 0)
    assert [s.ns for s in (statistics.compute_input, statistics.compute_infer)] == [2, 40]
    assert (statistics.compute_output.ns, statistics.batches[3].compute_output.ns) == (600, 600)
    assert statistics.pending_count == 0
    assert request.compute_times is None


async def test_each_step_has_a_trace_below_that_of_the_request() -> None:
    harness = chain()
    request = harness.request(1, 1)
    trace = Trace(1, TraceLevel.TIMESTAMPS, TraceSubject("e", 3, "r"), None)
    request.trace = trace
    harness.executor.submit(request)
    harness.answer("a", 1.0)
    harness.answer("b", 1.0)
    assert [(t.trace_id, t.parent_id, t.subject) for t in trace.children] == [
        (77, 1, TraceSubject("a", 1, "r")),
        (77, 1, TraceSubject("b", 1, "r")),
    ]
    assert [name for name, _ in trace.stamps] == [
        "REQUEST_START",
        "QUEUE_START",
        "INFER_RESPONSE_COMPLETE",
        "REQUEST_END",
    ]
