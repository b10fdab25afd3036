"""Inference by one request and one response."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from naiad.access.restricted_apis import Api
from naiad.errors import NaiadError, UnsupportedError
from naiad.frontends.grpc.call_headers import select_metadata
from naiad.frontends.grpc.methods import Method
from naiad.frontends.serving import ServedModel, ServingEngine
from naiad.frontends.turns import Turns, Work
from naiad.inference.request import InferRequest, ResponseCallback
from naiad.inference.response import InferResponse
from naiad.inference.trace import Trace
from naiad.protocol.forwarded_headers import forward_headers
from naiad.protocol.infer_message import InferMessage, InferMessageReader
from naiad.protocol.json_text import Buffer
from naiad.protocol.output_data import has_large_output
from naiad.protocol.requested_outputs import RequestedOutputs
from naiad.protocol.v2_proto import DecodedRequest, InferRequestDecoder, Steps, parse_version
from naiad.protocol.v2_proto_response import InferResponseEncoder

if TYPE_CHECKING:
    from naiad.frontends.grpc.call import Call

SERVICE: Final = "/inference.GRPCInferenceService/"


class InferProtocol:
    """What unary and streamed inference share: reading, decoding, and encoders by model version."""

    __slots__ = ("_decoder", "_encoders", "_pattern", "engine", "reader", "traces", "turns")

    def __init__(
        self,
        engine: ServingEngine[Any],
        pattern: re.Pattern[str] | None,
    ) -> None:
        self.engine = engine
        self.traces = engine.traces
        self.reader = InferMessageReader()
        self.turns = Turns()
        self._decoder = InferRequestDecoder(engine.shared_memory)
        self._pattern = pattern
        self._encoders: dict[tuple[str, int], InferResponseEncoder] = {}

    def find(self, message: InferMessage) -> Any:
        """The model version that a request goes to.

        Raises:
            NaiadError: there is none.
        """
        return self.engine.find(message.model_name, parse_version(message.model_version))

    def decode(
        self, call: "Call", model: ServedModel, message: InferMessage, callback: ResponseCallback
    ) -> DecodedRequest:
        """Decode a request of ``call``; the rest as ``InferRequestDecoder.decode``.

        Raises:
            NaiadError: the request is wrong.
        """
        received_ns = call.received_ns or self.engine.now_ns()
        decoded = self._decoder.decode(model.signature, message, callback, received_ns)
        if self._pattern is not None:
            forward_headers(decoded.request, select_metadata(call.headers, self._pattern))
        if self.traces.is_active:
            self._begin_trace(call, model, decoded.request, received_ns)
        return decoded

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

    def _begin_trace(
        self, call: "Call", model: ServedModel, request: InferRequest, received_ns: int
    ) -> None:
        """Give a decoded request its trace, if it is one to be traced."""
        trace = self.traces.sample(model.name, model.version, request.request_id)
        if trace is not None:
            trace.stamp("GRPC_WAITREAD_START", call.started_ns)
            trace.stamp("GRPC_WAITREAD_END", received_ns)
            request.trace = trace

    def cancel(self, model: ServedModel, request: InferRequest) -> None:
        """The client of ``request`` gave up."""
        self.engine.cancel(model, request)
        if request.trace is not None:
            request.trace.finish()


@contextmanager
def sending(trace: Trace, now_ns: Callable[[], int], *, is_final: bool = True) -> Iterator[None]:
    """While an answer is encoded and sent; after the last one the trace is finished."""
    trace.stamp("GRPC_SEND_START", now_ns())
    try:
        yield
    finally:
        trace.stamp("GRPC_SEND_END", now_ns())
        if is_final:
            trace.finish()


def chain_steps(unfinished: list[Steps]) -> Steps:
    """One after the other."""
    for steps in unfinished:
        yield from steps


class InferHandler:
    """Answers ``ModelInfer``."""

    def __init__(self, protocol: InferProtocol) -> None:
        self._protocol = protocol

    def methods(self) -> list[Method]:
        """The methods of this noun."""
        return [Method(f"{SERVICE}ModelInfer", Api.INFERENCE, unary=self.infer, is_packed=True)]

    def infer(self, call: "Call", data: bytes | memoryview, start: int) -> None:
        """Decode a request and give it to the engine."""
        protocol = self._protocol
        waiting: InferCall | None = None
        try:
            message = protocol.reader.read(data, start)
            model = protocol.find(message)
            if model.signature.is_decoupled:
                raise UnsupportedError(
                    "ModelInfer RPC doesn't support models with decoupled transaction policy"
                )
            waiting = InferCall(protocol, call, model)
            decoded = protocol.decode(call, model, message, waiting.on_response)
            waiting.outputs = decoded.outputs
            waiting.request = decoded.request
            if decoded.unfinished is None:
                protocol.engine.infer(model, decoded.request)
            elif call.reserve(decoded.unfinished_bytes):
                waiting.finish_decoding(decoded.unfinished)
            else:
                waiting.cancel()
                return
        except NaiadError as error:
            if waiting is None:
                call.fail_with(error)
            else:
                waiting.refuse(error)
            return
        call.on_lost = waiting.cancel


class InferCall:
    """One request on its way through the engine.

    Attributes:
        request: what the engine has; None before it was decoded and after it was answered, since
            the request knows this object and its tensors are to be freed at once.
        outputs: how the client wants the answer.
    """

    __slots__ = ("_call", "_model", "_protocol", "_work", "outputs", "request")

    outputs: RequestedOutputs

    def __init__(self, protocol: InferProtocol, call: "Call", model: ServedModel) -> None:
        self._protocol = protocol
        self._call = call
        self._model = model
        self.request: InferRequest | None = None
        self._work: Work[Any] | None = None

    def finish_decoding(self, unfinished: list[Steps]) -> None:
        """Go on with a request whose BYTES are still to be taken apart."""
        self._work = self._protocol.turns.start(
            chain_steps(unfinished), self._end_decoding, self.refuse
        )

    def _end_decoding(self, result: None) -> None:
        self._work = None
        if self.request is not None:
            try:
                self._protocol.engine.infer(self._model, self.request)
            except NaiadError as error:
                self.refuse(error)

    def on_response(self, response: InferResponse) -> None:
        """Encode and send; the engine's callback."""
        request, self.request = self.request, None
        if request is None or request.trace is None:
            self._send(response)
        else:
            with sending(request.trace, self._protocol.engine.now_ns):
                self._send(response)

    def _send(self, response: InferResponse) -> None:
        error = response.error
        if error is not None:
            self.refuse(error)
            return
        encoder = self._protocol.encoder(self._model)
        if has_large_output(response, self.outputs):
            steps = encoder.encode_in_steps(response, self.outputs, is_streamed=False)
            self._work = self._protocol.turns.start(steps, self._respond, self.refuse)
            return
        try:
            encoded = encoder.encode(response, self.outputs)
        except NaiadError as refused:
            self.refuse(refused)
        else:
            self._respond(encoded)

    def _respond(self, encoded: tuple[list[Buffer], int]) -> None:
        self._work = None
        self._call.respond(*encoded)

    def refuse(self, error: NaiadError) -> None:
        """Answer with an error."""
        self._work = None
        request, self.request = self.request, None
        if request is not None and request.trace is not None:
            request.trace.finish()
        self._call.on_lost = None
        self._call.fail_with(error)

    def cancel(self) -> None:
        """The client gave up."""
        if self._work is not None:
            self._work.is_dropped = True
        request, self.request = self.request, None
        if request is not None:
            self._protocol.cancel(self._model, request)
