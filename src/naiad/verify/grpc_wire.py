"""Callers of the v2 gRPC protocol that share no code with the server whose answers they judge.

NVIDIA's ``tritonclient.grpc`` where it is installed, else an encoder of this file's own over
libnghttp2. Nothing here imports ``naiad.protocol`` or ``naiad.client``.
"""

import importlib.util
import queue
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import ngh2
import numpy as np

from naiad.access.credentials import advise_certificate
from naiad.errors import InvalidArgumentError
from naiad.inference.comparison import Array
from naiad.verify import protobuf
from naiad.verify.protobuf import Fields, encode_bytes, encode_text
from naiad.verify.text import text_as_bytes
from naiad.verify.wire import (
    TIMEOUT_S,
    Caller,
    CallFailedError,
    MissingError,
    Place,
    SilentError,
    Target,
    from_wire_bytes,
    to_wire_bytes,
)

_SERVICE: Final = "/inference.GRPCInferenceService/"
_READ_BYTES: Final = 1 << 16
_OPTION_MAX_MESSAGE: Final = 1 << 31
_UNIMPLEMENTED: Final = 12
# Field of InferTensorContents -> how its elements are written.
_CONTENTS: Final[Mapping[int, str]] = {
    1: "varint", 2: "varint", 3: "varint", 4: "varint", 5: "varint", 6: "<f4", 7: "<f8", 8: "bytes",
}  # fmt: skip


def open_grpc_caller(target: Target, *, is_stream: bool) -> Caller:
    """The most independent caller of gRPC that can carry the target's datatypes.

    Args:
        target: with a gRPC address.
        is_stream: ask by ``ModelStreamInfer`` and not by ``ModelInfer``.

    Raises:
        CallFailedError: nobody listens there.
    """
    # What tritonclient takes for BF16 changed in its 2.71 (floats before, ml_dtypes since).
    if "BF16" not in target.datatypes() and _has_tritonclient():
        return TritonGrpcCaller(target, is_stream=is_stream)
    return PlainGrpcCaller(target, is_stream=is_stream)


def _has_tritonclient() -> bool:
    names = ("tritonclient", "grpc")
    return all(importlib.util.find_spec(name) is not None for name in names)


class TritonGrpcCaller:
    """Calls through ``tritonclient.grpc``."""

    def __init__(self, target: Target, *, is_stream: bool) -> None:
        import tritonclient.grpc  # noqa: PLC0415  # optional, and grpc takes 0.2 s

        self._library = tritonclient.grpc
        self._target = target
        options = [
            ("grpc.max_send_message_length", _OPTION_MAX_MESSAGE - 1),
            ("grpc.max_receive_message_length", _OPTION_MAX_MESSAGE - 1),
        ]
        place, credentials = Place.parse(target.grpc_address), target.credentials
        self._metadata = _metadata(target)
        self._client = tritonclient.grpc.InferenceServerClient(
            place.authority, channel_args=options, ssl=place.is_tls,
            root_certificates=credentials.trusted_file(),
            certificate_chain=_as_text(credentials.certificate),
            private_key=_as_text(credentials.key or credentials.certificate),
        )  # fmt: skip
        self._answers: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
        self._end: Exception | None = None
        self._is_stream = is_stream
        if is_stream:
            self._client.start_stream(
                lambda result, error: self._answers.put((result, error)), headers=self._metadata
            )

    def infer(self, inputs: Mapping[str, Array], *, binary: bool = True) -> dict[str, Array]:
        """As :meth:`Caller.infer`; gRPC is always binary."""
        del binary
        target = self._target
        arguments = {
            "inputs": [self._input(name, data) for name, data in inputs.items()],
            "model_version": str(target.version),
            "outputs": [self._library.InferRequestedOutput(name) for name in target.outputs],
        }
        try:
            result = self._ask(arguments)
            found = {name: result.as_numpy(name) for name in target.outputs}
        except queue.Empty as error:
            raise SilentError(f"no answer within {TIMEOUT_S:g} s") from error
        except self._library.InferenceServerException as error:
            raise self._failure(error) from error
        except ValueError as error:
            raise CallFailedError(str(error)) from error
        missing = [name for name, array in found.items() if array is None]
        if missing:
            raise CallFailedError(f"the answer has no output '{missing[0]}'")
        return {name: text_as_bytes(array) for name, array in found.items()}

    def _ask(self, arguments: Mapping[str, Any]) -> Any:
        if not self._is_stream:
            return self._client.infer(
                self._target.model,
                client_timeout=TIMEOUT_S,
                headers=self._metadata,
                **arguments,
            )
        try:
            self._client.async_stream_infer(self._target.model, **arguments)
        except self._library.InferenceServerException:
            # The stream has ended; this text only points to what the callback was given.
            if self._end is not None:
                raise self._end from None
        result, error = self._answers.get(timeout=TIMEOUT_S)
        if error is not None:
            if error.status() is not None:  # the stream's own error, not one answer's
                self._end = error
            raise error
        return result

    def _failure(self, error: Any) -> CallFailedError:
        if error.status() == "StatusCode.DEADLINE_EXCEEDED":
            return SilentError(f"no answer within {TIMEOUT_S:g} s")
        if self._is_stream and error.status() == "StatusCode.UNIMPLEMENTED":
            return MissingError(f"this server has no ModelStreamInfer: {error.message()}")
        return CallFailedError(str(error))

    def _input(self, name: str, data: Array) -> Any:
        tensor = self._library.InferInput(name, list(data.shape), self._target.inputs[name])
        return tensor.set_data_from_numpy(data)

    def close(self) -> None:
        """Close the stream and the connection."""
        if self._is_stream:
            self._client.stop_stream()
        self._client.close()


