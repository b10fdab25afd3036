"""The client's half of the v2 inference protocol over HTTP: requests to bytes, answers to values.

Sources: KServe's inference_rest.md and Triton's extension_binary_data.md. With the binary data
extension a body is a JSON header followed by the tensors' bytes, in the order of the inputs or
outputs that announce a ``binary_data_size``; the header's length travels in the HTTP header
``Inference-Header-Content-Length``.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

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
from naiad.protocol.binary_data import (
    arrange_elements,
    decode_elements,
    encode_tensor,
    view_tensor,
)
from naiad.protocol.json_data import decode_data, encode_data
from naiad.protocol.json_text import Buffer, parse_json

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
        outputs: by name, in the server's order; data that came in binary may be a read-only
            view of the response body.
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
    classes: Mapping[str, int] | None = None,
    binary: bool = True,
) -> tuple[bytes, int]:
    """The body of a request and the length of its JSON header.

    Args:
        inputs: in the order in which they are written.
        output_names: what to compute; None asks for all outputs of the model.
        request_id: echoed in the answer; empty for none.
        parameters: of the request, such as ``sequence_id`` or ``priority``.
        classes: for some of ``output_names``, how many of its largest values to get, as text
            ``value:index:label``, instead of the tensor (the classification extension).
        binary: tensors travel as bytes, in both directions; otherwise as JSON, and the whole
            body is the header.

    Raises:
        InvalidArgumentError: the tensor can't be written as JSON (FP16, BF16, or BYTES that are
            not UTF-8), or its data is not what its shape and datatype say.
    """
    tails: list[Buffer] = []
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
        counts = classes or {}
        header["outputs"] = [
            _output_entry(name, counts.get(name, 0), binary=binary) for name in output_names
        ]
    encoded = _dump_json(header)
    return b"".join((encoded, *tails)), len(encoded)


def _output_entry(name: str, class_count: int, *, binary: bool) -> dict[str, Any]:
    parameters: dict[str, ParameterValue] = {}
    if binary:
        parameters["binary_data"] = True
    if class_count:
        parameters["classification"] = class_count
    return {"name": name, "parameters": parameters} if parameters else {"name": name}


def _encode_input(tensor: Tensor, tails: list[Buffer], *, binary: bool) -> dict[str, Any]:
    """The header's entry for ``tensor``; its bytes, if any, are appended to ``tails``."""
    _check_data(tensor)
    entry: dict[str, Any] = {
        "name": tensor.name,
        "shape": [int(dim) for dim in tensor.shape],
        "datatype": tensor.datatype.name,
    }
    if binary:
        tail, size = encode_tensor(tensor.datatype, tensor.data)
        entry["parameters"] = {"binary_data_size": size}
        tails.append(tail)
    else:
        entry["data"] = orjson.Fragment(_encode_json_data(tensor))
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
    if tensor.datatype is BYTES:
        _check_elements(tensor)


def _check_elements(tensor: Tensor) -> None:
    for element in tensor.data.flat:
        if not isinstance(element, bytes):
            msg = (
                f"input '{tensor.name}' has datatype BYTES, whose elements are bytes; got "
                f"{type(element).__name__}. Encode text first, for example with .encode()"
            )
            raise InvalidArgumentError(msg)


def _encode_json_data(tensor: Tensor) -> bytes:
    if tensor.datatype is FP16 or tensor.datatype is BF16:
        msg = (
            f"sending {tensor.datatype.name} data via JSON is not supported. "
            f"Please use the binary data format for input {tensor.name}"
        )
        raise InvalidArgumentError(msg)
    try:
        return encode_data(tensor)
    except InvalidArgumentError as error:
        msg = (
            f"input '{tensor.name}' can't be sent as JSON, which carries BYTES as UTF-8 text "
            f"only; use the binary data format for anything else"
        )
        raise InvalidArgumentError(msg) from error


def _dump_json(header: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(header)
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
        header = parse_json(body[:header_length])
        outputs = _decode_outputs(header.get("outputs", []), body, header_length)
        return InferResult(
            model_name=header.get("model_name", ""),
            model_version=str(header.get("model_version", "")),
            request_id=header.get("id", ""),
            outputs=outputs,
            parameters=header.get("parameters", {}),
        )
    except (AttributeError, KeyError, TypeError, ValueError, InvalidArgumentError) as error:
        msg = f"the response is not one of the v2 inference protocol: {error!r}"
        raise InternalError(msg) from error


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
            data = decode_data(entry["data"], datatype, shape, math.prod(shape), name)
        elif 0 <= size <= len(body) - offset:
            data = _decode_binary_data(entry, datatype, body, offset, size)
            offset += size
        else:
            msg = f"output '{name}' announces {size} bytes where {len(body) - offset} are left"
            raise ValueError(msg)
        outputs[name] = Tensor(name, datatype, shape, data)
    if offset != len(body):
        msg = f"{len(body) - offset} bytes follow the last output"
        raise ValueError(msg)
    return outputs


def _decode_binary_data(
    entry: Mapping[str, Any], datatype: Datatype, body: bytes, offset: int, size: int
) -> npt.NDArray[Any]:
    name, shape = entry["name"], entry["shape"]
    if datatype is BYTES:
        elements = decode_elements(memoryview(body)[offset : offset + size], name)
        return arrange_elements(elements, shape)
    expected = math.prod(shape) * datatype.byte_size
    if size != expected:
        msg = f"output '{name}' needs {expected} bytes for its shape, got {size}"
        raise ValueError(msg)
    return view_tensor(datatype, shape, body, offset)


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
        decoded = parse_json(body)
    except InvalidArgumentError:
        return None
    message = decoded.get("error") if isinstance(decoded, dict) else None
    return message if isinstance(message, str) else None
