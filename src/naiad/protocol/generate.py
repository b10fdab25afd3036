"""The generate extension: one flat JSON object in, one flat JSON object out for each response.

Source: Triton's extension_generate.md. Keys that name an input are tensors, the others parameters.
"""

import json
from collections.abc import Generator, Mapping, Sequence
from math import prod
from typing import Any, Final

import numpy as np
import orjson

from naiad.errors import InvalidArgumentError
from naiad.inference.datatypes import BYTES
from naiad.inference.request import InferRequest, ResponseCallback
from naiad.inference.response import InferResponse
from naiad.inference.tensor import Tensor
from naiad.model_config.signature import ModelSignature, TensorSpec
from naiad.protocol.binary_data import arrange_elements
from naiad.protocol.json_data import decode_data, encode_data, encode_strings, flatten
from naiad.protocol.json_text import LIMIT_ADVICE, Buffer, parse_json, wrong_type
from naiad.protocol.output_data import NOTHING, EncodedData, encode_large_outputs
from naiad.protocol.requested_outputs import ALL_AS_JSON
from naiad.protocol.v2_json import check_element_count, decode_parameter

# A server-sent event stream may have it anywhere; clients skip it.
EMPTY_COMMENT: Final = b":\n\n"
EVENT_START: Final = b"data: "
EVENT_END: Final = b"\n\n"

_NESTED: Final = "parameters"
# Of the length that goes before every element on the wire.
_LENGTH_BYTES: Final = 4


def decode_generate_request(
    signature: ModelSignature,
    text: Buffer,
    max_input_bytes: int,
    on_response: ResponseCallback,
    received_ns: int,
) -> InferRequest:
    """Decode the body of a generate request.

    Args:
        signature: of the model that is asked; it says which keys are inputs, of which datatype and
            shape.
        text: a JSON object; read only while the call lasts.
        max_input_bytes: of the text, and of all tensors together.
        on_response: goes into the request.
        received_ns: goes into the request.

    Returns:
        A request for all outputs, whose inputs are not yet held against the signature.
        ``sequence_id``, ``priority`` and ``timeout`` are parameters like any other, as in Triton: a
        model's own parameters have such names.

    Raises:
        InvalidArgumentError: the body is wrong; the text says where.
    """
    if len(text) > max_input_bytes:
        raise InvalidArgumentError(
            f"request JSON size of {len(text)} bytes exceeds the maximum allowed input size of "
            f"{max_input_bytes} bytes. {LIMIT_ADVICE}"
        )
    document = parse_json(text)
    if type(document) is not dict:
        raise InvalidArgumentError("attempt to get members for non-object")
    request_id = document.get("id", "")
    if type(request_id) is not str:
        raise wrong_type("id", "string")
    request = InferRequest(request_id, {}, None, on_response, received_ns)
    _refuse_repeated_inputs(document, signature, text)
    _Decoder(signature, request, max_input_bytes).decode_members(document)
    return request


def encode_generate_response(response: InferResponse) -> bytes:
    """One response as a flat object, sorted by key; a tensor of one element is a scalar.

    Raises:
        InvalidArgumentError: an output that JSON can not carry.
    """
    return b"".join(_join_members(response, NOTHING))


def encode_generate_in_steps(response: InferResponse) -> Generator[None, None, list[Buffer]]:
    """The pieces of ``encode_generate_response``, pausing now and then."""
    return _join_members(response, (yield from encode_large_outputs(response, ALL_AS_JSON)))


def _join_members(response: InferResponse, encoded: EncodedData) -> list[Buffer]:
    """The pieces of the object; ``encoded`` has the data of outputs that were encoded before."""
    # Where names collide Triton keeps the first, in this order.
    members: dict[str, Sequence[Buffer]] = {
        tensor.name: encoded.get(tensor.name) or (_encode_tensor(tensor),)
        for tensor in response.outputs
    }
    for key, value in (response.parameters or {}).items():
        members[key] = (orjson.dumps(value),)
    members["model_name"] = (orjson.dumps(response.model_name),)
    members["model_version"] = (b'"%d"' % response.model_version,)
    if response.request_id:
        members["id"] = (orjson.dumps(response.request_id),)
    pieces: list[Buffer] = []
    separator = b"{"
    for key in sorted(members):
        pieces.append(b"%b%b:" % (separator, orjson.dumps(key)))
        pieces += members[key]
        separator = b","
    pieces.append(b"}")
    return pieces


def encode_event(data: bytes) -> bytes:
    """``data``, which has no line breaks, as a server-sent event."""
    return b"%b%b%b" % (EVENT_START, data, EVENT_END)


def _encode_tensor(tensor: Tensor) -> bytes:
    data = encode_data(tensor)
    return data[1:-1] if tensor.data.size == 1 else data


