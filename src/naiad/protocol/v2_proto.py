"""Inference requests of the v2 protocol as protobuf messages: from ``InferMessage`` to the engine.

Sources: KServe's inference_grpc.md, Triton's extension documents, and the order of checks and the
texts of its infer_handler.cc.
"""

import re
from collections.abc import Callable, Generator, Mapping
from math import prod
from types import MappingProxyType
from typing import Final

import numpy as np

from naiad.errors import InternalError, InvalidArgumentError, NotFoundError
from naiad.inference.datatypes import BYTES, Datatype
from naiad.inference.request import InferRequest, ParameterValue, ResponseCallback
from naiad.inference.tensor import SharedTensor, Tensor
from naiad.model_config.signature import ModelSignature
from naiad.protocol.binary_data import (
    CutOffLengthError,
    arrange_elements_in_steps,
    decode_elements_in_steps,
    elements_memory,
    view_tensor,
)
from naiad.protocol.infer_message import (
    MAX_ELEMENTS,
    MAX_RANK,
    InferMessage,
    InputMessage,
    Parameters,
)
from naiad.protocol.json_text import Buffer
from naiad.protocol.pb.grpc_service import InferParameter
from naiad.protocol.requested_outputs import (
    ALL_AS_BINARY,
    AS_BINARY,
    OutputOptions,
    RequestedOutputs,
)
from naiad.protocol.typed_contents import ElementCountError, decode_contents_in_steps
from naiad.protocol.v2_json import SharedMemoryRegions
from naiad.protocol.wire import Bytes, MalformedMessageError

Steps = Generator[None, None, None]

LATEST: Final = -1

_VERSION: Final = re.compile(r"\s*[+-]?[0-9]{1,18}")
# BYTES of this size, if their elements are short, hold the event loop for two milliseconds.
_MANY_ELEMENTS_BYTES: Final = 64 << 10
_UNFINISHED: Final = np.empty(0, np.object_)
_UINT64_MASK: Final = (1 << 64) - 1
_RESERVED_PREFIX: Final = "triton_"
_EMPTY_FINAL: Final = "triton_enable_empty_final_response"


def parse_version(text: str) -> int:
    """The version that a message names.

    Returns:
        ``LATEST`` for an empty text.

    Raises:
        InvalidArgumentError: not a number, or a negative one.
    """
    if not text:
        return LATEST
    if _VERSION.fullmatch(text) is None:
        raise InvalidArgumentError(
            f"failed to get model version from specified version string '{text}' (details: stol), "
            "version should be an integral value > 0"
        )
    version = int(text)
    if version < 0:
        raise InvalidArgumentError(
            f"invalid model version specified '{text}' , version should be an integral value > 0"
        )
    return version


class DecodedRequest:
    """What ``InferRequestDecoder.decode`` makes of a message.

    Attributes:
        request: for the engine.
        outputs: how the client wants the answer.
        wants_empty_final: it wants to hear of the end of its responses in one without outputs.
        unfinished: what is to be iterated to its end before the engine may have the request: BYTES
            of many elements, a step for each millisecond. It may raise what ``decode`` raises.
        unfinished_bytes: memory that it takes at most once it is decoded.
    """

    __slots__ = ("outputs", "request", "unfinished", "unfinished_bytes", "wants_empty_final")

    def __init__(self, request: InferRequest) -> None:
        self.request = request
        self.outputs = ALL_AS_BINARY
        self.wants_empty_final = False
        self.unfinished: list[Steps] | None = None
        self.unfinished_bytes = 0


