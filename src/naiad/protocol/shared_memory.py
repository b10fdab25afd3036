"""The bodies of the shared memory extensions over HTTP.

Source: Triton's extension_shared_memory.md.
"""

import base64
import binascii
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import orjson

from naiad.errors import InvalidArgumentError
from naiad.protocol.json_text import Buffer, MemberError, parse_json

_MAX_UINT64: Final = (1 << 64) - 1
_CUDA_HANDLE_BYTES: Final = 64  # sizeof(cudaIpcMemHandle_t)


class RegionDescription(Protocol):
    """One registered region of system shared memory."""

    @property
    def name(self) -> str:
        """What requests call it."""
        ...

    @property
    def key(self) -> str:
        """Of the shared memory object."""
        ...

    @property
    def offset(self) -> int:
        """In the object, in bytes."""
        ...

    @property
    def byte_size(self) -> int:
        """Of the region."""
        ...


@dataclass(frozen=True, slots=True)
class SystemRegistration:
    """What a client wants to register; ``offset`` and ``byte_size`` are not negative."""

    key: str
    offset: int
    byte_size: int


@dataclass(frozen=True, slots=True)
class CudaRegistration:
    """GPU memory that a client wants to register; ``raw_handle`` has 64 bytes."""

    raw_handle: bytes
    device_id: int
    byte_size: int


def decode_system_registration(body: Buffer) -> SystemRegistration:
    """Decode ``POST /v2/systemsharedmemory/region/R/register``.

    Raises:
        InvalidArgumentError: not JSON, or a member is missing or of the wrong type.
    """
    document = _members(body)
    for name in ("key", "byte_size"):
        if name not in document:
            raise MemberError(f"Shared memory register request has no '{name}' field")
    return SystemRegistration(
        _string(document, "key"),
        _unsigned(document, "offset") if "offset" in document else 0,
        _unsigned(document, "byte_size"),
    )


def decode_cuda_registration(body: Buffer) -> CudaRegistration:
    """Decode ``POST /v2/cudasharedmemory/region/R/register``.

    Raises:
        InvalidArgumentError: not JSON, a member is missing or of the wrong type, or the handle is
            none.
    """
    document = _members(body)
    handle = _member(document, "raw_handle")
    if type(handle) is not dict:
        raise _wrong_type("raw_handle", "object")
    text = _string(handle, "b64")
    byte_size = _unsigned(document, "byte_size")
    device_id = _unsigned(document, "device_id")
    try:
        raw_handle = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raw_handle = b""
    if len(raw_handle) != _CUDA_HANDLE_BYTES:
        raise InvalidArgumentError("'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t")
    return CudaRegistration(raw_handle, device_id, byte_size)


def encode_region_status(regions: Iterable[RegionDescription]) -> bytes:
    """The answer to every status request."""
    return orjson.dumps(
        [
            {
                "name": region.name,
                "key": region.key,
                "offset": region.offset,
                "byte_size": region.byte_size,
            }
            for region in regions
        ]
    )


def _members(body: Buffer) -> dict[str, Any]:
    document = parse_json(body)
    return document if type(document) is dict else {}


def _member(document: dict[str, Any], name: str) -> Any:
    if name not in document:
        raise MemberError(f"attempt to access non-existing object member '{name}'")
    return document[name]


def _string(document: dict[str, Any], name: str) -> str:
    value = _member(document, name)
    if type(value) is not str:
        raise _wrong_type(name, "string")
    return value


def _unsigned(document: dict[str, Any], name: str) -> int:
    value = _member(document, name)
    if type(value) is not int or not 0 <= value <= _MAX_UINT64:
        raise _wrong_type(name, "unsigned-integer")
    return value


def _wrong_type(name: str, expected: str) -> MemberError:
    return MemberError(f"attempt to access JSON non-{expected} as {expected}: '{name}'")