def _metadata(target: Target) -> dict[str, str]:
    """The headers in the spelling that HTTP/2 demands."""
    return {key.lower(): value for key, value in target.credentials.headers.items()}


def _as_text(path: Path | None) -> str | None:
    return None if path is None else str(path)


class PlainGrpcCaller:
    """Calls through an HTTP/2 connection of its own, for where tritonclient is not installed."""

    def __init__(self, target: Target, *, is_stream: bool) -> None:
        self._target = target
        self._is_stream = is_stream
        self._place = Place.parse(target.grpc_address)
        self._socket = _open_socket(target, self._place)
        self._h2 = ngh2.Connection(ngh2.Role.CLIENT)
        self._h2.initiate_connection({})

    def infer(self, inputs: Mapping[str, Array], *, binary: bool = True) -> dict[str, Array]:
        """As :meth:`Caller.infer`; gRPC is always binary."""
        del binary
        method = "ModelStreamInfer" if self._is_stream else "ModelInfer"
        try:
            message = self._call(method, self._encode(inputs))
            if self._is_stream:
                message = _unwrap_stream(message)
            return self._decode(message)
        except TimeoutError as error:
            raise SilentError(f"no answer within {TIMEOUT_S:g} s") from error
        except (OSError, ngh2.NGH2Error, ValueError, LookupError, TypeError) as error:
            raise CallFailedError(f"{type(error).__name__}: {error}") from error

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _encode(self, inputs: Mapping[str, Array]) -> bytes:
        target = self._target
        parts = [encode_text(1, target.model), encode_text(2, str(target.version))]
        for name, data in inputs.items():
            tensor = encode_text(1, name) + encode_text(2, target.inputs[name])
            parts.append(encode_bytes(5, tensor + protobuf.encode_packed(3, data.shape)))
        parts.extend(encode_bytes(6, encode_text(1, name)) for name in target.outputs)
        parts.extend(encode_bytes(7, to_wire_bytes(data)) for data in inputs.values())
        return b"".join(parts)

    def _decode(self, message: bytes) -> dict[str, Array]:
        fields = Fields(message)
        raw = fields.all_bytes(6)
        outputs: dict[str, Array] = {}
        for index, part in enumerate(fields.all_bytes(5)):
            tensor = Fields(part)
            datatype, shape = tensor.text(2), tensor.integers(3)
            if raw:
                array = from_wire_bytes(raw[index], datatype)
            else:
                array = _decode_contents(Fields(tensor.all_bytes(5)[0]), datatype)
            outputs[tensor.text(1)] = text_as_bytes(array.reshape(shape))
        return outputs

    def _call(self, method: str, message: bytes) -> bytes:
        scheme = b"https" if self._place.is_tls else b"http"
        headers = (
            (b":method", b"POST"), (b":scheme", scheme), (b":path", (_SERVICE + method).encode()),
            (b":authority", self._place.authority.encode()), (b"te", b"trailers"),
            (b"content-type", b"application/grpc"), (b"user-agent", b"naiad-verify"),
            *((key.encode(), value.encode()) for key, value in _metadata(self._target).items()),
        )  # fmt: skip
        stream_id = self._h2.send_request(headers)
        self._h2.send_data(
            stream_id, b"\0" + len(message).to_bytes(4, "big") + message, end_stream=True
        )
        answer = bytearray()
        ending: dict[bytes, bytes] = {}
        while b"grpc-status" not in ending:
            while data := self._h2.data_to_send():
                self._socket.sendall(data)
            received = self._socket.recv(_READ_BYTES)
            if not received:
                raise ConnectionError("the server closed the connection")
            self._h2.receive_data(received)
            for event in self._h2.events():
                _note(event, stream_id, answer, ending)
        self._require_success(ending)
        return _unframe(bytes(answer))

    def _require_success(self, ending: Mapping[bytes, bytes]) -> None:
        status = ending[b"grpc-status"].decode()
        if status == "0":
            return
        told = unquote(ending.get(b"grpc-message", b"").decode(errors="replace"))
        if self._is_stream and status == str(_UNIMPLEMENTED):
            raise MissingError(f"this server has no ModelStreamInfer: {told}")
        raise CallFailedError(f"[gRPC status {status}] {told}")


