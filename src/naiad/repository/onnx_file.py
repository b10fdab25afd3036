"""What an ONNX file says on its outside, read without a framework and without its weights.

A file that the runtime can't open still has to be explained, and the runtime's own text names
neither the opset nor the missing data file. Field numbers are those of onnx.proto.
"""

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from naiad.errors import InvalidArgumentError
from naiad.repository.onnx_external_data import external_locations, read_varint

# ModelProto
_IR_VERSION: Final = 1
_OPSET_IMPORT: Final = 8
# OperatorSetIdProto
_DOMAIN: Final = 1
_VERSION: Final = 2

_VARINT: Final = 0
_FIXED64: Final = 1
_BYTES: Final = 2
_FIXED32: Final = 5
_DEFAULT_DOMAINS: Final = frozenset({"", "ai.onnx"})

_Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class OnnxFile:
    """The head of a model file.

    Attributes:
        ir_version: of the file format.
        opset: of the domain ``ai.onnx``; 0 where the file imports none.
        external_files: paths, relative to the file, that weights lie in; sorted.
    """

    ir_version: int
    opset: int
    external_files: tuple[str, ...]


def read_onnx_file(path: Path) -> OnnxFile:
    """Read the head of an ONNX file.

    Raises:
        InvalidArgumentError: it is no ONNX file.
        OSError: it can't be read.
    """
    if path.stat().st_size == 0:
        raise InvalidArgumentError(f"{path} is empty")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            ir_version, opset = _read_model(data)
        except (IndexError, UnicodeDecodeError) as error:
            raise InvalidArgumentError(f"{path} is no ONNX file, or it is cut off") from error
    return OnnxFile(ir_version, opset, tuple(sorted(external_locations(path))))


def _read_model(data: mmap.mmap) -> tuple[int, int]:
    ir_version = opset = 0
    for number, value in _fields(data, (0, len(data))):
        if number == _IR_VERSION and isinstance(value, int):
            ir_version = value
        elif number == _OPSET_IMPORT and isinstance(value, tuple):
            domain, version = _read_opset(data, value)
            opset = version if domain in _DEFAULT_DOMAINS else opset
    return ir_version, opset


def _read_opset(data: mmap.mmap, span: _Span) -> tuple[str, int]:
    domain, version = "", 0
    for number, value in _fields(data, span):
        if number == _DOMAIN and isinstance(value, tuple):
            domain = data[slice(*value)].decode()
        elif number == _VERSION and isinstance(value, int):
            version = value
    return domain, version


def _fields(data: mmap.mmap, span: _Span) -> Iterator[tuple[int, int | _Span]]:
    """Field numbers with the number, or with where the bytes lie."""
    position, end = span
    while position < end:
        tag, position = read_varint(data, position)
        kind = tag & 7
        if kind == _VARINT:
            value, position = read_varint(data, position)
            yield tag >> 3, value
        elif kind == _BYTES:
            length, position = read_varint(data, position)
            if position + length > end:
                raise IndexError("a field is longer than what holds it")
            yield tag >> 3, (position, position + length)
            position += length
        elif kind in {_FIXED64, _FIXED32}:
            position += 8 if kind == _FIXED64 else 4
        else:
            raise IndexError(f"no field has the wire type {kind}")
