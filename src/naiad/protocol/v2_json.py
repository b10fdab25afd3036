"""Inference requests of the v2 protocol as JSON, with or without a binary tail.

Sources: KServe's inference_rest.md and Triton's extension_{binary_data, classification, parameters,
schedule_policy, sequence, shared_memory}.md. Error texts begin as Triton's; the class is always
"invalid argument" where the request is at fault, while Triton calls some of these internal errors.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Any, Final, Protocol

import numpy as np

from naiad.errors import InvalidArgumentError, NotFoundError
from naiad.inference.datatypes import BY_NAME, BYTES, Datatype
from naiad.inference.request import InferRequest, ParameterValue, ResponseCallback
from naiad.inference.tensor import SharedTensor, Tensor
from naiad.model_config.signature import ModelSignature
from naiad.protocol.binary_data import (
    CutOffLengthError,
    arrange_elements,
    arrange_elements_in_steps,
    decode_elements,
    decode_elements_in_steps,
    elements_memory,
    view_tensor,
)
from naiad.protocol.json_data import SeparateData, decode_data, encode_strings, flatten
from naiad.protocol.json_text import (
    LIMIT_ADVICE,
    Buffer,
    find_repeated_keys,
    missing_member,
    parse_json,
    wrong_type,
)
from naiad.protocol.raw_request import decode_raw_request
from naiad.protocol.requested_outputs import (
    ALL_AS_BINARY,
    ALL_AS_JSON,
    AS_BINARY,
    AS_JSON,
    OutputOptions,
    RequestedOutputs,
)

DEFAULT_MAX_INPUT_BYTES: Final = 64 << 20  # Triton's --http-max-input-size

# numpy 1.x stops here; no model comes near.
_MAX_RANK: Final = 32
_MAX_ELEMENTS: Final = (1 << 63) - 1
_MAX_UINT64: Final = (1 << 64) - 1
# BYTES of this size, if their elements are short, hold the event loop for two milliseconds.
_MANY_ELEMENTS_BYTES: Final = 64 << 10
_UNFINISHED: Final = np.empty(0, np.object_)

# What an input says about itself: name, datatype, shape, number of elements.
_Declaration = tuple[str, Datatype, list[int], int]


class SharedMemoryRegions(Protocol):
    """Where tensors lie that do not travel in the body."""

    def view(self, name: str, offset: int, byte_size: int) -> memoryview:
        """The bytes of a registered region.

        Raises:
            NaiadError: no such region, or the range is not inside it.
        """
        ...


class DecodeLimits:
    """What a request may bring, and where its shared memory is.

    Attributes:
        max_input_bytes: of the JSON text, of one tensor given as JSON, and of a raw request.
            Tensors of the binary tail are bounded by the body alone.
        regions: None while no region can be registered.
    """

    __slots__ = ("max_input_bytes", "regions")

    def __init__(
        self,
        max_input_bytes: int = DEFAULT_MAX_INPUT_BYTES,
        regions: SharedMemoryRegions | None = None,
    ) -> None:
        self.max_input_bytes = max_input_bytes
        self.regions = regions


def decode_infer_request(
    signature: ModelSignature,
    text: Buffer,
    tail: Buffer,
    limits: DecodeLimits,
    on_response: ResponseCallback,
    received_ns: int,
) -> tuple[InferRequest, RequestedOutputs]:
    """Decode a request body.

    Args:
        signature: of the model that is asked; its tensors are looked up for a raw request only.
        text: the JSON header, or the whole body where there is no tail; read only while the call
            lasts. An empty one makes the tail a raw request: the whole body is the one input.
        tail: the binary tensors; the decoded inputs are views of it and keep it alive.
        limits: checked before anything is allocated.
        on_response: goes into the request.
        received_ns: goes into the request.

    Returns:
        The request, whose inputs are not yet held against the signature, and how it wants its
        outputs.

    Raises:
        InvalidArgumentError: the body is wrong; the text says where.
        NotFoundError: it names a shared memory region that does not exist.
    """
    decoded = begin_infer_request(signature, text, tail, limits, on_response, received_ns)
    for steps in decoded.unfinished:
        for _ in steps:
            pass
    return decoded.request, decoded.outputs


def begin_infer_request(
    signature: ModelSignature,
    text: Buffer,
    tail: Buffer,
    limits: DecodeLimits,
    on_response: ResponseCallback,
    received_ns: int,
) -> "DecodedRequest":
    """The same as ``decode_infer_request``, but leaves long work to the caller."""
    if len(text) == 0:
        request = decode_raw_request(
            signature, tail, limits.max_input_bytes, on_response, received_ns
        )
        return DecodedRequest(request, ALL_AS_BINARY, (), 0)
    document = parse_infer_document(text, limits.max_input_bytes)
    return decode_infer_document(signature, document, tail, limits, on_response, received_ns)


def parse_infer_document(text: Buffer, max_input_bytes: int) -> Any:
    """Parse the JSON of a request; the first part of ``decode_infer_request``.

    Returns:
        The document, for ``decode_infer_document``. Of a key that an object has twice the first
        one counts, as in Triton.

    Raises:
        InvalidArgumentError: too long, or not JSON.
    """
    if len(text) > max_input_bytes:
        raise InvalidArgumentError(
            f"request JSON size of {len(text)} bytes exceeds the maximum allowed input size of "
            f"{max_input_bytes} bytes. {LIMIT_ADVICE}"
        )
    data = bytes(text)
    document = parse_json(data)
    # Each member has one colon, so a document with more of them has members that the parser
    # dropped, or colons in its strings. To count costs little, to look closely ten times as much.
    if type(document) is dict and data.count(b":") != _count_members(document):
        repeated = find_repeated_keys(data)
        if repeated is not None:
            return repeated
    return document


def _count_members(document: dict[str, Any]) -> int:
    """The members of all objects that a usual request has."""
    count = len(document)
    parameters = document.get("parameters")
    if type(parameters) is dict:
        count += len(parameters)
    for key in ("inputs", "outputs"):
        entries = document.get(key)
        if type(entries) is list:
            for entry in entries:
                if type(entry) is dict:
                    count += len(entry)
                    parameters = entry.get("parameters")
                    if type(parameters) is dict:
                        count += len(parameters)
    return count


class DecodedRequest:
    """What ``decode_infer_document`` makes.

    Attributes:
        request: not yet held against the signature.
        outputs: how it wants its outputs.
        unfinished: inputs with so many elements that to decode them at once would hold the event
            loop: each has to be iterated to its end, in pieces of about a millisecond, before the
            request is used, and may raise ``InvalidArgumentError`` on the way.
        unfinished_bytes: memory that they take at most once they are decoded.
    """

    __slots__ = ("outputs", "request", "unfinished", "unfinished_bytes")

    def __init__(
        self,
        request: InferRequest,
        outputs: RequestedOutputs,
        unfinished: "Sequence[Steps]",
        unfinished_bytes: int,
    ) -> None:
        self.request = request
        self.outputs = outputs
        self.unfinished = unfinished
        self.unfinished_bytes = unfinished_bytes


Steps = Generator[None, None, None]


def decode_infer_document(
    signature: ModelSignature,
    document: Any,
    tail: Buffer,
    limits: DecodeLimits,
    on_response: ResponseCallback,
    received_ns: int,
) -> DecodedRequest:
    """Decode what ``parse_infer_document`` or ``join_document`` gave.

    Args and errors are those of ``decode_infer_request``.
    """
    if type(document) is not dict:
        raise missing_member("inputs")
    request_id = document.get("id", "")
    if type(request_id) is not str:
        raise wrong_type("id", "string")
    entries = document.get("inputs")
    if type(entries) is not list:
        raise (
            missing_member("inputs") if "inputs" not in document else wrong_type("inputs", "array")
        )
    decoder = _Decoder(signature.name, request_id, tail, limits)
    inputs = decoder.decode_inputs(entries)
    request = InferRequest(request_id, inputs, None, on_response, received_ns)
    is_binary = False
    parameters = document.get("parameters")
    if parameters is not None:
        is_binary = _decode_parameters(request, parameters)
    if "outputs" not in document:
        outputs = ALL_AS_BINARY if is_binary else ALL_AS_JSON
    else:
        outputs = decoder.decode_outputs(request, document["outputs"], is_binary=is_binary)
    return DecodedRequest(request, outputs, decoder.unfinished, decoder.unfinished_bytes)


class _Decoder:
    """The parts of one request that need its name, its tail or the limits."""

    __slots__ = (
        "_limits",
        "_model_name",
        "_position",
        "_request_id",
        "_tail",
        "unfinished",
        "unfinished_bytes",
    )

    def __init__(
        self, model_name: str, request_id: str, tail: Buffer, limits: DecodeLimits
    ) -> None:
        self._model_name = model_name
        self._request_id = request_id
        self._tail = tail
        self._limits = limits
        self._position = 0
        self.unfinished: list[Steps] = []
        self.unfinished_bytes = 0

    def decode_inputs(self, entries: list[Any]) -> dict[str, Tensor]:
        inputs: dict[str, Tensor] = {}
        for entry in entries:
            tensor = self._decode_input(entry)
            if tensor.name in inputs:
                raise InvalidArgumentError(f"input '{tensor.name}' already exists in request")
            inputs[tensor.name] = tensor
        if self._position != len(self._tail):
            raise InvalidArgumentError(
                f"unexpected additional input data for model '{self._model_name}'"
            )
        return inputs

    def _decode_input(self, entry: Any) -> Tensor:
        if type(entry) is not dict:
            # rapidjson finds no members in what is no object, and that is what Triton says.
            raise _no_source(()) if type(entry) is list else missing_member("name")
        what = declare_input(entry)
        parameters = entry.get("parameters")
        if parameters is not None:
            if type(parameters) is not dict:
                raise wrong_type("parameters", "object")
            if "shared_memory_region" in parameters:
                return self._decode_shared_memory(entry, parameters, what)
            size = parameters.get("binary_data_size")
            if size is not None:
                if "data" in entry:
                    raise _no_source(("data", "binary_data_size"))
                start = self._advance(size, what[0])
                return self._decode_binary(self._tail, start, size, what)
        return self._decode_json(entry, what)

    def _advance(self, size: object, name: str) -> int:
        """Take ``size`` bytes of the tail and return where they start."""
        if type(size) is not int or size < 0:
            raise wrong_type("binary_data_size", "unsigned-integer")
        start = self._position
        missing = start + size - len(self._tail)
        if missing > 0:
            raise InvalidArgumentError(
                f"unexpected size for input '{name}', expecting {missing} additional bytes for "
                f"model '{self._model_name}'"
            )
        self._position = start + size
        return start

    def _decode_shared_memory(
        self, entry: dict[str, Any], parameters: dict[str, Any], what: _Declaration
    ) -> Tensor:
        others = [key for key in ("data",) if key in entry]
        others += [key for key in ("binary_data_size",) if key in parameters]
        if others:
            raise _no_source((*others, "shared_memory_region"))
        region = self._view_region(parameters).toreadonly()
        tensor = self._decode_binary(region, 0, len(region), what)
        if tensor.datatype is BYTES:  # copied out of the region
            return tensor
        return SharedTensor(tensor.name, tensor.datatype, tensor.shape, tensor.data)

    def _view_region(self, parameters: dict[str, Any]) -> memoryview:
        name = _string(parameters, "shared_memory_region")
        offset = _unsigned(parameters, "shared_memory_offset", default=0)
        byte_size = _unsigned(parameters, "shared_memory_byte_size", default=0)
        regions = self._limits.regions
        if regions is None:
            raise NotFoundError(f"Unable to find shared memory region: '{name}'")
        region = regions.view(name, offset, byte_size)
        if "shared_memory_byte_size" not in parameters:
            raise InvalidArgumentError(
                f"Invalid offset + byte size for shared memory region: '{name}': the parameters do "
                "not say its 'shared_memory_byte_size'"
            )
        return region

    def _decode_json(self, entry: dict[str, Any], what: _Declaration) -> Tensor:
        name, datatype, shape, count = what
        if "data" not in entry:
            raise _no_source(())
        check_json_size(name, datatype, count, self._limits.max_input_bytes)
        data = entry["data"]
        if type(data) is SeparateData:
            if data.error is not None:
                raise InvalidArgumentError(data.error)
            return self._decode_binary(data.content, 0, len(data.content), what)
        if datatype is BYTES:
            elements = encode_strings(*flatten(data))
            check_element_count(self._model_name, self._request_id, name, count, len(elements))
            return Tensor(name, datatype, shape, arrange_elements(elements, shape))
        return Tensor(name, datatype, shape, decode_data(data, datatype, shape, count, name))

    def _decode_binary(self, data: Buffer, start: int, size: int, what: _Declaration) -> Tensor:
        name, datatype, shape, count = what
        if datatype is BYTES:
            view = memoryview(data)[start : start + size]
            if size > _MANY_ELEMENTS_BYTES:
                tensor = Tensor(name, datatype, shape, _UNFINISHED)
                self.unfinished.append(self._finish_elements(tensor, view, count))
                self.unfinished_bytes += elements_memory(size, min(count, size // 4))
                return tensor
            try:
                elements = decode_elements(view, name, count)
            except CutOffLengthError as error:
                raise error.of_request(self._model_name, self._request_id) from None
            check_element_count(self._model_name, self._request_id, name, count, len(elements))
            return Tensor(name, datatype, shape, arrange_elements(elements, shape))
        if count * datatype.byte_size != size:
            raise InvalidArgumentError(
                f"{self._label()}input byte size mismatch for input '{name}' for model "
                f"'{self._model_name}'. Expected {count * datatype.byte_size}, got {size}"
            )
        return Tensor(name, datatype, shape, view_tensor(datatype, shape, data, start))

    def _finish_elements(self, tensor: Tensor, view: memoryview, count: int) -> Steps:
        try:
            elements = yield from decode_elements_in_steps(view, tensor.name, count)
        except CutOffLengthError as error:
            raise error.of_request(self._model_name, self._request_id) from None
        check_element_count(self._model_name, self._request_id, tensor.name, count, len(elements))
        tensor.data = yield from arrange_elements_in_steps(elements, tensor.shape)

    def _label(self) -> str:
        return _label(self._request_id)

    def decode_outputs(
        self, request: InferRequest, entries: Any, *, is_binary: bool
    ) -> RequestedOutputs:
        if type(entries) is not list:
            raise wrong_type("outputs", "array")
        if not entries:  # Triton computes all outputs for an empty list
            return ALL_AS_BINARY if is_binary else ALL_AS_JSON
        by_name: dict[str, OutputOptions] = {}
        for entry in entries:
            if type(entry) is not dict:
                raise missing_member("name")
            name = _string(entry, "name")
            if name in by_name:
                raise InvalidArgumentError(
                    f"{self._label()}output '{name}' already exists in request"
                )
            parameters = entry.get("parameters")
            by_name[name] = (
                AS_JSON if parameters is None else self._decode_output_options(parameters)
            )
        request.output_names = tuple(by_name)
        # The request's own wish holds for outputs that are not named, of which there are none.
        return RequestedOutputs(AS_JSON, by_name)

    def _decode_output_options(self, parameters: Any) -> OutputOptions:
        if type(parameters) is not dict:
            raise wrong_type("parameters", "object")
        is_binary = "binary_data" in parameters and _boolean(parameters, "binary_data")
        if "classification" not in parameters and "shared_memory_region" not in parameters:
            return AS_BINARY if is_binary else AS_JSON
        classification = 0
        if "classification" in parameters:
            classification = parameters["classification"]
            if type(classification) is not int or classification < 0:
                raise wrong_type("classification", "unsigned-integer", verb="set")
        if "shared_memory_region" not in parameters:
            return OutputOptions(is_binary=is_binary, classification=classification)
        if "classification" in parameters:
            raise InvalidArgumentError(
                "Output can't set both 'shared_memory_region' and 'classification'"
            )
        if parameters.get("binary_data"):
            raise InvalidArgumentError(
                "Output can't set both 'shared_memory_region' and 'binary_data'"
            )
        return OutputOptions(is_binary=True, region=self._view_region(parameters))


def declare_input(entry: dict[str, Any]) -> _Declaration:
    """Name, datatype, shape and number of elements of an input, at no cost in memory.

    Raises:
        InvalidArgumentError: one of them is missing or wrong.
    """
    name = _string(entry, "name")
    datatype = BY_NAME.get(_string(entry, "datatype"))
    if datatype is None:
        raise InvalidArgumentError(f"invalid datatype for input {name}")
    shape, count = _decode_shape(entry, name)
    return name, datatype, shape, count


def check_json_size(name: str, datatype: Datatype, count: int, max_input_bytes: int) -> None:
    """Hold the size of an input given as JSON against the limit.

    Raises:
        InvalidArgumentError: it is larger.
    """
    byte_size = count * datatype.byte_size
    if byte_size > _MAX_ELEMENTS:
        raise InvalidArgumentError(
            f"byte size overflow for input '{name}': element count ({count}) * data type size "
            f"({datatype.byte_size}) exceeds maximum allowed size ({_MAX_ELEMENTS})"
        )
    if byte_size > max_input_bytes:
        raise InvalidArgumentError(
            f"JSON input '{name}' has a byte_size ({byte_size} bytes) that exceeds the maximum "
            f"allowed value of {max_input_bytes} bytes. {LIMIT_ADVICE}"
        )


def check_element_count(
    model_name: str, request_id: str, input_name: str, expected: int, got: int
) -> None:
    """Hold the number of strings in a BYTES input against its shape.

    Raises:
        InvalidArgumentError: they differ.
    """
    subject = f"inference input '{input_name}' for model '{model_name}'"
    if got < expected:
        raise InvalidArgumentError(
            f"{_label(request_id)}expected {expected} string elements for {subject}, got {got}"
        )
    if got > expected:
        raise InvalidArgumentError(
            f"{_label(request_id)}unexpected number of string elements {got} for {subject}, "
            f"expecting {expected}"
        )


def _label(request_id: str) -> str:
    return f"[request id: {request_id or '<id_unknown>'}] "


def _decode_shape(entry: dict[str, Any], name: str) -> tuple[list[int], int]:
    """The shape of an input and the number of its elements, at no cost in memory."""
    shape = entry.get("shape")
    if type(shape) is not list:
        raise missing_member("shape") if "shape" not in entry else wrong_type("shape", "array")
    for dim in shape:
        if type(dim) is not int or dim < 0:
            raise wrong_type("shape", "unsigned-integer")
    count = prod(shape)
    # numpy takes no more of an array that is empty either, counted in bytes.
    if count > _MAX_ELEMENTS or (count == 0 and 8 * prod(filter(None, shape)) > _MAX_ELEMENTS):
        raise InvalidArgumentError(
            f"shape [{','.join(map(str, shape[:_MAX_RANK]))}] of input '{name}' causes total "
            f"element count to exceed maximum size of {_MAX_ELEMENTS}"
        )
    if len(shape) > _MAX_RANK:
        raise InvalidArgumentError(
            f"shape of input '{name}' has {len(shape)} dimensions, the limit is {_MAX_RANK}"
        )
    return shape, count


def _string(entry: dict[str, Any], key: str) -> str:
    value = entry.get(key)
    if type(value) is not str:
        raise missing_member(key) if key not in entry else wrong_type(key, "string")
    return value


def _boolean(entry: dict[str, Any], key: str) -> bool:
    value = entry[key]
    if type(value) is not bool:
        raise wrong_type(key, "boolean")
    return value


def _unsigned(entry: dict[str, Any], key: str, *, default: int | None = None) -> int:
    value = entry.get(key, default)
    if type(value) is not int or not 0 <= value <= _MAX_UINT64:
        raise missing_member(key) if key not in entry else wrong_type(key, "unsigned-integer")
    return value


def _no_source(given: Sequence[str]) -> InvalidArgumentError:
    fields = " ".join(f"'{name}'" for name in given)
    return InvalidArgumentError(
        "Input must set only one of the following fields: 'data', 'binary_data_size' in "
        "'parameters', 'shared_memory_region' in 'parameters'. But "
        + (f"set {fields}" if given else "no field is set")
    )


def _decode_parameters(request: InferRequest, parameters: Any) -> bool:
    """Put the request's parameters in their places; returns ``binary_data_output``."""
    if type(parameters) is not dict:
        raise wrong_type("parameters", "object")
    is_binary = False
    for key, value in parameters.items():
        if key == "binary_data_output":
            is_binary = _boolean(parameters, key)
            continue
        place = _PARAMETERS.get(key)
        if place is not None:
            place(request, parameters)
        else:
            if request.parameters is None:
                request.parameters = {}
            request.parameters[key] = decode_parameter(key, value)
    return is_binary


