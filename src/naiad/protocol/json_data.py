"""Tensors as JSON: the ``data`` member of inputs and outputs.

What does not fit is refused, where Triton lets 300 wrap around in UINT8 and turns 1e39 into
Infinity.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson

from naiad.errors import InvalidArgumentError
from naiad.inference.datatypes import BF16, BOOL, BYTES, FP16, FP64, UINT64, Datatype
from naiad.inference.tensor import Tensor
from naiad.protocol.binary_data import arrange_elements, split_elements
from naiad.protocol.json_text import MAX_DEPTH, MemberError, too_deep, wrong_type

_INTEGERS: Final = frozenset({int})
_NUMBERS: Final = frozenset({int, float})
_BOOLEANS: Final = frozenset({bool})
_STRINGS: Final = frozenset({str})
# What takes about half a millisecond, of the two that a step may hold the event loop; fewer where
# NaN or an infinity is among them, because only a slower encoder writes those.
_STEP_ELEMENTS: Final = 16384
_STEP_LITERALS: Final = 1024
_ADVICE: Final = "Please use the binary data format for"


class SeparateData:
    """The data of an input that was decoded elsewhere.

    Attributes:
        error: why it can not be used; None where it can.
        content: the wire form of the tensor, in the size that the input's shape needs; of BYTES in
            any number of elements.
    """

    __slots__ = ("content", "error")

    def __init__(self, error: str | None, content: memoryview) -> None:
        self.error = error
        self.content = content


def decode_data(
    data: object, datatype: Datatype, shape: Sequence[int], count: int, input_name: str
) -> npt.NDArray[Any]:
    """The ``data`` of an input as an array.

    Args:
        data: flat or nested in any way; read in row-major order.
        datatype: what the request says that the elements are.
        shape: of the result.
        count: elements of ``shape``. Nothing is allocated before the values are counted. BYTES
            may come in another number, which the caller must have excluded.
        input_name: for the error.

    Raises:
        InvalidArgumentError: values of another kind, in another number, or that do not fit.
    """
    if datatype is FP16 or datatype is BF16:
        raise InvalidArgumentError(
            f"receiving {datatype.name} data via JSON is not supported. {_ADVICE} input "
            f"{input_name}"
        )
    values, kinds = flatten(data)
    if datatype is BYTES:
        return arrange_elements(encode_strings(values, kinds), shape)
    if len(values) != count:
        raise InvalidArgumentError(
            "Unable to parse 'data': Shape does not match true shape of 'data' field: shape "
            f"[{','.join(map(str, shape))}] of input '{input_name}' has {count} elements, 'data' "
            f"has {len(values)}"
        )
    if datatype is BOOL:
        if not kinds <= _BOOLEANS:
            raise wrong_type("data", "boolean")
        return np.array(values, np.bool_).reshape(shape)
    if datatype.dtype.kind == "f":
        return _floats(values, kinds, datatype).reshape(shape)
    return _integers(values, kinds, datatype).reshape(shape)


def flatten(data: object) -> tuple[list[Any], set[type]]:
    """The scalars of nested lists in row-major order, and their Python types.

    Raises:
        InvalidArgumentError: not a list, or nested too deeply.
    """
    if type(data) is not list:
        raise wrong_type("data", "array")
    values: list[Any] = data
    kinds = set(map(type, values))
    depth = 1
    while list in kinds:
        depth += 1
        if depth > MAX_DEPTH:
            raise too_deep()
        if len(kinds) == 1:
            values = list(chain.from_iterable(values))
        else:
            values = [leaf for item in values for leaf in (item if type(item) is list else (item,))]
        kinds = set(map(type, values))
    return values, kinds


def encode_strings(values: list[Any], kinds: set[type]) -> list[bytes]:
    """BYTES elements that were given as JSON strings, in UTF-8."""
    if not kinds <= _STRINGS:
        raise MemberError(
            "Unable to parse JSON bytes array: attempt to access JSON non-string as string"
        )
    return [value.encode() for value in values]


def _floats(values: list[Any], kinds: set[type], datatype: Datatype) -> npt.NDArray[Any]:
    if not kinds <= _NUMBERS:
        raise wrong_type("data", "number as double")
    try:
        wide = np.array(values, np.float64)
    except OverflowError:
        raise _does_not_fit("number as double", "an integer", datatype) from None
    if datatype is FP64:
        return wide
    with np.errstate(over="ignore"):
        narrow = wide.astype(datatype.dtype)
    lost = np.isinf(narrow)
    if lost.any():
        lost &= np.isfinite(wide)  # Infinity itself may be sent
        if lost.any():
            raise _does_not_fit("number as double", str(wide[lost][0]), datatype)
    return narrow


def _integers(values: list[Any], kinds: set[type], datatype: Datatype) -> npt.NDArray[Any]:
    sign = "signed-integer" if datatype.dtype.kind == "i" else "unsigned-integer"
    if not kinds <= _INTEGERS:
        raise wrong_type("data", sign)
    bounds = np.iinfo(datatype.dtype)
    if values:
        lowest, highest = min(values), max(values)
        if lowest < bounds.min or highest > bounds.max:
            bad = lowest if lowest < bounds.min else highest
            raise _does_not_fit(sign, str(bad), datatype)
    # Straight to uint64: by way of int64 its upper half would not fit.
    wide = np.uint64 if datatype is UINT64 else np.int64
    return np.array(values, wide).astype(datatype.dtype, copy=False)


def _does_not_fit(expected: str, value: str, datatype: Datatype) -> MemberError:
    head = wrong_type("data", expected).message
    return MemberError(f"{head}: {value} does not fit into {datatype.name}")


def encode_data(tensor: Tensor) -> bytes:
    """The ``data`` of an output: a flat list in row-major order.

    NaN and the infinities become the bare literals that Triton writes, which are not strict JSON.

    Raises:
        InvalidArgumentError: FP16, BF16, or BYTES that are not text, none of which JSON carries.
    """
    return _ENCODERS.get(tensor.datatype.name, _encode_plain)(tensor)


def encode_data_in_steps(tensor: Tensor) -> Iterator[bytes]:
    """The pieces of ``encode_data``, none of which holds the event loop for long."""
    separator = b"["
    for piece in _split_data(tensor):
        some = Tensor(tensor.name, tensor.datatype, piece.shape, piece)
        yield separator + encode_data(some)[1:-1]
        separator = b","
    yield b"]" if separator == b"," else b"[]"


def _split_data(tensor: Tensor) -> Iterator[npt.NDArray[Any]]:
    if tensor.datatype is BYTES:
        yield from split_elements(tensor.data)
        return
    flat = tensor.data.reshape(-1)
    is_float = flat.dtype.kind == "f"
    for start in range(0, flat.size, _STEP_ELEMENTS):
        piece = flat[start : start + _STEP_ELEMENTS]
        step = _STEP_ELEMENTS
        if is_float and not np.isfinite(piece).all():
            step = _STEP_LITERALS
        for first in range(0, piece.size, step):
            yield piece[first : first + step]


def _encode_plain(tensor: Tensor) -> bytes:
    return orjson.dumps(tensor.data.reshape(-1), option=orjson.OPT_SERIALIZE_NUMPY)


def _encode_floats(tensor: Tensor) -> bytes:
    # As doubles, since Triton prints FP32 with the digits of the double of the same value.
    data = tensor.data.reshape(-1).astype(np.float64, copy=False)
    if np.isfinite(data).all():
        return orjson.dumps(data, option=orjson.OPT_SERIALIZE_NUMPY)
    return json.dumps(data.tolist(), separators=(",", ":")).encode()


def _encode_bytes(tensor: Tensor) -> bytes:
    try:
        return orjson.dumps([str(element, "utf-8") for element in tensor.data.ravel().tolist()])
    except UnicodeDecodeError:
        raise InvalidArgumentError(
            f"output '{tensor.name}' has BYTES that are not UTF-8, which JSON can not carry. "
            f"{_ADVICE} output: set 'binary_data' in its parameters"
        ) from None


def _refuse_half(tensor: Tensor) -> bytes:
    raise InvalidArgumentError(
        f"sending {tensor.datatype.name} data via JSON is not supported. {_ADVICE} output"
    )


_ENCODERS: Final[Mapping[str, Callable[[Tensor], bytes]]] = MappingProxyType(
    {
        "FP32": _encode_floats,
        "FP64": _encode_floats,
        "BYTES": _encode_bytes,
        "FP16": _refuse_half,
        "BF16": _refuse_half,
    }
)
