"""Inference by one request and one response."""

import re
from typing import TYPE_CHECKING, Any, Final

from naiad.errors import InvalidArgumentError, NaiadError, UnsupportedError
from naiad.frontends.grpc.call_headers import iterate_metadata
from naiad.frontends.grpc.methods import Method
from naiad.frontends.serving import ServedModel, ServingEngine
from naiad.inference.request import InferRequest, ResponseCallback
from naiad.inference.response import InferResponse
from naiad.protocol.infer_message import InferMessage, InferMessageReader
from naiad.protocol.requested_outputs import RequestedOutputs
from naiad.protocol.v2_json import SharedMemoryRegions
from naiad.protocol.v2_proto import InferRequestDecoder, is_reserved_parameter, parse_version
from naiad.protocol.v2_proto_response import InferResponseEncoder

if TYPE_CHECKING:
    from naiad.frontends.grpc.call import Call

SERVICE: Final = "/inference.GRPCInferenceService/"
INFERENCE: Final = "inference"


class InferProtocol:
    """What unary and streamed inference share: reading, decoding, and encoders by model version."""

    __slots__ = ("_decoder", "_encoders", "_pattern", "engine", "reader")

    def __init__(
        self,
        engine: ServingEngine[Any],
        pattern: re.Pattern[str] | None,
        regions: SharedMemoryRegions | None,
    ) -> None:
        self.engine = engine
        self.reader = InferMessageReader()
        self._decoder = InferRequestDecoder(regions)
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
    ) -> tuple[InferRequest, RequestedOutputs, bool]:
        """Decode a request of ``call``; the rest as ``InferRequestDecoder.decode``.

        Raises:
            NaiadError: the request is wrong.
        """
        received_ns = call.received_ns or self.engine.now_ns()
        decoded = self._decoder.decode(model.signature, message, callback, received_ns)
        if self._pattern is not None:
            self._forward(call, decoded[0], self._pattern)
        return decoded

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

    def _forward(self, call: "Call", request: InferRequest, pattern: re.Pattern[str]) -> None:
        """Give the model the metadata that the server's settings name."""
        for key, value in iterate_metadata(call.headers):
            if pattern.search(key) is None:
                continue
            if is_reserved_parameter(key):
                raise InvalidArgumentError(
                    f"Header '{key}' is reserved for Triton usage and cannot be forwarded."
                )
            if request.parameters is None:
                request.parameters = {}
            request.parameters[key] = value


class InferHandler:
    """Answers ``ModelInfer``."""

    def __init__(self, protocol: InferProtocol) -> None:
        self._protocol = protocol

    def methods(self) -> list[Method]:
        """The methods of this noun."""
        return [Method(f"{SERVICE}ModelInfer", INFERENCE, unary=self.infer, is_packed=True)]

    def infer(self, call: "Call", data: bytes | memoryview, start: int) -> None:
        """Decode a request and give it to the engine."""
        protocol = self._protocol
        try:
            message = protocol.reader.read(data, start)
            model = protocol.find(message)
            if model.signature.is_decoupled:
                raise UnsupportedError(
                    "ModelInfer RPC doesn't support models with decoupled transaction policy"
                )
            waiting = InferCall(protocol, call, model)
            request, waiting.outputs, _ = protocol.decode(call, model, message, waiting.on_response)
            waiting.request = request
            protocol.engine.infer(model, request)
        except NaiadError as error:
            call.fail_with(error)
            return
        call.on_lost = waiting.cancel


class InferCall:
    """One request on its way through the engine.

    Attributes:
        request: what the engine has.
        outputs: how the client wants the answer.
    """

    __slots__ = ("_call", "_model", "_protocol", "outputs", "request")

    request: InferRequest
    outputs: RequestedOutputs

    def __init__(self, protocol: InferProtocol, call: "Call", model: ServedModel) -> None:
        self._protocol = protocol
        self._call = call
        self._model = model

    def on_response(self, response: InferResponse) -> None:
        """Encode and send; the engine's callback."""
        error = response.error
        if error is None:
            try:
                parts, size = self._protocol.encoder(self._model).encode(response, self.outputs)
            except NaiadError as refused:
                error = refused
            else:
                self._call.respond(parts, size)
                return
        self._call.on_lost = None
        self._call.fail_with(error)

    def cancel(self) -> None:
        """The client gave up."""
        self._protocol.engine.cancel(self._model, self.request)
