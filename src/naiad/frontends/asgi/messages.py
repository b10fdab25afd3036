"""ASGI's words: scopes and messages, as far as this application reads and writes them.

Source: the ASGI specification 3.0, its HTTP protocol 2.4 and lifespan protocol 2.0.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

Headers = list[tuple[bytes, bytes]]


def request_path(scope: Scope) -> str:
    """The path below the application's mount point.

    As it was sent, since Triton compares it so, where the host tells; otherwise decoded.
    """
    raw: bytes | None = scope.get("raw_path")
    path: str = scope["path"] if raw is None else raw.partition(b"?")[0].decode("latin-1")
    mount = scope.get("root_path", "").rstrip("/")
    for prefix in (mount, quote(mount)):
        # Older hosts leave the mount point out of the path.
        if prefix and path.startswith(prefix + "/"):
            return path[len(prefix) :]
    return path


def join_headers(headers: Headers) -> dict[bytes, bytes]:
    """By name in lower case; repeated ones joined by a comma."""
    joined: dict[bytes, bytes] = {}
    for name, value in headers:
        key = name.lower()
        joined[key] = joined[key] + b", " + value if key in joined else value
    return joined


@lru_cache(maxsize=256)
def _split_head(head: bytes) -> tuple[int, tuple[tuple[bytes, bytes], ...]]:
    status_line, *lines = head.removesuffix(b"\r\n").split(b"\r\n")
    pairs = (line.partition(b":") for line in lines)
    return int(status_line.split(b" ", 2)[1]), tuple(
        (name.lower(), value.strip()) for name, _, value in pairs
    )


def response_start(head: bytes, content_length: int | None) -> Message:
    """The message that begins an answer.

    Args:
        head: status line and headers as HTTP/1.1 writes them, each line ended.
        content_length: None for an answer of unknown length.
    """
    status, headers = _split_head(head)
    length = [] if content_length is None else [(b"content-length", b"%d" % content_length)]
    return {"type": "http.response.start", "status": status, "headers": [*headers, *length]}


def response_body(data: bytes, *, ends: bool) -> Message:
    """The message that goes on with an answer."""
    return {"type": "http.response.body", "body": data, "more_body": not ends}
