"""As much of protobuf's wire format as verify's own gRPC caller needs, written from its spec.

Deliberately not the ``protobuf`` package: the server under proof encodes with that.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from naiad.inference.comparison import Array
from naiad.inference.datatypes import BY_NAME

_VARINT: Final = 0
_FIXED64: Final = 1
_LENGTH: Final = 2
_FIXED32: Final = 5
_MASK: Final = (1 << 64) - 1


def encode_varint(value: int) -> bytes:
    """A number in groups of seven bits, the lowest first; a negative one as 64 bits."""
    value &= _MASK
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_bytes(number: int, data: bytes) -> bytes:
    """A field of bytes, text or a message."""
    return encode_varint(number << 3 | _LENGTH) + encode_varint(len(data)) + data


def encode_text(number: int, text: str) -> bytes:
    """A field of text."""
    return encode_bytes(number, text.encode())


def encode_packed(number: int, values: Iterable[int]) -> bytes:
    """A repeated field of integers, packed."""
    return encode_bytes(number, b"".join(encode_varint(value) for value in values))


class Fields:
    """The fields of one message, by number; what isn't asked for is ignored.

    Raises:
        ValueError: it is no message.
    """

    def __init__(self, message: bytes) -> None:
        self._found: dict[int, list[int | bytes]] = {}
        position = 0
        while position < len(message):
            key, position = _varint(message, position)
            value: int | bytes
            kind = key & 7
            if kind == _VARINT:
                value, position = _varint(message, position)
            elif kind in {_LENGTH, _FIXED32, _FIXED64}:
                length = {_FIXED32: 4, _FIXED64: 8}.get(kind, 0)
                if kind == _LENGTH:
                    length, position = _varint(message, position)
                value = message[position : position + length]
                position += length
                if position > len(message):
                    raise ValueError("a protobuf message ends in the middle of a field")
            else:
                raise ValueError(f"a protobuf message has a field of the unknown kind {kind}")
            self._found.setdefault(key >> 3, []).append(value)

    def has(self, number: int) -> bool:
        """Whether the field is there."""
        return number in self._found

    def all_bytes(self, number: int) -> list[bytes]:
        """Every value of a field of bytes, text, messages or fixed numbers."""
        return [value for value in self._found.get(number, []) if isinstance(value, bytes)]

    def text(self, number: int) -> str:
        """A field of text; "" where it is not there."""
        found = self.all_bytes(number)
        return found[-1].decode() if found else ""

    def integers(self, number: int) -> list[int]:
        """A repeated field of integers, packed or not, as signed numbers of 64 bits."""
        found: list[int] = []
        for value in self._found.get(number, []):
            if isinstance(value, int):
                found.append(_signed(value))
                continue
            position = 0
            while position < len(value):
                one, position = _varint(value, position)
                found.append(_signed(one))
        return found


def integers_as(values: Sequence[int], datatype: str) -> Array:
    """Integers as the array that a v2 datatype has; FP16 and BF16 have none."""
    return np.array([value & _MASK for value in values], dtype=np.uint64).astype(
        BY_NAME[datatype].dtype
    )


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if position >= len(data) or shift > 63:
            raise ValueError("a protobuf message has a number without an end")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, position


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value
