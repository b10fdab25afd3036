"""The generate routes: flat JSON in, one flat JSON object or a stream of them out."""

from collections import deque
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Protocol

from naiad.access.restricted_apis import Api
from naiad.errors import NaiadError
from naiad.frontends.rest.exchange import Exchange
from naiad.frontends.rest.json_decoder import LARGE_TEXT_BYTES
from naiad.frontends.rest.long_work import LongWork
from naiad.frontends.rest.options import RestOptions
from naiad.frontends.rest.response import (
    JSON,
    encode_error,
    error_response,
    format_head,
    naiad_error_response,
)
from naiad.frontends.rest.router import MODEL, BodyKind, Route
from naiad.frontends.rest.tracing import begin_trace, sending
from naiad.frontends.serving import ServedModel, ServingEngine
from naiad.frontends.turns import Turns, Work
from naiad.inference.request import InferRequest
from naiad.inference.response import InferResponse
from naiad.protocol.generate import (
    EVENT_END,
    EVENT_START,
    decode_generate_request,
    encode_event,
    encode_generate_in_steps,
    encode_generate_response,
)
from naiad.protocol.json_text import Buffer
from naiad.protocol.large_generate import decode_split_generate, describe_signature
from naiad.protocol.output_data import has_large_output
from naiad.protocol.requested_outputs import ALL_AS_JSON
from naiad.protocol.v2_json import DecodeLimits

_MODEL_ERROR: Final = 400
_EVENTS: Final = b"text/event-stream; charset=utf-8"

_ENCODED: Final = error_response(400, "Unsupported content-encoding, only 'identity' is supported.")
_WRONG_COUNT: Final = encode_error(
    "generate expects model to produce exactly 1 response, use generate stream for model that "
    "generates various number of responses"
)
_TOO_SLOW: Final = encode_error(
    "the stream ends here: the client reads slower than the model answers, and what waits for it "
    "has reached the server's limit"
)


class GenerateHandlers:
    """Answers generate requests, for models of one response and of many."""

    def __init__(
        self, engine: ServingEngine[Any], options: RestOptions, long_work: LongWork
    ) -> None:
        self._engine = engine
        self._traces = engine.traces
        self._limits = DecodeLimits(options.max_input_bytes)
        self._long_work = long_work

    def routes(self) -> list[Route]:
        """The routes of this noun."""
        api = Api.INFERENCE
        return [
            Route(
                MODEL + "/generate", {"POST": self.generate}, body=BodyKind.JSON_TENSORS, api=api
            ),
            Route(
                MODEL + "/generate_stream",
                {"POST": self.generate_stream},
                body=BodyKind.JSON_TENSORS,
                api=api,
            ),
        ]

    def generate(self, exchange: Exchange) -> None:
        """One answer, from a model that gives exactly one response."""
        self._start(exchange, _SingleAnswer(exchange))

    def generate_stream(self, exchange: Exchange) -> None:
        """Server-sent events, one for each response."""
        self._start(exchange, _EventStream(exchange))

    def _start(self, exchange: Exchange, answer: "_Answer") -> None:
        head = exchange.head
        try:
            model = self._engine.find(head.model_name, head.version)
            if head.is_compressed:
                exchange.respond(_ENCODED)
                return
            call = _GenerateCall(self._engine, self._long_work.turns, model, answer)
            if len(exchange.text) > LARGE_TEXT_BYTES:
                self._long_work.start(exchange, self._start_large(exchange, call))
                return
            request = decode_generate_request(
                model.signature,
                exchange.text,
                self._limits.max_input_bytes,
                call.on_response,
                exchange.received_ns,
            )
        except NaiadError as error:
            exchange.respond(naiad_error_response(error))
        else:
            self._submit(exchange, call, request)

    async def _start_large(self, exchange: Exchange, call: "_GenerateCall") -> None:
        head = exchange.head
        signature = call.model.signature
        text, exchange.text = exchange.text, b""  # a large one should not live until the answer
        try:
            document = await self._long_work.json.parse(text, describe_signature(signature))
            decoded = decode_split_generate(
                signature, document, self._limits, call.on_response, exchange.received_ns
            )
            given = sum(t.data.nbytes for t in decoded.request.inputs.values())
            exchange.reserve(given + decoded.unfinished_bytes)
            for steps in decoded.unfinished:
                await self._long_work.turns.run(steps)
            # A reload may have come between, and the old version takes no more requests.
            call.model = self._engine.find(head.model_name, head.version)
        except NaiadError as error:
            exchange.respond(naiad_error_response(error))
        else:
            self._submit(exchange, call, decoded.request)

    def _submit(self, exchange: Exchange, call: "_GenerateCall", request: InferRequest) -> None:
        call.request = request
        if self._traces.is_active:
            begin_trace(self._traces, exchange, call.model, request)
        try:
            self._engine.infer(call.model, request)
        except NaiadError as error:
            with call.finishing():
                exchange.respond(naiad_error_response(error))
            return
        exchange.on_lost = call.cancel


class _Answer(Protocol):
    """What becomes of the responses."""

    def take(self, status: int, body: bytes) -> bool:
        """One response; returns whether the client can take more."""
        ...

    def take_large(self, status: int, parts: Sequence[Buffer]) -> Generator[None, None, bool]:
        """The same in parts, pausing between them where they are sent."""
        ...

    def give_up(self) -> None:
        """The client can take no more, and more would follow."""
        ...

    def finish(self) -> None:
        """No response follows."""
        ...


