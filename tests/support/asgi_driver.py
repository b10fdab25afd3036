"""A host for ASGI applications: calls them as the specification says, without sockets."""

import asyncio
from typing import Any

from naiad.frontends.asgi.messages import Message, Scope

TIMEOUT_S = 60


class Ask:
    """One request under way.

    Attributes:
        sent: the messages of the application so far.
        done: the call of the application.
    """

    def __init__(self, application: Any, scope: Scope, body: list[bytes], *, ends: bool) -> None:
        self.sent: list[Message] = []
        self._incoming: asyncio.Queue[Message] = asyncio.Queue()
        self._arrived = asyncio.Event()
        self.takes = asyncio.Event()
        self.takes.set()
        for index, part in enumerate(body):
            self.give(part, more=not ends or index + 1 < len(body))
        self.done = asyncio.ensure_future(application(scope, self._incoming.get, self._send))

    def give(self, part: bytes, *, more: bool) -> None:
        self._incoming.put_nowait({"type": "http.request", "body": part, "more_body": more})

    def disconnect(self) -> None:
        self._incoming.put_nowait({"type": "http.disconnect"})

    async def message(self, index: int) -> Message:
        """The message of that number, when it is there."""
        while len(self.sent) <= index:
            self._arrived.clear()
            await asyncio.wait_for(self._arrived.wait(), TIMEOUT_S)
        return self.sent[index]

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body, once the application is done."""
        await asyncio.wait_for(self.done, TIMEOUT_S)
        start, *parts = self.sent
        assert start["type"] == "http.response.start"
        assert all(part["type"] == "http.response.body" for part in parts)
        assert [part["more_body"] for part in parts] == [True] * (len(parts) - 1) + [False]
        assert all(type(part["body"]) is bytes for part in parts)
        headers = {name.decode(): value.decode() for name, value in start["headers"]}
        body = b"".join(part["body"] for part in parts)
        return start["status"], headers, body

    async def _send(self, message: Message) -> None:
        await self.takes.wait()
        self.sent.append(message)
        self._arrived.set()


def ask(
    application: Any,
    method: str,
    path: str,
    body: bytes | list[bytes] = b"",
    *,
    headers: dict[str, str] | None = None,
    root_path: str = "",
    ends: bool = True,
    has_raw_path: bool = True,
    has_length: bool = True,
) -> Ask:
    """Begin a request, as uvicorn would hand it over."""
    parts = [body] if isinstance(body, bytes) else body
    pairs = [(k.lower().encode(), v.encode()) for k, v in (headers or {}).items()]
    if has_length and method == "POST":
        pairs.append((b"content-length", b"%d" % sum(map(len, parts))))
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "query_string": b"",
        "root_path": root_path,
        "headers": pairs,
    }
    if has_raw_path:
        scope["raw_path"] = path.encode()
    return Ask(application, scope, parts, ends=ends)


class Lifespan:
    """The life of an application in its host."""

    def __init__(self, application: Any) -> None:
        self._to: asyncio.Queue[Message] = asyncio.Queue()
        self._from: asyncio.Queue[Message] = asyncio.Queue()
        self._done = asyncio.ensure_future(
            application({"type": "lifespan"}, self._to.get, self._from.put)
        )

    async def startup(self) -> Message:
        return await self._tell("lifespan.startup")

    async def shutdown(self) -> Message:
        message = await self._tell("lifespan.shutdown")
        await self._done
        return message

    async def _tell(self, kind: str) -> Message:
        self._to.put_nowait({"type": kind})
        return await asyncio.wait_for(self._from.get(), 60)
