"""The head of a request: parsed once by llhttp, then known by its bytes.

Clients send the same head again and again, so the parsed form is kept and most requests cost one
look-up. What is kept depends on nothing but the bytes and the server's options.
"""

import re
from typing import TYPE_CHECKING, Final

import httptools

from naiad.frontends.http.options import HttpOptions
from naiad.frontends.rest.head import RequestHead
from naiad.frontends.rest.limits import check_body
from naiad.frontends.rest.response import TEXT, HttpError, Response
from naiad.protocol.forwarded_headers import select_headers

if TYPE_CHECKING:
    from collections.abc import Callable

    from naiad.frontends.rest.router import Router

_MAX_CACHED_HEADS: Final = 1024
# Longer heads are rare, and a client must not fill the cache's memory with them.
_MAX_CACHED_BYTES: Final = 2048
# Above it, reading a body that is refused anyway costs more than a new connection.
_MAX_DENIED_BODY_BYTES: Final = 64 << 10
_METHOD: Final = re.compile(rb"[A-Z]{1,20} ")
_ABSOLUTE_TARGET: Final = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*")


class Head(RequestHead):
    """One parsed head; shared by all requests that begin with the same bytes.

    Attributes:
        content_length: of the body; 0 where none was announced.
        is_chunked: the body comes in chunks and its length is unknown.
        is_plain: nothing but a body of known length, so that the fast path may take it.
        is_head: the method is HEAD, whose answer has no body.
        keep_alive: the client may send another request.
        can_continue: interim answers may be sent (HTTP/1.1).
        expects_continue: the client waits for one before it sends the body.
    """

    __slots__ = (
        "can_continue",
        "content_length",
        "expects_continue",
        "is_chunked",
        "is_head",
        "is_plain",
        "keep_alive",
    )

    def __init__(self) -> None:
        super().__init__()
        self.content_length = 0
        self.is_chunked = False
        self.is_plain = True
        self.is_head = False
        self.keep_alive = True
        self.can_continue = True
        self.expects_continue = False


class HeadParser:
    """Turns the bytes of heads into ``Head`` objects."""

    def __init__(self, router: "Router", options: HttpOptions) -> None:
        self._router = router
        self._options = options
        self._known: dict[bytes, Head] = {}
        self.find: Callable[[bytes], Head | None] = self._known.get

    def parse(self, raw: bytes) -> Head:
        """Parse a head that ``find`` does not know.

        Args:
            raw: everything up to and including the empty line.

        Raises:
            HttpError: not HTTP, or over a limit; the connection can not go on.
        """
        # RFC 9112 2.2: empty lines before a request line are to be ignored.
        collected = _Collected()
        try:
            head = self._build(raw.lstrip(b"\r\n"), collected)
        finally:
            del collected.parser  # each leads to the other
        if len(raw) <= _MAX_CACHED_BYTES:
            if len(self._known) >= _MAX_CACHED_HEADS:
                self._known.clear()
            self._known[raw] = head
        return head

    def _build(self, raw: bytes, collected: "_Collected") -> Head:
        parser = collected.parser
        try:
            parser.feed_data(raw)
        except httptools.HttpParserUpgrade:
            pass  # a server need not take up an offer to switch protocols
        except httptools.HttpParserInvalidMethodError:
            if _METHOD.match(raw):
                raise HttpError(405, "Method Not Allowed", TEXT) from None
            raise HttpError(400, "Bad Request: the method is not valid") from None
        except httptools.HttpParserError as error:
            raise HttpError(400, f"Bad Request: {error}") from None
        if not collected.is_complete:
            raise HttpError(400, "Bad Request: the request line and headers do not end")
        if len(collected.headers) > self._options.max_headers:
            raise HttpError(
                431, f"Request Header Fields Too Large: more than {self._options.max_headers}"
            )
        head = Head()
        headers: dict[bytes, bytes] = {}
        head.headers = headers
        for name, value in collected.headers:
            key = name.lower()
            headers[key] = headers[key] + b", " + value if key in headers else value
        pattern = self._options.header_forward_pattern
        if pattern is not None:
            head.forwarded = select_headers(collected.headers, pattern)
        method = parser.get_method()
        head.is_head = method == b"HEAD"
        head.can_continue = parser.get_http_version() != "1.0"
        head.keep_alive = collected.keep_alive
        path = _ABSOLUTE_TARGET.sub(b"", collected.url, count=1).partition(b"?")[0]
        self._router.resolve(method.decode(), path.decode("latin-1"), head)
        self._read_framing(head)
        return head

    def _read_framing(self, head: Head) -> None:
        headers = head.headers
        # llhttp has refused lengths that are no number or are given twice. It allows any number of
        # zeros before one, and Python refuses to read a number of more than 4300 digits.
        head.content_length = int(headers.get(b"content-length", b"0").lstrip(b"0") or b"0")
        coding = headers.get(b"transfer-encoding")
        head.is_chunked = coding is not None
        if coding is not None and coding.lower() != b"chunked":
            raise HttpError(400, "Bad Request: the only transfer coding that is taken is chunked")
        if head.is_chunked and b"content-length" in headers:
            # RFC 9112 6.3: the chunks count, and what follows them must not pass for a request.
            head.content_length = 0
            head.keep_alive = False
        head.expects_continue = b"expect" in headers and head.can_continue
        if head.denial is not None:
            self._read_denial(head, head.denial)
        else:
            check_body(head, self._options, None if head.is_chunked else head.content_length)
        head.is_plain = not (head.is_chunked or head.expects_continue or head.refusal)

    @staticmethod
    def _read_denial(head: Head, denial: Response) -> None:
        """Refuse a body before it comes, unless it is so small that the connection can be kept."""
        is_small = head.content_length <= _MAX_DENIED_BODY_BYTES
        if head.is_chunked or head.expects_continue or not is_small:
            head.refusal = denial


class _Collected:
    """What llhttp reports about one head."""

    def __init__(self) -> None:
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_chunked_length=True)
        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.is_complete = False
        self.keep_alive = True

    def on_url(self, part: bytes) -> None:
        self.url += part

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self.is_complete = True
        # Asked here because llhttp forgets it at the end of a message without a body.
        self.keep_alive = self.parser.should_keep_alive()
