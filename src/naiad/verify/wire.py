"""Callers of the v2 HTTP protocol that share no code with the server whose answers they judge.

NVIDIA's tritonclient where it is installed, else a small encoder of this file's own. Nothing
here imports ``naiad.protocol`` or ``naiad.client``: a mistake made twice in the same code would
cancel out and go unseen.
"""

import contextlib
import http.client
import importlib.util
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np

from naiad.access.credentials import Credentials, advise_certificate
from naiad.errors import InvalidArgumentError
from naiad.inference.comparison import Array
from naiad.verify.text import text_as_bytes

TIMEOUT_S: Final = 300.0
"""How long a caller waits for one answer."""

_DTYPES: Final[Mapping[str, str]] = {
    "BOOL": "?", "UINT8": "u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8",
    "INT8": "i1", "INT16": "<i2", "INT32": "<i4", "INT64": "<i8",
    "FP16": "<f2", "FP32": "<f4", "FP64": "<f8", "BF16": "<u2", "BYTES": "O",
}  # fmt: skip


class CallFailedError(Exception):
    """The server refused a request, or its answer could not be read; the text says which."""


class MissingError(CallFailedError):
    """The server doesn't have this way to ask at all, which not every KServe server must."""


class SilentError(CallFailedError):
    """No answer came in time; asking again would only wait again."""


_IS_TLS: Final[Mapping[str, bool]] = {"http": False, "https": True, "grpc": False, "grpcs": True}


@dataclass(frozen=True, slots=True)
class Place:
    """A URL's parts.

    Attributes:
        authority: ``HOST:PORT``.
        path: that a gateway puts in front of ``/v2``, without a slash at its end.
        is_tls: whether it is reached over TLS.
    """

    authority: str
    path: str
    is_tls: bool

    @classmethod
    def parse(cls, url: str) -> "Place":
        """From ``HOST:PORT``, ``https://HOST:PORT/PATH`` or ``grpcs://HOST:PORT``.

        Raises:
            InvalidArgumentError: it is no such address.
        """
        scheme, found, rest = url.rpartition("://")
        is_tls = _IS_TLS.get(scheme if found else "http")
        authority, _, path = rest.partition("/")
        if is_tls is None or not authority:
            raise InvalidArgumentError(
                f"'{url}' is not the address of a server; write it as HOST:PORT or, for TLS, as "
                "https://HOST:PORT"
            )
        return cls(authority, f"/{path}".rstrip("/"), is_tls)


@dataclass(frozen=True, slots=True)
class Target:
    """One served model version, with the datatypes its golden cases were recorded in.

    Attributes:
        address: ``HOST:PORT`` or ``https://HOST:PORT`` of the HTTP service.
        model: name.
        version: number, as in the repository.
        inputs: input name -> v2 datatype.
        outputs: output name -> v2 datatype; all of them are asked for.
        grpc_address: the same of the gRPC service; "" where there is none.
        credentials: by which both let us in.
    """

    address: str
    model: str
    version: int
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    grpc_address: str = ""
    credentials: Credentials = field(default_factory=Credentials)

    def datatypes(self) -> set[str]:
        """Every datatype that a request or its answer carries."""
        return {*self.inputs.values(), *self.outputs.values()}


class Caller(Protocol):
    """One connection's worth of calls; used by one thread."""

    def infer(self, inputs: Mapping[str, Array], *, binary: bool) -> dict[str, Array]:
        """Send one request and read its outputs.

        Args:
            inputs: name -> array with the batch axis.
            binary: tensors as binary data after the JSON, in both directions.

        Raises:
            CallFailedError: an error answer or an unreadable one.
        """
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


def open_caller(target: Target) -> Caller:
    """The most independent caller that can carry the target's datatypes."""
    # What tritonclient takes for BF16 changed in its 2.71 (floats before, ml_dtypes since).
    if "BF16" not in target.datatypes() and importlib.util.find_spec("tritonclient") is not None:
        try:
            return TritonClientCaller(target)
        except ImportError:
            # tritonclient without its [http] extra
            return PlainCaller(target)
    return PlainCaller(target)


