"""The datatypes of the KServe v2 protocol: wire and config names, numpy dtype, bytes an element."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Datatype:
    """One element type, in the spellings of its three worlds.

    Attributes:
        name: in requests and metadata, for example ``FP32``.
        config_name: in ``config.pbtxt``, for example ``TYPE_FP32``.
        config_number: of the enum value in ``model_config.proto``.
        dtype: numpy's. BF16 is carried as its bit patterns in uint16, since numpy has no such
            type; BYTES is carried as an object array of ``bytes``.
        byte_size: per element on the wire; 0 for BYTES, whose elements vary.
    """

    name: str
    config_name: str
    config_number: int
    dtype: np.dtype[Any]
    byte_size: int

    def __repr__(self) -> str:
        return self.name


BOOL: Final = Datatype("BOOL", "TYPE_BOOL", 1, np.dtype(np.bool_), 1)
UINT8: Final = Datatype("UINT8", "TYPE_UINT8", 2, np.dtype(np.uint8), 1)
UINT16: Final = Datatype("UINT16", "TYPE_UINT16", 3, np.dtype("<u2"), 2)
UINT32: Final = Datatype("UINT32", "TYPE_UINT32", 4, np.dtype("<u4"), 4)
UINT64: Final = Datatype("UINT64", "TYPE_UINT64", 5, np.dtype("<u8"), 8)
INT8: Final = Datatype("INT8", "TYPE_INT8", 6, np.dtype(np.int8), 1)
INT16: Final = Datatype("INT16", "TYPE_INT16", 7, np.dtype("<i2"), 2)
INT32: Final = Datatype("INT32", "TYPE_INT32", 8, np.dtype("<i4"), 4)
INT64: Final = Datatype("INT64", "TYPE_INT64", 9, np.dtype("<i8"), 8)
FP16: Final = Datatype("FP16", "TYPE_FP16", 10, np.dtype("<f2"), 2)
FP32: Final = Datatype("FP32", "TYPE_FP32", 11, np.dtype("<f4"), 4)
FP64: Final = Datatype("FP64", "TYPE_FP64", 12, np.dtype("<f8"), 8)
BYTES: Final = Datatype("BYTES", "TYPE_STRING", 13, np.dtype(np.object_), 0)
BF16: Final = Datatype("BF16", "TYPE_BF16", 14, np.dtype("<u2"), 2)

_ALL: Final = (
    BOOL, UINT8, UINT16, UINT32, UINT64, INT8, INT16, INT32, INT64, FP16, FP32, FP64, BYTES, BF16,
)  # fmt: skip

BY_NAME: Final[Mapping[str, Datatype]] = MappingProxyType({d.name: d for d in _ALL})
BY_CONFIG_NUMBER: Final[Mapping[int, Datatype]] = MappingProxyType(
    {d.config_number: d for d in _ALL}
)
# BF16 shares numpy's uint16, which must mean UINT16 when only the dtype is known.
_BY_DTYPE: Final[Mapping[np.dtype[Any], Datatype]] = MappingProxyType(
    {d.dtype: d for d in _ALL if d is not BF16}
)


def from_dtype(dtype: npt.DTypeLike) -> Datatype | None:
    """The datatype whose elements numpy stores as ``dtype``, or None; never BF16."""
    return _BY_DTYPE.get(np.dtype(dtype))


def widen_bf16(patterns: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """The numbers that BF16's bit patterns mean, exactly; a new array of the same shape."""
    # BF16 is the upper half of FP32.
    return (patterns.astype(np.uint32) << 16).view(np.float32)


def round_to_bf16(values: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.uint16]:
    """The bit patterns of the nearest BF16 numbers, ties to even as torch rounds.

    Args:
        values: of any shape; not NaN.
    """
    bits = values.astype(np.float32).view(np.uint32)
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)
    return (rounded >> 16).astype(np.uint16)
