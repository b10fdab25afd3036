"""Message compression: gzip and deflate, within limits.

Source: gRPC's compression.md; its deflate is zlib's format (RFC 1950).
"""

import zlib
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from naiad.protocol.json_text import Buffer

IDENTITY: Final = b"identity"
ACCEPTED: Final = b"identity,deflate,gzip"

# zlib's word for the container: 16 more than the window means gzip.
_WINDOW_BITS: Final[Mapping[bytes, int]] = MappingProxyType(
    {b"gzip": zlib.MAX_WBITS + 16, b"deflate": zlib.MAX_WBITS}
)


class CompressionError(Exception):
    """The bytes are not what the encoding says."""


class TooLargeError(Exception):
    """There is more in it than is allowed."""


def is_known(encoding: bytes) -> bool:
    """Whether messages in that encoding can be read."""
    return encoding in _WINDOW_BITS


def choose(accepted: bytes) -> bytes:
    """The encoding to answer with, from a client's ``grpc-accept-encoding``."""
    names = {name.strip() for name in accepted.split(b",")}
    for encoding in _WINDOW_BITS:
        if encoding in names:
            return encoding
    return IDENTITY


def decompress(encoding: bytes, data: Buffer, limit: int) -> bytes:
    """Unpack a message of at most ``limit`` bytes.

    Raises:
        CompressionError: it is damaged, or goes on after its end.
        TooLargeError: it would be larger; no more than ``limit`` bytes were made.
    """
    unpacker = zlib.decompressobj(_WINDOW_BITS[encoding])
    try:
        unpacked = unpacker.decompress(data, limit + 1)
    except zlib.error as error:
        raise CompressionError(str(error)) from None
    if len(unpacked) > limit:
        raise TooLargeError
    if not unpacker.eof or unpacker.unused_data:
        raise CompressionError("it does not end where it should")
    return unpacked


def compress(encoding: bytes, parts: Iterable[Buffer], level: int) -> bytes:
    """Pack a message."""
    packer = zlib.compressobj(level, zlib.DEFLATED, _WINDOW_BITS[encoding])
    packed = [packer.compress(part) for part in parts]
    packed.append(packer.flush())
    return b"".join(packed)