class TritonClientCaller:
    """Calls through ``tritonclient.http``."""

    def __init__(self, target: Target) -> None:
        import tritonclient.http  # noqa: PLC0415  # optional, and 0.3 s with gevent

        self._library = tritonclient.http
        self._target = target
        place = Place.parse(target.address)
        self._client = tritonclient.http.InferenceServerClient(
            place.authority + place.path, connection_timeout=TIMEOUT_S, network_timeout=TIMEOUT_S,
            ssl=place.is_tls, ssl_options=_tls_options(target.credentials),
        )  # fmt: skip

    def infer(self, inputs: Mapping[str, Array], *, binary: bool) -> dict[str, Array]:
        """As :meth:`Caller.infer`."""
        target = self._target
        try:
            result = self._client.infer(
                target.model,
                [self._input(name, data, binary=binary) for name, data in inputs.items()],
                model_version=str(target.version),
                outputs=[
                    self._library.InferRequestedOutput(name, binary_data=binary)
                    for name in target.outputs
                ],
                headers=dict(target.credentials.headers),
            )
            return {name: self._output(result, name) for name in target.outputs}
        except TimeoutError as error:
            raise SilentError(_no_answer()) from error
        except (
            self._library.InferenceServerException,
            http.client.HTTPException,  # what geventhttpclient raises of a closed connection
            OSError,
            ValueError,
        ) as error:
            raise CallFailedError(str(error)) from error

    def _input(self, name: str, data: Array, *, binary: bool) -> Any:
        tensor = self._library.InferInput(name, list(data.shape), self._target.inputs[name])
        return tensor.set_data_from_numpy(data, binary_data=binary)

    def _output(self, result: Any, name: str) -> Array:
        array = result.as_numpy(name)
        if array is None:
            raise CallFailedError(f"the answer has no output '{name}'")
        return text_as_bytes(array)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


def _tls_options(credentials: Credentials) -> dict[str, str]:
    """As ``ssl.SSLContext`` and geventhttpclient call them."""
    files = {
        "ca_certs": credentials.trusted_file(),
        "certfile": credentials.certificate,
        "keyfile": credentials.key,
    }
    return {name: str(file) for name, file in files.items() if file is not None}


class PlainCaller:
    """Calls through the standard library, for where tritonclient is not installed."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._path = Place.parse(target.address).path
        self._connection = _connect(target)

    def infer(self, inputs: Mapping[str, Array], *, binary: bool) -> dict[str, Array]:
        """As :meth:`Caller.infer`."""
        target = self._target
        body, json_length = self._encode(inputs, binary=binary)
        kind = "application/octet-stream" if binary else "application/json"
        headers = {**target.credentials.headers, "Content-Type": kind}
        if binary:
            headers["Inference-Header-Content-Length"] = str(json_length)
        path = f"{self._path}/v2/models/{target.model}/versions/{target.version}/infer"
        try:
            self._connection.request("POST", path, body, headers)
            response = self._connection.getresponse()
            answer = response.read()
            if response.status != 200:
                raise CallFailedError(f"[{response.status}] {answer.decode(errors='replace')}")
            length = response.headers.get("Inference-Header-Content-Length")
            return self._decode(answer, len(answer) if length is None else int(length))
        except TimeoutError as error:
            self._connection.close()
            raise SilentError(_no_answer()) from error
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
            self._connection.close()
            raise CallFailedError(f"{type(error).__name__}: {error}") from error

    def _encode(self, inputs: Mapping[str, Array], *, binary: bool) -> tuple[bytes, int]:
        blobs: list[bytes] = []
        tensors = []
        for name, data in inputs.items():
            tensor: dict[str, Any] = {
                "name": name,
                "shape": list(data.shape),
                "datatype": self._target.inputs[name],
            }
            if binary:
                blob = to_wire_bytes(data)
                blobs.append(blob)
                tensor["parameters"] = {"binary_data_size": len(blob)}
            else:
                tensor["data"] = _to_json_list(data)
            tensors.append(tensor)
        wanted = [{"name": n, "parameters": {"binary_data": binary}} for n in self._target.outputs]
        header = json.dumps({"inputs": tensors, "outputs": wanted}).encode()
        return b"".join([header, *blobs]), len(header)

    def _decode(self, answer: bytes, json_length: int) -> dict[str, Array]:
        outputs: dict[str, Array] = {}
        offset = json_length
        for tensor in json.loads(answer[:json_length])["outputs"]:
            size = tensor.get("parameters", {}).get("binary_data_size")
            if size is None:
                array = np.array(tensor["data"], dtype=_DTYPES[tensor["datatype"]])
            else:
                array = from_wire_bytes(answer[offset : offset + size], tensor["datatype"])
            offset += size or 0
            outputs[tensor["name"]] = text_as_bytes(array.reshape(tensor["shape"]))
        return outputs

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def has_binary_tensors(target: Target) -> bool:
    """Whether a server takes tensors as binary data after the JSON, an extension of Triton's."""
    try:
        extensions = get_json(target, "/v2")["extensions"]
    except (CallFailedError, LookupError, TypeError):
        # A server that doesn't tell is tried.
        return True
    return not isinstance(extensions, list) or "binary_tensor_data" in extensions


