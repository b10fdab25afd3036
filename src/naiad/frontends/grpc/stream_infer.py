"""Inference by a stream of requests and a stream of responses."""

from collections import deque
from typing import TYPE_CHECKING, Any

from naiad.access.restricted_apis import Api
from naiad.errors import NaiadError
from naiad.frontends.grpc.call_headers import find_metadata
from naiad.frontends.grpc.infer import SERVICE, InferProtocol, chain_steps, sending
from naiad.frontends.grpc.methods import Method
from naiad.inference.response import InferResponse
from naiad.protocol.infer_message import InferMessage
from naiad.protocol.json_text import Buffer
from naiad.protocol.output_data import has_large_output
from naiad.protocol.requested_outputs import RequestedOutputs
from naiad.protocol.v2_proto_response import encode_refusal

if TYPE_CHECKING:
    from naiad.frontends.grpc.call import Call
    from naiad.frontends.turns import Work
    from naiad.inference.request import InferRequest

_GRPC_ERRORS = b"triton_grpc_error"


class StreamInferHandler:
    """Answers ``ModelStreamInfer``.

    Args:
        protocol: shared with unary inference.
        max_requests: of one stream at a time.
    """

    def __init__(self, protocol: InferProtocol, max_requests: int) -> None:
        self._protocol = protocol
        self._max_requests = max_requests

    def methods(self) -> list[Method]:
        """The methods of this noun."""
        return [
            Method(f"{SERVICE}ModelStreamInfer", Api.INFERENCE, stream=self.begin, is_packed=True)
        ]

    def begin(self, call: "Call") -> "InferStream":
        """A stream begins."""
        return InferStream(self._protocol, call, self._max_requests)


class InferStream:
    """One stream of requests.

    The responses of models that give one for each request are sent in the order of the requests;
    those of decoupled models whenever they come.
    """

    __slots__ = (
        "_active",
        "_call",
        "_decoding",
        "_ends_on_error",
        "_is_half_closed",
        "_max_requests",
        "_ordered",
        "protocol",
    )

    def __init__(self, protocol: InferProtocol, call: "Call", max_requests: int) -> None:
        self.protocol = protocol
        self._call = call
        self._max_requests = max_requests
        self._ends_on_error = find_metadata(call.headers, _GRPC_ERRORS) == b"true"
        self._is_half_closed = False
        self._decoding: Work[None] | None = None
        self._active: dict[StreamRequest, None] = {}
        self._ordered: deque[StreamRequest] = deque()
        call.on_lost = self._cancel

    @property
    def is_idle(self) -> bool:
        """Whether every request is answered."""
        return not self._active

    def on_message(self, data: bytes | memoryview, start: int) -> None:
        """Decode a request and give it to the engine; what is wrong with it is its response."""
        size = len(data) - start
        try:
            message = self.protocol.reader.read(data, start)
        except NaiadError as error:
            self._fail(error)
            return
        request = StreamRequest(self, message.request_id, size)
        self._active[request] = None
        try:
            self._infer(request, message)
        except NaiadError as error:
            self._refuse(request, error)
        if len(self._active) >= self._max_requests:
            self._call.hold()

    def _refuse(self, request: "StreamRequest", error: NaiadError) -> None:
        """What is wrong with a request is its response."""
        if not request.is_decoupled and request not in self._ordered:
            self._ordered.append(request)
        if request.request is not None and request.request.trace is not None:
            request.request.trace.finish()
        refusal = encode_refusal(error.message, request.request_id)
        self.take(request, ([refusal], len(refusal)), error, is_final=True)

    def _infer(self, request: "StreamRequest", message: InferMessage) -> None:
        model = self.protocol.find(message)
        request.model = model
        request.is_decoupled = model.signature.is_decoupled
        decoded = self.protocol.decode(self._call, model, message, request.on_response)
        request.outputs = decoded.outputs
        request.wants_empty_final = decoded.wants_empty_final
        request.request = decoded.request
        if not request.is_decoupled:
            self._ordered.append(request)
        if decoded.unfinished is None:
            self.protocol.engine.infer(model, decoded.request)
            return
        if not self._call.reserve(decoded.unfinished_bytes):
            self._call.on_lost = None
            self._cancel()
            return
        request.size += decoded.unfinished_bytes
        # The next requests wait, so that the engine gets all of them in their order.
        self._call.hold()
        self._decoding = self.protocol.turns.start(
            chain_steps(decoded.unfinished),
            lambda _: self._end_decoding(request, None),
            lambda error: self._end_decoding(request, error),
        )

    def _end_decoding(self, request: "StreamRequest", error: NaiadError | None) -> None:
        self._decoding = None
        if error is None and request.request is not None:
            try:
                self.protocol.engine.infer(request.model, request.request)
            except NaiadError as refusal:
                error = refusal.detached()
        if error is not None:
            self._refuse(request, error)
        self._read_on()

    def on_half_close(self) -> None:
        """The stream ends with the last response."""
        self._is_half_closed = True
        self._end_if_done()

    def on_writable(self) -> None:
        """Read on, if that waited for the client."""
        self._read_on()

    def take(
        self,
        request: "StreamRequest",
        response: tuple[list[Buffer], int] | None,
        error: NaiadError | None,
        *,
        is_final: bool,
    ) -> None:
        """A response of ``request``, or none where it only ends."""
        if error is not None and self._ends_on_error:
            self._fail(error)
            return
        if response is not None:
            if request.is_decoupled:
                self._call.send(*response)
            else:
                request.ready.append(response)
        request.is_done = is_final
        self._send_ready()
        if is_final:
            self._active.pop(request, None)
            request.request = None
            self._call.release(request.size)
            self._read_on()
        if self._call.is_congested:
            self._call.hold()
        self._end_if_done()

    def _send_ready(self) -> None:
        ordered = self._ordered
        while ordered:
            first = ordered[0]
            for response in first.ready:
                self._call.send(*response)
            first.ready.clear()
            if not first.is_done:
                return
            ordered.popleft()

    def _read_on(self) -> None:
        call = self._call
        if (
            call.is_held
            and self._decoding is None
            and len(self._active) < self._max_requests
            and not call.is_congested
        ):
            call.resume()

    def _end_if_done(self) -> None:
        if self._is_half_closed and not self._active:
            self._call.on_lost = None
            self._call.finish()

    def _fail(self, error: NaiadError) -> None:
        self._cancel()
        self._call.on_lost = None
        self._call.fail_with(error)

    def _cancel(self) -> None:
        """The client gave up, or the stream failed."""
        if self._decoding is not None:
            self._decoding.is_dropped = True
        active, self._active = self._active, {}
        self._ordered.clear()
        for request in active:
            request.drop()
            inferred, request.request = request.request, None
            if inferred is not None:
                self.protocol.cancel(request.model, inferred)


