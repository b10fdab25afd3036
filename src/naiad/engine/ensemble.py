"""Requests of an ensemble: each goes through the models of the steps and comes together again.

All of it happens on the event loop, in the callbacks of the steps. A request costs no task and no
future, and its tensors go from model to model as they are. Source: Triton's ensemble_scheduler.cc.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Protocol

from naiad.clock import Clock
from naiad.engine.model import Model
from naiad.engine.reshape import Reshaper
from naiad.engine.warmup import WarmupSample
from naiad.errors import InvalidArgumentError, NaiadError, UnavailableError
from naiad.inference.pace import ResponsePace
from naiad.inference.request import InferRequest, ParameterValue
from naiad.inference.response import InferResponse
from naiad.inference.statistics import (
    BatchStatistic,
    ComputeTimes,
    FailureReason,
    ModelStatistics,
)
from naiad.inference.tensor import Tensor
from naiad.inference.trace import Trace, TraceSubject
from naiad.model_config.schema import ModelConfig
from naiad.model_config.signature import ModelSignature
from naiad.scheduling.ensemble import (
    EnsembleGraph,
    EnsemblePlan,
    EnsembleRun,
    EnsembleStep,
    ReadyStep,
    fit_shape,
)

_log = logging.getLogger(__name__)

_MAX_SIGNED = 2**63


class ComposingModels(Protocol):
    """What an ensemble asks of the engine; see there."""

    def find(self, name: str, version: int, namespace: str = "") -> Model:
        """The version that a request goes to."""
        ...

    def infer(self, model: Model, request: InferRequest) -> None:
        """Check a request and queue it."""
        ...

    def cancel(self, model: Model, request: InferRequest) -> None:
        """Drop a request."""
        ...

    def next_trace_id(self) -> int:
        """An id for the trace of a step."""
        ...


class EnsembleExecutor:
    """Answers the requests of one ensemble version; belongs to the event loop.

    Args:
        version: goes into the responses.
        config: complete, and held against the models of the steps.
        models: where the steps run; asked for anew by every request, so that a step's model may
            be reloaded at any time.
        clock: for statistics and traces.
    """

    def __init__(
        self, version: int, config: ModelConfig, models: ComposingModels, clock: Clock
    ) -> None:
        self.statistics = ModelStatistics()
        self.name = config.name
        self.version = version
        self.signature = ModelSignature.from_config(config)
        self.graph = EnsembleGraph(config)
        if self.graph.max_inflight_requests:
            # Triton's words, which its suite looks for.
            _log.info(
                "Ensemble model '%s' configured with max_inflight_requests: %d",
                config.name,
                self.graph.max_inflight_requests,
            )
        self.models = models
        self.clock = clock
        # In the order in which the executors of other models answer.
        self.output_names = tuple(sorted(self.signature.outputs))
        self.reshaper = Reshaper(self.signature)
        self._calls: dict[InferRequest, _Call] = {}
        self._is_stopping = False
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    def submit(self, request: InferRequest) -> None:
        """Start the steps of a validated request.

        Raises:
            NaiadError: a step can't be started, and no other runs.
        """
        if self._is_stopping:
            raise UnavailableError(
                f"[request id: {request.request_id or '<id_unknown>'}] Server is stopping, "
                "scheduler for model has stopped accepting new inference requests"
            )
        request.queued_ns = self.clock.now_ns()
        call = _Call(self, request, self._plan(request))
        self._calls[request] = call
        self._is_idle.clear()
        call.begin()

    def cancel(self, request: InferRequest) -> None:
        """The caller went away: no response follows, and the steps that wait are dropped."""
        request.is_cancelled = True
        call = self._calls.get(request)
        if call is not None:
            call.cancel()

    def problem(self) -> str:
        """None of its own: what can't run is a step."""
        return ""

    async def warm_up(self, samples: Sequence[WarmupSample]) -> None:
        """Nothing: the models of the steps have warm-ups of their own, an ensemble has none."""

    async def drain(self) -> None:
        """Refuse new requests and wait until the accepted ones are answered."""
        self._is_stopping = True
        await self._is_idle.wait()

    async def close(self) -> None:
        """Nothing is held."""

    def forget(self, request: InferRequest) -> None:
        """The request is answered, or nobody wants the answer."""
        del self._calls[request]
        if not self._calls:
            self._is_idle.set()

    def count_success(self, request: InferRequest, times: ComputeTimes, now_ns: int) -> None:
        """Count a request whose last response is ready."""
        statistics = self.statistics
        request_ns = now_ns - (request.received_ns or request.queued_ns)
        statistics.success.add(request_ns)
        # The steps begin at once; what their requests wait is in the statistics of their models.
        statistics.queue.add(0)
        statistics.compute_input.add(times.input_ns)
        statistics.compute_infer.add(times.infer_ns)
        statistics.compute_output.add(times.output_ns)
        if statistics.summaries is not None:
            statistics.summaries.add_request(request_ns, 0, now_ns)
            statistics.summaries.add_compute(times.input_ns, times.infer_ns, times.output_ns, 1)
        statistics.inference_count += request.batch_size
        statistics.execution_count += 1
        statistics.last_inference_ms = self.clock.wall_ns() // 1_000_000
        batch = statistics.batches.get(request.batch_size)
        if batch is None:
            batch = statistics.batches[request.batch_size] = BatchStatistic()
        batch.compute_input.add(times.input_ns)
        batch.compute_infer.add(times.infer_ns)
        batch.compute_output.add(times.output_ns)

    def count_failure(self, request: InferRequest, reason: FailureReason, now_ns: int) -> None:
        """Count a request that failed or was given up."""
        self.statistics.fail.add(now_ns - (request.received_ns or request.queued_ns))
        self.statistics.failures[reason] += 1

    def _plan(self, request: InferRequest) -> EnsemblePlan:
        names = request.output_names
        if names is None:
            return self.graph.plan(self.output_names)
        return self.graph.plan([name for name in self.output_names if name in names])


