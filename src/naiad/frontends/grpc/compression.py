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


# What does not fit into the result of one step is copied by zlib, so it gets little at a time.
_FEED_BYTES: Final = 64 << 10


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


class Unpacker:
    """Reads one packed message in steps of bounded size, each of which may run in any thread.

    Args:
        encoding: one that is known.
        packed: the whole of it.
        limit: what may come out.

    Attributes:
        data: what has come out so far.
        packed_bytes: of the packed message.
        reserved_bytes: counted by the owner for what comes out.
    """

    __slots__ = (
        "_limit",
        "_packed",
        "_position",
        "_stream",
        "data",
        "packed_bytes",
        "reserved_bytes",
    )

    def __init__(self, encoding: bytes, packed: Buffer, limit: int) -> None:
        self.data = bytearray()
        self.packed_bytes = len(packed)
        self.reserved_bytes = 0
        self._packed = memoryview(packed)
        self._position = 0
        self._limit = limit
        self._stream = zlib.decompressobj(_WINDOW_BITS[encoding])

    def advance(self, size: int) -> bool:
        """Add at most ``size`` bytes to the data; returns whether that was the end.

        Raises:
            CompressionError: the message is damaged, or goes on after its end.
            TooLargeError: it is larger than the limit; little more than that was made.
        """
        stream = self._stream
        # One more than is allowed, to see that it is too many.
        goal = min(len(self.data) + size, self._limit + 1)
        while len(self.data) < goal and not stream.eof:
            self._read(goal - len(self.data))
        if len(self.data) > self._limit:
            raise TooLargeError
        if stream.eof and (stream.unused_data or self._position < self.packed_bytes):
            raise CompressionError("it does not end where it should")
        return stream.eof

    def _read(self, size: int) -> None:
        stream = self._stream
        packed: Buffer = stream.unconsumed_tail
        if not packed:
            end = self._position + _FEED_BYTES
            packed = self._packed[self._position : end]
            self._position += len(packed)
        try:
            piece = stream.decompress(packed, size)
        except zlib.error as error:
            raise CompressionError(str(error)) from None
        self.data += piece
        if not piece and not packed and not stream.eof:
            raise CompressionError("it does not end where it should")


def compress(encoding: bytes, parts: Iterable[Buffer], level: int) -> bytes:
    """Pack a message."""
    packer = zlib.compressobj(level, zlib.DEFLATED, _WINDOW_BITS[encoding])
    packed = [packer.compress(part) for part in parts]
    packed.append(packer.flush())
    return b"".join(packed)
