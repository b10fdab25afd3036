"""Bytes of HTTP answers: status lines, precomputed heads, error bodies."""

from collections.abc import Mapping
from functools import cache
from http import HTTPStatus
from types import MappingProxyType
from typing import Final

import orjson

from naiad.errors import NaiadError
from naiad.protocol.status import status_of

JSON: Final = b"application/json"
TEXT: Final = b"text/plain"
OCTETS: Final = b"application/octet-stream"

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"

# libevhtp's phrase; the others are the standard's.
_PHRASES: Final[Mapping[int, str]] = MappingProxyType({405: "Not Allowed"})


class HttpError(Exception):
    """A request that can not be answered by its handler, because HTTP itself went wrong.

    Attributes:
        status: of the answer.
        message: its text.
        content_type: of the answer.
    """

    def __init__(self, status: int, message: str, content_type: bytes = JSON) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.content_type = content_type

    def response(self) -> "Response":
        """The answer."""
        return error_response(self.status, self.message, self.content_type)


class Response:
    """An answer without a binary tail.

    Attributes:
        head: status line and headers up to the length.
        body: the content.
    """

    __slots__ = ("body", "head")

    def __init__(self, head: bytes, body: bytes) -> None:
        self.head = head
        self.body = body


@cache
def format_head(status: int, content_type: bytes) -> bytes:
    """The status line and the content type; the caller adds the length and the end."""
    phrase = _PHRASES.get(status) or HTTPStatus(status).phrase
    return b"HTTP/1.1 %d %b\r\nContent-Type: %b\r\n" % (status, phrase.encode(), content_type)


def error_response(status: int, message: str, content_type: bytes = JSON) -> Response:
    """An answer ``{"error": message}``."""
    return Response(format_head(status, content_type), encode_error(message))


def encode_error(message: str) -> bytes:
    """The body of an error."""
    # Messages may quote what a client sent, also text that is not UTF-8 when decoded leniently.
    return orjson.dumps({"error": message.encode("utf-8", "replace").decode()})


def naiad_error_response(error: NaiadError, content_type: bytes = JSON) -> Response:
    """The answer for an error of the engine or the decoder."""
    return error_response(status_of(error).http, error.message, content_type)


def wrong_header_length(header_length: int, body_bytes: int) -> HttpError:
    """The error for a JSON header that can not lie in its body."""
    return HttpError(
        400,
        f"inference header size should be in range (0, {body_bytes}), got: {header_length}",
        TEXT,
    )
