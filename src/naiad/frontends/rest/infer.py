"""The inference route."""

from collections.abc import Coroutine, Sequence
from functools import lru_cache
from typing import Any, Final

from naiad.access.restricted_apis import Api
from naiad.errors import NaiadError
from naiad.frontends.rest.exchange import Exchange
from naiad.frontends.rest.head import RequestHead
from naiad.frontends.rest.json_decoder import LARGE_TEXT_BYTES
from naiad.frontends.rest.long_work import INLINE_BYTES, LongWork
from naiad.frontends.rest.options import RestOptions
from naiad.frontends.rest.response import (
    JSON,
    OCTETS,
    TEXT,
    HttpError,
    Response,
    encode_error,
    error_response,
    format_head,
    naiad_error_response,
    wrong_header_length,
)
from naiad.frontends.rest.router import MODEL, BodyKind, Route
from naiad.frontends.rest.tracing import begin_trace, sending
from naiad.frontends.serving import ServedModel, ServingEngine
from naiad.inference.request import InferRequest
from naiad.inference.response import InferResponse
from naiad.protocol.binary_data import MalformedElementsError
from naiad.protocol.compression import ACCEPTED, choose_encoding, compress, is_known
from naiad.protocol.forwarded_headers import forward_headers
from naiad.protocol.json_text import Buffer
from naiad.protocol.output_data import has_large_output
from naiad.protocol.requested_outputs import RequestedOutputs
from naiad.protocol.v2_json import (
    DecodedRequest,
    DecodeLimits,
    begin_infer_request,
    decode_infer_document,
)
from naiad.protocol.v2_json_response import InferResponseEncoder

_JSON_HEAD: Final = format_head(200, JSON)
_BINARY_HEAD: Final = format_head(200, OCTETS) + b"Inference-Header-Content-Length: %d\r\n"
_UNKNOWN_ENCODING: Final = Response(
    format_head(501, TEXT) + b"Accept-Encoding: %b\r\n" % ACCEPTED,
    encode_error("Unsupported compression type"),
)
# Clients of one kind all send the same.
_choose_encoding: Final = lru_cache(256)(choose_encoding)


class InferHandler:
    """Answers inference requests."""

    def __init__(
        self, engine: ServingEngine[Any], options: RestOptions, long_work: LongWork
    ) -> None:
        self._engine = engine
        self._traces = engine.traces
        self._limits = DecodeLimits(options.max_input_bytes, engine.shared_memory)
        self._encoders: dict[tuple[str, int], InferResponseEncoder] = {}
        self.long_work = long_work

    def routes(self) -> list[Route]:
        """The routes of this noun."""
        return [
            Route(
                MODEL + "/infer",
                {"POST": self.infer},
                TEXT,
                body=BodyKind.TENSORS,
                api=Api.INFERENCE,
            )
        ]

    def infer(self, exchange: Exchange) -> None:
        """Decode a request and give it to the engine."""
        head = exchange.head
        is_compressed = head.is_compressed
        if is_compressed and not is_known(head.content_encoding):
            exchange.respond(_UNKNOWN_ENCODING)
            return
        try:
            model = self._engine.find(head.model_name, head.version)
        except NaiadError as error:
            exchange.respond(naiad_error_response(error, TEXT))
            return
        if model.signature.is_decoupled:
            exchange.respond(
                error_response(
                    501,
                    "HTTP end point doesn't support models with decoupled transaction policy",
                    TEXT,
                )
            )
            return
        call = InferCall(self, exchange, model)
        if is_compressed or len(exchange.text) > LARGE_TEXT_BYTES:
            if len(exchange.text) <= INLINE_BYTES:
                # It may lie in the receive buffer, which the next read overwrites.
                exchange.text = bytes(exchange.text)
            self.long_work.start(exchange, self._infer_large(call, exchange))
            return
        try:
            decoded = begin_infer_request(
                model.signature,
                exchange.text,
                exchange.tail,
                self._limits,
                call.on_response,
                exchange.received_ns,
            )
            if decoded.unfinished:
                self.long_work.start(exchange, self._finish(call, exchange, decoded))
            else:
                self._submit(call, exchange, decoded)
        except NaiadError as error:
            call.refuse(error)

    async def _infer_large(self, call: "InferCall", exchange: Exchange) -> None:
        try:
            text, tail = exchange.text, exchange.tail
            if exchange.head.is_compressed:
                body = await self.long_work.decompress(exchange, text)
                text, tail = _split_body(exchange.head, memoryview(body))
            exchange.text = b""  # a large one should not live until the answer
            if len(text) > LARGE_TEXT_BYTES:
                decoded = decode_infer_document(
                    call.model.signature,
                    await self.long_work.json.parse(text),
                    tail,
                    self._limits,
                    call.on_response,
                    exchange.received_ns,
                )
                inputs = decoded.request.inputs.values()
                exchange.reserve(sum(tensor.data.nbytes for tensor in inputs))
            else:
                decoded = begin_infer_request(
                    call.model.signature,
                    text,
                    tail,
                    self._limits,
                    call.on_response,
                    exchange.received_ns,
                )
        except HttpError as error:
            exchange.respond(error.response())
        except NaiadError as error:
            call.refuse(error)
        else:
            await self._finish(call, exchange, decoded)

    async def _finish(self, call: "InferCall", exchange: Exchange, decoded: DecodedRequest) -> None:
        head = exchange.head
        try:
            exchange.reserve(decoded.unfinished_bytes)
            for steps in decoded.unfinished:
                await self.long_work.turns.run(steps)
            # A reload may have come between, and the old version takes no more requests.
            call.model = self._engine.find(head.model_name, head.version)
            self._submit(call, exchange, decoded)
        except NaiadError as error:
            call.refuse(error)

    def _submit(self, call: "InferCall", exchange: Exchange, decoded: DecodedRequest) -> None:
        request = decoded.request
        call.outputs = decoded.outputs
        if exchange.head.forwarded:
            forward_headers(request, exchange.head.forwarded)
        call.request = request
        if self._traces.is_active:
            begin_trace(self._traces, exchange, call.model, request)
        self._engine.infer(call.model, request)
        exchange.on_lost = call.cancel

    def encoder(self, model: ServedModel) -> InferResponseEncoder:
        """The encoder for the answers of ``model``."""
        key = (model.name, model.version)
        has_batch_axis = model.signature.max_batch_size > 0
        encoder = self._encoders.get(key)
        if encoder is None or not encoder.fits(model.labels, has_batch_axis=has_batch_axis):
            encoder = self._encoders[key] = InferResponseEncoder(
                model.name, model.version, model.labels, has_batch_axis=has_batch_axis
            )
        return encoder

    def cancel(self, model: ServedModel, request: InferRequest) -> None:
        """The client of ``request`` went away."""
        self._engine.cancel(model, request)
        if request.trace is not None:
            request.trace.finish()

    def now_ns(self) -> int:
        """Time on the engine's clock."""
        return self._engine.now_ns()


