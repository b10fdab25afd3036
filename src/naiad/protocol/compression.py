"""Compressed bodies: gzip and deflate, which HTTP means as zlib's format (RFC 9110 section 8.4.1).

Source of the names that are known and of the choice between them: Triton's http_server.cc and
data_compressor.h.
"""

import zlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from naiad.errors import InvalidArgumentError
from naiad.protocol.json_text import LIMIT_ADVICE, Buffer

IDENTITY: Final = b"identity"
# What a server that refuses another encoding says that it takes.
ACCEPTED: Final = b"gzip, deflate"

# zlib's window with the format that each name stands for.
_WINDOWS: Final[Mapping[bytes, int]] = MappingProxyType(
    {b"gzip": zlib.MAX_WBITS | 16, b"deflate": zlib.MAX_WBITS}
)
# Either format, since Triton takes both under both names.
_ANY_WINDOW: Final = zlib.MAX_WBITS | 32
# The fastest: on JSON numbers it takes a seventh of the default's time, for 8 to 24 % more bytes.
_LEVEL: Final = 1
# What does not fit into the result of one step is copied by zlib, so it gets little at a time.
_FEED_BYTES: Final = 64 << 10


def is_known(encoding: bytes) -> bool:
    """Whether a body in this encoding can be read; names are compared as sent, as in Triton."""
    return encoding in _WINDOWS


def choose_encoding(accept: bytes) -> bytes | None:
    """The encoding for an answer, out of an ``Accept-Encoding`` header.

    Returns:
        The first of those with the highest weight, or None for the body as it is.
    """
    best = IDENTITY
    best_weight = 0.0
    for item in accept.split(b","):
        name, _, parameters = item.partition(b";")
        name = name.strip()
        if name != IDENTITY and name not in _WINDOWS:
            continue
        weight = _parse_weight(parameters)
        if weight > best_weight:
            best, best_weight = name, weight
    return None if best == IDENTITY else best


def _parse_weight(parameters: bytes) -> float:
    name, separator, value = parameters.replace(b" ", b"").partition(b"=")
    if name != b"q" or not separator:
        return 1.0
    try:
        return float(value)
    except ValueError:
        return 0.0  # what can't be read is not a wish


def compress(parts: Sequence[Buffer], encoding: bytes) -> bytes:
    """One body out of ``parts``; may be called in any thread, and lets the others run."""
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOWS[encoding])
    pieces = [compressor.compress(part) for part in parts]
    pieces.append(compressor.flush())
    return b"".join(pieces)


class Decompressor:
    """Reads one compressed body in steps of bounded size.

    A step may run in any thread, and lets the others run meanwhile.

    Args:
        body: the whole of it; kept until the end.
        max_bytes: what may come out.

    Attributes:
        data: what has come out so far.
    """

    __slots__ = ("_body", "_max_bytes", "_position", "_rest", "_stream", "data")

    def __init__(self, body: Buffer, max_bytes: int) -> None:
        self.data = bytearray()
        self._body = memoryview(body)
        self._position = 0
        self._rest: Buffer = b""
        self._max_bytes = max_bytes
        self._stream = zlib.decompressobj(_ANY_WINDOW)

    def advance(self, max_bytes: int) -> bool:
        """Add about ``max_bytes`` to the data; returns whether that was the end.

        Raises:
            InvalidArgumentError: the body is not what its header says, is cut off, goes on after
                the end of the stream, or holds more than it may.
        """
        stream = self._stream
        # One more than is allowed, to see that it is too many.
        goal = min(len(self.data) + max_bytes, self._max_bytes + 1)
        while len(self.data) < goal and not stream.eof:
            data = self._rest or self._take()
            try:
                self.data += stream.decompress(data, goal - len(self.data))
            except zlib.error as error:
                raise _unreadable(str(error)) from None
            self._rest = stream.unconsumed_tail
            if not self._rest and self._position == len(self._body) and not stream.eof:
                self._finish(goal)
        if len(self.data) > self._max_bytes:
            raise InvalidArgumentError(
                "Decompressed data size exceeds the maximum allowed value of "
                f"{self._max_bytes} bytes. {LIMIT_ADVICE}"
            )
        if stream.eof and (stream.unused_data or self._position < len(self._body)):
            raise _unreadable("the body goes on after the end of the compressed data")
        return stream.eof

    def _finish(self, goal: int) -> None:
        """All input is taken: what zlib still holds back may be the end, or nothing is left."""
        room = goal - len(self.data)
        if room == 0:
            return
        try:
            piece = self._stream.decompress(b"", room)
        except zlib.error as error:
            raise _unreadable(str(error)) from None
        self.data += piece
        if not piece and not self._stream.eof:
            raise _unreadable("the body ends before the compressed data does")

    def _take(self) -> Buffer:
        start = self._position
        self._position = min(start + _FEED_BYTES, len(self._body))
        return self._body[start : self._position]


def _unreadable(reason: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"failed to decompress the request body: {reason}. Send the data that 'Content-Encoding' "
        "names, whole and nothing after it"
    )
