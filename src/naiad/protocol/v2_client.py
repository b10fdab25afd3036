"""The client's half of the v2 inference protocol over HTTP: requests to bytes, answers to values.

Sources: KServe's inference_rest.md and Triton's extension_binary_data.md. With the binary data
extension a body is a JSON header followed by the tensors' bytes, in the order of the inputs or
outputs that announce a ``binary_data_size``; the header's length travels in the HTTP header
``Inference-Header-Content-Length``.
"""

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson

from naiad.errors import (
    AlreadyExistsError,
    CancelledError,
    InternalError,
    InvalidArgumentError,
    NaiadError,
    NotFoundError,
    PermissionDeniedError,
    UnavailableError,
    UnknownError,
    UnsupportedError,
)
from naiad.inference.datatypes import BF16, BY_NAME, BYTES, FP16, Datatype
from naiad.inference.request import ParameterValue
from naiad.inference.tensor import Tensor

_LENGTH_PREFIX: Final = struct.Struct("<I")
# Enough of a proxy's page to know it by; the rest is markup.
_FOREIGN_BODY_BYTES: Final = 200

# A status has less to say than an error code, so this is the usual meaning, not an inverse.
# 429, 502 and 504 come from proxies in front of the server: not now, perhaps later.
_ERROR_BY_STATUS: Final[Mapping[int, type[NaiadError]]] = MappingProxyType(
    {
        400: InvalidArgumentError,
        401: PermissionDeniedError,
        403: PermissionDeniedError,
        404: NotFoundError,
        409: AlreadyExistsError,
        413: InvalidArgumentError,
        429: UnavailableError,
        499: CancelledError,
        500: InternalError,
        501: UnsupportedError,
        502: UnavailableError,
        503: UnavailableError,
        504: UnavailableError,
    }
)


@dataclass(slots=True)
class InferResult:
    """What the server answered to one inference request.

    Attributes:
        model_name: of the model that answered.
        model_version: the version that ran, as the server wrote it.
        request_id: echoed from the request; empty when it had none.
        outputs: by name, in the server's order; data that came in binary is a read-only view
            of the response body.
        parameters: of the response as a whole.
    """

    model_name: str
    model_version: str
    request_id: str
    outputs: dict[str, Tensor]
    parameters: dict[str, ParameterValue] = field(default_factory=dict)


def encode_infer_request(
    inputs: Sequence[Tensor],
    *,
    output_names: Sequence[str] | None = None,
    request_id: str = "",
    parameters: Mapping[str, ParameterValue] | None = None,
    binary: bool = True,
) -> tuple[bytes, int]:
    """The body of a request and the length of its JSON header.

    Args:
        inputs: in the order in which they are written.
        output_names: what to compute; None asks for all outputs of the model.
        request_id: echoed in the answer; empty for none.
        parameters: of the request, such as ``sequence_id`` or ``priority``.
        binary: tensors travel as bytes, in both directions; otherwise as JSON, and the whole
            body is the header.

    Raises:
        InvalidArgumentError: the tensor can't be written as JSON (FP16, BF16, or BYTES that are
            not UTF-8), or its data is not what its shape and datatype say.
    """
    tails: list[memoryview] = []
    header: dict[str, Any] = {}
    if request_id:
        header["id"] = request_id
    request_parameters = dict(parameters or {})
    if binary and output_names is None:
        request_parameters["binary_data_output"] = True
    if request_parameters:
        header["parameters"] = request_parameters
    header["inputs"] = [_encode_input(tensor, tails, binary=binary) for tensor in inputs]
    if output_names is not None:
        header["outputs"] = [_output_entry(name, binary=binary) for name in output_names]
    encoded = _dump_json(header)
    return b"".join((encoded, *tails)), len(encoded)


def _output_entry(name: str, *, binary: bool) -> dict[str, Any]:
    if binary:
        return {"name": name, "parameters": {"binary_data": True}}
    return {"name": name}