class InferCall:
    """One request on its way through the engine.

    Attributes:
        model: whose answer it is.
        request: what the engine has; None before it was decoded.
        outputs: how the client wants the answer.
    """

    __slots__ = ("_exchange", "_handler", "model", "outputs", "request")

    outputs: RequestedOutputs

    def __init__(self, handler: InferHandler, exchange: Exchange, model: ServedModel) -> None:
        self._handler = handler
        self._exchange = exchange
        self.model = model
        self.request: InferRequest | None = None

    def refuse(self, error: NaiadError) -> None:
        """Answer a request that the decoder or the engine does not take."""
        # Triton leaves the inside of BYTES tensors to the backend, whose errors are plain text.
        is_late = isinstance(error, MalformedElementsError)
        response = naiad_error_response(error, TEXT if is_late else JSON)
        # No callback will come, and the request leads back here.
        request, self.request = self.request, None
        if request is None or request.trace is None:
            self._exchange.respond(response)
        else:
            with sending(request.trace, self._handler.now_ns):
                self._exchange.respond(response)

    def on_response(self, response: InferResponse) -> None:
        """Encode and send; the engine's callback."""
        handler = self._handler
        if self.request is None or self.request.trace is None:
            work = self._send(response)
            if work is not None:
                handler.long_work.start(self._exchange, work)
        else:
            with sending(self.request.trace, handler.now_ns):
                work = self._send(response)
                if work is not None:
                    handler.long_work.start(self._exchange, work)

    def _send(self, response: InferResponse) -> Coroutine[Any, Any, None] | None:
        """Answer, or return the work that does if it takes long."""
        error = response.error
        if error is None:
            encoder = self._handler.encoder(self.model)
            if has_large_output(response, self.outputs):
                return self._send_large(encoder, response)
            try:
                body, tail, tail_bytes = encoder.encode(response, self.outputs)
            except NaiadError as refused:
                error = refused.detached()
            else:
                head = _BINARY_HEAD % len(body) if tail_bytes else _JSON_HEAD
                return self._write(head, body, tail, tail_bytes)
        self._exchange.respond(naiad_error_response(error, TEXT))
        return None

    async def _send_large(self, encoder: InferResponseEncoder, response: InferResponse) -> None:
        try:
            parts, tail, tail_bytes = await self._handler.long_work.turns.run(
                encoder.encode_in_steps(response, self.outputs)
            )
        except NaiadError as error:
            self._exchange.respond(naiad_error_response(error, TEXT))
            return
        size = sum(map(len, parts))
        head = _BINARY_HEAD % size if tail_bytes else _JSON_HEAD
        # Not joined: that would hold the loop for as long as the body is large.
        work = self._write(head, b"", [*parts, *tail], size + tail_bytes)
        if work is not None:
            await work

    def _write(
        self, head: bytes, body: bytes, tail: Sequence[Buffer], tail_bytes: int
    ) -> Coroutine[Any, Any, None] | None:
        """Send, compressed if the client prefers that; returns the work if that takes long."""
        exchange = self._exchange
        accept = exchange.head.headers.get(b"accept-encoding")
        encoding = None if accept is None else _choose_encoding(accept)
        if encoding is None:
            exchange.send(head, body, tail, tail_bytes)
            return None
        head += b"Content-Encoding: %b\r\n" % encoding
        if len(body) + tail_bytes > INLINE_BYTES:
            return self._compress(head, [body, *tail], encoding)
        exchange.send(head, compress([body, *tail], encoding))
        return None

    async def _compress(self, head: bytes, parts: Sequence[Buffer], encoding: bytes) -> None:
        self._exchange.send(head, await self._handler.long_work.compress(parts, encoding))

    def cancel(self) -> None:
        """The client went away."""
        if self.request is not None:
            self._handler.cancel(self.model, self.request)


def _split_body(head: RequestHead, body: memoryview) -> tuple[Buffer, Buffer]:
    """Text and tail of a body whose header length, if one was given, is of its content."""
    given = head.headers.get(b"inference-header-content-length")
    if given is None:
        return body, b""
    length = int(given)
    if not 0 <= length <= len(body):
        raise wrong_header_length(length, len(body))
    return body[:length], body[length:]