class InferRequestDecoder:
    """Applies the protocol's rules to requests that were read.

    Args:
        regions: None while no shared memory region can be registered.
    """

    __slots__ = ("_regions",)

    def __init__(self, regions: SharedMemoryRegions | None = None) -> None:
        self._regions = regions

    def decode(
        self,
        signature: ModelSignature,
        message: InferMessage,
        on_response: ResponseCallback,
        received_ns: int,
    ) -> "DecodedRequest":
        """Decode a request.

        Args:
            signature: of the model that is asked; only its names and datatypes go into errors.
            message: the decoded inputs are views of its raw contents and keep them alive.
            on_response: goes into the request.
            received_ns: goes into the request.

        Returns:
            The request, whose inputs are not yet held against the signature, and what else it says.

        Raises:
            InvalidArgumentError: the message is wrong; the text says where.
            NotFoundError: it names a shared memory region that does not exist.
        """
        request = InferRequest(message.request_id, {}, None, on_response, received_ns)
        decoded = DecodedRequest(request)
        if message.parameters is not None:
            decoded.wants_empty_final = _decode_parameters(request, message.parameters)
        self._decode_inputs(signature, message, decoded)
        if message.outputs:
            decoded.outputs = self._decode_outputs(message, request)
        return decoded

    def _decode_inputs(
        self, signature: ModelSignature, message: InferMessage, decoded: "DecodedRequest"
    ) -> None:
        inputs = decoded.request.inputs
        raw_contents = message.raw_contents
        raw_index = 0
        for entry in message.inputs:
            if entry.name in inputs:
                raise _twice(message.request_id, "input", entry.name)
            if entry.plain_bytes >= 0 and raw_index < len(raw_contents):
                buffer, offset, size = raw_contents[raw_index]
                raw_index += 1
                if size == entry.plain_bytes:
                    datatype: Datatype = entry.datatype  # type: ignore[assignment]  # it is plain
                    inputs[entry.name] = Tensor(
                        entry.name,
                        datatype,
                        entry.shape,
                        view_tensor(datatype, entry.shape, buffer, offset),
                    )
                    continue
                raw_index -= 1
            source = _InputSource(signature, message.request_id, entry, decoded)
            region = self._region(entry.parameters, entry.name)
            if region is not None:
                inputs[entry.name] = source.from_region(region)
            elif entry.contents is not None:
                inputs[entry.name] = source.from_contents(has_raw=bool(raw_contents))
            elif raw_index < len(raw_contents):
                inputs[entry.name] = source.from_raw(*raw_contents[raw_index])
                raw_index += 1
            else:
                raise InvalidArgumentError(
                    f"unable to find data for input tensor '{entry.name}' for model "
                    f"'{signature.name}' in request."
                )

    def _region(self, parameters: Parameters | None, tensor_name: str) -> memoryview | None:
        """The shared memory that parameters name, if they name any."""
        if parameters is None or "shared_memory_region" not in parameters:
            return None
        subject = f" for tensor '{tensor_name}'"
        name = _typed(parameters, "shared_memory_region", "string_param", subject).string_param
        if "shared_memory_byte_size" not in parameters:
            raise InvalidArgumentError(
                "'shared_memory_byte_size' must be specified along with 'shared_memory_region' "
                f"parameter for tensor '{tensor_name}'"
            )
        key = "shared_memory_byte_size"
        byte_size = _typed(parameters, key, "int64_param", subject).int64_param
        offset = 0
        if "shared_memory_offset" in parameters:
            key = "shared_memory_offset"
            offset = _typed(parameters, key, "int64_param", subject).int64_param
        if self._regions is None:
            raise NotFoundError(f"Unable to find shared memory region: '{name}'")
        return self._regions.view(name, offset, byte_size)

    def _decode_outputs(self, message: InferMessage, request: InferRequest) -> RequestedOutputs:
        names = tuple(entry.name for entry in message.outputs)
        if len(set(names)) < len(names):
            name = next(name for index, name in enumerate(names) if name in names[:index])
            raise _twice(message.request_id, "output", name)
        request.output_names = names
        if all(entry.parameters is None for entry in message.outputs):
            return ALL_AS_BINARY
        by_name = {
            entry.name: (
                AS_BINARY
                if entry.parameters is None
                else self._decode_output_options(entry.parameters, entry.name)
            )
            for entry in message.outputs
        }
        return RequestedOutputs(AS_BINARY, by_name)

    def _decode_output_options(self, parameters: Parameters, name: str) -> OutputOptions:
        classification = 0
        if "classification" in parameters:
            parameter = parameters["classification"]
            if not parameter.HasField("int64_param"):
                raise InvalidArgumentError(
                    "invalid value type for 'classification' parameter, expected int64_param"
                )
            classification = parameter.int64_param
            if classification <= 0:
                raise InvalidArgumentError(
                    "invalid value for 'classification' parameter, expected >= 0"
                )
        if classification and "shared_memory_region" in parameters:
            raise InvalidArgumentError(
                "output can't set both 'shared_memory_region' and 'classification'"
            )
        region = self._region(parameters, name)
        return OutputOptions(is_binary=True, classification=classification, region=region)


