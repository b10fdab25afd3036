"""What a client is told that sends HTTP/1 to the gRPC port."""

from typing import Final

# HTTP/2 begins with PRI, which is none of these (RFC 9113 section 3.4).
_METHODS: Final = (
    b"GET ", b"POST ", b"HEAD ", b"PUT ", b"DELETE ", b"OPTIONS ", b"PATCH ",
)  # fmt: skip


def is_http_1(data: bytes) -> bool:
    """Whether the first bytes of a connection begin a request of HTTP/1."""
    return data.startswith(_METHODS)


def describe_http_1(http_port: int) -> str:
    """What happened, for the log, with the port that was meant; 0 where there is none."""
    return f"an HTTP/1 request came to the gRPC port{_advise(http_port)}"


def answer_http_1(http_port: int) -> bytes:
    """The same as a whole answer of HTTP/1.1."""
    text = f"This port speaks gRPC, which is HTTP/2{_advise(http_port)}.\n".encode()
    head = (
        "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(text)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + text


def _advise(http_port: int) -> str:
    return f"; HTTP is at port {http_port}" if http_port else ""
