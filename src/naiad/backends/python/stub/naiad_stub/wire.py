"""What server and model process say to each other: frames of fixed structs, nothing pickled.

A frame is a head and a payload. Payloads are made of little-endian numbers, texts with their length
before them, and tensors: small ones inside the frame, large ones in a block of the shared region.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .region import RegionReader, RegionWriter

# Bytes of payload, kind, flags, key.
HEAD = struct.Struct("<IHHQ")
# What is below costs less inside the frame than as a block of its own.
INLINE_BYTES = 16 << 10
# No frame is larger: a length beyond it is a broken connection, not a message.
MAX_FRAME_BYTES = 1 << 30

# Kinds. To the process:
INITIALIZE = 1
COMPLETE_CONFIG = 2
EXECUTE = 3
CANCEL = 4
FINALIZE = 5
INFER_RESPONSE = 6
RESULT = 7
IS_READY = 8
GO_ON = 9
# From it:
HELLO = 20
DONE = 21
FAILED = 22
EXECUTED = 23
RESPONSE = 24
LOG = 25
INFER = 26
INFER_CANCEL = 27
CALL = 28
TELL = 29
# Both ways:
RELEASE = 40

# Flags.
IS_FINAL = 1
IS_DECOUPLED = 1
IS_BLOCKING = 2
# Beside the flags of the sequence: wait for GO_ON after each response but the last; nobody waits
# for the answer.
IS_PACED = 1 << 31
IS_GIVEN_UP = 1 << 30

# Datatypes by the numbers of Triton's model_config.proto.
BYTES = 13
BF16 = 14
DTYPES = {
    1: np.dtype(np.bool_),
    2: np.dtype("u1"),
    3: np.dtype("<u2"),
    4: np.dtype("<u4"),
    5: np.dtype("<u8"),
    6: np.dtype("i1"),
    7: np.dtype("<i2"),
    8: np.dtype("<i4"),
    9: np.dtype("<i8"),
    10: np.dtype("<f2"),
    11: np.dtype("<f4"),
    12: np.dtype("<f8"),
    BYTES: np.dtype(np.uint8),
    BF16: np.dtype("<u2"),
}

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
# Datatype, number of axes, whether it lies in the region, offset there, bytes.
_TENSOR = struct.Struct("<BBBQQ")
# Timeout, correlation id, flags, model version, key of the request on whose behalf it is made.
_REQUEST = struct.Struct("<QQIqQ")
# Code of the error, where there is one.
_NO_ERROR = 0xFF
_ALIGNMENT = 16
_PADDING = bytes(_ALIGNMENT)


class WireTensor(NamedTuple):
    """A tensor as it crosses.

    Attributes:
        name: as in the model config.
        code: of the datatype.
        shape: of the elements.
        data: C-contiguous and of ``shape``; for BYTES a flat array of uint8, in which every
            element has its length in four bytes before it.
    """

    name: str
    code: int
    shape: Sequence[int]
    data: Any


class WireError(NamedTuple):
    """An error with its code, as Triton numbers them."""

    code: int
    message: str


class WireRequest(NamedTuple):
    """A request as it crosses; see `triton_python_backend_utils.InferenceRequest`."""

    key: int
    request_id: str
    correlation_id: int | str
    flags: int
    timeout_us: int
    parameters: str
    model_name: str
    model_version: int
    output_names: Sequence[str]
    inputs: Sequence[WireTensor]
    parent_key: int = 0


class WireResponse(NamedTuple):
    """A response as it crosses; ``is_empty`` says that there is none, only the end."""

    outputs: Sequence[WireTensor]
    error: WireError | None
    parameters: str
    is_empty: bool = False


class Writer:
    """Builds a payload.

    Args:
        region: where large tensors go; None keeps all of them in the frame.
    """

    __slots__ = ("_blocks", "_parts", "_region", "_size")

    def __init__(self, region: RegionWriter | None) -> None:
        self._region = region
        self._parts: list[Any] = []
        self._blocks: list[int] = []
        self._size = 0

    def payload(self) -> bytes:
        """Everything that was written."""
        return b"".join(self._parts)

    def discard(self) -> None:
        """Nothing of it will be sent: take the blocks back."""
        if self._region is not None:
            for offset in self._blocks:
                self._region.release(offset)
        self._blocks.clear()

    def put(self, data: Any) -> None:
        """Bytes as they are."""
        self._parts.append(data)
        self._size += len(data)

    def u32(self, value: int) -> None:
        """A number."""
        self.put(_U32.pack(value))

    def u64(self, value: int) -> None:
        """A large number."""
        self.put(_U64.pack(value))

    def text(self, value: str) -> None:
        """A text with its length."""
        encoded = value.encode("utf-8", "replace")
        self.put(_U32.pack(len(encoded)) + encoded)

    def tensor(self, tensor: WireTensor) -> None:
        """A tensor, copied once if it is large and into the frame if it is small.

        Raises:
            RegionFullError: it does not fit.
        """
        name, code, shape, data = tensor
        self.text(name)
        size = data.nbytes
        is_shared = size > INLINE_BYTES and self._region is not None
        flat = data.reshape(-1).view(np.uint8) if size else data
        offset = 0
        if is_shared and self._region is not None:
            offset = self._region.write(flat)
            self._blocks.append(offset)
        self.put(_TENSOR.pack(code, len(shape), is_shared, offset, size))
        self.put(struct.pack(f"<{len(shape)}q", *shape))
        if not is_shared:
            # The reader takes the elements where they lie, so they must lie where they may.
            self.put(_PADDING[: -self._size % _ALIGNMENT])
            self.put(flat.tobytes())

    def tensors(self, tensors: Sequence[WireTensor]) -> None:
        """Any number of tensors."""
        self.u32(len(tensors))
        for tensor in tensors:
            self.tensor(tensor)

    def request(self, request: WireRequest) -> None:
        """A request."""
        self.u64(request.key)
        self.text(request.request_id)
        is_text = isinstance(request.correlation_id, str)
        self.text(str(request.correlation_id) if is_text else "")
        number = 0 if is_text else int(request.correlation_id)
        self.put(
            _REQUEST.pack(
                request.timeout_us,
                number,
                request.flags,
                request.model_version,
                request.parent_key,
            )
        )
        self.text(request.parameters)
        self.text(request.model_name)
        self.u32(len(request.output_names))
        for name in request.output_names:
            self.text(name)
        self.tensors(request.inputs)

    def response(self, response: WireResponse) -> None:
        """A response."""
        error = response.error
        code = _NO_ERROR if error is None else error.code
        self.put(bytes((response.is_empty, code)))
        self.text("" if error is None else error.message)
        self.text(response.parameters)
        self.tensors(response.outputs)


class Reader:
    """Takes a payload apart.

    Args:
        payload: of one frame; tensors inside it are not copied out.
        region: where large tensors lie.
    """

    __slots__ = ("_at", "_payload", "_region")

    def __init__(self, payload: bytearray, region: RegionReader | None) -> None:
        self._payload = payload
        self._region = region
        self._at = 0

    def u32(self) -> int:
        """The next number."""
        (value,) = _U32.unpack_from(self._payload, self._at)
        self._at += 4
        return int(value)

    def u64(self) -> int:
        """The next large number."""
        (value,) = _U64.unpack_from(self._payload, self._at)
        self._at += 8
        return int(value)

    def text(self) -> str:
        """The next text; what is no UTF-8 is replaced, since clients get it in JSON."""
        return self._take(self.u32()).decode("utf-8", "replace")

    def bytes(self, size: int) -> bytes:
        """The next bytes, as they are."""
        return bytes(self._take(size))

    def _take(self, size: int) -> bytearray:
        end = self._at + size
        if end > len(self._payload):
            raise ValueError(f"{size} bytes at {self._at} of a frame of {len(self._payload)}")
        value = self._payload[self._at : end]
        self._at = end
        return value

    def tensor(self) -> WireTensor:
        """The next tensor, where it lies.

        Raises:
            ValueError: what it says of itself is wrong.
        """
        name = self.text()
        code, rank, is_shared, offset, size = _TENSOR.unpack_from(self._payload, self._at)
        self._at += _TENSOR.size
        shape = struct.unpack_from(f"<{rank}q", self._payload, self._at)
        self._at += 8 * rank
        buffer: Any = self._payload
        if is_shared:
            if self._region is None:
                raise ValueError("a tensor in a region that is not there")
            buffer = self._region.read(offset, size)
            offset = 0
        else:
            self._at += -self._at % _ALIGNMENT
            offset = self._at
            if size > max(len(self._payload) - offset, 0):
                raise ValueError(f"{size} bytes at {offset} of a frame of {len(self._payload)}")
            self._at += size
        dtype = DTYPES[code]
        dims = (size,) if code == BYTES else shape
        # numpy checks that the elements are inside of the buffer, which for a block is all of it.
        try:
            data: Any = np.ndarray(dims, dtype, buffer, offset)
        except (TypeError, OverflowError) as error:
            raise ValueError(f"{size} bytes of shape {shape}: {error}") from error
        return WireTensor(name, code, shape, data)

    def tensors(self) -> list[WireTensor]:
        """Any number of tensors."""
        return [self.tensor() for _ in range(self.u32())]

    def request(self) -> WireRequest:
        """The next request."""
        key = self.u64()
        request_id = self.text()
        correlation_text = self.text()
        timeout_us, correlation, flags, version, parent_key = _REQUEST.unpack_from(
            self._payload, self._at
        )
        self._at += _REQUEST.size
        parameters = self.text()
        model_name = self.text()
        output_names = [self.text() for _ in range(self.u32())]
        return WireRequest(
            key,
            request_id,
            correlation_text or correlation,
            flags,
            timeout_us,
            parameters,
            model_name,
            version,
            output_names,
            self.tensors(),
            parent_key,
        )

    def response(self) -> WireResponse:
        """The next response."""
        is_empty, code = self._payload[self._at], self._payload[self._at + 1]
        self._at += 2
        message = self.text()
        parameters = self.text()
        error = None if code == _NO_ERROR else WireError(code, message)
        return WireResponse(self.tensors(), error, parameters, bool(is_empty))


def encode_elements(elements: Iterable[Any]) -> bytes:
    """BYTES elements one after the other, each behind its length; what is no bytes as its text."""
    parts = []
    for element in elements:
        data = element if isinstance(element, bytes) else str(element).encode("utf-8")
        parts.append(_U32.pack(len(data)))
        parts.append(data)
    return b"".join(parts)


def decode_elements(data: Any) -> list[bytes]:
    """The elements that `encode_elements` wrote.

    Raises:
        ValueError: the lengths do not add up.
    """
    buffer = bytes(data)
    elements = []
    at = 0
    end = len(buffer)
    while at < end:
        if at + 4 > end:
            raise ValueError("Invalid bytes tensor data: incomplete length field")
        (size,) = _U32.unpack_from(buffer, at)
        at += 4
        if at + size > end:
            raise ValueError("Invalid bytes tensor data: string extends beyond buffer")
        elements.append(buffer[at : at + size])
        at += size
    return elements


def elements_array(elements: Sequence[bytes], shape: Sequence[int]) -> Any:
    """Elements as an object array of a shape.

    Raises:
        ValueError: there are more or fewer than the shape says.
    """
    if any(length < 0 for length in shape):
        raise ValueError(f"a tensor can't have the shape {tuple(shape)}")
    array: Any = np.empty(len(elements), np.object_)
    array[:] = elements
    return array.reshape(tuple(shape))