class _GenerateCall:
    """One request on its way through the engine.

    Attributes:
        model: that answers.
        request: what the engine has.
    """

    __slots__ = ("_answer", "_engine", "_turns", "_waiting", "_work", "model", "request")

    request: InferRequest

    def __init__(
        self, engine: ServingEngine[Any], turns: Turns, model: ServedModel, answer: _Answer
    ) -> None:
        self._engine = engine
        self._turns = turns
        self.model = model
        self._answer = answer
        self._work: Work[bool] | None = None
        # Responses behind one that is encoded and sent in steps.
        self._waiting: deque[InferResponse] = deque()

    def on_response(self, response: InferResponse) -> None:
        """The engine's callback."""
        if self._work is not None:
            self._waiting.append(response)
        elif response.error is None and has_large_output(response, ALL_AS_JSON):
            self._work = self._turns.start(
                self._take_large(response),
                lambda can_take_more: self._end_large(response, can_take_more=can_take_more),
                lambda error: self._end_large(
                    response, can_take_more=self._answer.take(*_encode_error(error))
                ),
            )
        else:
            # The last response of a decoupled model may only say that it is the last.
            is_sign = (
                response.is_final
                and self.model.signature.is_decoupled
                and not response.outputs
                and response.error is None
            )
            can_take_more = is_sign or self._answer.take(*_encode(response))
            self._end_response(response, can_take_more=can_take_more)

    def _take_large(self, response: InferResponse) -> Generator[None, None, bool]:
        parts = yield from encode_generate_in_steps(response)
        return (yield from self._answer.take_large(200, parts))

    def _end_large(self, response: InferResponse, *, can_take_more: bool) -> None:
        self._work = None
        self._end_response(response, can_take_more=can_take_more)
        while self._waiting and self._work is None:
            self.on_response(self._waiting.popleft())

    def _end_response(self, response: InferResponse, *, can_take_more: bool) -> None:
        if response.is_final:
            with self.finishing():
                self._answer.finish()
        elif not can_take_more:
            self._answer.give_up()
            self.cancel()

    def finishing(self) -> AbstractContextManager[None]:
        """While the last piece of the answer is sent."""
        trace = self.request.trace
        return nullcontext() if trace is None else sending(trace, self._engine.now_ns)

    def cancel(self) -> None:
        """Nobody waits for the rest."""
        self._waiting.clear()
        if self._work is not None:
            self._work.is_dropped = True
        self._engine.cancel(self.model, self.request)
        if self.request.trace is not None:
            self.request.trace.finish()


class _SingleAnswer:
    """Keeps the first response until it is known whether it is the only one."""

    __slots__ = ("_count", "_exchange", "_parts", "_status")

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._count = 0
        self._status = 200
        self._parts: Sequence[Buffer] = ()

    def take(self, status: int, body: bytes) -> bool:
        self._keep(status, (body,))
        return True

    def take_large(self, status: int, parts: Sequence[Buffer]) -> Generator[None, None, bool]:
        self._keep(status, parts)
        yield
        return True

    def _keep(self, status: int, parts: Sequence[Buffer]) -> None:
        if self._count == 0:
            self._status, self._parts = status, parts
        self._count += 1

    def give_up(self) -> None:
        raise AssertionError("what is kept is no burden to the client")

    def finish(self) -> None:
        head = format_head(self._status, JSON)
        if self._count != 1:
            # The status of the first response all the same: Triton has sent it by now.
            self._exchange.stream(head, _WRONG_COUNT, ends=True)
        elif len(self._parts) == 1:
            self._exchange.stream(head, bytes(self._parts[0]), ends=True)
        else:
            # With its length, since the connection cuts such an answer as the client takes it.
            self._exchange.send(head, b"", self._parts, sum(map(len, self._parts)))


class _EventStream:
    """Sends every response as it comes; the first one decides the status."""

    __slots__ = ("_exchange", "_is_started")

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._is_started = False

    def take(self, status: int, body: bytes) -> bool:
        return self._exchange.stream(self._head(status), encode_event(body), ends=False)

    def take_large(self, status: int, parts: Sequence[Buffer]) -> Generator[None, None, bool]:
        self._exchange.stream(self._head(status), EVENT_START, ends=False)
        for part in parts:
            self._exchange.stream(b"", bytes(part), ends=False)
            yield
        return self._exchange.stream(b"", EVENT_END, ends=False)

    def _head(self, status: int) -> bytes:
        head = b"" if self._is_started else format_head(status, _EVENTS)
        self._is_started = True
        return head

    def give_up(self) -> None:
        self._exchange.stream(b"", encode_event(_TOO_SLOW), ends=True)

    def finish(self) -> None:
        self._exchange.stream(self._head(200), b"", ends=True)


def _encode(response: InferResponse) -> tuple[int, bytes]:
    error = response.error
    if error is None:
        try:
            return 200, encode_generate_response(response)
        except NaiadError as refused:
            error = refused.detached()
    return _encode_error(error)


def _encode_error(error: NaiadError) -> tuple[int, bytes]:
    # Whatever the model's error is, 400: Triton's generate endpoints know no other status for it.
    return _MODEL_ERROR, encode_error(error.message)