class _InputSource:
    """One input whose data takes a closer look."""

    __slots__ = ("_decoded", "_entry", "_model_name", "_request_id", "_signature")

    def __init__(
        self,
        signature: ModelSignature,
        request_id: str,
        entry: InputMessage,
        decoded: DecodedRequest,
    ) -> None:
        self._decoded = decoded
        self._signature = signature
        self._model_name = signature.name
        self._request_id = request_id
        self._entry = entry

    def from_region(self, region: memoryview) -> Tensor:
        if self._entry.contents is not None:
            raise InvalidArgumentError(
                "unexpected 'content' provided when using shared memory for input tensor "
                f"'{self._entry.name}' for model '{self._model_name}'"
            )
        tensor = self.from_raw(region.toreadonly(), 0, len(region))
        if tensor.datatype is BYTES:  # copied out of the region
            return tensor
        return SharedTensor(tensor.name, tensor.datatype, tensor.shape, tensor.data)

    def from_contents(self, *, has_raw: bool) -> Tensor:
        entry = self._entry
        if has_raw:
            raise InvalidArgumentError(
                "contents field must not be specified when using raw_input_contents for "
                f"'{entry.name}' for model '{self._model_name}'"
            )
        datatype = self._datatype()
        contents = entry.contents
        assert contents is not None  # noqa: S101 - the caller looked
        tensor = Tensor(entry.name, datatype, entry.shape, _UNFINISHED)
        # An element of BYTES takes two bytes at least, every other one.
        size = len(contents)
        count = self._element_count()
        memory = (
            elements_memory(size, min(count, size // 2))
            if datatype is BYTES
            else min(count, size) * datatype.byte_size
        )
        self._finish(self._finish_contents(tensor, contents, count), size, memory)
        return tensor

    def _finish_contents(self, tensor: Tensor, contents: Bytes, count: int) -> Steps:
        datatype = tensor.datatype
        try:
            values = yield from decode_contents_in_steps(
                contents, datatype, count, tensor.name, self._model_name
            )
        except MalformedMessageError:
            raise InternalError("Unable to parse request") from None
        except ElementCountError as error:
            raise self._wrong_size(datatype, count, error.count * datatype.byte_size) from None
        if isinstance(values, list):
            self._check_element_count(count, len(values))
            tensor.data = yield from arrange_elements_in_steps(values, tensor.shape)
        else:
            tensor.data = values.reshape(tensor.shape)

    def _finish(self, steps: Steps, size: int, memory: int) -> None:
        """Finish what is small at once, and leave the rest for later."""
        decoded = self._decoded
        if size <= _MANY_ELEMENTS_BYTES:
            for _ in steps:
                pass
            return
        decoded.unfinished_bytes += memory
        if decoded.unfinished is None:
            decoded.unfinished = [steps]
        else:
            decoded.unfinished.append(steps)

    def from_raw(self, buffer: Buffer, offset: int, size: int) -> Tensor:
        name = self._entry.name
        datatype = self._datatype()
        count = self._element_count()
        shape = self._entry.shape
        if datatype is BYTES:
            view = memoryview(buffer)[offset : offset + size]
            tensor = Tensor(name, datatype, shape, _UNFINISHED)
            memory = elements_memory(size, min(count, size // 4))
            self._finish(self._finish_elements(tensor, view, count), size, memory)
            return tensor
        if count * datatype.byte_size != size:
            raise self._wrong_size(datatype, count, size)
        return Tensor(name, datatype, shape, view_tensor(datatype, shape, buffer, offset))

    def _finish_elements(self, tensor: Tensor, view: memoryview, count: int) -> Steps:
        try:
            elements = yield from decode_elements_in_steps(view, tensor.name, count)
        except CutOffLengthError as error:
            raise error.of_request(self._model_name, self._request_id) from None
        self._check_element_count(count, len(elements))
        tensor.data = yield from arrange_elements_in_steps(elements, tensor.shape)

    def _datatype(self) -> Datatype:
        """The datatype; without one the request is refused in the words of the engine."""
        datatype = self._entry.datatype
        if datatype is not None:
            return datatype
        name = self._entry.name
        spec = self._signature.inputs.get(name)
        if spec is None:
            raise InvalidArgumentError(
                f"unexpected inference input '{name}' for model '{self._model_name}'"
            )
        raise InvalidArgumentError(
            f"{self._label()}inference input '{name}' data-type is '<invalid>', but model "
            f"'{self._model_name}' expects '{spec.datatype.name}'"
        )

    def _element_count(self) -> int:
        shape = self._entry.shape
        name = self._entry.name
        if min(shape, default=0) < 0:
            raise InvalidArgumentError(
                f"{self._label()}All input dimensions should be specified for input '{name}' for "
                f"model '{self._model_name}', got [{','.join(map(str, shape[:MAX_RANK]))}]"
            )
        if len(shape) > MAX_RANK:
            raise InvalidArgumentError(
                f"shape of input '{name}' has {len(shape)} dimensions, the limit is {MAX_RANK}"
            )
        if prod(filter(None, shape)) > MAX_ELEMENTS:
            raise InvalidArgumentError(
                f"shape [{','.join(map(str, shape))}] of input '{name}' causes total element count "
                f"to exceed maximum size of {MAX_ELEMENTS}"
            )
        return prod(shape)

    def _check_element_count(self, expected: int, got: int) -> None:
        subject = f"inference input '{self._entry.name}' for model '{self._model_name}'"
        if got < expected:
            raise InvalidArgumentError(
                f"{self._label()}expected {expected} string elements for {subject}, got {got}"
            )
        if got > expected:
            raise InvalidArgumentError(
                f"{self._label()}unexpected number of string elements {got} for {subject}, "
                f"expecting {expected}"
            )

    def _wrong_size(self, datatype: Datatype, count: int, size: int) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"{self._label()}input byte size mismatch for input '{self._entry.name}' for model "
            f"'{self._model_name}'. Expected {count * datatype.byte_size}, got {size}"
        )

    def _label(self) -> str:
        return f"[request id: {self._request_id or '<id_unknown>'}] "


def _twice(request_id: str, what: str, name: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"[request id: {request_id or '<id_unknown>'}] {what} '{name}' already exists in request"
    )


def _typed(parameters: Parameters, key: str, choice: str, subject: str = "") -> InferParameter:
    """The parameter, which must be of that kind."""
    parameter = parameters[key]
    if parameter.WhichOneof("parameter_choice") != choice:
        raise InvalidArgumentError(
            f"invalid value type for '{key}' parameter{subject}, expected {choice}."
        )
    return parameter


def _decode_parameters(request: InferRequest, parameters: Parameters) -> bool:
    """Put the request's parameters in their places; returns the wish for an empty last response."""
    wants_empty_final = False
    for key in parameters:
        place = _PARAMETERS.get(key)
        if place is not None:
            place(request, parameters)
        elif key == _EMPTY_FINAL:
            wants_empty_final = _typed(parameters, key, "bool_param").bool_param
        else:
            if request.parameters is None:
                request.parameters = {}
            request.parameters[key] = _custom_parameter(key, parameters[key])
    return wants_empty_final


def _set_sequence_id(request: InferRequest, parameters: Parameters) -> None:
    parameter = parameters["sequence_id"]
    choice = parameter.WhichOneof("parameter_choice")
    if choice == "int64_param":
        # Triton reads the bits as unsigned, and its Python client sends large ids that way.
        request.correlation_id = parameter.int64_param & _UINT64_MASK
    elif choice == "string_param":
        request.correlation_id = parameter.string_param
    else:
        raise InvalidArgumentError(
            "invalid value type for 'sequence_id' parameter, expected int64_param or string_param."
        )


def _set_sequence_start(request: InferRequest, parameters: Parameters) -> None:
    request.sequence_start = _typed(parameters, "sequence_start", "bool_param").bool_param


def _set_sequence_end(request: InferRequest, parameters: Parameters) -> None:
    request.sequence_end = _typed(parameters, "sequence_end", "bool_param").bool_param


def _set_priority(request: InferRequest, parameters: Parameters) -> None:
    parameter = parameters["priority"]
    choice = parameter.WhichOneof("parameter_choice")
    if choice == "uint64_param":
        request.priority = parameter.uint64_param
    elif choice == "int64_param":
        if parameter.int64_param < 0:
            raise InvalidArgumentError("invalid value for 'priority' parameter, expected >= 0")
        request.priority = parameter.int64_param
    else:
        raise InvalidArgumentError(
            "invalid value type for 'priority' parameter, expected int64_param or uint64_param."
        )


def _set_timeout(request: InferRequest, parameters: Parameters) -> None:
    # Triton takes a negative one as a time that never comes; so does the default of a model
    # without a queue timeout.
    request.timeout_us = max(_typed(parameters, "timeout", "int64_param").int64_param, 0)


_PARAMETERS: Final[Mapping[str, Callable[[InferRequest, Parameters], None]]] = MappingProxyType(
    {
        "sequence_id": _set_sequence_id,
        "sequence_start": _set_sequence_start,
        "sequence_end": _set_sequence_end,
        "priority": _set_priority,
        "timeout": _set_timeout,
    }
)


def _custom_parameter(key: str, parameter: InferParameter) -> ParameterValue:
    if key.startswith(_RESERVED_PREFIX):
        raise InvalidArgumentError(
            "parameter keys starting with 'triton_' are reserved for Triton usage. Only the "
            f"following keys starting with 'triton_' are allowed: {_EMPTY_FINAL}"
        )
    choice = parameter.WhichOneof("parameter_choice")
    if choice is None or choice == "uint64_param":
        raise InvalidArgumentError(
            f"invalid value type for '{key}' parameter, expected int64_param, bool_param, or "
            "string_param."
        )
    value: ParameterValue = getattr(parameter, choice)
    return value