def _refuse_repeated_inputs(
    document: Mapping[str, Any], signature: ModelSignature, text: Buffer
) -> None:
    """Refuse a body that gives an input twice; the parser has kept only the last one."""
    raw = bytes(text)
    for name in signature.inputs:
        # Once is the rule. The quoted name may also be a value, which the second reading tells.
        if name in document and raw.count(orjson.dumps(name)) > 1:
            json.loads(raw, object_pairs_hook=lambda pairs: _refuse_pairs(pairs, signature))
            return


def _refuse_pairs(pairs: list[tuple[str, Any]], signature: ModelSignature) -> None:
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise _repeated(key)
        if key in signature.inputs:
            seen.add(key)


def _repeated(name: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"input '{name}' already exists in request")


class _Decoder:
    """The members of one body, on their way into a request."""

    __slots__ = ("_max_input_bytes", "_request", "_signature", "_size_bytes")

    def __init__(
        self, signature: ModelSignature, request: InferRequest, max_input_bytes: int
    ) -> None:
        self._signature = signature
        self._request = request
        self._max_input_bytes = max_input_bytes
        self._size_bytes = 0

    def decode_members(self, members: Mapping[str, Any]) -> None:
        for key, value in members.items():
            if key == _NESTED:
                self._decode_nested(value)
            elif key != "id" or key in self._signature.inputs:
                self._decode_member(key, value)

    def _decode_nested(self, members: object) -> None:
        """The object whose members count as if they were one level higher."""
        if _NESTED in self._signature.inputs:
            raise InvalidArgumentError(
                f"Keyword '{_NESTED}' for nested schema also given as input tensor name"
            )
        if type(members) is not dict:
            raise InvalidArgumentError(
                f"Expected JSON object for keyword: '{_NESTED}': attempt to access JSON non-object "
                "as object"
            )
        try:
            for key, value in members.items():
                self._decode_member(key, value)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(
                f"Converting keyword: '{_NESTED}': {error.message}"
            ) from None

    def _decode_member(self, key: str, value: object) -> None:
        request = self._request
        spec = self._signature.inputs.get(key)
        if spec is None:
            parameter = decode_parameter(key, value)
            if request.parameters is None:
                request.parameters = {}
            request.parameters[key] = parameter
        elif key in request.inputs:
            raise _repeated(key)
        else:
            request.inputs[key] = self._decode_tensor(spec, value)

    def _decode_tensor(self, spec: TensorSpec, value: object) -> Tensor:
        data: list[Any] = value if type(value) is list else [value]
        name, datatype = spec.name, spec.datatype
        if not data and (spec.dims or self._signature.max_batch_size):
            # Triton gives such an input no shape at all, which validation then refuses.
            empty = np.array(b"" if datatype is BYTES else 0, datatype.dtype)
            return Tensor(name, datatype, (), empty)
        elements: list[bytes] = []
        if datatype is BYTES:
            elements = encode_strings(*flatten(data))
            size_bytes = sum(map(len, elements)) + _LENGTH_BYTES * len(elements)
        else:
            size_bytes = len(data) * datatype.byte_size
        self._take_room(name, size_bytes)
        shape = self._deduce_shape(spec, len(data))
        if datatype is BYTES:
            check_element_count(
                self._signature.name,
                self._request.request_id,
                name,
                prod(shape),
                len(elements),
            )
            return Tensor(name, datatype, shape, arrange_elements(elements, shape))
        return Tensor(name, datatype, shape, decode_data(data, datatype, shape, len(data), name))

    def _take_room(self, name: str, size_bytes: int) -> None:
        if self._size_bytes + size_bytes > self._max_input_bytes:
            raise InvalidArgumentError(
                f"request size of {self._size_bytes} bytes with input '{name}' of size "
                f"{size_bytes} bytes exceeds the maximum allowed input size of "
                f"{self._max_input_bytes} bytes. {LIMIT_ADVICE}"
            )
        self._size_bytes += size_bytes

    def _deduce_shape(self, spec: TensorSpec, count: int) -> list[int]:
        """The model's shape, where the innermost free dimension takes what the fixed ones leave.

        The batch axis is the outermost free dimension, so a list of several rows of fixed dims is a
        batch.
        """
        shape = [*spec.dims] if not self._signature.max_batch_size else [-1, *spec.dims]
        fixed = prod(dim for dim in shape if dim != -1)
        if fixed == 0 or count % fixed:
            raise _no_shape(spec.name)
        rest = count // fixed
        for index in reversed(range(len(shape))):
            if shape[index] == -1:
                shape[index], rest = rest, 1
        if rest != 1:
            raise _no_shape(spec.name)
        return shape


def _no_shape(name: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"The schema can not convert input '{name}' to tensor with proper shape"
    )