def _open_socket(target: Target, place: Place) -> socket.socket:
    host, _, port = place.authority.rpartition(":")
    try:
        plain = socket.create_connection((host.strip("[]"), int(port)), TIMEOUT_S)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not place.is_tls:
            return plain
        context = target.credentials.tls_context()
        # gRPC's libraries refuse a server that doesn't agree to it.
        context.set_alpn_protocols(["h2"])
        return context.wrap_socket(plain, server_hostname=host.strip("[]"))
    except (OSError, ValueError, InvalidArgumentError) as error:
        raise CallFailedError(
            f"gRPC at {target.grpc_address}: {error}{advise_certificate(error)}"
        ) from error


def _note(event: ngh2.Event, stream_id: int, answer: bytearray, ending: dict[bytes, bytes]) -> None:
    if isinstance(event, ngh2.DataReceived) and event.stream_id == stream_id:
        answer += event.data
    elif isinstance(event, ngh2.ResponseReceived | ngh2.TrailersReceived):
        if event.stream_id == stream_id:
            ending.update((header[0], header[1]) for header in event.headers)
    elif isinstance(event, ngh2.StreamReset) and event.stream_id == stream_id:
        raise ConnectionError(f"the server reset the call with code {event.error_code}")


def _unframe(data: bytes) -> bytes:
    if len(data) < 5 or data[0] != 0:
        raise ValueError("the answer is no uncompressed gRPC message")
    length = int.from_bytes(data[1:5], "big")
    if len(data) < 5 + length:
        raise ValueError(f"the answer has {len(data) - 5} bytes of {length}")
    return data[5 : 5 + length]


def _unwrap_stream(message: bytes) -> bytes:
    fields = Fields(message)
    error = fields.text(1)
    if error:
        raise CallFailedError(error)
    return fields.all_bytes(2)[0]


def _decode_contents(contents: Fields, datatype: str) -> Array:
    """Elements that a server has put into typed fields and not into raw bytes."""
    for number, kind in _CONTENTS.items():
        if kind == "bytes" and contents.all_bytes(number):
            array = np.empty(len(contents.all_bytes(number)), dtype=object)
            array[:] = contents.all_bytes(number)
            return array
        if kind == "varint" and contents.has(number):
            return protobuf.integers_as(contents.integers(number), datatype)
        if contents.has(number):
            return np.frombuffer(b"".join(contents.all_bytes(number)), dtype=kind)
    raise ValueError("an output has neither raw bytes nor contents")