def _no_answer() -> str:
    return f"no answer within {TIMEOUT_S:g} s"


def get_json(target: Target, path: str) -> Any:
    """The JSON answer to one GET.

    Raises:
        CallFailedError: no connection, or another status than 200.
    """
    return _request(target, "GET", path)


def post(target: Target, path: str) -> Any:
    """The JSON answer to one POST without a body.

    Raises:
        CallFailedError: no connection, or another status than 200.
    """
    return _request(target, "POST", path)


def _connect(target: Target) -> http.client.HTTPConnection:
    """A connection that opens with its first request.

    Raises:
        CallFailedError: the address has no usable port, or a certificate's file can't be used.
    """
    place = Place.parse(target.address)
    try:
        if not place.is_tls:
            return http.client.HTTPConnection(place.authority, timeout=TIMEOUT_S)
        context = target.credentials.tls_context()
        return http.client.HTTPSConnection(place.authority, timeout=TIMEOUT_S, context=context)
    except (http.client.HTTPException, InvalidArgumentError) as error:
        raise CallFailedError(f"{target.address}: {error}") from error


def _request(target: Target, method: str, path: str) -> Any:
    place = Place.parse(target.address)
    connection = _connect(target)
    try:
        connection.request(method, place.path + path, headers=dict(target.credentials.headers))
        response = connection.getresponse()
        body = response.read()
        if response.status != 200:
            told = body[:500].decode(errors="replace")
            # Its own error in the protocol's form, or whatever stands between us and the server.
            with contextlib.suppress(ValueError, LookupError, TypeError):
                told = json.loads(body)["error"]
            raise CallFailedError(
                f"{method} {path} answered {response.status}: {told}{_advise(response.status)}"
            )
        return json.loads(body or b"null")
    except (OSError, http.client.HTTPException, ValueError) as error:
        scheme = "https" if place.is_tls else "http"
        raise CallFailedError(
            f"{method} {scheme}://{place.authority}{place.path}{path}: {error}"
            f"{advise_certificate(error)}"
        ) from error
    finally:
        connection.close()


def _advise(status: int) -> str:
    if status not in {http.client.UNAUTHORIZED, http.client.FORBIDDEN}:
        return ""
    return ". --header 'KEY: VALUE' sends what a server wants to see"


def _to_json_list(data: Array) -> list[Any]:
    flat: list[Any] = data.reshape(-1).tolist()
    return [e.decode() if isinstance(e, bytes) else e for e in flat]


def to_wire_bytes(data: Array) -> bytes:
    """The elements in the protocol's binary form."""
    if not data.dtype.hasobject:
        return data.tobytes()
    elements = data.reshape(-1).tolist()
    return b"".join(struct.pack("<I", len(element)) + element for element in elements)


def from_wire_bytes(blob: bytes, datatype: str) -> Array:
    """The elements of a v2 datatype in the protocol's binary form, as a flat array."""
    dtype = np.dtype(_DTYPES[datatype])
    return _from_wire_text(blob) if dtype.hasobject else np.frombuffer(blob, dtype=dtype)


def _from_wire_text(blob: bytes) -> Array:
    elements, offset = [], 0
    while offset < len(blob):
        (length,) = struct.unpack_from("<I", blob, offset)
        elements.append(blob[offset + 4 : offset + 4 + length])
        offset += 4 + length
    return np.array(elements, dtype=object)
