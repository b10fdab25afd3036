"""Tensors whose elements come in the typed fields of ``InferTensorContents``.

They are read from the message's bytes and in steps: protobuf makes a Python object of each element,
which for a million of them holds the event loop for a tenth of a second. What does not fit is
refused, where Triton lets 300 wrap around in INT8.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from naiad.errors import InvalidArgumentError
from naiad.inference.datatypes import BYTES, Datatype
from naiad.protocol.wire import (
    LENGTH,
    Bytes,
    Field,
    MalformedMessageError,
    read_fields,
)

Steps = Generator[None, None, None]

# Fields by number, which is the order in which Triton looks at them: what their elements are, and
# as what they are read.
_FIELDS: Final[Mapping[int, tuple[str, str]]] = MappingProxyType(
    {
        1: ("BOOL", "?"),
        2: ("INT32", "<i4"),
        3: ("INT64", "<i8"),
        4: ("UINT32", "<u4"),
        5: ("UINT64", "<u8"),
        6: ("FP32", "<f4"),
        7: ("FP64", "<f8"),
        8: ("BYTES", "O"),
    }
)
# The same by datatype; BF16 has no field, so its elements are none.
_DTYPES: Final[Mapping[str, str]] = MappingProxyType(dict(_FIELDS.values()))
_BYTES_FIELD: Final = 8
_BYTES_TAG: Final = _BYTES_FIELD << 3 | LENGTH
# Whose length is one byte.
_MAX_SHORT_BYTES: Final = 0x7F
# Datatypes that have no field of their own and use a wider one.
_WIDENED: Final[Mapping[str, str]] = MappingProxyType(
    {"INT8": "INT32", "INT16": "INT32", "UINT8": "UINT32", "UINT16": "UINT32"}
)
# What takes about a millisecond: fields, bytes of numbers, bytes to copy.
_STEP_FIELDS: Final = 256
_STEP_VARINT_BYTES: Final = 16 << 10
_STEP_COPY_BYTES: Final = 1 << 20
_STEP_BYTES: Final = 16 << 10
_MAX_VARINT_BYTES: Final = 10


class ElementCountError(Exception):
    """The elements are not as many as the request says.

    Attributes:
        count: how many they are.
    """

    def __init__(self, count: int) -> None:
        super().__init__(f"{count} elements")
        self.count = count


def decode_contents_in_steps(
    contents: Bytes, datatype: Datatype, count: int, input_name: str, model_name: str
) -> Generator[None, None, list[bytes] | npt.NDArray[Any]]:
    """The elements, as a list of BYTES or as an array of one dimension.

    Args:
        contents: the bytes of an ``InferTensorContents``; FP16 and BF16 have no field there.
        datatype: what the request says that the elements are.
        count: how many it says that they are. Of more BYTES the rest is left out, after one more
            at least; other elements are not decoded at all where they are not as many.
        input_name: for the error.
        model_name: for the error.

    Raises:
        InvalidArgumentError: elements of another type, or that do not fit.
        MalformedMessageError: the bytes are no such message.
        ElementCountError: they are not as many.
    """
    collected = _Collected(contents, count)
    yield from collected.read()
    expected = _WIDENED.get(datatype.name, datatype.name)
    for number in sorted(collected.pieces):
        kind = _FIELDS[number][0]
        if kind != expected:
            raise InvalidArgumentError(
                f"unexpected explicit tensor data for input tensor '{input_name}' for model "
                f"'{model_name}' of type '{kind}', expected datatype '{datatype.name}'"
            )
    if datatype is BYTES:
        return collected.elements
    pieces = next(iter(collected.pieces.values()), [])
    if datatype.dtype.kind == "f":
        return (yield from _join_fixed(pieces, datatype, count))
    dtype = np.dtype(_DTYPES.get(expected, datatype.dtype))
    wide = yield from _join_varints(pieces, dtype, count)
    if datatype.name not in _WIDENED:
        return wide
    narrow: npt.NDArray[Any] = wide.astype(datatype.dtype)
    lost = narrow != wide
    if lost.any():
        raise InvalidArgumentError(
            f"unexpected value {wide[lost][0]} in the contents of input tensor '{input_name}' for "
            f"model '{model_name}', which does not fit into datatype '{datatype.name}'"
        )
    return narrow


class _Collected:
    """The fields of one message, sorted out.

    Attributes:
        pieces: by field the bytes of its elements, packed or not; no field is without any.
        elements: of the field of BYTES.
    """

    def __init__(self, contents: Bytes, max_elements: int) -> None:
        self._contents = memoryview(contents)
        self._max_elements = max_elements
        self.pieces: dict[int, list[Bytes | bytearray]] = {}
        self.elements: list[bytes] = []

    def read(self) -> Steps:
        """Collect, pausing now and then."""
        contents = self._contents
        position = 0
        while position < len(contents) and len(self.elements) <= self._max_elements:
            position = self._take_short_elements(position)
            fields = read_fields(contents, position, len(contents))
            for field in islice(fields, _STEP_FIELDS):
                self._take(field)
                position = field.end
            yield
        if self.elements:
            self.pieces[_BYTES_FIELD] = []

    def _take_short_elements(self, position: int) -> int:
        """Take BYTES elements, up to the first that is long; returns where to go on.

        There may be millions of them, which are no business of a reader of any field.
        """
        data = self._contents[position : position + _STEP_BYTES].tobytes()
        append = self.elements.append
        start = 0
        last = len(data) - 1
        while start < last and data[start] == _BYTES_TAG:
            end = start + 2 + data[start + 1]
            if data[start + 1] > _MAX_SHORT_BYTES or end > len(data):
                break
            append(data[start + 2 : end])
            start = end
        return position + start

    def _take(self, field: Field) -> None:
        data = self._contents[field.content : field.end]
        if field.number not in _FIELDS:
            return  # of a later version
        if field.number == _BYTES_FIELD:
            if field.kind == LENGTH:
                self.elements.append(data.tobytes())
            return
        if not data:
            return
        pieces = self.pieces.setdefault(field.number, [])
        if field.kind == LENGTH:
            pieces.append(data)
        elif pieces and isinstance(pieces[-1], bytearray):
            pieces[-1] += data
        else:
            pieces.append(bytearray(data))


def _join_fixed(
    pieces: Sequence[Bytes | bytearray], datatype: Datatype, expected_count: int
) -> Generator[None, None, npt.NDArray[Any]]:
    """Elements of a fixed width, which are packed as they lie in memory."""
    size = sum(map(len, pieces))
    if size % datatype.byte_size:
        raise MalformedMessageError("packed elements of a fixed width end within one")
    if size != expected_count * datatype.byte_size:
        raise ElementCountError(size // datatype.byte_size)
    raw = np.empty(size, np.uint8)
    position = 0
    for piece in pieces:
        for some in _slices(piece, _STEP_COPY_BYTES):
            raw[position : position + some.size] = some
            position += some.size
            yield
    return raw.view(datatype.dtype)


def _join_varints(
    pieces: Sequence[Bytes | bytearray], dtype: "np.dtype[Any]", expected_count: int
) -> Generator[None, None, npt.NDArray[Any]]:
    """Elements in groups of seven bits, the lowest first."""
    count = 0
    for piece in pieces:
        for some in _slices(piece, _STEP_COPY_BYTES):
            count += int(np.count_nonzero(some < 0x80))
            yield
    if count != expected_count:
        raise ElementCountError(count)
    values = np.empty(count, dtype)
    done = 0
    for piece in pieces:
        data = np.frombuffer(piece, np.uint8)
        position = 0
        while position < data.size:
            numbers, used = _decode_varints(data[position : position + _STEP_VARINT_BYTES])
            values[done : done + numbers.size] = (
                numbers != 0
                if dtype.kind == "b"
                else numbers.astype(f"<u{dtype.itemsize}").view(dtype)
            )
            done += numbers.size
            position += used
            yield
    return values


def _decode_varints(data: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.uint64], int]:
    """The numbers that end in ``data``, and how many bytes they are."""
    ends = np.flatnonzero(data < 0x80) + 1
    if not ends.size:
        raise MalformedMessageError("a number has no end")
    starts = np.concatenate(([0], ends[:-1]))
    sizes = ends - starts
    longest = int(sizes.max())
    if longest > _MAX_VARINT_BYTES:
        raise MalformedMessageError("a number has too many bytes")
    values = (data[starts] & 0x7F).astype(np.uint64)
    for index in range(1, longest):
        places = np.flatnonzero(sizes > index)
        groups = (data[starts[places] + index] & 0x7F).astype(np.uint64)
        values[places] |= groups << np.uint64(7 * index)
    return values, int(ends[-1])


def _slices(piece: Bytes | bytearray, step: int) -> Iterator[npt.NDArray[np.uint8]]:
    data = np.frombuffer(piece, np.uint8)
    return (data[start : start + step] for start in range(0, data.size, step))