def _set_sequence_id(request: InferRequest, parameters: dict[str, Any]) -> None:
    value = parameters["sequence_id"]
    is_number = type(value) is int and 0 <= value <= _MAX_UINT64
    if not is_number and type(value) is not str:
        raise wrong_type("sequence_id", "string")
    request.correlation_id = value


def _set_sequence_start(request: InferRequest, parameters: dict[str, Any]) -> None:
    request.sequence_start = _boolean(parameters, "sequence_start")


def _set_sequence_end(request: InferRequest, parameters: dict[str, Any]) -> None:
    request.sequence_end = _boolean(parameters, "sequence_end")


def _set_priority(request: InferRequest, parameters: dict[str, Any]) -> None:
    request.priority = _unsigned(parameters, "priority")


def _set_timeout(request: InferRequest, parameters: dict[str, Any]) -> None:
    request.timeout_us = _unsigned(parameters, "timeout")


_PARAMETERS: Final[Mapping[str, Callable[[InferRequest, dict[str, Any]], None]]] = MappingProxyType(
    {
        "sequence_id": _set_sequence_id,
        "sequence_start": _set_sequence_start,
        "sequence_end": _set_sequence_end,
        "priority": _set_priority,
        "timeout": _set_timeout,
    }
)


def decode_parameter(key: str, value: object) -> ParameterValue:
    """A parameter of the client's own.

    Raises:
        InvalidArgumentError: the name is reserved, or JSON holds something else than a scalar.
    """
    if key.startswith("triton_"):
        raise InvalidArgumentError(
            "parameter keys starting with 'triton_' are reserved for Triton usage and should not "
            "be specified."
        )
    if isinstance(value, bool | float | str):
        return value
    if isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
        return value
    raise InvalidArgumentError(
        f"parameter '{key}' has invalid type. It should be either 'int', 'bool', or 'string'."
    )
