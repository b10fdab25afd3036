"""Chunked bodies (RFC 9112 section 7.1), sans I/O."""

import re
from typing import TYPE_CHECKING, Final

from naiad.frontends.rest.response import HttpError

if TYPE_CHECKING:
    from collections.abc import Callable

LAST_CHUNK: Final = b"0\r\n\r\n"

_SIZE_LINE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?")
# Extensions and trailers carry nothing that a server reads, so they get little room.
_MAX_LINE_BYTES: Final = 256
_MAX_TRAILER_BYTES: Final = 8192


def format_chunk(data: bytes) -> bytes:
    """One chunk of an answer; ``data`` is not empty, which would end the body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class ChunkedBody:
    """Collects one chunked body.

    Attributes:
        data: what was received of the content so far.
    """

    __slots__ = (
        "_chunk_count",
        "_line",
        "_max_bytes",
        "_max_chunks",
        "_missing",
        "_step",
        "_trailer_bytes",
        "data",
    )

    _step: "Callable[[ChunkedBody, bytes, int, int], int]"

    def __init__(self, max_bytes: int, max_chunks: int) -> None:
        self.data = bytearray()
        self._max_bytes = max_bytes
        self._max_chunks = max_chunks
        self._chunk_count = 0
        self._line = bytearray()
        self._missing = 0
        self._trailer_bytes = 0
        # Functions, not methods: those would lead back here, and the body should not wait for the
        # garbage collector.
        self._step = ChunkedBody._read_size

    def feed(self, data: bytes) -> int | None:
        """Take more of the stream.

        Returns:
            None while the body goes on; at its end how many bytes of ``data`` belonged to it.

        Raises:
            HttpError: the framing is wrong, or a limit is passed.
        """
        position = 0
        end = len(data)
        while position < end:
            position = self._step(self, data, position, end)
            if position < 0:
                return -position
        return None

    def _read_size(self, data: bytes, position: int, end: int) -> int:
        position, line = self._read_line(data, position, end)
        if line is None:
            return position
        match = _SIZE_LINE.fullmatch(line)
        if match is None:
            raise HttpError(400, "Bad Request: the size of a chunk is not a hexadecimal number")
        self._missing = int(match[1], 16)
        if self._missing == 0:
            self._step = ChunkedBody._read_trailer
            return position
        if self._chunk_count == self._max_chunks:
            raise HttpError(
                400,
                f"Chunked request body exceeds maximum of {self._max_chunks} non-empty chunks. "
                "Send fewer or larger HTTP chunks.",
            )
        self._chunk_count += 1
        if len(self.data) + self._missing > self._max_bytes:
            raise HttpError(413, f"request body exceeds the maximum of {self._max_bytes} bytes")
        self._step = ChunkedBody._read_content
        return position

    def _read_content(self, data: bytes, position: int, end: int) -> int:
        taken = min(self._missing, end - position)
        self.data += data[position : position + taken]
        self._missing -= taken
        if self._missing == 0:
            self._step = ChunkedBody._read_content_end
        return position + taken

    def _read_content_end(self, data: bytes, position: int, end: int) -> int:
        position, line = self._read_line(data, position, end)
        if line is not None:
            if line:
                raise HttpError(400, "Bad Request: a chunk is longer than its size says")
            self._step = ChunkedBody._read_size
        return position

    def _read_trailer(self, data: bytes, position: int, end: int) -> int:
        position, line = self._read_line(data, position, end)
        if line is None:
            return position
        self._trailer_bytes += len(line)
        if self._trailer_bytes > _MAX_TRAILER_BYTES:
            raise HttpError(431, "Request Header Fields Too Large: trailers")
        return position if line else -position

    def _read_line(self, data: bytes, position: int, end: int) -> tuple[int, bytes | None]:
        """One line without its end, or None while it goes on."""
        stop = data.find(b"\n", position, end)
        line = self._line
        line += data[position : end if stop < 0 else stop + 1]
        if len(line) > _MAX_LINE_BYTES:
            raise HttpError(400, "Bad Request: a line of the chunked body is too long")
        if stop < 0:
            return end, None
        if not line.endswith(b"\r\n"):
            raise HttpError(400, "Bad Request: a line of the chunked body does not end in CR LF")
        text = bytes(line[:-2])
        line.clear()
        return stop + 1, text