def _encode_input(tensor: Tensor, tails: list[memoryview], *, binary: bool) -> dict[str, Any]:
    """The header's entry for ``tensor``; its bytes, if any, are appended to ``tails``."""
    _check_data(tensor)
    entry: dict[str, Any] = {
        "name": tensor.name,
        "shape": [int(dim) for dim in tensor.shape],
        "datatype": tensor.datatype.name,
    }
    if binary:
        tail = _binary_data(tensor)
        entry["parameters"] = {"binary_data_size": tail.nbytes}
        tails.append(tail)
    else:
        entry["data"] = _json_data(tensor)
    return entry


def _check_data(tensor: Tensor) -> None:
    if tuple(tensor.data.shape) != tuple(tensor.shape):
        msg = (
            f"input '{tensor.name}' is announced with shape {list(tensor.shape)} "
            f"but its data has shape {list(tensor.data.shape)}"
        )
        raise InvalidArgumentError(msg)
    if tensor.data.dtype != tensor.datatype.dtype:
        msg = (
            f"input '{tensor.name}' has datatype {tensor.datatype.name}, which needs data of "
            f"numpy dtype {tensor.datatype.dtype}, got {tensor.data.dtype}"
        )
        raise InvalidArgumentError(msg)


def _binary_data(tensor: Tensor) -> memoryview:
    if tensor.datatype is BYTES:
        return memoryview(_join_bytes_elements(tensor))
    return np.ascontiguousarray(tensor.data).data


def _join_bytes_elements(tensor: Tensor) -> bytes:
    pieces: list[bytes] = []
    for element in tensor.data.ravel():
        if not isinstance(element, bytes):
            msg = (
                f"input '{tensor.name}' has datatype BYTES, whose elements are bytes; got "
                f"{type(element).__name__}. Encode text first, for example with .encode()"
            )
            raise InvalidArgumentError(msg)
        pieces.append(_LENGTH_PREFIX.pack(len(element)))
        pieces.append(element)
    return b"".join(pieces)


def _json_data(tensor: Tensor) -> npt.NDArray[Any] | list[Any] | orjson.Fragment:
    """The elements in row-major order, as something that :func:`_dump_json` writes."""
    if tensor.datatype is FP16 or tensor.datatype is BF16:
        msg = (
            f"sending {tensor.datatype.name} data via JSON is not supported. "
            f"Please use the binary data format for input {tensor.name}"
        )
        raise InvalidArgumentError(msg)
    if tensor.datatype is BYTES:
        try:
            return [element.decode() for element in tensor.data.ravel()]
        except (UnicodeDecodeError, AttributeError) as error:
            msg = (
                f"input '{tensor.name}' can't be sent as JSON: {error}. JSON carries BYTES as "
                f"UTF-8 text only; use the binary data format for anything else"
            )
            raise InvalidArgumentError(msg) from error
    if tensor.data.dtype.kind == "f" and not np.isfinite(tensor.data).all():
        # Triton reads and writes the literals NaN and Infinity; orjson would write null.
        return orjson.Fragment(json.dumps(tensor.data.ravel().tolist()))
    return np.ascontiguousarray(tensor.data).ravel()


