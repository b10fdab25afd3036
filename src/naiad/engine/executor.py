"""From the queue of one model version to its answers.

The event loop gathers everything that arrived in one tick, hands whole batches to idle instances,
and answers a whole batch when it comes back.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from naiad.backends.base import RequestInstance, WatchedInstance
from naiad.backends.cores import kept_to
from naiad.clock import Clock
from naiad.engine.instance_pool import AnyThread, InstancePool, close_threads
from naiad.engine.instance_starts import KeptInstance, MadeInstance, takes_requests
from naiad.engine.instances import Execution, InstanceThread, TensorAdapters
from naiad.engine.ragged_tensors import Pieces
from naiad.engine.readiness import Readiness
from naiad.engine.request_instances import (
    AnswerHooks,
    RequestAnswers,
    RequestExecution,
    RequestThread,
)
from naiad.engine.reshape import Reshaper
from naiad.engine.sequence_tensors import SequenceTensors
from naiad.engine.trace import record_execution
from naiad.engine.warmup import WarmupSample
from naiad.errors import CancelledError, InternalError, NaiadError, UnavailableError
from naiad.inference.latency_summaries import LatencySummaries
from naiad.inference.request import InferRequest
from naiad.inference.response import InferResponse
from naiad.inference.sequence import SequenceRow, SequenceState
from naiad.inference.statistics import BatchStatistic, FailureReason, ModelStatistics
from naiad.inference.tensor import Tensor
from naiad.model_config.signature import ModelSignature
from naiad.scheduling.batch import pick_rows, split_rows
from naiad.scheduling.scheduler import ANY_INSTANCE, Batch, BatchClose, Scheduler

_log = logging.getLogger(__name__)

# Longer than any wait that a config can ask for, which are microseconds in 64 bits.
_FOREVER_NS: Final = 2**64 * 1000


class Executor:
    """Queue and instances of one model version; belongs to the event loop.

    Args:
        version: goes into the responses.
        signature: the outputs, and whether they have a batch axis.
        scheduler: decides what runs next.
        instances: at least one; closed by `close`.
        clock: for queue times and statistics.
        adapters: between the tensors of requests and those of the backend; by default the
            signature's reshapes alone.
    """

    def __init__(
        self,
        version: int,
        signature: ModelSignature,
        scheduler: Scheduler,
        instances: Sequence[MadeInstance],
        clock: Clock,
        adapters: TensorAdapters | None = None,
    ) -> None:
        self.statistics = ModelStatistics()
        self._name = signature.name
        self._version = version
        # Triton keeps the names of requested outputs in an ordered set, and its answers, tail and
        # all, are in that order whatever a request or a config says.
        self._output_names = tuple(sorted(signature.outputs))
        self._has_batch_axis = signature.max_batch_size > 0
        adapters = adapters or TensorAdapters(Reshaper(signature))
        self._has_sequences = adapters.sequence is not None
        self._scheduler = scheduler
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._tick_is_due = False
        self._wake: asyncio.TimerHandle | None = None
        self._wake_ns = 0
        # Batches that were handed over and not answered, where answers keep the order of arrival.
        self._in_order: deque[Execution] = deque()
        self._is_stopping = False
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        # None where instances take whole batches.
        self._answers: RequestAnswers | None = None
        if takes_requests(instances[0]):
            self._answers = self._make_answers(signature, adapters.sequence)
        self._adapters = adapters
        threads = {n: self._make_thread(n, instance) for n, instance in enumerate(instances)}
        self._pool = InstancePool(threads, scheduler, self._is_free)
        # The pool's own.
        self._instances = self._pool.threads
        self._idle = self._pool.idle
        self._leaving = self._pool.leaving
        # Instances that run a sample, with what tells that one is done; they get no requests.
        self._warming: dict[AnyThread, asyncio.Event] = {}
        # None where no instance can be lost.
        self._readiness = self._watch(threads.values())

    def submit(self, request: InferRequest) -> None:
        """Queue a validated request.

        Raises:
            UnavailableError: the queue is full, or the model is being unloaded.
            InvalidArgumentError: the scheduler can't run such a request.
        """
        if self._is_stopping:
            raise UnavailableError(
                f"[request id: {request.request_id or '<id_unknown>'}] Server is stopping, "
                "scheduler for model has stopped accepting new inference requests"
            )
        if self._readiness is not None and self._readiness.is_lost():
            raise UnavailableError(self._problem_text())
        now_ns = self._clock.now_ns()
        self._scheduler.offer(request, now_ns)
        self.statistics.pending_count += 1
        self._is_idle.clear()
        if not self._schedule_tick():
            self._arm_deadline(now_ns)

    def cancel(self, request: InferRequest) -> None:
        """The caller went away: no response follows, and a request that waits is dropped."""
        request.is_cancelled = True
        request.on_response = _ignore
        if self._scheduler.remove(request):
            self.statistics.pending_count -= 1
            now_ns = self._clock.now_ns()
            self._count_failure(request, FailureReason.CANCELED, now_ns)
            self._forget(request)
            abandoned = self._scheduler.abandoned()
            if abandoned:
                error = CancelledError("a request before this one in its sequence was cancelled")
                self._refuse(abandoned, error, FailureReason.CANCELED)
            self._note_idle()
            self._schedule_tick()
        elif self._answers is not None:
            self._answers.cancel(request)

    def request_instances(self) -> Sequence[RequestInstance]:
        """The instances, where they see requests unmerged."""
        threads = self._instances.values()
        return [thread.instance for thread in threads if isinstance(thread, RequestThread)]

    async def join(
        self, instances: Mapping[int, MadeInstance], samples: Sequence[WarmupSample]
    ) -> None:
        """Warm further instances up while the others serve; `set_instances` gives them requests.

        Args:
            instances: by number; closed where this fails.
            samples: that each runs.

        Raises:
            InvalidArgumentError: the model failed on a sample.
        """
        threads = {number: self._make_thread(number, i) for number, i in instances.items()}
        try:
            await self._warm_up(threads, samples)
        except BaseException:
            await close_threads(threads.values())
            raise
        self._pool.add(threads)

    def set_instances(self, numbers: Collection[int]) -> None:
        """Let these instances, and no others, have the requests that come from now on.

        Those that are left out finish what they have, sequences to their end, and are closed.

        Args:
            numbers: at least one, of instances that are there or have joined.
        """
        joined = self._pool.set_instances(numbers, self._clock.now_ns())
        if self._readiness is not None:
            for thread in joined:
                if isinstance(thread.instance, WatchedInstance):
                    self._readiness.add(thread, thread.instance)
            self._readiness.keep(self._instances.values())
        self._note_idle()
        self._schedule_tick()

    async def settle(self) -> None:
        """Return when what `set_instances` left out is closed, but for what a sequence keeps."""
        await self._pool.settle()

    def ask_to_stop(self, request: InferRequest) -> bool:
        """Let the model that has a request give it up if it will; False where it can't be asked."""
        return self._answers is not None and self._answers.ask_to_stop(request)

    def problem(self) -> str:
        """Why the model can't run although it is loaded; empty where it can."""
        return "" if self._readiness is None else self._readiness.problem()

    def look_again(self) -> None:
        """The scheduler may have a batch now that it had not before, though nothing arrived."""
        self._loop.call_soon(self._note_change)

    def _schedule_tick(self) -> bool:
        """Look at the queue once this tick's requests are in; False while no instance is free."""
        if not self._tick_is_due and self._idle:
            self._tick_is_due = True
            self._loop.call_soon(self._tick)
        return self._tick_is_due

    async def warm_up(self, samples: Sequence[WarmupSample]) -> None:
        """Run every sample on every instance; called before the first request, awaited to the end.

        The statistics count these requests, as Triton's do.

        Raises:
            InvalidArgumentError: the model failed on a sample.
        """
        await self._warm_up(self._instances, samples)

    async def _warm_up(
        self, threads: Mapping[int, AnyThread], samples: Sequence[WarmupSample]
    ) -> None:
        for index, instance in threads.items():
            for sample in samples:
                for iteration in range(1, sample.count + 1):
                    _log.debug(
                        "model '%s' instance %s_%d is running warmup sample '%s' for iteration %d",
                        self._name,
                        self._name,
                        index,
                        sample.name,
                        iteration,
                    )
                    await self._warm_up_instance(instance, sample)

    async def _warm_up_instance(self, instance: AnyThread, sample: WarmupSample) -> None:
        run = sample.make_requests()
        # Rows can be joined along a batch axis only.
        size = len(run.requests) if self._has_batch_axis else 1
        for start in range(0, len(run.requests), size):
            batch = run.requests[start : start + size]
            now_ns = self._clock.now_ns()
            for request in batch:
                request.queued_ns = now_ns
            is_done = self._warming[instance] = asyncio.Event()
            instance.hand_over(self._make_execution(self._make_batch(batch), self._output_names))
            await run.wait_for(start + size)
            await is_done.wait()
        run.raise_failures()

    def _make_batch(self, requests: list[InferRequest]) -> Batch:
        """A batch that no scheduler formed; of a sequence model, of whole sequences."""
        rows = None
        if self._has_sequences:
            rows = [SequenceRow(request, SequenceState()) for request in requests]
            for request in requests:
                request.sequence_start = request.sequence_end = True
        return Batch(requests, BatchClose.FULL, ANY_INSTANCE, rows)

    async def drain(self) -> None:
        """Refuse new requests and wait until the accepted ones are answered."""
        self._is_stopping = True
        self._scheduler.stop(self._clock.now_ns())
        self._schedule_tick()
        await self._is_idle.wait()

    async def close(self) -> None:
        """Close the instances; `drain` came before."""
        if self._wake is not None:
            self._wake.cancel()
        await self._pool.close()

    def _tick(self) -> None:
        self._tick_is_due = False
        now_ns = self._clock.now_ns()
        expired = self._scheduler.expire(now_ns)
        if expired:
            error = UnavailableError(self._scheduler.expiry_text)
            self._refuse(expired, error, FailureReason.REJECTED)
        if self._leaving:
            self._let_go()
        while self._idle and self._is_any_ready():
            batch = self._scheduler.take(now_ns)
            if batch is None:
                wake_ns = self._scheduler.wake_ns()
                if wake_ns is not None:
                    self._arm(wake_ns, now_ns)
                break
            self.statistics.pending_count -= len(batch.requests)
            self.statistics.closings[batch.closed_by] += 1
            execution = self._make_execution(batch, self._wanted(batch.requests))
            if self._scheduler.is_order_preserved:
                self._in_order.append(execution)
            self._take_instance(batch.instance_index).hand_over(execution)
        if self._readiness is not None and len(self._scheduler) and self._readiness.is_lost():
            self._refuse_all(now_ns)
        self._arm_deadline(now_ns)

    def _let_go(self) -> None:
        """Close the instances that leave and are done."""
        self._pool.let_go()
        if self._readiness is not None:
            self._readiness.keep(self._instances.values())

    def _is_free(self, thread: AnyThread) -> bool:
        if self._answers is None or isinstance(thread, InstanceThread):
            return True
        return self._answers.is_free(thread)

    def _arm_deadline(self, now_ns: int) -> None:
        """Be there when a request has waited for as long as it may, whatever runs."""
        deadline_ns = self._scheduler.next_deadline_ns()
        if deadline_ns is not None:
            self._arm(deadline_ns, now_ns)

    def _arm(self, due_ns: int, now_ns: int) -> None:
        """Come back at ``due_ns``, or before, if something is due before."""
        if self._wake is not None:
            if self._wake_ns <= due_ns:
                return
            self._wake.cancel()
        self._wake_ns = due_ns
        self._wake = self._loop.call_later(max(due_ns - now_ns, 0) / 1e9, self._wake_up)

    def _wake_up(self) -> None:
        self._wake = None
        self._tick()

    def _take_instance(self, index: int) -> AnyThread:
        if index == ANY_INSTANCE:
            return self._idle.pop()
        instance = self._instances[index]
        self._idle.remove(instance)
        return instance

    def _refuse(
        self, requests: Sequence[InferRequest], error: NaiadError, reason: FailureReason
    ) -> None:
        """Answer requests that left the queue and will not run."""
        now_ns = self._clock.now_ns()
        self.statistics.pending_count -= len(requests)
        for request in requests:
            self._count_failure(request, reason, now_ns)
            self._forget(request)
            _respond(
                request, InferResponse(self._name, self._version, request.request_id, (), error)
            )
        self._note_idle()

    def _forget(self, request: InferRequest) -> None:
        """It has left the queue; if it has run before, it is not waited for any more."""
        if self._answers is not None:
            self._answers.forget(request)

    def _reschedule(self, answers: RequestAnswers, execution: RequestExecution) -> None:
        """Let requests wait again that the model is not done with."""
        now_ns = self._clock.now_ns()
        for request in answers.take_rescheduled(execution):
            self.statistics.pending_count += 1
            if request.is_cancelled:
                error: NaiadError = CancelledError("the request was cancelled")
                self._refuse([request], error, FailureReason.CANCELED)
                continue
            try:
                self._scheduler.reschedule(request, now_ns)
            except NaiadError as refusal:
                self._refuse([request], refusal, FailureReason.BACKEND)

    def _wanted(self, batch: Sequence[InferRequest]) -> Sequence[str]:
        """The outputs that any request of the batch asked for, by name."""
        wanted: set[str] = set()
        for request in batch:
            if request.output_names is None:
                return self._output_names
            wanted.update(request.output_names)
        return [name for name in self._output_names if name in wanted]

    def _make_answers(
        self, signature: ModelSignature, sequence_tensors: SequenceTensors | None
    ) -> RequestAnswers:
        return RequestAnswers(
            self._version,
            signature,
            self._clock,
            AnswerHooks(
                _respond,
                self._count_failure,
                self._finish,
                self._note_idle,
                self.statistics,
            ),
            is_order_preserved=self._scheduler.is_order_preserved,
            sequence_tensors=sequence_tensors,
        )

    def _make_thread(self, number: int, instance: MadeInstance) -> AnyThread:
        if isinstance(instance, KeptInstance):
            # A thread starts on the cores of the one that starts it.
            with kept_to(instance.cores):
                return self._make_thread(number, instance.instance)
        if isinstance(instance, RequestInstance):
            if self._answers is None:
                raise InternalError("the instances of a model are not all of one kind")
            return self._answers.make_thread(number, instance)
        return InstanceThread(
            f"{self._name}_{number}", instance, self._adapters, self._clock, self._give_back
        )

    def _watch(self, threads: Collection[AnyThread]) -> Readiness | None:
        watched: dict[AnyThread, WatchedInstance] = {
            thread: thread.instance
            for thread in threads
            if isinstance(thread.instance, WatchedInstance)
        }
        if len(watched) < len(threads):
            return None
        return Readiness(watched, self._note_change)

    def _make_execution(self, batch: Batch, output_names: Sequence[str]) -> Execution:
        if self._answers is None:
            return Execution(batch, output_names)
        return self._answers.begin(batch, output_names)

    def _is_any_ready(self) -> bool:
        return self._readiness is None or self._readiness.prefer_ready(self._idle)

    def _note_change(self) -> None:
        """An instance has become ready, or will never be."""
        self._tick()

    def _refuse_all(self, now_ns: int) -> None:
        """Answer all that wait for instances of which none will run again."""
        error = UnavailableError(self._problem_text())
        scheduler = self._scheduler
        scheduler.stop(now_ns)
        # No wait is worth its while any more, for company or for the end of a sequence.
        end_ns = now_ns + _FOREVER_NS
        while True:
            self._refuse(scheduler.expire(end_ns), error, FailureReason.BACKEND)
            batch = scheduler.take(end_ns)
            if batch is None:
                return
            self._refuse(batch.requests, error, FailureReason.BACKEND)
            scheduler.finish(batch, end_ns)

    def _problem_text(self) -> str:
        return f"model '{self._name}' can't run: none of its instances lives"

    def _give_back(self, instance: AnyThread, execution: Execution) -> None:
        """Take a finished batch from an instance's thread."""
        self._loop.call_soon_threadsafe(self._finish, instance, execution)

    def _finish(self, instance: AnyThread, execution: Execution) -> None:
        if self._warming and instance in self._warming:
            self._finish_warm_up(instance, execution)
            return
        self._idle.append(instance)
        if self._answers is not None and isinstance(execution, RequestExecution):
            self._reschedule(self._answers, execution)
        self._scheduler.finish(execution.batch, self._clock.now_ns())
        # The next batch first, so that the instance works while the answers are written.
        self._tick()
        if self._scheduler.is_order_preserved:
            execution.is_finished = True
            while self._in_order and self._in_order[0].is_finished:
                self._deliver(self._in_order.popleft())
        else:
            self._deliver(execution)
        self._note_idle()

    def _finish_warm_up(self, instance: AnyThread, execution: Execution) -> None:
        """Take a batch back that the scheduler knows nothing of."""
        if self._answers is not None and isinstance(execution, RequestExecution):
            self._reschedule(self._answers, execution)
        self._deliver(execution)
        self._warming.pop(instance).set()

    def _deliver(self, execution: Execution) -> None:
        if self._answers is not None and isinstance(execution, RequestExecution):
            self._count_execution(execution, self._answers.success_count(execution))
            self._answers.deliver(execution)
            return
        for part in execution.retries or (execution,):
            self._deliver_part(part)

    def _deliver_part(self, execution: Execution) -> None:
        if execution.error is None:
            try:
                self._answer(execution)
            except NaiadError as error:
                execution.error = error.detached()
        if execution.error is not None:
            self._fail(execution, execution.error)

    def _note_idle(self) -> None:
        if self._leaving:
            self._let_go()
        if self._answers is not None and len(self._answers):
            return
        if len(self._idle) == len(self._instances) and not len(self._scheduler):
            self._is_idle.set()

    def _answer(self, execution: Execution) -> None:
        requests = execution.requests
        pieces = self._split(execution)
        now_ns = self._clock.now_ns()
        self._count_success(execution, now_ns)
        for index, request in enumerate(requests):
            if request.is_cancelled:
                continue
            outputs = [
                Tensor(name, datatype, arrays[index].shape, arrays[index])
                for name, datatype, arrays in (
                    pieces if request.output_names is None else _select(pieces, request)
                )
            ]
            if request.trace is not None:
                record_execution(request.trace, request, execution, outputs, now_ns)
            _respond(request, InferResponse(self._name, self._version, request.request_id, outputs))

    def _split(self, execution: Execution) -> Pieces:
        if execution.pieces is not None:
            return execution.pieces
        requests = execution.requests
        if not self._has_batch_axis:
            return [(tensor.name, tensor.datatype, [tensor.data]) for tensor in execution.outputs]
        if execution.batch.rows is not None:
            return _split_sequences(execution, execution.batch.rows)
        rows = [request.batch_size for request in requests]
        return [
            (tensor.name, tensor.datatype, split_rows(tensor.data, rows))
            for tensor in execution.outputs
        ]

    def _fail(self, execution: Execution, error: NaiadError) -> None:
        now_ns = self._clock.now_ns()
        for request in execution.requests:
            if request.is_cancelled:
                self._count_failure(request, FailureReason.CANCELED, now_ns)
                continue
            self._count_failure(request, FailureReason.BACKEND, now_ns)
            if request.trace is not None:
                record_execution(request.trace, request, execution, (), now_ns)
            _respond(
                request, InferResponse(self._name, self._version, request.request_id, (), error)
            )

    def _count_success(self, execution: Execution, now_ns: int) -> None:
        statistics = self.statistics
        start_ns = execution.start_ns
        count = rows = queue_ns = total_ns = 0
        for request in execution.requests:
            if request.is_cancelled:
                self._count_failure(request, FailureReason.CANCELED, now_ns)
                continue
            count += 1
            rows += request.batch_size
            queue_ns += start_ns - request.queued_ns
            total_ns += now_ns - (request.received_ns or request.queued_ns)
        statistics.success.add(total_ns, count)
        statistics.queue.add(queue_ns, count)
        if statistics.summaries is not None:
            _summarize(statistics.summaries, execution, now_ns)
        statistics.inference_count += rows
        statistics.last_inference_ms = self._clock.wall_ns() // 1_000_000
        self._count_execution(execution, count)

    def _count_execution(self, execution: Execution, count: int) -> None:
        statistics = self.statistics
        statistics.execution_count += 1
        input_ns = execution.input_end_ns - execution.start_ns
        infer_ns = execution.output_start_ns - execution.input_end_ns
        output_ns = execution.end_ns - execution.output_start_ns
        # Each request of a batch waited for the whole of it, and Triton counts it so.
        statistics.compute_input.add(input_ns * count, count)
        statistics.compute_infer.add(infer_ns * count, count)
        statistics.compute_output.add(output_ns * count, count)
        if statistics.summaries is not None:
            statistics.summaries.advance(execution.end_ns)
            statistics.summaries.add_compute(input_ns, infer_ns, output_ns, count)
        rows = 0 if execution.batch.rows is None else len(execution.batch.rows)
        for request in execution.requests:
            if execution.batch.rows is None:
                rows += request.batch_size
            if request.compute_times is not None:
                request.compute_times.add(input_ns, infer_ns, output_ns)
        batch = statistics.batches.get(rows)
        if batch is None:
            batch = statistics.batches[rows] = BatchStatistic()
        batch.compute_input.add(input_ns)
        batch.compute_infer.add(infer_ns)
        batch.compute_output.add(output_ns)

    def _count_failure(self, request: InferRequest, reason: FailureReason, now_ns: int) -> None:
        self.statistics.fail.add(now_ns - (request.received_ns or request.queued_ns))
        self.statistics.failures[reason] += 1


