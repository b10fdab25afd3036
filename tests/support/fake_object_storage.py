"""Google Cloud Storage and Azure Blob Storage, as far as a model repository asks them.

Their XML answers over HTTP, from a dict. Sources: Google's "XML API" and Azure's "List Blobs", "Get
Blob" and "Authorize with Shared Key".
"""

import base64
import hashlib
import hmac
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape

ACCOUNT = "account"
KEY = base64.b64encode(b"the key of the account").decode()
# In the order of the signature.
_SIGNED = (
    *("content-encoding", "content-language", "content-length", "content-md5", "content-type"),
    *("date", "if-modified-since", "if-match", "if-none-match", "if-unmodified-since", "range"),
)
_TIME = "2026-01-02T03:04:05.000Z"


class FakeObjectStorage:
    """One bucket or container, ``bucket``, with what was put into it.

    Attributes:
        address: ``http://HOST:PORT``; Azure's API is below ``/account`` there, as Azurite's is.
        objects: content by key.
        fetched: keys whose content was asked for.
    """

    def __init__(self, server: ThreadingHTTPServer) -> None:
        self.address = f"http://127.0.0.1:{server.server_port}"
        self.objects: dict[str, bytes] = {}
        self.fetched: list[str] = []

    def answer(self, method: str, target: str, headers: dict[str, str]) -> tuple[int, bytes, str]:
        """Status, body and ETag."""
        parts = urlsplit(target)
        path, query = unquote(parts.path), dict(parse_qsl(parts.query, keep_blank_values=True))
        is_azure = path.startswith(f"/{ACCOUNT}/")
        if is_azure and headers.get("authorization") != _sign(method, parts.path, query, headers):
            return 403, b"<Error><Code>AuthenticationFailed</Code></Error>", ""
        container, _, key = path.removeprefix(f"/{ACCOUNT}").lstrip("/").partition("/")
        if container != "bucket":
            return 404, b"<Error><Code>NoSuchBucket</Code></Error>", ""
        if not key:
            listing = self._list_azure if is_azure else self._list_google
            return 200, listing(query.get("prefix", "")).encode(), ""
        if key not in self.objects:
            return 404, b"<Error><Code>NoSuchKey</Code></Error>", ""
        self.fetched.append(key)
        return 200, self.objects[key], _tag(self.objects[key])

    def _found(self, prefix: str) -> Iterator[tuple[str, bytes]]:
        for key, content in sorted(self.objects.items()):
            if key.startswith(prefix):
                yield key, content

    def _list_google(self, prefix: str) -> str:
        entries = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>{_TIME}</LastModified>"
            f"<ETag>{_tag(content)}</ETag><Size>{len(content)}</Size></Contents>"
            for key, content in self._found(prefix)
        )
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>"

    def _list_azure(self, prefix: str) -> str:
        entries = "".join(
            f"<Blob><Name>{escape(key)}</Name><Properties>"
            f"<Last-Modified>{formatdate(0, usegmt=True)}</Last-Modified>"
            f"<Etag>{_tag(content)}</Etag><Content-Length>{len(content)}</Content-Length>"
            "<Content-Type>application/octet-stream</Content-Type><BlobType>BlockBlob</BlobType>"
            "</Properties></Blob>"
            for key, content in self._found(prefix)
        )
        return f"<EnumerationResults><Blobs>{entries}</Blobs><NextMarker/></EnumerationResults>"


@contextmanager
def object_storage() -> Iterator[FakeObjectStorage]:
    """A storage that answers on a port of its own."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, body, tag = storage.answer(self.command, self.path, headers)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Last-Modified", formatdate(0, usegmt=True))
            if tag:
                self.send_header("ETag", tag)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """The tests' output is no place for it."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        # A client keeps its connections, and nobody waits for it to close them.
        server.block_on_close = False
        server.daemon_threads = True
        storage = FakeObjectStorage(server)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield storage
        finally:
            server.shutdown()
            thread.join()


def _tag(content: bytes) -> str:
    return f'"{hashlib.sha256(content).hexdigest()[:16]}"'


def _sign(method: str, path: str, query: dict[str, str], headers: dict[str, str]) -> str:
    """The header that only somebody with the account's key can make."""
    named = "".join(
        f"{name}:{headers[name]}\n" for name in sorted(headers) if name.startswith("x-ms-")
    )
    asked = "".join(f"\n{name}:{query[name]}" for name in sorted(query))
    # A length of 0 counts as none.
    given = {name: value for name, value in headers.items() if value != "0"}
    signed = "".join(f"{given.get(name, '')}\n" for name in _SIGNED)
    text = f"{method}\n{signed}{named}/{ACCOUNT}{path}{asked}"
    digest = hmac.digest(base64.b64decode(KEY), text.encode(), "sha256")
    return f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
