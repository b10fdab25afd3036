"""The binary data extension: BYTES elements, and the tail of tensors behind a JSON header.

Source: Triton's extension_binary_data.md. A BYTES element is four bytes of little-endian length,
then the bytes; elements follow each other in row-major order.
"""

import struct
import sys
from collections.abc import Generator, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from naiad.errors import InvalidArgumentError
from naiad.inference.datatypes import BOOL, BYTES, Datatype
from naiad.protocol.json_text import Buffer

_LENGTH: Final = struct.Struct("<I")
# A tensor that starts at an odd address is slower to read; copying a small one costs less than
# every later pass over it. A large one is placed well by whoever received the body.
_REALIGN_BYTES: Final = 1 << 20
# What takes about a millisecond, of the two that a step may hold the event loop.
_STEP_ELEMENTS: Final = 4096
_STEP_BYTES: Final = 1 << 20
# Of an empty ``bytes`` and of the reference to it in an array.
_ELEMENT_BYTES: Final = sys.getsizeof(b"") + 8


class MalformedElementsError(InvalidArgumentError):
    """An element of a BYTES tensor is longer than what is left of its bytes."""


class CutOffLengthError(InvalidArgumentError):
    """A BYTES tensor ends inside of a length."""

    def __init__(self, input_name: str, size: int) -> None:
        super().__init__(
            f"incomplete string length indicator for inference input '{input_name}', expecting 4 "
            f"bytes but only {size} bytes available"
        )
        self._input_name = input_name
        self._size = size

    def of_request(self, model_name: str, request_id: str) -> InvalidArgumentError:
        """The error in the words of Triton's core, which knows whose input it is."""
        return InvalidArgumentError(
            f"[request id: {request_id or '<id_unknown>'}] incomplete string length indicator for "
            f"inference input '{self._input_name}' for model '{model_name}', expecting 4 bytes but "
            f"only {self._size} bytes available. Please make sure the string length indicator is "
            "in one buffer."
        )


def elements_memory(size: int, count: int) -> int:
    """Bytes that the elements of a BYTES tensor take at most once they are decoded.

    Args:
        size: of the tensor's bytes.
        count: of its elements, if they are as many as the request says.
    """
    return size + count * _ELEMENT_BYTES


def decode_elements(data: Buffer, input_name: str, max_count: int = sys.maxsize) -> list[bytes]:
    """Split the bytes of a BYTES tensor into its elements.

    Args:
        data: all of them.
        input_name: for errors.
        max_count: one element more than this is decoded at most: zero bytes are empty elements,
            and a list of them takes more memory than they do.

    Raises:
        CutOffLengthError: a length is cut off.
        MalformedElementsError: an element is cut off.
    """
    elements: list[bytes] = []
    view = memoryview(data)
    position = 0
    while position < len(view) and len(elements) <= max_count:
        position = _decode_some(view, position, elements, input_name, max_count)
    return elements


def decode_elements_in_steps(
    data: Buffer, input_name: str, max_count: int
) -> Generator[None, None, list[bytes]]:
    """The same as ``decode_elements``, pausing before the event loop would be held too long."""
    elements: list[bytes] = []
    view = memoryview(data)
    position = 0
    while position < len(view) and len(elements) <= max_count:
        position = _decode_some(view, position, elements, input_name, max_count)
        yield
    return elements


def _decode_some(
    view: memoryview, position: int, elements: list[bytes], input_name: str, max_count: int
) -> int:
    """Decode what one step may; returns where to go on."""
    append = elements.append
    total = len(view)
    end = position + _STEP_BYTES
    last = min(len(elements) + _STEP_ELEMENTS, max_count + 1)
    unpack = _LENGTH.unpack_from
    while position < total:
        start = position + 4
        if start > total:
            raise CutOffLengthError(input_name, total - position)
        (length,) = unpack(view, position)
        position = start + length
        if position > total:
            raise MalformedElementsError(
                f"incomplete string data for inference input '{input_name}', expecting string of "
                f"length {length} but only {total - start} bytes available"
            )
        append(view[start:position].tobytes())
        if position >= end or len(elements) >= last:
            break
    return position


