"""One request that the host hands over, and the way back for its answer."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from naiad.frontends.asgi.messages import (
    Message,
    Receive,
    Send,
    response_body,
    response_start,
)
from naiad.frontends.byte_budget import ByteBudget
from naiad.frontends.rest.exchange import Exchange
from naiad.frontends.rest.head import RequestHead
from naiad.frontends.rest.limits import check_header_length, max_body_bytes
from naiad.frontends.rest.options import RestOptions
from naiad.frontends.rest.response import Response, error_response, naiad_error_response
from naiad.protocol.json_text import Buffer

_LOGGER: Final = logging.getLogger(__name__)


class _GoneError(Exception):
    """The client went away."""


class Call:
    """Carries one exchange over ASGI; belongs to one event loop.

    Handlers answer by plain calls, which put messages in a queue; a coroutine hands them to the
    host as fast as it takes them.
    """

    def __init__(
        self, receive: Receive, send: Send, options: RestOptions, budget: ByteBudget
    ) -> None:
        self._receive = receive
        self._send = send
        self._options = options
        self._budget = budget
        self._reserved = 0
        self._messages: deque[Message] = deque()
        self._unsent = 0
        self._unsent_reserved = 0
        self._wake = asyncio.Event()
        self._exchange: Exchange | None = None
        self._is_ended = False
        self._is_gone = False
        self._has_body = True

    async def run(self, head: RequestHead, method: str, now_ns: Callable[[], int]) -> None:
        """Read the body, let the handler answer, and bring the answer to the host."""
        self._has_body = method != "HEAD"
        try:
            head.refusal = head.refusal or head.denial
            body = b"" if head.refusal is not None else await self._read_body(head)
            refusal = head.refusal or check_header_length(head, len(body))
            if refusal is None:
                length = head.header_length
                text = body if length is None else body[:length]
                tail = b"" if length is None else body[length:]
                self._exchange = exchange = Exchange(self, head, text, tail, now_ns())
                try:
                    head.handler(exchange)
                except Exception:
                    # A fault in one handler must not leave the client without an answer.
                    _LOGGER.exception("handler failed")
                    exchange.fail()
            else:
                self._respond(refusal)
            await self._relay()
        except _GoneError:
            pass
        finally:
            self._lose()

    # --- the carrier -----------------------------------------------------------------------------

    def send(
        self,
        exchange: Exchange,
        head: bytes,
        body: bytes,
        tail: Sequence[Buffer] = (),
        tail_bytes: int = 0,
    ) -> None:
        """Queue the whole answer of ``exchange``."""
        if self._exchange is not exchange or self._is_ended:
            return
        self._put(response_start(head, len(body) + tail_bytes))
        if self._has_body:
            for part in (body, *tail):
                # ASGI takes bytes only, and a copy may be kept as long as the client takes.
                self._put(response_body(bytes(part), ends=False))
        self._put(response_body(b"", ends=True))
        self._is_ended = True

    def stream(self, exchange: Exchange, head: bytes, data: bytes, *, ends: bool) -> bool:
        """Queue a piece of the answer of ``exchange``."""
        if self._exchange is not exchange or self._is_ended:
            return True
        if head:
            self._put(response_start(head, None))
        self._put(response_body(data, ends=ends))
        if ends:
            self._is_ended = True
            return True
        if self._unsent > self._options.max_unsent_bytes:
            return False
        grown = self._unsent - self._unsent_reserved
        if grown > 0 and not self._budget.try_reserve(grown):
            return False
        self._unsent_reserved += max(grown, 0)
        return True

    def reserve(self, exchange: Exchange, size: int) -> None:
        """Count more memory of ``exchange``."""
        if self._exchange is exchange and not self._try_reserve(size):
            raise self._budget.exhausted()

    # --- the host's side -------------------------------------------------------------------------

    async def _read_body(self, head: RequestHead) -> bytes:
        """The body, or b"" where it is refused, with the answer queued."""
        limit = max_body_bytes(head, self._options)
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise _GoneError
            part: bytes = message.get("body", b"")
            size += len(part)
            if size > limit:
                head.refusal = error_response(
                    413, f"request body exceeds the maximum of {limit} bytes"
                )
            elif not self._try_reserve(len(part)):
                head.refusal = naiad_error_response(self._budget.exhausted())
            if head.refusal is not None:
                return b""
            parts.append(part)
            if not message.get("more_body", False):
                return b"".join(parts)

    async def _relay(self) -> None:
        """Hand on what is queued until the answer ends or the client has gone."""
        watcher: asyncio.Task[None] | None = None
        try:
            while True:
                while self._messages:
                    await self._hand_on(self._messages.popleft())
                if self._is_ended or self._is_gone:
                    return
                if watcher is None:
                    watcher = asyncio.ensure_future(self._watch())
                self._wake.clear()
                await self._wake.wait()
        finally:
            if watcher is not None:
                watcher.cancel()

    async def _hand_on(self, message: Message) -> None:
        try:
            await self._send(message)
        except OSError:  # what hosts of ASGI 2.4 raise when the client has gone
            raise _GoneError from None
        self._unsent -= len(message.get("body", b""))
        if self._unsent_reserved > self._unsent:
            self._budget.release(self._unsent_reserved - self._unsent)
            self._unsent_reserved = self._unsent

    async def _watch(self) -> None:
        """Notice that the client goes away while its answer is made."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._is_gone = True
        self._messages.clear()
        self._wake.set()

    def _lose(self) -> None:
        """Nothing can be answered any more; stop whatever still works on it."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None and not self._is_ended:
            exchange.lose()
        self._is_ended = True
        self._budget.release(self._reserved + self._unsent_reserved)
        self._reserved = self._unsent_reserved = 0

    def _respond(self, response: Response) -> None:
        self._put(response_start(response.head, len(response.body)))
        self._put(response_body(response.body if self._has_body else b"", ends=True))
        self._is_ended = True

    def _put(self, message: Message) -> None:
        self._messages.append(message)
        self._unsent += len(message.get("body", b""))
        self._wake.set()

    def _try_reserve(self, size: int) -> bool:
        if not self._budget.try_reserve(size):
            return False
        self._reserved += size
        return True