class _Call:
    """One request of an ensemble, from its first step to its last response."""

    __slots__ = (
        "_error",
        "_executor",
        "_is_final_sent",
        "_models",
        "_paced",
        "_plan",
        "_request",
        "_run",
        "_running",
        "_times",
        "_untaken",
    )

    def __init__(
        self, executor: EnsembleExecutor, request: InferRequest, plan: EnsemblePlan
    ) -> None:
        self._executor = executor
        self._request = request
        self._plan = plan
        self._models: dict[int, Model] = {}
        self._run: EnsembleRun[Tensor] = EnsembleRun(
            plan,
            self._given(),
            tuple(executor.signature.inputs),
            executor.graph.max_inflight_requests,
        )
        self._running: set[_StepCall] = set()
        # Decoupled steps that run and are held up while what they send finds no room.
        self._paced: list[_StepCall] = []
        # Responses of this ensemble, itself a step, for which the other has no room yet.
        self._untaken = 0
        self._times = ComputeTimes()
        self._error: NaiadError | None = None
        self._is_final_sent = False

    def begin(self) -> None:
        """Start what can be started.

        Raises:
            NaiadError: nothing can, and the request is over.
        """
        try:
            self._hold_models()
        except NaiadError as error:
            self._error = self._named(error)
        self._start_steps()
        if self._error is not None and not self._running:
            self._close(self._error)
            raise self._error
        if not self._running:
            # The outputs asked for are inputs, and nobody is called back within `submit`.
            asyncio.get_running_loop().call_soon(self._answer)

    def cancel(self) -> None:
        """Drop the steps that run or wait; nothing is answered any more."""
        executor = self._executor
        for step in self._running:
            executor.models.cancel(step.model, step.request)
            self._let_go(step)
        self._running.clear()
        executor.count_failure(self._request, FailureReason.CANCELED, executor.clock.now_ns())
        self._forget()

    def take(self, step: "_StepCall", response: InferResponse) -> None:
        """A step answered."""
        run = self._run
        if response.error is not None:
            if self._error is None:
                self._error = self._named(response.error)
        elif not step.is_only_end(response):
            run.add(
                step.step,
                step.iteration,
                {tensor.name: tensor for tensor in response.outputs},
                is_decoupled=step.model.signature.is_decoupled,
            )
        if response.is_final:
            self._end_step(step)
        elif step.pace is not None:
            step.taken += 1
        self._start_steps()
        self._answer()
        if self._paced:
            self._let_go_on()

    def _let_go_on(self) -> None:
        """Let senders go on whose last responses the steps behind them have begun with."""
        if self._untaken:
            return
        for step in tuple(self._paced):
            if step.pace is not None and step.taken and not self._run.is_held_up(step.step):
                taken, step.taken = step.taken, 0
                step.pace.go_on(taken)

    def _note_taken(self) -> None:
        """The ensemble that this one is a step of has room again."""
        self._untaken -= 1
        self._let_go_on()

    def _given(self) -> Mapping[str, Tensor]:
        """The request's inputs, in the shapes that the steps are to see."""
        inputs = self._request.inputs
        if not self._executor.reshaper:
            return inputs
        arrays = self._executor.reshaper.to_backend({n: t.data for n, t in inputs.items()})
        return {
            name: type(tensor)(name, tensor.datatype, arrays[name].shape, arrays[name])
            for name, tensor in inputs.items()
        }

    def _hold_models(self) -> None:
        """Find the versions that this request runs on, and keep them until it is over."""
        for step in self._plan.steps:
            model = self._executor.models.find(
                step.model_name, step.model_version, step.model_namespace
            )
            model.hold()
            self._models[step.index] = model

    def _start_steps(self) -> None:
        while self._error is None:
            ready = self._run.next_step()
            if ready is None:
                return
            step = _StepCall(self, ready, self._models[ready.step.index])
            step.request = self._step_request(ready, step)
            self._running.add(step)
            try:
                self._executor.models.infer(step.model, step.request)
            except NaiadError as error:
                self._end_step(step)
                self._error = self._named(error)

    def _end_step(self, step: "_StepCall") -> None:
        self._running.discard(step)
        self._let_go(step)
        self._run.end(step.step)

    def _let_go(self, step: "_StepCall") -> None:
        # The request knows the step: apart, their tensors are freed at once.
        del step.request
        if step.pace is not None:
            self._paced.remove(step)
            step.pace.open()

    def _make_pace(self, step: "_StepCall") -> ResponsePace | None:
        """What holds a step up, where it may send more than the steps behind it take."""
        if not step.model.signature.is_decoupled:
            return None
        if not self._executor.graph.max_inflight_requests and self._request.pace is None:
            return None
        if any(
            model is step.model for index, model in self._models.items() if index != step.step.index
        ):
            # What its responses go to may wait for the very instance that is held up.
            return None
        self._paced.append(step)
        return ResponsePace()

    def _step_request(self, ready: ReadyStep[Tensor], step: "_StepCall") -> InferRequest:
        parent = self._request
        model = step.model
        inputs = {}
        for name, source in ready.step.inputs:
            tensor = ready.inputs.get(name)
            if tensor is not None:
                inputs[name] = self._fit(name, tensor, source, model.signature)
        request = InferRequest(
            parent.request_id, inputs, self._plan.wanted[ready.step.index], step.on_response
        )
        request.parameters = parent.parameters
        request.correlation_id = parent.correlation_id
        request.sequence_start = parent.sequence_start
        request.sequence_end = parent.sequence_end
        request.priority = parent.priority
        request.timeout_us = parent.timeout_us
        request.compute_times = self._times
        request.pace = step.pace = self._make_pace(step)
        if parent.trace is not None:
            request.trace = parent.trace.add_child(
                self._executor.models.next_trace_id(),
                TraceSubject(model.name, model.version, parent.request_id),
            )
        return request

    def _fit(self, name: str, tensor: Tensor, source: str, signature: ModelSignature) -> Tensor:
        """A tensor of the ensemble as an input of a model, without copying."""
        spec = signature.inputs.get(name)
        shape = tensor.shape
        if spec is not None:
            shape = fit_shape(
                shape,
                spec.dims,
                from_batch=self._is_batched(source),
                to_batch=signature.max_batch_size > 0,
            )
        data = tensor.data if shape is tensor.shape else tensor.data.reshape(shape)
        # Keeps the type: what clients share stays marked as shared.
        return type(tensor)(name, tensor.datatype, shape, data)

    def _is_batched(self, tensor: str) -> bool:
        writer = self._executor.graph.writers.get(tensor)
        if writer is None:
            return self._executor.signature.max_batch_size > 0
        return self._models[writer.index].signature.max_batch_size > 0

    def _answer(self) -> None:
        """Send what is complete, and the end where nothing can follow."""
        run = self._run
        while self._error is None and not self._request.is_cancelled:
            outputs = run.next_answer()
            if outputs is None:
                break
            self._send(self._outputs(outputs), is_final=run.is_over())
        if self._is_final_sent or self._running or self._request.is_cancelled:
            return
        # With an error, steps that could run are left alone; those that ran are waited for, since
        # they read memory that is the client's again once it has its answer.
        if self._error is not None:
            self._fail(self._error)
        elif run.is_over():
            self._end()

    def _end(self) -> None:
        """Nothing more can come, and the last response did not say so."""
        executor = self._executor
        if not self._run.answer_count and not executor.signature.is_decoupled:
            self._fail(
                self._named(
                    InvalidArgumentError(
                        f"[request id: {self._request.request_id or '<id_unknown>'}] unexpected "
                        "deadlock, at least one output is not set while no more ensemble steps "
                        "can be made"
                    )
                )
            )
            return
        self._send((), is_final=True)

    def _outputs(self, found: Mapping[str, Tensor]) -> list[Tensor]:
        executor = self._executor
        signature = executor.signature
        outputs = []
        for name in self._plan.output_names:
            tensor = found.get(name)
            if tensor is None:
                _log.debug("Composing models did not output tensor %s", name)
                continue
            spec = signature.outputs[name]
            shape = fit_shape(
                tensor.shape,
                spec.dims if spec.reshape is None else spec.reshape,
                from_batch=self._is_batched(name),
                to_batch=signature.max_batch_size > 0,
            )
            data = tensor.data if shape is tensor.shape else tensor.data.reshape(shape)
            outputs.append(Tensor(name, tensor.datatype, shape, data))
        return executor.reshaper.to_client(outputs) if executor.reshaper else outputs

    def _send(self, outputs: Sequence[Tensor], *, is_final: bool) -> None:
        executor, request = self._executor, self._request
        response = InferResponse(executor.name, executor.version, request.request_id, outputs)
        response.is_final = is_final
        if outputs:
            response.parameters = _sequence_parameters(request)
        if is_final:
            self._is_final_sent = True
            self._close(None)
        elif request.pace is not None:
            self._untaken += 1
            request.pace.wait(self._note_taken)
        request.on_response(response)

    def _fail(self, error: NaiadError) -> None:
        executor, request = self._executor, self._request
        self._is_final_sent = True
        self._close(error)
        request.on_response(
            InferResponse(executor.name, executor.version, request.request_id, (), error)
        )

    def _close(self, error: NaiadError | None) -> None:
        """Count the request and let go of everything."""
        executor, request = self._executor, self._request
        now_ns = executor.clock.now_ns()
        if error is None:
            executor.count_success(request, self._times, now_ns)
        else:
            # Twice, as Triton counts it: for the failure of the step and for the request's own.
            # Its suite L0_model_queue holds it to that.
            executor.count_failure(request, FailureReason.OTHER, now_ns)
            executor.count_failure(request, FailureReason.OTHER, now_ns)
        if request.compute_times is not None:
            times = self._times
            request.compute_times.add(times.input_ns, times.infer_ns, times.output_ns)
        if request.trace is not None:
            _record(request.trace, request, now_ns)
        self._forget()

    def _forget(self) -> None:
        self._executor.forget(self._request)
        for model in self._models.values():
            model.release()
        self._models = {}

    def _named(self, error: NaiadError) -> NaiadError:
        """The same error, saying which ensemble it was met in."""
        return type(error)(f"in ensemble '{self._executor.name}', {error.message}")