def encode_elements(elements: npt.NDArray[np.object_]) -> bytes:
    """The wire form of a BYTES tensor, whose elements are ``bytes``."""
    return encode_list(elements.ravel().tolist())


def encode_list(elements: Sequence[bytes]) -> bytes:
    """The wire form of BYTES elements."""
    # A piece at a time: the parts of millions of elements take ten times what they are joined to.
    return b"".join(
        _encode_some(elements[start : start + _STEP_ELEMENTS])
        for start in range(0, len(elements), _STEP_ELEMENTS)
    )


def _encode_some(elements: Sequence[bytes]) -> bytes:
    pack = _LENGTH.pack
    parts: list[bytes] = []
    for element in elements:
        parts.append(pack(len(element)))
        parts.append(element)
    return b"".join(parts)


def encode_elements_in_steps(elements: npt.NDArray[np.object_]) -> Iterator[bytes]:
    """The pieces of ``encode_elements``, none of which holds the event loop for long."""
    return map(encode_elements, split_elements(elements))


def split_elements(elements: npt.NDArray[np.object_]) -> Iterator[npt.NDArray[np.object_]]:
    """The elements of a BYTES tensor in pieces that one step may handle."""
    flat = elements.reshape(-1)
    start = 0
    while start < flat.size:
        some = flat[start : start + _STEP_ELEMENTS]
        # Long ones take their time by their bytes, not by their number.
        ends = np.cumsum([len(element) for element in some.tolist()])
        count = max(1, int(np.searchsorted(ends, _STEP_BYTES)))
        yield some[:count]
        start += count


def view_tensor(
    datatype: Datatype, shape: Sequence[int], data: Buffer, offset: int
) -> npt.NDArray[Any]:
    """An array over ``data`` from ``offset`` on, which holds at least as many bytes as it needs.

    Returns:
        A read-only view where ``data`` is read-only; a copy only of what is small and badly
        aligned, or of BOOL bytes other than 0 and 1, which numpy may not hold.
    """
    array: npt.NDArray[Any] = np.ndarray(shape, datatype.dtype, data, offset)
    if not array.flags.aligned and array.nbytes <= _REALIGN_BYTES:
        return array.copy()
    if datatype is BOOL:
        raw = array.view(np.uint8)
        if raw.size and raw.max() > 1:
            array = raw != 0
    return array


def arrange_elements(elements: list[bytes], shape: Sequence[int]) -> npt.NDArray[np.object_]:
    """BYTES elements, as many as ``shape`` says, as an array of that shape."""
    # np.array would make fixed-width strings of them and lose trailing NULs.
    array = np.empty(len(elements), np.object_)
    array[:] = elements
    return array.reshape(shape)


def arrange_elements_in_steps(
    elements: list[bytes], shape: Sequence[int]
) -> Generator[None, None, npt.NDArray[np.object_]]:
    """The same as ``arrange_elements``, pausing now and then."""
    array = np.empty(len(elements), np.object_)
    step = 16 * _STEP_ELEMENTS  # storing a reference is that much cheaper than making an element
    for start in range(0, len(elements), step):
        array[start : start + step] = elements[start : start + step]
        yield
    return array.reshape(shape)


def encode_tensor(datatype: Datatype, data: npt.NDArray[Any]) -> tuple[Buffer, int]:
    """The wire form of a tensor and its length in bytes.

    Returns:
        A view of ``data`` unless it is BYTES; the caller keeps it until it is sent.
    """
    if datatype is BYTES:
        encoded = encode_elements(data)
        return encoded, len(encoded)
    size = data.nbytes
    if size == 0:
        return b"", 0
    return data.reshape(-1).view(np.uint8).data, size