def _dump_json(header: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(header, option=orjson.OPT_SERIALIZE_NUMPY)
    except orjson.JSONEncodeError as error:
        msg = f"the request can't be written as JSON: {error}"
        raise InvalidArgumentError(msg) from error


def decode_infer_response(body: bytes, header_length: int | None = None) -> InferResult:
    """The outputs in a response of status 200.

    Args:
        body: kept alive by the tensors that view it.
        header_length: of the JSON header, as ``Inference-Header-Content-Length`` says; None
            where the response has no such header and is JSON as a whole.

    Raises:
        InternalError: the body is not what the protocol describes, so something between the
            model and this client is broken.
    """
    if header_length is None:
        header_length = len(body)
    if not 0 <= header_length <= len(body):
        msg = f"the response announces a JSON header of {header_length} bytes in {len(body)} bytes"
        raise InternalError(msg)
    try:
        header = load_json(body[:header_length])
        outputs = _decode_outputs(header.get("outputs", []), body, header_length)
        return InferResult(
            model_name=header.get("model_name", ""),
            model_version=str(header.get("model_version", "")),
            request_id=header.get("id", ""),
            outputs=outputs,
            parameters=header.get("parameters", {}),
        )
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        msg = f"the response is not one of the v2 inference protocol: {error!r}"
        raise InternalError(msg) from error


def load_json(text: bytes) -> Any:
    """JSON as Triton writes it, with the literals NaN and Infinity.

    Raises:
        ValueError: it isn't JSON.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        try:
            return json.loads(text)
        except RecursionError as error:
            msg = "JSON is nested too deeply"
            raise ValueError(msg) from error


def _decode_outputs(
    entries: Sequence[dict[str, Any]], body: bytes, offset: int
) -> dict[str, Tensor]:
    outputs: dict[str, Tensor] = {}
    for entry in entries:
        name = entry["name"]
        datatype = BY_NAME[entry["datatype"]]
        shape = tuple(entry["shape"])
        if any(type(dim) is not int or dim < 0 for dim in shape):
            msg = f"output '{name}' has shape {list(shape)}"
            raise ValueError(msg)
        size = entry.get("parameters", {}).get("binary_data_size")
        if size is None:
            data = _decode_json_data(datatype, shape, entry["data"])
        elif 0 <= size <= len(body) - offset:
            data = _decode_binary_data(name, datatype, shape, memoryview(body)[offset:][:size])
            offset += size
        else:
            msg = f"output '{name}' announces {size} bytes where {len(body) - offset} are left"
            raise ValueError(msg)
        outputs[name] = Tensor(name, datatype, shape, data)
    if offset != len(body):
        msg = f"{len(body) - offset} bytes follow the last output"
        raise ValueError(msg)
    return outputs


def _decode_json_data(
    datatype: Datatype, shape: tuple[int, ...], data: list[Any]
) -> npt.NDArray[Any]:
    if datatype is not BYTES:
        return np.array(data, datatype.dtype).reshape(shape)
    # Flat from Triton; other servers nest. Either way the leaves are text.
    texts = np.array(data, np.object_).reshape(-1)
    return _object_array([text.encode() for text in texts], shape)


def _decode_binary_data(
    name: str, datatype: Datatype, shape: tuple[int, ...], data: memoryview
) -> npt.NDArray[Any]:
    if datatype is BYTES:
        return _object_array(_split_bytes_elements(name, data), shape)
    expected = math.prod(shape) * datatype.byte_size
    if len(data) != expected:
        msg = f"output '{name}' needs {expected} bytes for its shape, got {len(data)}"
        raise ValueError(msg)
    return np.frombuffer(data, datatype.dtype).reshape(shape)


def _split_bytes_elements(name: str, data: memoryview) -> list[bytes]:
    elements: list[bytes] = []
    position = 0
    while position < len(data):
        start = position + _LENGTH_PREFIX.size
        end = start
        if start <= len(data):
            end += _LENGTH_PREFIX.unpack_from(data, position)[0]
        if end > len(data):
            msg = f"output '{name}' ends within element {len(elements)}"
            raise ValueError(msg)
        elements.append(bytes(data[start:end]))
        position = end
    return elements


def _object_array(elements: list[bytes], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    # Filled after it was made: np.array() would take equally long bytes for a string dtype.
    array = np.empty(len(elements), np.object_)
    array[:] = elements
    return array.reshape(shape)


def decode_error(status: int, body: bytes) -> NaiadError:
    """What a response of another status than 200 means.

    Args:
        status: of the HTTP response.
        body: ``{"error": "..."}`` from a v2 server; anything else comes from something in
            between, and its first bytes are quoted in the message.
    """
    error_class = _ERROR_BY_STATUS.get(status)
    if error_class is None:
        error_class = InvalidArgumentError if 400 <= status < 500 else UnknownError
    message = _error_message(body)
    if message is None:
        start = body[:_FOREIGN_BODY_BYTES].decode("utf-8", "replace").strip()
        message = f"HTTP status {status} without a v2 error message; the body " + (
            f"starts with: {start}" if start else "is empty"
        )
    return error_class(message)


def _error_message(body: bytes) -> str | None:
    try:
        decoded = load_json(body)
    except ValueError:
        return None
    message = decoded.get("error") if isinstance(decoded, dict) else None
    return message if isinstance(message, str) else None