def _summarize(summaries: LatencySummaries, execution: Execution, now_ns: int) -> None:
    start_ns = execution.start_ns
    for request in execution.requests:
        if not request.is_cancelled:
            summaries.add_request(
                now_ns - (request.received_ns or request.queued_ns),
                start_ns - request.queued_ns,
                now_ns,
            )


def _ignore(response: InferResponse) -> None:
    """In place of a callback that is not called any more.

    The callback leads to whoever asked, who leads to the request: a ring, in which the tensors
    would wait for the garbage collector.
    """


def _respond(request: InferRequest, response: InferResponse) -> None:
    on_response = request.on_response
    if response.is_final:
        request.on_response = _ignore
    try:
        on_response(response)
    except Exception:  # noqa: BLE001 - it must not cost the rest of the batch its answers
        _log.exception("the answer to request '%s' could not be delivered", request.request_id)


def _split_sequences(execution: Execution, rows: Sequence[SequenceRow]) -> Pieces:
    positions = [index for index, row in enumerate(rows) if row.request is not None]
    return [
        (tensor.name, tensor.datatype, pick_rows(tensor.data, len(rows), positions))
        for tensor in execution.outputs
    ]


def _select(outputs: Pieces, request: InferRequest) -> Pieces:
    """The outputs that a request named."""
    names = request.output_names or ()
    return [output for output in outputs if output[0] in names]
