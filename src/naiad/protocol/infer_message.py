"""Inference requests of the gRPC API, as their bytes say and before any rule is applied.

A request is read on its top level only. Its inputs and outputs are nearly always the same bytes as
in an earlier request, so what they mean is looked up, and its raw contents are never copied. For
whatever is not usual, protobuf reads the whole message, so that the meaning is protobuf's always.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import DecodeError

from naiad.errors import InternalError
from naiad.inference.datatypes import BY_NAME, BYTES
from naiad.protocol.pb.grpc_service import InferParameter, ModelInferRequest
from naiad.protocol.wire import (
    LENGTH,
    Bytes,
    MalformedMessageError,
    read_fields,
    read_varint,
)

if TYPE_CHECKING:
    from naiad.protocol.json_text import Buffer

# Tags of the fields of ModelInferRequest; all are of the wire type that has a length.
_MODEL_NAME: Final = 0x0A
_MODEL_VERSION: Final = 0x12
_ID: Final = 0x1A
_PARAMETERS: Final = 0x22
_INPUTS: Final = 0x2A
_OUTPUTS: Final = 0x32
_RAW_INPUT_CONTENTS: Final = 0x3A

# What is remembered by its bytes: only what is short, and never more than this many.
_MAX_KNOWN_BYTES: Final = 256
_MAX_KNOWN: Final = 1024
# An input with so much in it has typed contents, which are not protobuf's to read.
_LARGE_INPUT_BYTES: Final = 4096
_CONTENTS: Final = 5

# numpy 1.x stops here; no model comes near.
MAX_RANK: Final = 32
# Of a shape without its zeros: beyond it numpy makes no array of the widest datatype.
MAX_ELEMENTS: Final = ((1 << 63) - 1) // 8

Parameters = Mapping[str, InferParameter]


class InputMessage:
    """One input without its raw contents.

    Attributes:
        name: of the input.
        datatype: None where the name of it is none.
        shape: as sent; may hold negative sizes.
        parameters: None where there are none.
        contents: the bytes of the elements' message, where they are typed.
        plain_bytes: how many raw bytes the shape stands for; -1 where that takes a closer look.
    """

    __slots__ = ("contents", "datatype", "name", "parameters", "plain_bytes", "shape")

    def __init__(
        self, message: ModelInferRequest.InferInputTensor, contents: Bytes | None = None
    ) -> None:
        self.name = message.name
        self.datatype = BY_NAME.get(message.datatype)
        self.shape = tuple(message.shape)
        self.parameters: Parameters | None = message.parameters or None
        if contents is None and message.HasField("contents"):
            contents = message.contents.SerializeToString()
        self.contents = contents
        is_plain = (
            self.datatype not in (None, BYTES)
            and self.parameters is None
            and self.contents is None
            and len(self.shape) <= MAX_RANK
            and min(self.shape, default=0) >= 0
            and prod(filter(None, self.shape)) <= MAX_ELEMENTS
        )
        self.plain_bytes = (
            prod(self.shape) * self.datatype.byte_size
            if self.datatype is not None and is_plain
            else -1
        )


class OutputMessage:
    """One requested output.

    Attributes:
        name: of the output.
        parameters: None where there are none.
    """

    __slots__ = ("name", "parameters")

    def __init__(self, message: ModelInferRequest.InferRequestedOutputTensor) -> None:
        self.name = message.name
        self.parameters: Parameters | None = message.parameters or None


class InferMessage:
    """A whole request.

    Attributes:
        model_name: empty where none was given, as are the next two.
        model_version: as text.
        request_id: the client's label.
        parameters: None where there are none.
        inputs: without their raw contents.
        outputs: those that are asked for.
        raw_contents: of the inputs, in their order: a buffer, where they start in it, and how many
            bytes they are.
    """

    __slots__ = (
        "inputs",
        "model_name",
        "model_version",
        "outputs",
        "parameters",
        "raw_contents",
        "request_id",
    )

    def __init__(self) -> None:
        self.model_name = ""
        self.model_version = ""
        self.request_id = ""
        self.parameters: Parameters | None = None
        self.inputs: list[InputMessage] = []
        self.outputs: list[OutputMessage] = []
        self.raw_contents: list[tuple[Buffer, int, int]] = []


class _UnusualError(Exception):
    """The message is for protobuf to read."""


class InferMessageReader:
    """Reads requests; remembers the inputs and outputs that it has seen."""

    __slots__ = ("_inputs", "_outputs")

    def __init__(self) -> None:
        self._inputs: dict[bytes, InputMessage] = {}
        self._outputs: dict[bytes, OutputMessage] = {}

    def read(self, data: bytes | memoryview, start: int = 0) -> InferMessage:
        """Read the message that fills ``data`` from ``start`` on.

        Returns:
            A message whose raw contents lie in ``data``, unless it was an unusual one.

        Raises:
            InternalError: the bytes are no such message. The class is Triton's, which leaves the
                reading to its gRPC library.
        """
        try:
            return self._read_usual(data, start)
        except (_UnusualError, MalformedMessageError, IndexError, UnicodeDecodeError):
            pass
        except DecodeError:
            raise InternalError("Unable to parse request") from None
        try:
            return _read_any(bytes(data[start:]))
        except DecodeError:
            raise InternalError("Unable to parse request") from None

    def _read_usual(self, data: bytes | memoryview, start: int) -> InferMessage:
        message = InferMessage()
        end = len(data)
        parameters = b""
        while start < end:
            tag = data[start]
            field_start = start
            size = data[start + 1]
            start += 2
            if size > 0x7F:
                size, start = read_varint(data, start - 1, end)
            stop = start + size
            if stop > end:
                raise _UnusualError
            if tag == _RAW_INPUT_CONTENTS:
                message.raw_contents.append((data, start, size))
            elif tag == _INPUTS:
                if size <= _LARGE_INPUT_BYTES:
                    message.inputs.append(self._read_input(bytes(data[start:stop])))
                else:
                    message.inputs.append(_read_large_input(data, start, stop))
            elif tag == _OUTPUTS:
                message.outputs.append(self._read_output(bytes(data[start:stop])))
            elif tag == _PARAMETERS:
                parameters += bytes(data[field_start:stop])
            else:
                _read_text(message, tag, str(data[start:stop], "utf-8"))
            start = stop
        if parameters:
            message.parameters = ModelInferRequest.FromString(parameters).parameters
        return message

    def _read_input(self, data: bytes) -> InputMessage:
        known = self._inputs.get(data)
        if known is not None:
            return known
        read = InputMessage(ModelInferRequest.InferInputTensor.FromString(data))
        if read.contents is None and read.parameters is None:
            _remember(self._inputs, data, read)
        return read

    def _read_output(self, data: bytes) -> OutputMessage:
        known = self._outputs.get(data)
        if known is not None:
            return known
        read = OutputMessage(ModelInferRequest.InferRequestedOutputTensor.FromString(data))
        if read.parameters is None:
            _remember(self._outputs, data, read)
        return read


def _read_large_input(data: Bytes, start: int, end: int) -> InputMessage:
    """An input whose contents stay where they are."""
    rest = bytearray()
    contents: list[Bytes] = []
    view = memoryview(data)
    for field in read_fields(data, start, end):
        if field.number == _CONTENTS and field.kind == LENGTH:
            contents.append(view[field.content : field.end])
        else:
            rest += view[field.start : field.end]
    message = ModelInferRequest.InferInputTensor.FromString(bytes(rest))
    # Of a message that is given in several parts, the parts are joined.
    joined = contents[0] if len(contents) == 1 else b"".join(contents)
    return InputMessage(message, joined if contents else None)


def find_raw_contents(data: bytes, start: int) -> int:
    """Where the first raw contents begin, in the first part of a request.

    Args:
        data: from ``start`` on the first bytes of a message.
        start: of the message.

    Returns:
        The offset in ``data``; ``start`` where none begin there.
    """
    position = start
    end = len(data)
    try:
        while position < end:
            tag = data[position]
            size, content = read_varint(data, position + 1, end)
            if tag == _RAW_INPUT_CONTENTS:
                return content
            position = content + size
    except MalformedMessageError:
        pass
    return start


def _read_text(message: InferMessage, tag: int, text: str) -> None:
    if tag == _MODEL_NAME:
        message.model_name = text
    elif tag == _ID:
        message.request_id = text
    elif tag == _MODEL_VERSION:
        message.model_version = text
    else:
        raise _UnusualError


def _remember(known: dict[bytes, Any], data: bytes, read: object) -> None:
    if len(data) <= _MAX_KNOWN_BYTES:
        if len(known) >= _MAX_KNOWN:
            known.clear()
        known[data] = read


def _read_any(data: bytes) -> InferMessage:
    """Read by protobuf, which copies the raw contents."""
    read = ModelInferRequest.FromString(data)
    message = InferMessage()
    message.model_name = read.model_name
    message.model_version = read.model_version
    message.request_id = read.id
    message.parameters = read.parameters or None
    message.inputs = [InputMessage(tensor) for tensor in read.inputs]
    message.outputs = [OutputMessage(tensor) for tensor in read.outputs]
    contents: Sequence[bytes] = read.raw_input_contents
    message.raw_contents = [(raw, 0, len(raw)) for raw in contents]
    return message
