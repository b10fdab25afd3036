"""Tensors over DLPack, also of the datatypes that numpy's own DLPack leaves out.

Source: the structs of dlpack.h, version 0.8, which is what an unversioned capsule holds.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from . import wire

CPU = 1
_BOOL = 6
_BFLOAT = 4
_NAME = b"dltensor"
_USED_NAME = b"used_dltensor"


class _DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _ManagedTensor(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_ManagedTensor))
_ManagedTensor._fields_ = [
    ("tensor", _Tensor),
    ("context", ctypes.c_void_p),
    ("deleter", _Deleter),
]

_api = ctypes.pythonapi
_get_pointer = _api.PyCapsule_GetPointer
_get_pointer.restype, _get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_is_valid = _api.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]
_set_name = _api.PyCapsule_SetName
_set_name.restype, _set_name.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]

# Kind of number in DLPack's terms, and bits, by datatype.
_KINDS = {1: (_BOOL, 8), wire.BF16: (_BFLOAT, 16)}
for _code, _dtype in wire.DTYPES.items():
    if _code not in _KINDS and _code != wire.BYTES:
        _KINDS[_code] = ({"i": 0, "u": 1, "f": 2}[_dtype.kind], 8 * _dtype.itemsize)
_CODES = {kind: code for code, kind in _KINDS.items()}


class DlpackError(Exception):
    """A capsule that can't be taken."""


def to_capsule(array: Any, code: int) -> Any:
    """A capsule of an array's memory, which lives until its reader lets go of it.

    It is numpy's, whose destructor is no Python: a reader may let go while an exception is on its
    way, which a destructor in Python would lose.

    Args:
        array: C-contiguous; of uint16 for BF16. What may not be written to is copied.
        code: of the datatype; not BYTES.
    """
    if not array.flags.writeable:
        array = array.copy()
    kind, bits = _KINDS[code]
    # A dtype that every numpy exports; the right one is put in its place.
    capsule = array.view(f"u{bits // 8}").__dlpack__()
    managed = ctypes.cast(_get_pointer(capsule, _NAME), ctypes.POINTER(_ManagedTensor))
    managed.contents.tensor.dtype = _DataType(kind, bits, 1)
    return capsule


class _Held:
    """Memory of a capsule that was taken; given back when nothing refers to it any more."""

    def __init__(self, capsule: Any, managed: Any, size: int) -> None:
        self._capsule = capsule
        self._managed = managed
        tensor = managed.contents.tensor
        self.__array_interface__ = {
            "data": ((tensor.data or 0) + tensor.byte_offset, False),
            "shape": (size,),
            "typestr": "|u1",
            "version": 3,
        }

    def __del__(self) -> None:
        deleter = self._managed.contents.deleter
        if deleter:
            deleter(self._managed)


def from_dlpack(source: Any) -> tuple[Any, int]:
    """Take the tensor of a capsule, or of an object that makes one, without copying.

    Returns:
        An array on its memory (uint16 for BF16), and the code of its datatype.

    Raises:
        DlpackError: it is on another device, not contiguous, or of a datatype that Triton lacks.
    """
    capsule = source
    if hasattr(source, "__dlpack_device__") and hasattr(source, "__dlpack__"):
        device = source.__dlpack_device__()[0]
        if int(device) != CPU:
            raise DlpackError(f"DLDevice type {int(device)} is not support by Python backend.")
        capsule = source.__dlpack__()
    elif type(source).__name__ != "PyCapsule":
        raise DlpackError(
            "Provided tensor is not supported. Tensor must be a DLPack capsule or have "
            "`__dlpack__` and `__dlpack_device__` attributes"
        )
    if not _is_valid(capsule, _NAME):
        raise DlpackError("the DLPack capsule was used before, or is of a newer kind")
    managed = ctypes.cast(_get_pointer(capsule, _NAME), ctypes.POINTER(_ManagedTensor))
    tensor = managed.contents.tensor
    if tensor.device.type != CPU:
        raise DlpackError(f"DLDevice type {tensor.device.type} is not support by Python backend.")
    code = _CODES.get((tensor.dtype.code, tensor.dtype.bits))
    if code is None or tensor.dtype.lanes != 1:
        raise DlpackError("DLPack tensor has a datatype that Triton does not have")
    shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
    _check_contiguous(tensor, shape)
    dtype = wire.DTYPES[code]
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    _set_name(capsule, _USED_NAME)
    if not size:
        _Held(capsule, managed, 0)
        return np.empty(shape, dtype), code
    held = np.asarray(_Held(capsule, managed, size))
    return held.view(dtype).reshape(shape), code


def _check_contiguous(tensor: Any, shape: tuple[int, ...]) -> None:
    if not tensor.strides:
        return
    expected = 1
    for axis in reversed(range(len(shape))):
        if shape[axis] > 1 and tensor.strides[axis] != expected:
            raise DlpackError(
                "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored "
                "in C-Order are supported."
            )
        expected *= max(shape[axis], 1)
