"""The headers of a call: gRPC's own, and the client's metadata.

Source: gRPC's PROTOCOL-HTTP2.md.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from naiad.frontends.grpc.h2 import Headers
from naiad.protocol.forwarded_headers import select_headers

_TIMEOUT: Final = re.compile(rb"([0-9]{1,8})([HMSmun])")
_NS: Final[Mapping[bytes, int]] = MappingProxyType(
    {
        b"H": 3_600_000_000_000,
        b"M": 60_000_000_000,
        b"S": 1_000_000_000,
        b"m": 1_000_000,
        b"u": 1_000,
        b"n": 1,
    }
)
# What is not the client's metadata but gRPC's or HTTP's own.
_OWN: Final = frozenset({b"te", b"content-type", b"user-agent", b"accept-encoding"})


class BadTimeoutError(ValueError):
    """A ``grpc-timeout`` that is none."""


def parse_timeout_ns(value: bytes) -> int:
    """How long a client waits for the end of its call.

    Raises:
        BadTimeoutError: it is not written as it should be.
    """
    match = _TIMEOUT.fullmatch(value)
    if match is None:
        raise BadTimeoutError
    return int(match[1]) * _NS[match[2]]


def select_metadata(headers: Headers, pattern: re.Pattern[str]) -> dict[str, str]:
    """The client's text metadata whose key the pattern is found in; keys are lower case."""
    own = [
        (name, value)
        for name, value in headers
        if not (name.startswith((b":", b"grpc-")) or name in _OWN or name.endswith(b"-bin"))
    ]
    return select_headers(own, pattern)


def find_metadata(headers: Headers, key: bytes) -> bytes | None:
    """The first value of ``key``, or None."""
    for name, value in headers:
        if name == key:
            return value
    return None
