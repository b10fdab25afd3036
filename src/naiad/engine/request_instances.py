"""Instances that see requests unmerged, and their answers, which come one by one from any thread.

Where `engine.instances` passes whole batches back and forth, here a batch goes out whole and every
request of it comes back by itself, once or many times, before or after the instance is free again.
All that comes in one tick of the loop is taken together.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue

from naiad.backends.base import Answer, ModelResponse, PromptInstance, RequestBatch, RequestInstance
from naiad.clock import Clock
from naiad.engine.instances import Execution
from naiad.engine.reshape import Reshaper
from naiad.engine.sequence_tensors import SequenceTensors
from naiad.engine.trace import record_execution
from naiad.errors import InternalError, NaiadError
from naiad.inference.datatypes import from_dtype
from naiad.inference.request import InferRequest
from naiad.inference.response import InferResponse
from naiad.inference.sequence import SequenceRow
from naiad.inference.statistics import FailureReason, ModelStatistics
from naiad.inference.tensor import Tensor
from naiad.model_config.signature import ModelSignature
from naiad.scheduling.scheduler import Batch


class RequestExecution(Execution):
    """A batch whose requests are answered one by one; see `naiad.backends.base.RequestBatch`.

    Attributes:
        thread: whose instance has it.
        held: responses that wait for those of batches before this one.
        returned: responses that came with the end of the batch.
        rescheduled: requests that are to run again.
        is_delivered: nothing is held any more.
        failure_count: requests that failed or were cancelled.
    """

    __slots__ = (
        "_answers",
        "failure_count",
        "held",
        "is_delivered",
        "rescheduled",
        "returned",
        "thread",
    )

    thread: "RequestThread"

    def __init__(
        self, batch: Batch, output_names: Sequence[str], answers: "RequestAnswers"
    ) -> None:
        super().__init__(batch, output_names)
        self._answers = answers
        self.held: list[Answer] = []
        self.returned: Sequence[Answer] = ()
        self.rescheduled: Sequence[InferRequest] = ()
        self.is_delivered = False
        self.failure_count = 0

    def inputs(self, request: InferRequest) -> Mapping[str, Tensor]:
        """See `RequestBatch`."""
        return self._answers.inputs(request, self._row(request))

    def wanted(self, request: InferRequest) -> Sequence[str]:
        """See `RequestBatch`."""
        return self._answers.wanted(request)

    def respond(self, request: InferRequest, response: ModelResponse) -> None:
        """See `RequestBatch`."""
        answers = self._answers
        answers.post(self, request, answers.keep_state(request, self._row(request), response))

    def finish(
        self, answers: Sequence[Answer] = (), rescheduled: Sequence[InferRequest] = ()
    ) -> None:
        """See `RequestBatch`."""
        self.rescheduled = rescheduled
        keep_state = self._answers.keep_state
        if self.batch.rows is None:
            self.returned = answers
        else:
            self.returned = [(r, keep_state(r, self._row(r), answer)) for r, answer in answers]
        self._answers.post(self, None, None)

    def _row(self, request: InferRequest) -> SequenceRow | None:
        """What belongs to the request of a sequence."""
        rows = self.batch.rows
        if rows is None:
            return None
        return next((row for row in rows if row.request is request), None)


class RequestThread:
    """An instance and the thread that gives it its batches.

    Args:
        name: of the thread, for debuggers and logs.
        instance: closed by the thread when it ends.
        clock: time stamps of the statistics.
    """

    def __init__(self, name: str, instance: RequestInstance, clock: Clock) -> None:
        self.instance = instance
        self._clock = clock
        self._begin_at_once = (
            instance.begin_at_once if isinstance(instance, PromptInstance) else _decline
        )
        self._inbox: SimpleQueue[RequestExecution | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def hand_over(self, execution: Execution) -> None:
        """Let the instance begin a batch; called on the loop, once the last one is finished."""
        if isinstance(execution, RequestExecution):
            execution.thread = self
            execution.start_ns = execution.input_end_ns = self._clock.now_ns()
            # To wake a thread takes longer than to pass on a small batch.
            if not self._begin_at_once(execution):
                self._inbox.put(execution)

    def close(self) -> None:
        """Let the thread close its instance and end; returns when it has. Blocks."""
        self._inbox.put(None)
        self._thread.join()

    def _run(self) -> None:
        get = self._inbox.get
        while (execution := get()) is not None:
            execution.start_ns = execution.input_end_ns = self._clock.now_ns()
            self.instance.execute_requests(execution)
            del execution
        self.instance.close()


@dataclass(frozen=True, slots=True)
class AnswerHooks:
    """What the answers need of the executor; all of it is called on the loop.

    Attributes:
        respond: hand a response to whoever asked.
        count_failure: of a request, with the reason and the time.
        finish: an instance is free again.
        settle: a request has had its last response.
        statistics: where requests are counted.
    """

    respond: Callable[[InferRequest, InferResponse], None]
    count_failure: Callable[[InferRequest, FailureReason, int], None]
    finish: Callable[[RequestThread, RequestExecution], None]
    settle: Callable[[], None]
    statistics: ModelStatistics


class RequestAnswers:
    """The requests of one model version that are with its instances; belongs to the loop.

    Args:
        version: goes into the responses.
        signature: of the model.
        clock: for statistics.
        hooks: what follows.
        is_order_preserved: answers keep the order of the batches.
        sequence_tensors: of a sequence model.
    """

    def __init__(
        self,
        version: int,
        signature: ModelSignature,
        clock: Clock,
        hooks: AnswerHooks,
        *,
        is_order_preserved: bool,
        sequence_tensors: SequenceTensors | None = None,
    ) -> None:
        self._name = signature.name
        self._version = version
        self._output_names = tuple(sorted(signature.outputs))
        self._reshaper = Reshaper(signature)
        self._sequence_tensors = sequence_tensors
        self._clock = clock
        self._statistics = hooks.statistics
        self._hooks = hooks
        self._is_order_preserved = is_order_preserved
        self._open: dict[InferRequest, RequestExecution] = {}
        self._loop = asyncio.get_running_loop()
        self._mail: deque[tuple[RequestExecution, InferRequest | None, ModelResponse | None]] = (
            deque()
        )
        self._is_drain_due = False

    def __len__(self) -> int:
        """How many requests are not answered to the end."""
        return len(self._open)

    def make_thread(self, index: int, instance: RequestInstance) -> RequestThread:
        """The thread of the instance number ``index``."""
        return RequestThread(f"{self._name}_{index}", instance, self._clock)

    def is_free(self, thread: RequestThread) -> bool:
        """Whether an instance has answered all of its requests to the end."""
        return all(execution.thread is not thread for execution in self._open.values())

    def begin(self, batch: Batch, output_names: Sequence[str]) -> RequestExecution:
        """A batch that an instance is about to get."""
        execution = RequestExecution(batch, output_names, self)
        for request in batch.requests:
            self._open[request] = execution
        return execution

    def take_rescheduled(self, execution: RequestExecution) -> list[InferRequest]:
        """The requests of a batch that is over that want to run again and are not answered."""
        return [request for request in execution.rescheduled if request in self._open]

    def forget(self, request: InferRequest) -> None:
        """A request that waited to run again will not."""
        self._open.pop(request, None)

    def cancel(self, request: InferRequest) -> None:
        """Tell the instance that has a request that nobody waits for it any more."""
        execution = self._open.get(request)
        if execution is not None:
            # Also for an instance that is about to take it, or takes it once more.
            request.is_given_up = True
            execution.thread.instance.cancel(request)

    def ask_to_stop(self, request: InferRequest) -> bool:
        """Tell the instance that has a request to give it up; False where none has it.

        Whether it does is the model's choice: its responses are passed on either way.
        """
        self.cancel(request)
        return request in self._open

    def success_count(self, execution: RequestExecution) -> int:
        """How many requests of a batch that is over have not failed, as far as is known."""
        failures = execution.failure_count
        for request, response in (*execution.held, *execution.returned):
            if response.is_final and (response.error is not None or request.is_cancelled):
                failures += 1
        return len(execution.requests) - failures

    def deliver(self, execution: RequestExecution) -> None:
        """A batch is over and all before it are: hold nothing of it any more."""
        execution.is_delivered = True
        answers = (*execution.held, *execution.returned)
        execution.held, execution.returned = [], ()
        for request, response in answers:
            self._take(execution, request, response)

    # From any thread.

    def inputs(self, request: InferRequest, row: SequenceRow | None) -> Mapping[str, Tensor]:
        """What the model gets; of a sequence, its controls and states too."""
        if not self._reshaper and row is None:
            return request.inputs
        arrays = {name: tensor.data for name, tensor in request.inputs.items()}
        if self._reshaper:
            arrays = self._reshaper.to_backend(arrays)
        if row is not None and self._sequence_tensors is not None:
            self._sequence_tensors.add_inputs(arrays, [row])
        tensors = {}
        for name, array in arrays.items():
            given = request.inputs.get(name)
            datatype = given.datatype if given is not None else from_dtype(array.dtype)
            if datatype is not None:
                tensors[name] = Tensor(name, datatype, array.shape, array)
        return tensors

    def wanted(self, request: InferRequest) -> Sequence[str]:
        """See `RequestBatch`."""
        names = self._output_names if request.output_names is None else request.output_names
        tensors = self._sequence_tensors
        return names if tensors is None else tensors.output_names(names)

    def keep_state(
        self, request: InferRequest, row: SequenceRow | None, response: ModelResponse
    ) -> ModelResponse:
        """Take the states of a sequence out of a response, before its next request runs."""
        tensors = self._sequence_tensors
        if tensors is None or row is None or response.error is not None or response.is_empty:
            return response
        try:
            tensors.keep_states(response.outputs, [row])
        except NaiadError as error:
            return ModelResponse(error=error.detached())
        except KeyError as error:
            text = f"model '{self._name}' did not answer with its state {error}"
            return ModelResponse(error=InternalError(text))
        names = self._output_names if request.output_names is None else request.output_names
        response.outputs = [tensor for tensor in response.outputs if tensor.name in names]
        return response

    def post(
        self,
        execution: RequestExecution,
        request: InferRequest | None,
        response: ModelResponse | None,
    ) -> None:
        """A response of a request, or that the batch is over; in order, to the loop."""
        if request is None:
            execution.output_start_ns = execution.end_ns = self._clock.now_ns()
        self._mail.append((execution, request, response))
        # Set before the loop looks and unset before it takes, so that nothing is left lying.
        if not self._is_drain_due:
            self._is_drain_due = True
            self._loop.call_soon_threadsafe(self._drain)

    # On the loop.

    def _drain(self) -> None:
        self._is_drain_due = False
        mail = self._mail
        while mail:
            execution, request, response = mail.popleft()
            if request is None or response is None:
                self._hooks.finish(execution.thread, execution)
            elif self._is_order_preserved and not execution.is_delivered:
                if request.pace is not None:
                    # Taken when the batch is over, which must not wait for that.
                    request.pace.open()
                execution.held.append((request, response))
            else:
                self._take(execution, request, response)

    def _take(
        self, execution: RequestExecution, request: InferRequest, response: ModelResponse
    ) -> None:
        if request not in self._open:
            return
        outputs, error = self._outputs(response)
        if response.is_final:
            del self._open[request]
            self._count(execution, request, error, outputs)
        if not request.is_cancelled:
            answer = InferResponse(self._name, self._version, request.request_id, outputs, error)
            answer.is_final = response.is_final
            answer.parameters = response.parameters
            self._hooks.respond(request, answer)
        if response.is_final:
            self._hooks.settle()

    def _outputs(self, response: ModelResponse) -> tuple[Sequence[Tensor], NaiadError | None]:
        if response.error is not None or not self._reshaper:
            return response.outputs, response.error
        try:
            return self._reshaper.to_client(response.outputs), None
        except ValueError as error:
            return (), InternalError(f"model '{self._name}': an output can't be reshaped: {error}")

    def _count(
        self,
        execution: RequestExecution,
        request: InferRequest,
        error: NaiadError | None,
        outputs: Sequence[Tensor],
    ) -> None:
        now_ns = self._clock.now_ns()
        if request.is_cancelled:
            execution.failure_count += 1
            self._hooks.count_failure(request, FailureReason.CANCELED, now_ns)
            return
        if error is not None:
            execution.failure_count += 1
            self._hooks.count_failure(request, FailureReason.BACKEND, now_ns)
        else:
            statistics = self._statistics
            request_ns = now_ns - (request.received_ns or request.queued_ns)
            queue_ns = execution.start_ns - request.queued_ns
            statistics.success.add(request_ns)
            statistics.queue.add(queue_ns)
            if statistics.summaries is not None:
                statistics.summaries.add_request(request_ns, queue_ns, now_ns)
            statistics.inference_count += request.batch_size
            statistics.last_inference_ms = self._clock.wall_ns() // 1_000_000
        if request.trace is not None:
            if not execution.end_ns:
                execution.output_start_ns = execution.end_ns = now_ns
            record_execution(request.trace, request, execution, outputs, now_ns)


def _decline(_: RequestBatch) -> bool:
    return False
