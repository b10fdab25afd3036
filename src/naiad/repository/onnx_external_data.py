"""Which files an ONNX file takes its weights from, found without a framework.

onnxruntime opens them while it loads, so where they lie must be known before. Every place of the
format that can hold a tensor is looked at, since a file may have been made to be looked at wrongly.
Field numbers are those of onnx.proto.
"""

import mmap
from collections.abc import Iterator, Mapping
from enum import Enum, auto
from pathlib import Path
from types import MappingProxyType
from typing import Final

_LOCATION: Final = b"location"
_VARINT: Final = 0
_FIXED64: Final = 1
_BYTES: Final = 2
_GROUP: Final = 3
_GROUP_END: Final = 4
_FIXED32: Final = 5
_SKIP: Final[Mapping[int, int]] = MappingProxyType({_FIXED64: 8, _FIXED32: 4})


class _Message(Enum):
    """Kinds of messages on the way to a tensor's external data."""

    MODEL = auto()
    GRAPH = auto()
    TRAINING = auto()
    FUNCTION = auto()
    NODE = auto()
    ATTRIBUTE = auto()
    SPARSE_TENSOR = auto()
    TENSOR = auto()
    ENTRY = auto()


# By kind: the fields that lead on, and to what.
_FIELDS: Final[Mapping[_Message, Mapping[int, _Message]]] = MappingProxyType(
    {
        _Message.MODEL: {7: _Message.GRAPH, 20: _Message.TRAINING, 25: _Message.FUNCTION},
        _Message.TRAINING: {1: _Message.GRAPH, 2: _Message.GRAPH},
        _Message.GRAPH: {1: _Message.NODE, 5: _Message.TENSOR, 15: _Message.SPARSE_TENSOR},
        _Message.FUNCTION: {7: _Message.NODE, 11: _Message.ATTRIBUTE},
        _Message.NODE: {5: _Message.ATTRIBUTE},
        _Message.ATTRIBUTE: {
            5: _Message.TENSOR,
            6: _Message.GRAPH,
            10: _Message.TENSOR,
            11: _Message.GRAPH,
            22: _Message.SPARSE_TENSOR,
            23: _Message.SPARSE_TENSOR,
        },
        _Message.SPARSE_TENSOR: {1: _Message.TENSOR, 2: _Message.TENSOR},
        _Message.TENSOR: {13: _Message.ENTRY},
    }
)
_ENTRY_KEY: Final = 1
_ENTRY_VALUE: Final = 2


def external_locations(path: Path) -> set[str]:
    """The paths, relative to the file's folder, of the files that hold its tensors.

    A file that is cut off or no ONNX file gives what could be read; whoever loads it says what is
    wrong with it.

    Raises:
        OSError: the file can't be read.
    """
    with path.open("rb") as file:
        if not path.stat().st_size:
            return set()
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            # Most files are whole in themselves, and a search is faster than a walk.
            if data.find(_LOCATION) < 0:
                return set()
            return set(_walk(data))


def _walk(data: mmap.mmap) -> Iterator[str]:
    # A list and not recursion: nesting is up to whoever wrote the file.
    pending = [(_Message.MODEL, 0, len(data))]
    while pending:
        kind, start, end = pending.pop()
        if kind is _Message.ENTRY:
            yield from _read_entry(data, start, end)
            continue
        known = _FIELDS[kind]
        for number, field_start, field_end in _fields(data, start, end):
            if number in known:
                pending.append((known[number], field_start, field_end))


def _read_entry(data: mmap.mmap, start: int, end: int) -> Iterator[str]:
    key = value = b""
    for number, field_start, field_end in _fields(data, start, end):
        if number == _ENTRY_KEY:
            key = data[field_start:field_end]
        elif number == _ENTRY_VALUE:
            value = data[field_start:field_end]
    if key == _LOCATION:
        yield value.decode("utf-8", "surrogateescape")


def _fields(data: mmap.mmap, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Number and place of each field that is bytes; ends where the message is broken."""
    position = start
    try:
        while position < end:
            tag, position = read_varint(data, position)
            kind = tag & 7
            if kind == _VARINT:
                _, position = read_varint(data, position)
            elif kind == _BYTES:
                length, position = read_varint(data, position)
                if position + length > end:
                    return
                yield tag >> 3, position, position + length
                position += length
            elif kind in _SKIP:
                position += _SKIP[kind]
            elif kind not in {_GROUP, _GROUP_END}:
                return
            # The fields of a group, which onnx.proto has none of, are taken for the message's own:
            # what they say can only be refused, not missed.
    except IndexError:  # cut off
        return


def read_varint(data: mmap.mmap | bytes, position: int) -> tuple[int, int]:
    """A number of protobuf's wire format, and where it ends.

    Raises:
        IndexError: it is cut off, or longer than any parser takes.
    """
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise IndexError("a number has more than 64 bits")
