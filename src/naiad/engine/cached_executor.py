"""Requests on their way past the response cache.

Small requests are looked up at once. Those whose inputs take longer to hash are hashed by a
thread and queued afterwards, and large answers are copied by a thread before they are given, so
that no step holds the loop for long.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from naiad.clock import Clock
from naiad.engine.model import ModelExecutor
from naiad.engine.response_cache import (
    INLINE_BYTES,
    CachedResponse,
    CacheKey,
    RequestKeys,
    ResponseStore,
    entry_bytes,
    is_cacheable,
    own_inputs,
    value_bytes,
)
from naiad.engine.warmup import WarmupSample
from naiad.errors import NaiadError
from naiad.inference.request import InferRequest, ResponseCallback
from naiad.inference.response import InferResponse
from naiad.inference.statistics import FailureReason
from naiad.inference.tensor import Tensor
from naiad.inference.trace import Trace, TraceLevel
from naiad.model_config.signature import ModelSignature

_log = logging.getLogger(__name__)

_Result = TypeVar("_Result")
# The key, the inputs as they were hashed, and what a remote cache had.
_Prepared = tuple[CacheKey, dict[str, Tensor], CachedResponse | None]
# Answers on their way into a remote cache; beyond, they are not kept.
_MAX_INSERTIONS: Final = 64


class CachedExecutor:
    """Answers requests from the response cache, or lets the model do it and keeps its answer.

    Belongs to the event loop. An answer is kept if it has no error and is the only one.

    Args:
        keys: of the requests of the model version.
        signature: of the model; not one that is decoupled or has sequences.
        executor: runs what the cache doesn't know.
        cache: shared with other models.
        clock: of the statistics; the executor's.
        is_order_preserved: answers are given in the order of the requests, hits too.

    Attributes:
        executor: the same.
    """

    def __init__(
        self,
        keys: RequestKeys,
        signature: ModelSignature,
        executor: ModelExecutor,
        cache: ResponseStore,
        clock: Clock,
        *,
        is_order_preserved: bool = False,
    ) -> None:
        self.executor = executor
        self.statistics = executor.statistics
        self.statistics.is_cached = True
        self._name = signature.name
        self._version = keys.version
        self._cache = cache
        self._clock = clock
        self._keys = keys
        self._insertion_count = 0
        self._has_said_size = False
        self._loop = asyncio.get_running_loop()
        # Requests that are being hashed, or have a hit that is about to be given.
        self._held: set[InferRequest] = set()
        # Requests that are not answered, in the order they came, with the answer once it is there.
        self._in_order: dict[InferRequest, InferResponse | None] | None = (
            {} if is_order_preserved else None
        )
        self._unsettled_count = 0
        self._is_settled = asyncio.Event()
        self._is_settled.set()

    def submit(self, request: InferRequest) -> None:
        """Look a validated request up, and queue it unless it is found.

        Raises:
            NaiadError: it is refused.
        """
        if self._in_order is not None:
            self._in_order[request] = None
        inputs = request.inputs.values()
        if not is_cacheable(inputs):
            self._run(request, None, None)
            return
        request.queued_ns = self._clock.now_ns()
        if value_bytes(inputs) <= INLINE_BYTES and not self._cache.is_remote:
            found, key, lookup_ns = self._look_up(request, self._prepare(request))
            if found is None:
                self._run(request, key, lookup_ns)
            else:
                # Nobody is called back within `submit`.
                self._hold(request)
                self._loop.call_soon(self._answer, request, found)
            return
        self._hold(request)
        self._in_thread(lambda: self._prepare(request), lambda made: self._resume(request, made))

    def cancel(self, request: InferRequest) -> None:
        """The caller went away: no response follows."""
        if request in self._held:
            request.is_cancelled = True
            self._release(request)
            self._count_failure(request, FailureReason.CANCELED)
        else:
            self.executor.cancel(request)
        self._leave_order(request)

    def problem(self) -> str:
        """Why the model can't run although it is loaded."""
        return self.executor.problem()

    async def warm_up(self, samples: Sequence[WarmupSample]) -> None:
        """Run samples, none of them from the cache."""
        await self.executor.warm_up(samples)

    async def drain(self) -> None:
        """Refuse new requests and wait until the accepted ones are answered."""
        await self._is_settled.wait()
        await self.executor.drain()
        await self._is_settled.wait()

    async def close(self) -> None:
        """Free what runs the model; the cache drops its answers as others need the room."""
        await self.executor.close()

    def take(self, miss: "_Miss", response: InferResponse) -> None:
        """The model answered."""
        request, key = miss.request, miss.key
        if not response.is_final:
            # One of several: none is kept.
            miss.key = None
            miss.on_client_response(response)
            return
        request.on_response = miss.on_client_response
        if key is None or not self._is_kept(response):
            self._summarize_miss(miss.lookup_ns)
            self._give(request, response)
            return
        start_ns = self._clock.now_ns()
        if value_bytes(response.outputs) <= INLINE_BYTES:
            kept = CachedResponse(response.outputs, response.parameters)
            self._insert(key, kept, start_ns, miss.lookup_ns)
            self._give(request, response)
            return

        def finish(kept: CachedResponse | None) -> None:
            if kept is None:
                self._summarize_miss(miss.lookup_ns)
            else:
                self._insert(key, kept, start_ns, miss.lookup_ns)
            self._give(request, response)

        # Before it is given: afterwards, the memory of the outputs may be used again.
        self._in_thread(lambda: CachedResponse(response.outputs, response.parameters), finish)

    def _prepare(self, request: InferRequest) -> _Prepared:
        """The request's key, and its inputs as they were hashed; may run in a thread."""
        inputs = own_inputs(request.inputs)
        key = self._keys.make(request, inputs)
        return key, inputs, self._cache.find(key) if self._cache.is_remote else None

    def _look_up(
        self, request: InferRequest, prepared: _Prepared
    ) -> tuple[CachedResponse | None, CacheKey, int]:
        """What the cache has of a request, its key, and how long that took."""
        key, request.inputs, found = prepared
        if not self._cache.is_remote:
            found = self._cache.find(key)
        passed_ns = self._clock.now_ns() - request.queued_ns
        self._cache.statistics.add_lookup(passed_ns, is_hit=found is not None)
        statistics = self.statistics
        if found is None:
            statistics.cache_miss.add(passed_ns)
        else:
            statistics.cache_hit.add(passed_ns)
            if statistics.summaries is not None:
                statistics.summaries.advance(request.queued_ns)
                statistics.summaries.cache_hit.add(passed_ns)
        return found, key, passed_ns

    def _resume(self, request: InferRequest, prepared: _Prepared | None) -> None:
        """Go on with a request that a thread hashed; without a key where it could not."""
        if request.is_cancelled:
            return
        if prepared is None:
            found, key, lookup_ns = None, None, None
        else:
            found, key, lookup_ns = self._look_up(request, prepared)
        if found is not None:
            self._answer(request, found)
            return
        self._release(request)
        try:
            self._run(request, key, lookup_ns)
        except NaiadError as error:
            self._give(
                request, InferResponse(self._name, self._version, request.request_id, (), error)
            )

    def _run(self, request: InferRequest, key: CacheKey | None, lookup_ns: int | None) -> None:
        on_response = request.on_response
        miss = _Miss(self, request, key, on_response)
        miss.lookup_ns = lookup_ns
        request.on_response = miss.on_response
        try:
            self.executor.submit(request)
        except NaiadError:
            request.on_response = on_response
            self._leave_order(request)
            raise

    def _answer(self, request: InferRequest, found: CachedResponse) -> None:
        if request.is_cancelled:
            return
        self._release(request)
        now_ns = self._clock.now_ns()
        statistics = self.statistics
        request_ns = now_ns - (request.received_ns or request.queued_ns)
        statistics.success.add(request_ns)
        # It goes past the queue, and counts there as one that didn't wait.
        statistics.queue.add(0)
        if statistics.summaries is not None:
            statistics.summaries.add_request(request_ns, 0, now_ns)
        statistics.last_inference_ms = self._clock.wall_ns() // 1_000_000
        if request.trace is not None:
            _record(request.trace, request, found, now_ns)
        response = InferResponse(self._name, self._version, request.request_id, found.outputs)
        response.parameters = dict(found.parameters) if found.parameters else None
        self._give(request, response)

    def _is_kept(self, response: InferResponse) -> bool:
        """Whether a final response is one to keep, and small enough."""
        outputs = response.outputs
        if response.error is not None or not is_cacheable(outputs):
            return False
        size_bytes = entry_bytes(outputs)
        if self._cache.takes(size_bytes):
            return True
        if not self._has_said_size:
            self._has_said_size = True
            # Triton's words first, which its suite looks for.
            _log.warning(
                "Failed to insert key into response cache: an answer of model '%s' takes %d bytes, "
                "more than the cache has; its others of that size are not kept either",
                self._name,
                size_bytes,
            )
        return False

    def _insert(
        self, key: CacheKey, kept: CachedResponse, start_ns: int, lookup_ns: int | None
    ) -> None:
        if not self._cache.is_remote:
            self._cache.insert(key, kept)
            self._count_insertion(start_ns, lookup_ns)
        elif self._insertion_count < _MAX_INSERTIONS:
            self._insertion_count += 1
            self._in_thread(
                lambda: self._cache.insert(key, kept),
                lambda _: self._end_insertion(start_ns, lookup_ns),
            )
        else:
            self._summarize_miss(lookup_ns)

    def _end_insertion(self, start_ns: int, lookup_ns: int | None) -> None:
        self._insertion_count -= 1
        self._count_insertion(start_ns, lookup_ns)

    def _count_insertion(self, start_ns: int, lookup_ns: int | None) -> None:
        passed_ns = self._clock.now_ns() - start_ns
        self._cache.statistics.insertion_ns += passed_ns
        # Triton's duration of a miss is that of the lookup and of the insertion.
        self.statistics.cache_miss.add(passed_ns, 0)
        self._summarize_miss(lookup_ns, passed_ns)

    def _summarize_miss(self, lookup_ns: int | None, insertion_ns: int = 0) -> None:
        """The answer of a request that was not found is kept, or won't be."""
        summaries = self.statistics.summaries
        if summaries is not None and lookup_ns is not None:
            summaries.advance(self._clock.now_ns())
            summaries.cache_miss.add(lookup_ns + insertion_ns)

    def _in_thread(
        self, work: Callable[[], _Result], then: Callable[[_Result | None], None]
    ) -> None:
        """Do what takes long beside the loop, then go on with its result, None if it failed."""
        self._begin()

        def finish(done: "asyncio.Future[_Result]") -> None:
            self._end()
            error = done.exception()
            if error is not None:
                _log.error("model '%s': the response cache is passed over: %r", self._name, error)
                then(None)
            else:
                then(done.result())

        self._loop.run_in_executor(None, work).add_done_callback(finish)

    def _hold(self, request: InferRequest) -> None:
        self._held.add(request)
        self._begin()

    def _release(self, request: InferRequest) -> None:
        self._held.discard(request)
        self._end()

    def _begin(self) -> None:
        self._unsettled_count += 1
        self._is_settled.clear()

    def _end(self) -> None:
        self._unsettled_count -= 1
        if not self._unsettled_count:
            self._is_settled.set()

    def _give(self, request: InferRequest, response: InferResponse) -> None:
        """Answer a request, or let the answer wait for those before it."""
        waiting = self._in_order
        if waiting is None or request not in waiting:
            _respond(request, response)
            return
        waiting[request] = response
        self._give_ready(waiting)

    def _give_ready(self, waiting: "dict[InferRequest, InferResponse | None]") -> None:
        while waiting:
            request, response = next(iter(waiting.items()))
            if response is None:
                return
            del waiting[request]
            _respond(request, response)

    def _leave_order(self, request: InferRequest) -> None:
        if self._in_order is not None and request in self._in_order:
            del self._in_order[request]
            self._give_ready(self._in_order)

    def _count_failure(self, request: InferRequest, reason: FailureReason) -> None:
        now_ns = self._clock.now_ns()
        self.statistics.fail.add(now_ns - (request.received_ns or request.queued_ns))
        self.statistics.failures[reason] += 1


