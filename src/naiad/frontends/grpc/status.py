"""gRPC status codes, and how a status travels in headers.

Source: gRPC's PROTOCOL-HTTP2.md and statuscodes.md.
"""

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final

from naiad.errors import NaiadError
from naiad.frontends.grpc.h2 import Headers
from naiad.protocol.status import status_of


class StatusCode(IntEnum):
    """How a call ended."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


# A message that is longer when it is encoded is cut: it travels in a header, and clients take 8 KiB
# of those, with every name and 32 bytes more for each.
_MAX_MESSAGE_BYTES: Final = 6144

OK_TRAILERS: Final = ((b"grpc-status", b"0"),)

# What travels as it is; everything else is percent-encoded.
_PLAIN: Final[Mapping[int, str]] = MappingProxyType(
    {byte: chr(byte) for byte in range(0x20, 0x7F) if byte != ord("%")}
)


def format_trailers(code: StatusCode, message: str) -> Headers:
    """The trailers that end a call."""
    status = (b"grpc-status", b"%d" % code)
    if not message:
        return (status,)
    return (status, (b"grpc-message", encode_message(message)))


def encode_message(message: str) -> bytes:
    """A status message, percent-encoded; of a long one as many whole characters as fit."""
    encoded: list[str] = []
    size = 0
    for character in message[:_MAX_MESSAGE_BYTES]:
        data = character.encode("utf-8", "replace")
        text = "".join(_PLAIN.get(byte) or f"%{byte:02X}" for byte in data)
        size += len(text)
        if size > _MAX_MESSAGE_BYTES:
            break
        encoded.append(text)
    return "".join(encoded).encode()


def code_of(error: NaiadError) -> StatusCode:
    """The status code of an error of the engine or the decoder."""
    return StatusCode[status_of(error).grpc]