class _StepCall:
    """One request to the model of a step.

    Attributes:
        step: which one.
        iteration: of its inputs.
        model: that runs it.
        request: what the model has.
        pace: by which it is held up, if it is.
        taken: responses since it was last let go on.
    """

    __slots__ = ("_call", "iteration", "model", "pace", "request", "step", "taken")

    request: InferRequest

    def __init__(self, call: _Call, ready: ReadyStep[Tensor], model: Model) -> None:
        self._call = call
        self.step: EnsembleStep = ready.step
        self.iteration = ready.iteration
        self.model = model
        self.pace: ResponsePace | None = None
        self.taken = 0

    def on_response(self, response: InferResponse) -> None:
        """The engine's callback."""
        self._call.take(self, response)

    def is_only_end(self, response: InferResponse) -> bool:
        """Whether a response of a decoupled model says only that none follows."""
        return response.is_final and not response.outputs and self.model.signature.is_decoupled


def _sequence_parameters(request: InferRequest) -> dict[str, ParameterValue]:
    """What Triton adds to every answer of an ensemble."""
    key = request.correlation_id
    if isinstance(key, int) and key >= _MAX_SIGNED:
        # The parameter is an INT64, into which Triton casts the UINT64.
        key -= 2 * _MAX_SIGNED
    return {
        "sequence_id": key,
        "sequence_start": request.sequence_start,
        "sequence_end": request.sequence_end,
    }


def _record(trace: Trace, request: InferRequest, now_ns: int) -> None:
    trace.stamp("REQUEST_START", request.queued_ns)
    trace.stamp("QUEUE_START", request.queued_ns)
    for tensor in request.inputs.values():
        trace.add_tensor("TENSOR_QUEUE_INPUT", tensor)
    trace.stamp("INFER_RESPONSE_COMPLETE", now_ns)
    trace.stamp("REQUEST_END", now_ns)
