"""Protobuf's wire format, as far as large messages are read without protobuf's objects.

Source: protobuf's encoding page. Protobuf reads a message whole and holds Python's lock meanwhile,
so what is large in a message is found by its bytes and left where it lies.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

Bytes = bytes | memoryview

VARINT: Final = 0
FIXED64: Final = 1
LENGTH: Final = 2
FIXED32: Final = 5

_WIDTHS: Final = {FIXED64: 8, FIXED32: 4}
_MAX_VARINT_BYTES: Final = 10


class MalformedMessageError(ValueError):
    """The bytes are no message."""


class Field(NamedTuple):
    """One field of a message, in the coordinates of the buffer that it lies in.

    Attributes:
        number: of the field.
        kind: its wire type.
        start: where its tag begins.
        content: where its content begins, behind a length if it has one.
        end: where its content ends.
    """

    number: int
    kind: int
    start: int
    content: int
    end: int


def read_fields(data: Bytes, position: int, end: int) -> Iterator[Field]:
    """The fields of the message in ``data[position:end]``, in their order.

    Raises:
        MalformedMessageError: it is none, or has groups, which no message here has.
    """
    while position < end:
        start = position
        tag, position = read_varint(data, position, end)
        number, kind = tag >> 3, tag & 7
        content = position
        if kind == LENGTH:
            size, content = read_varint(data, position, end)
            position = content + size
        elif kind == VARINT:
            position = read_varint(data, position, end)[1]
        elif kind in _WIDTHS:
            position += _WIDTHS[kind]
        else:
            raise MalformedMessageError(f"a field has the wire type {kind}")
        if position > end or number == 0:
            raise MalformedMessageError("a field has no end, or no number")
        yield Field(number, kind, start, content, position)


def read_varint(data: Bytes, position: int, end: int) -> tuple[int, int]:
    """The number at ``position`` and where it ends.

    Raises:
        MalformedMessageError: it does not end before ``end``, or within ten bytes.
    """
    value = shift = 0
    last = min(end, position + _MAX_VARINT_BYTES)
    while position < last:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise MalformedMessageError("a number has no end")


def encode_varint(value: int) -> bytes:
    """The bytes of a number that is not negative."""
    if value < 0x80:
        return bytes((value,))
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
