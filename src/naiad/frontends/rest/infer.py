"""The inference route."""

from typing import Any, Final

from naiad.access.restricted_apis import Api
from naiad.errors import NaiadError
from naiad.frontends.rest.exchange import Exchange
from naiad.frontends.rest.options import RestOptions
from naiad.frontends.rest.response import (
    JSON,
    OCTETS,
    TEXT,
    error_response,
    format_head,
    naiad_error_response,
)
from naiad.frontends.rest.router import MODEL, Route
from naiad.frontends.rest.tracing import begin_trace, sending
from naiad.frontends.serving import ServedModel, ServingEngine
from naiad.inference.request import InferRequest
from naiad.inference.response import InferResponse
from naiad.protocol.binary_data import MalformedElementsError
from naiad.protocol.forwarded_headers import forward_headers
from naiad.protocol.requested_outputs import RequestedOutputs
from naiad.protocol.v2_json import DecodeLimits, decode_infer_request
from naiad.protocol.v2_json_response import InferResponseEncoder

_JSON_HEAD: Final = format_head(200, JSON)
_BINARY_HEAD: Final = format_head(200, OCTETS) + b"Inference-Header-Content-Length: %d\r\n"


class InferHandler:
    """Answers inference requests."""

    def __init__(self, engine: ServingEngine[Any], options: RestOptions) -> None:
        self._engine = engine
        self._traces = engine.traces
        self._limits = DecodeLimits(options.max_input_bytes, engine.shared_memory)
        self._encoders: dict[tuple[str, int], InferResponseEncoder] = {}

    def routes(self) -> list[Route]:
        """The routes of this noun."""
        return [
            Route(MODEL + r"/infer", {"POST": self.infer}, TEXT, has_tail=True, api=Api.INFERENCE)
        ]

    def infer(self, exchange: Exchange) -> None:
        """Decode a request and give it to the engine."""
        head = exchange.head
        if b"content-encoding" in head.headers and _is_encoded(head.headers[b"content-encoding"]):
            exchange.respond(error_response(501, "Unsupported compression type", TEXT))
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
        try:
            request, call.outputs = decode_infer_request(
                model.signature,
                exchange.text,
                exchange.tail,
                self._limits,
                call.on_response,
                exchange.received_ns,
            )
            if head.forwarded:
                forward_headers(request, head.forwarded)
            call.request = request
            if self._traces.is_active:
                begin_trace(self._traces, exchange, model, request)
            self._engine.infer(model, request)
        except NaiadError as error:
            call.refuse(error)
            return
        exchange.on_lost = call.cancel

    def encoder(self, model: ServedModel) -> InferResponseEncoder:
        """The encoder for the answers of ``model``."""
        key = (model.name, model.version)
        encoder = self._encoders.get(key)
        if encoder is None:
            encoder = self._encoders[key] = InferResponseEncoder(
                model.name,
                model.version,
                model.labels,
                has_batch_axis=model.signature.max_batch_size > 0,
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
        request: what the engine has; None before it was decoded.
        outputs: how the client wants the answer.
    """

    __slots__ = ("_exchange", "_handler", "_model", "outputs", "request")

    outputs: RequestedOutputs

    def __init__(self, handler: InferHandler, exchange: Exchange, model: ServedModel) -> None:
        self._handler = handler
        self._exchange = exchange
        self._model = model
        self.request: InferRequest | None = None

    def refuse(self, error: NaiadError) -> None:
        """Answer a request that the decoder or the engine does not take."""
        # Triton leaves the inside of BYTES tensors to the backend, whose errors are plain text.
        is_late = isinstance(error, MalformedElementsError)
        response = naiad_error_response(error, TEXT if is_late else JSON)
        if self.request is None or self.request.trace is None:
            self._exchange.respond(response)
        else:
            with sending(self.request.trace, self._handler.now_ns):
                self._exchange.respond(response)

    def on_response(self, response: InferResponse) -> None:
        """Encode and send; the engine's callback."""
        if self.request is None or self.request.trace is None:
            self._send(response)
        else:
            with sending(self.request.trace, self._handler.now_ns):
                self._send(response)

    def _send(self, response: InferResponse) -> None:
        exchange = self._exchange
        error = response.error
        if error is None:
            try:
                body, tail, tail_bytes = self._handler.encoder(self._model).encode(
                    response, self.outputs
                )
            except NaiadError as refused:
                error = refused
            else:
                if tail_bytes:
                    exchange.send(_BINARY_HEAD % len(body), body, tail, tail_bytes)
                else:
                    exchange.send(_JSON_HEAD, body)
                return
        exchange.respond(naiad_error_response(error, TEXT))

    def cancel(self) -> None:
        """The client went away."""
        if self.request is not None:
            self._handler.cancel(self._model, self.request)


def _is_encoded(content_encoding: bytes) -> bool:
    return content_encoding.strip() not in {b"", b"identity"}
