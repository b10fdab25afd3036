"""One HTTP/1.1 connection: framing, limits and the order of answers.

Bytes are received into a buffer that all connections of the server share, because a request is
nearly always complete when it is read, and is then decoded where it lies. A body that is not yet
complete gets one buffer of the announced length, into which the kernel writes the rest, so that a
large tensor is never copied. One request at a time is handed on; what the client sends ahead waits.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, cast

import numpy as np

from naiad.frontends.http.chunked import LAST_CHUNK, ChunkedBody, format_chunk
from naiad.frontends.http.head import Head
from naiad.frontends.rest.exchange import Exchange
from naiad.frontends.rest.limits import check_header_length, max_body_bytes
from naiad.frontends.rest.response import (
    CONTINUE,
    HttpError,
    Response,
    error_response,
    naiad_error_response,
)
from naiad.protocol.generate import EMPTY_COMMENT
from naiad.protocol.json_text import Buffer

if TYPE_CHECKING:
    from naiad.frontends.http.context import ConnectionContext

_LOGGER: Final = logging.getLogger(__name__)

_HEAD_END: Final = b"\r\n\r\n"
# Of the start of the binary tail: a cache line, and enough for every vector instruction.
_ALIGNMENT: Final = 64
# More of a body than this is read in small pieces: libuv reads up to 32 times before it does
# anything else, and a MiB takes the kernel up to three milliseconds on a busy machine.
_WHOLE_BYTES: Final = 1 << 20
_READ_BYTES: Final = 16 << 10
# What a client may send ahead while its request is worked on; then reading stops.
_MAX_AHEAD_BYTES: Final = 64 << 10
# Below this, joining an answer costs less than a second buffer in the system call.
_JOIN_BYTES: Final = 32 << 10
# Of a larger answer only so much is given to the kernel in one pass of the loop, which may take it
# all: to copy four megabytes holds the loop for milliseconds.
_WRITE_BYTES: Final = 512 << 10
# A client that sends many small requests at once must not keep the loop from the others.
_MAX_REQUESTS_PER_TURN: Final = 32
# How soon a client that stopped sending is asked again whether it still listens; then ever later.
_PROBE_INTERVAL_S: Final = 0.25


class Connection(asyncio.BufferedProtocol):
    """The protocol object of one accepted socket."""

    __slots__ = (
        "_ahead",
        "_body",
        "_chunks",
        "_context",
        "_exchange",
        "_filled",
        "_head",
        "_is_closing",
        "_is_ended",
        "_is_last",
        "_is_reading_paused",
        "_is_refused",
        "_is_streaming",
        "_is_write_paused",
        "_probe",
        "_reserved",
        "_since_ns",
        "_transport",
        "_unsent",
        "_unsent_reserved",
        "_unwritten",
        "_used_ns",
    )

    _transport: asyncio.Transport
    _head: Head

    def __init__(self, context: "ConnectionContext") -> None:
        self._context = context
        self._exchange: Exchange | None = None
        self._ahead = bytearray()
        self._body: memoryview | None = None
        self._filled = 0
        self._chunks: ChunkedBody | None = None
        self._reserved = 0
        self._is_closing = False
        self._is_refused = False
        self._is_ended = False
        self._is_last = False
        self._is_streaming = False
        self._is_reading_paused = False
        self._is_write_paused = False
        self._probe: asyncio.TimerHandle | None = None
        self._since_ns = 0
        # When the last request was here.
        self._used_ns = 0
        self._unsent = 0
        self._unsent_reserved = 0
        # What is left of a large answer.
        self._unwritten: deque[Buffer] | None = None

    # --- asyncio's callbacks ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport and join the server's connections."""
        self._transport = cast("asyncio.Transport", transport)
        context = self._context
        self._used_ns = context.now_ns()
        limit = context.options.max_connections
        if not context.add(self, limit):
            self._refuse(
                error_response(
                    503,
                    f"the server has {limit} connections, the most that it takes. Use "
                    "--http-max-connections to increase the limit.",
                )
            )

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the kernel writes next: the rest of a body, or the shared buffer."""
        if self._body is not None:
            rest = self._body[self._filled :]
            return rest if len(rest) <= _WHOLE_BYTES else rest[:_READ_BYTES]
        return self._context.scratch_view

    def buffer_updated(self, nbytes: int) -> None:
        """Go on with ``nbytes`` more bytes."""
        context = self._context
        if self._body is not None:
            self._fill_body(self._body, nbytes)
        elif self._is_closing:
            pass  # what a refused client still sends
        elif self._chunks is not None:
            used = self._feed_chunks(self._chunks, bytes(context.scratch_view[:nbytes]))
            self._hold(context.scratch_view[used:nbytes])
        elif self._exchange is None and not self._ahead and not self._is_write_paused:
            used = self._consume(context.scratch, context.scratch_view, nbytes)
            if used < nbytes:
                self._hold(context.scratch_view[used:nbytes])
        else:
            self._hold(context.scratch_view[:nbytes])

    def eof_received(self) -> bool:
        """The client sends no more; it may still wait for its answer, or be gone altogether."""
        if self._transport.get_extra_info("ssl_object") is not None:
            return False  # TLS as the loop does it knows no half-closed connection
        if self._ahead:
            # Requests that were sent ahead are answered before the connection ends.
            self._is_ended = True
            self._context.loop.call_soon(self._resume)
        elif self._exchange is None:
            return False
        else:
            self._is_last = True
        self._ask_for_life(_PROBE_INTERVAL_S)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed: drop the request, whatever state it is in."""
        self._context.remove(self)
        self._is_closing = True
        self._body = None
        self._chunks = None
        exchange = self._exchange
        self._finish()
        if exchange is not None:
            exchange.lose()

    def pause_writing(self) -> None:
        """The client reads slower than it is answered: read nothing more from it."""
        self._is_write_paused = True
        self._unsent = self._transport.get_write_buffer_size()
        self._since_ns = self._context.now_ns()
        self._set_reading()

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._is_write_paused = False
        is_receiving = self._body is not None or self._chunks is not None
        self._since_ns = self._context.now_ns() if is_receiving else 0
        if self._unsent_reserved:
            self._hold_unsent()
        self._set_reading()
        if self._unwritten is not None:
            self._write_more()
        self._resume()

    # --- receiving -------------------------------------------------------------------------------

    def _consume(self, data: bytes | bytearray, view: memoryview, end: int) -> int:
        """Handle the requests in ``data[:end]``; returns how many bytes are done with."""
        context = self._context
        position = 0
        turns = _MAX_REQUESTS_PER_TURN
        while position < end and self._exchange is None and turns and not self._is_write_paused:
            turns -= 1
            stop = data.find(_HEAD_END, position, end) + 4
            if stop < 4:
                self._await_head(end - position)
                return end if self._is_closing else position
            raw = bytes(view[position:stop])
            head = context.heads.find(raw) or self._parse_head(raw)
            if head is None:
                return end
            position = stop + head.content_length
            if head.is_plain and position <= end:
                if context.budget.try_reserve(head.content_length):
                    self._reserved = head.content_length
                    length = head.header_length
                    if length is None:
                        self._dispatch(head, view[stop:position], b"")
                    else:
                        length += stop
                        # The copy gives the tail an address of its own, aligned, in memory that
                        # the next read does not overwrite.
                        self._dispatch(head, view[stop:length], bytes(view[length:position]))
                else:
                    self._refuse(naiad_error_response(context.budget.exhausted()))
            else:
                position = self._begin_body(head, view, stop, end)
            if self._is_closing:
                return end
        return position

    def _parse_head(self, raw: bytes) -> Head | None:
        try:
            return self._context.heads.parse(raw)
        except HttpError as error:
            self._refuse(error.response())
            return None

    def _await_head(self, size: int) -> None:
        """Keep waiting for the end of a head, of which ``size`` bytes are there."""
        if size > self._context.options.max_head_bytes:
            self._refuse(
                error_response(
                    431,
                    "Request Header Fields Too Large: the request line and headers exceed "
                    f"{self._context.options.max_head_bytes} bytes",
                )
            )
        elif self._since_ns == 0:
            self._since_ns = self._context.now_ns()

    def _hold(self, data: memoryview) -> None:
        """Keep what can not be handled yet."""
        if data:
            self._ahead += data
            self._set_reading()
            if self._exchange is None:
                self._context.loop.call_soon(self._resume)

    def _resume(self) -> None:
        """Handle what was kept, if there is any and nothing is in its way."""
        if self._exchange is not None or self._is_closing or self._is_write_paused:
            return
        if self._ahead and self._body is None and self._chunks is None:
            data = bytes(self._ahead)
            self._ahead.clear()
            used = self._consume(data, memoryview(data), len(data))
            self._ahead += data[used:]
            if used and self._ahead:
                self._context.loop.call_soon(self._resume)
            elif self._is_ended:
                self._answer_last()
            self._set_reading()

    def _answer_last(self) -> None:
        """Close once the last of what a client sent, that sends no more, is answered."""
        if self._exchange is None:
            self._is_closing = True
            self._transport.close()
        else:
            self._is_last = True
            self._ask_later(_PROBE_INTERVAL_S)

    def _set_reading(self) -> None:
        """Read only from a client that takes its answers and does not run ahead."""
        pause = self._is_write_paused or len(self._ahead) > _MAX_AHEAD_BYTES
        if pause == self._is_reading_paused or self._transport.is_closing():
            return
        self._is_reading_paused = pause
        if pause:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _begin_body(self, head: Head, view: memoryview, start: int, end: int) -> int:
        """Start on a body that is not complete, or not plain; returns where to go on."""
        if head.refusal is not None:
            self._refuse(head.refusal, head)
            return end
        self._head = head
        self._since_ns = self._context.now_ns()
        if head.expects_continue:
            self._transport.write(CONTINUE)
        if head.is_chunked:
            options = self._context.options
            self._chunks = chunks = ChunkedBody(max_body_bytes(head, options), options.max_chunks)
            return start + self._feed_chunks(chunks, bytes(view[start:end]))
        length = head.content_length
        try:
            body = _allocate_body(length, head.header_length or 0)
        except MemoryError:
            self._refuse(naiad_error_response(self._context.budget.exhausted()))
            return end
        self._body = body
        self._filled = 0
        taken = min(length, end - start)
        body[:taken] = view[start : start + taken]
        self._fill_body(body, taken)
        return start + taken

    def _fill_body(self, body: memoryview, size: int) -> None:
        """Count ``size`` more bytes of the body, and hand it on when it is complete."""
        if not self._reserve(size):
            return
        self._filled += size
        if self._filled == len(body):
            self._body = None
            self._dispatch_body(body)

    def _feed_chunks(self, chunks: ChunkedBody, data: bytes) -> int:
        """Decode more of a chunked body; returns how much of ``data`` belongs to it."""
        before = len(chunks.data)
        try:
            used = chunks.feed(data)
        except HttpError as error:
            self._refuse(error.response())
            return len(data)
        if not self._reserve(len(chunks.data) - before) or used is None:
            return len(data)
        self._chunks = None
        self._dispatch_body(memoryview(chunks.data))
        return used

    def _dispatch_body(self, body: memoryview) -> None:
        """Hand on a request whose body has a buffer of its own."""
        refusal = check_header_length(self._head, len(body))
        if refusal is not None:
            self._refuse(refusal)
            return
        length = self._head.header_length
        if length is None:
            self._dispatch(self._head, body, b"")
        else:
            self._dispatch(self._head, body[:length], body[length:])

    def _reserve(self, size: int) -> bool:
        """Count received bytes against the server's budget; refuses the request beyond it."""
        budget = self._context.budget
        if budget.try_reserve(size):
            self._reserved += size
            return True
        self._refuse(naiad_error_response(budget.exhausted()))
        return False

    def reserve(self, exchange: Exchange, size: int) -> None:
        """Count more memory of ``exchange``; of one that is lost nothing is counted any more."""
        if self._exchange is exchange:
            budget = self._context.budget
            if not budget.try_reserve(size):
                raise budget.exhausted()
            self._reserved += size

    def _dispatch(self, head: Head, text: Buffer, tail: Buffer) -> None:
        since_ns = self._since_ns
        self._since_ns = 0
        self._head = head
        self._used_ns = now_ns = self._context.now_ns()
        exchange = Exchange(self, head, text, tail, now_ns)
        if since_ns:
            exchange.started_ns = since_ns
        self._exchange = exchange
        try:
            head.handler(exchange)
        except Exception:
            # A fault in one handler must not end the connection without an answer.
            _LOGGER.exception("handler failed")
            exchange.fail()

    # --- answering -------------------------------------------------------------------------------

    def send(
        self,
        exchange: Exchange,
        head: bytes,
        body: bytes,
        tail: Sequence[Buffer] = (),
        tail_bytes: int = 0,
    ) -> None:
        """Write the answer of ``exchange`` and get ready for the next request."""
        if self._exchange is not exchange:
            return
        length = b"Content-Length: %d\r\n" % (len(body) + tail_bytes)
        request = self._head
        is_last = self._is_last or not request.keep_alive
        if is_last:
            length += b"Connection: close\r\n"
        elif not request.can_continue:  # HTTP/1.0 closes where nothing is said
            length += b"Connection: keep-alive\r\n"
        if request.is_head:
            self._transport.write(b"%b%b\r\n" % (head, length))
        elif tail_bytes == 0:
            self._transport.write(b"%b%b\r\n%b" % (head, length, body))
        elif tail_bytes <= _JOIN_BYTES:
            self._transport.write(b"".join((head, length, b"\r\n", body, *tail)))
        elif tail_bytes <= _WRITE_BYTES:
            self._transport.writelines([b"%b%b\r\n%b" % (head, length, body), *tail])
        else:
            self._is_last = is_last
            self._unwritten = deque((b"%b%b\r\n%b" % (head, length, body), *tail))
            self._write_more()
            return
        self._end_answer(is_last=is_last)

    def _write_more(self) -> None:
        """Write some more of a large answer, as soon as the client's machine takes it."""
        unwritten = self._unwritten
        if unwritten is None or self._is_write_paused:
            return
        some: list[Buffer] = []
        room = _WRITE_BYTES
        while unwritten and room:
            part = memoryview(unwritten.popleft())
            if len(part) > room:
                unwritten.appendleft(part[room:])
                part = part[:room]
            some.append(part)
            room -= len(part)
        self._transport.writelines(some)
        if unwritten:
            self._context.loop.call_soon(self._write_more)
        else:
            self._unwritten = None
            self._end_answer(is_last=self._is_last)

    def stream(self, exchange: Exchange, head: bytes, data: bytes, *, ends: bool) -> bool:
        """Write a piece of the answer of ``exchange``, in chunks where the client knows them."""
        if self._exchange is not exchange:
            return True
        request = self._head
        is_chunked = request.can_continue  # both came with HTTP/1.1
        is_last = self._is_last or not request.keep_alive or not is_chunked
        if head:
            self._is_streaming = True
            head += b"Transfer-Encoding: chunked\r\n" if is_chunked else b""
            head += b"Connection: close\r\n\r\n" if is_last else b"\r\n"
        if is_chunked:
            data = format_chunk(data) if data else b""
            data += LAST_CHUNK if ends else b""
        self._transport.write(head + data)
        if ends:
            self._end_answer(is_last=is_last)
            return True
        if self._is_write_paused:
            self._unsent += len(data)  # that there is more now doesn't mean that nothing was taken
        return self._hold_unsent()

    def _hold_unsent(self) -> bool:
        """Count what the client has not taken; returns whether it may become more."""
        context = self._context
        unsent = self._transport.get_write_buffer_size()
        if unsent > context.options.max_unsent_bytes:
            return False
        grown = unsent - self._unsent_reserved
        if grown > 0 and not context.budget.try_reserve(grown):
            return False
        if grown < 0:
            context.budget.release(-grown)
        self._unsent_reserved = unsent
        return True

    def _end_answer(self, *, is_last: bool) -> None:
        """Get ready for the next request, or close where there is to be none."""
        self._finish()
        if is_last:
            self._is_closing = True
            self._transport.close()
        elif self._ahead:
            self._context.loop.call_soon(self._resume)

    def _finish(self) -> None:
        """Forget the request that was answered or lost."""
        self._exchange = None
        self._unwritten = None
        self._is_streaming = False
        if self._unsent_reserved:
            self._context.budget.release(self._unsent_reserved)
            self._unsent_reserved = 0
        if self._probe is not None:
            self._probe.cancel()
            self._probe = None
        if self._reserved:
            self._context.budget.release(self._reserved)
            self._reserved = 0

    def _refuse(self, response: Response, head: Head | None = None) -> None:
        """Answer a request that is not read to its end, and end the connection."""
        if self._is_closing or self._transport.is_closing():
            return
        body = b"" if head is not None and head.is_head else response.body
        self._transport.write(
            b"%bContent-Length: %d\r\nConnection: close\r\n\r\n%b"
            % (response.head, len(response.body), body)
        )
        self._finish()
        self._body = None
        self._chunks = None
        self._ahead.clear()
        self._is_closing = True
        self._is_refused = True
        self._since_ns = self._context.now_ns()
        # To close with unread input would make the kernel reset the connection and the client
        # lose the answer, so only our half is closed until it has seen it.
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()

    def _ask_for_life(self, interval_s: float) -> None:
        """Find out whether a client that stopped sending is still there.

        One that only closed its sending half ignores an interim answer, and in a stream of events
        an empty comment; the kernel of one that is gone replies with a reset, and the next write
        fails.
        """
        if self._exchange is None or not self._head.can_continue:
            return
        self._transport.write(format_chunk(EMPTY_COMMENT) if self._is_streaming else CONTINUE)
        self._ask_later(interval_s)

    def _ask_later(self, interval_s: float) -> None:
        if self._probe is not None:
            self._probe.cancel()
        self._probe = self._context.loop.call_later(interval_s, self._ask_for_life, interval_s * 2)

    # --- the server's business -------------------------------------------------------------------

    def drain(self) -> None:
        """Close now if nothing is under way, otherwise after the answer."""
        self._is_last = True
        is_receiving = self._body is not None or self._chunks is not None or bool(self._ahead)
        if self._exchange is None and not is_receiving and not self._is_refused:
            self._is_closing = True
            self._transport.close()

    def abort(self) -> None:
        """Close at once, whatever is under way."""
        self._transport.abort()

    def check_time(self, now_ns: int) -> None:
        """Cut off a client that is too slow; called about once a second."""
        if self._exchange is not None:
            self._used_ns = now_ns
        options = self._context.options
        if self._since_ns == 0:
            idle_ms = (now_ns - self._used_ns) / 1e6
            if options.max_idle_ms and idle_ms > options.max_idle_ms:
                self.drain()
            return
        waited_s = (now_ns - self._since_ns) / 1e9
        if self._is_refused:
            if waited_s > options.linger_s:
                self._transport.abort()
        elif self._is_write_paused:
            self._check_progress(now_ns, waited_s)
        else:
            received = self._filled if self._chunks is None else len(self._chunks.data)
            if waited_s > options.read_timeout_s + received / options.min_read_bytes_per_s:
                self._refuse(
                    error_response(408, "Request Timeout: the request did not arrive in time")
                )

    def _check_progress(self, now_ns: int, waited_s: float) -> None:
        unsent = self._transport.get_write_buffer_size()
        if unsent < self._unsent:
            self._unsent = unsent
            self._since_ns = now_ns
        elif waited_s > self._context.options.write_timeout_s:
            self._transport.abort()


def _allocate_body(length: int, header_length: int) -> memoryview:
    """A buffer for a body, placed so that what follows the JSON header is aligned."""
    # Pages that are not written to take no memory, so the announced length costs nothing yet.
    room = np.empty(length + _ALIGNMENT, np.uint8)
    start = -(room.ctypes.data + header_length) % _ALIGNMENT
    return room.data[start : start + length]