class StreamRequest:
    """One request of a stream on its way through the engine.

    Attributes:
        request_id: the client's label.
        model: that it goes to.
        request: what the engine has; None before and after.
        outputs: how the client wants the answers.
        size: of its message.
        is_decoupled: its responses may overtake those of others.
        wants_empty_final: the client wants to hear of the end in a response without outputs.
        ready: responses that wait for those of earlier requests.
        is_done: no further response comes.
    """

    __slots__ = (
        "_stream",
        "_waiting",
        "_work",
        "is_decoupled",
        "is_done",
        "model",
        "outputs",
        "ready",
        "request",
        "request_id",
        "size",
        "wants_empty_final",
    )

    model: Any
    outputs: RequestedOutputs

    def __init__(self, stream: InferStream, request_id: str, size: int) -> None:
        self._stream = stream
        self.request_id = request_id
        # Responses behind one that is being encoded in steps.
        self._waiting: deque[InferResponse] = deque()
        self._work: Work[Any] | None = None
        self.size = size
        self.request: InferRequest | None = None
        self.is_decoupled = False
        self.wants_empty_final = False
        self.ready: list[tuple[list[Buffer], int]] = []
        self.is_done = False

    def on_response(self, response: InferResponse) -> None:
        """Encode and hand on; the engine's callback."""
        trace = self.request.trace if self.request is not None else None
        if trace is None:
            self._hand_on(response)
        else:
            now_ns = self._stream.protocol.engine.now_ns
            with sending(trace, now_ns, is_final=response.is_final):
                self._hand_on(response)

    def drop(self) -> None:
        """Nobody waits for it any more."""
        self._waiting.clear()
        if self._work is not None:
            self._work.is_dropped = True

    def _hand_on(self, response: InferResponse) -> None:
        if self._work is not None:
            self._waiting.append(response)
            return
        encoder = self._stream.protocol.encoder(self.model)
        if response.error is None and has_large_output(response, self.outputs):
            steps = encoder.encode_in_steps(response, self.outputs, is_streamed=True)
            self._work = self._stream.protocol.turns.start(
                steps,
                lambda encoded: self._end_encoding(response, encoded, None),
                lambda error: self._end_encoding(response, None, error),
            )
            return
        error = response.error
        encoded: tuple[list[Buffer], int] | None = None
        if error is None:
            is_empty = response.is_final and self.is_decoupled and not response.outputs
            if not is_empty or self.wants_empty_final:
                try:
                    encoded = encoder.encode_streamed(response, self.outputs)
                except NaiadError as refused:
                    error = refused.detached()
        self._take(response, encoded, error)

    def _end_encoding(
        self,
        response: InferResponse,
        encoded: tuple[list[Buffer], int] | None,
        error: NaiadError | None,
    ) -> None:
        self._work = None
        self._take(response, encoded, error)
        while self._waiting and self._work is None:
            self._hand_on(self._waiting.popleft())

    def _take(
        self,
        response: InferResponse,
        encoded: tuple[list[Buffer], int] | None,
        error: NaiadError | None,
    ) -> None:
        if error is not None:
            encoder = self._stream.protocol.encoder(self.model)
            text = encoder.encode_streamed_error(response, error.message)
            encoded = ([text], len(text))
        self._stream.take(self, encoded, error, is_final=response.is_final)