class _Miss:
    """A request that the model runs.

    Attributes:
        request: the same.
        key: where its answer is kept; None where it isn't.
        on_client_response: the callback of who asked.
        lookup_ns: in the cache; None where it was not asked.
    """

    __slots__ = ("_executor", "key", "lookup_ns", "on_client_response", "request")

    def __init__(
        self,
        executor: CachedExecutor,
        request: InferRequest,
        key: CacheKey | None,
        on_client_response: ResponseCallback,
    ) -> None:
        self._executor = executor
        self.request = request
        self.key = key
        self.on_client_response = on_client_response
        self.lookup_ns: int | None = None

    def on_response(self, response: InferResponse) -> None:
        """The model's executor calls this in place of the client's callback."""
        self._executor.take(self, response)


def _ignore(response: InferResponse) -> None:
    """In place of a callback that was called, so that no ring keeps the tensors."""


def _respond(request: InferRequest, response: InferResponse) -> None:
    on_response, request.on_response = request.on_response, _ignore
    if request.is_cancelled:
        return
    try:
        on_response(response)
    except Exception:  # noqa: BLE001 - the answers behind it must be given
        _log.exception("the answer to request '%s' could not be delivered", request.request_id)


def _record(trace: Trace, request: InferRequest, found: CachedResponse, now_ns: int) -> None:
    trace.stamp("REQUEST_START", request.queued_ns)
    trace.stamp("QUEUE_START", request.queued_ns)
    trace.stamp("CACHE_HIT_LOOKUP_START", request.queued_ns)
    trace.stamp("CACHE_HIT_LOOKUP_END", now_ns)
    trace.stamp("INFER_RESPONSE_COMPLETE", now_ns)
    trace.stamp("REQUEST_END", now_ns)
    if TraceLevel.TENSORS in trace.level:
        for tensor in request.inputs.values():
            trace.add_tensor("TENSOR_QUEUE_INPUT", tensor)
        for tensor in found.outputs:
            trace.add_tensor("TENSOR_BACKEND_OUTPUT", tensor)
