"""One connection: bytes between socket and HTTP/2, calls by stream, and the client's manners.

Bytes are received into a buffer that all connections of the server share, since HTTP/2 copies what
it keeps. What calls send is written once per turn of the loop, as fast as the client reads.
"""

import asyncio
import logging
from typing import TYPE_CHECKING, Final, cast

from naiad.access.restricted_apis import is_secret
from naiad.frontends.grpc.call import SHUTTING_DOWN, Call
from naiad.frontends.grpc.call_headers import BadTimeoutError, parse_timeout_ns
from naiad.frontends.grpc.h2 import ErrorCode, Headers, Http2Error, Http2Session
from naiad.frontends.grpc.http_1 import answer_http_1, describe_http_1, is_http_1
from naiad.frontends.grpc.methods import Method
from naiad.frontends.grpc.status import StatusCode

if TYPE_CHECKING:
    from naiad.frontends.grpc.context import ConnectionContext

_LOGGER: Final = logging.getLogger(__name__)

# One piece of output; it passes through several buffers, so it should fit into the cache.
_WRITE_BYTES: Final = 256 << 10
# The kernel may take all of it at once, and copies it while the loop waits.
_WRITE_BUFFER_BYTES: Final = 256 << 10
# After so much of one client the others have their turn: libuv reads up to 32 times before it does
# anything else.
_READ_BYTES: Final = 256 << 10
# Answers that wait for a slow reader; beyond it, new calls of the connection wait too.
_MAX_UNSENT_BYTES: Final = 64 << 20
# Frames that cost the client nothing, in one second: settings, pings, empty data.
_MAX_IDLE_FRAMES: Final = 1000
# Streams that a client may reset at once, per second, and besides one for every answer that it
# takes: to cancel, or to run out of time, is part of gRPC's daily life.
_RESET_BURST: Final = 2000
_RESETS_PER_S: Final = 1000
# Without calls, gRPC allows a client one ping in two hours.
_IDLE_PING_INTERVAL_NS: Final = 7_200_000_000_000
_DRAIN_PING: Final = b"draining"
_KEEPALIVE_PING: Final = b"keepaliv"
_MS: Final = 1_000_000
_S: Final = 1_000_000_000

_UNKNOWN: Final = Method("", None)


class Connection(asyncio.BufferedProtocol):
    """The protocol object of one accepted socket.

    Attributes:
        context: shared with the other connections.
        session: its HTTP/2.
        heard_ns: when bytes of the client came last.
    """

    __slots__ = (
        "_answered",
        "_calls",
        "_draining_since_ns",
        "_idle_frames",
        "_idle_pings",
        "_is_accepting",
        "_is_flush_due",
        "_is_greeted",
        "_is_write_paused",
        "_last_ping_ns",
        "_made_ns",
        "_paused_since_ns",
        "_pinged_ns",
        "_read_bytes",
        "_resets",
        "_senders",
        "_strikes",
        "_transport",
        "_unfinished",
        "_unsent_bytes",
        "_unwritten_bytes",
        "_used_ns",
        "_waiting",
        "context",
        "heard_ns",
        "session",
    )

    _transport: asyncio.Transport
    session: Http2Session

    def __init__(self, context: "ConnectionContext") -> None:
        self.context = context
        self._calls: dict[int, Call] = {}
        # Streams that are answered while the client still sends.
        self._unfinished: set[int] = set()
        # Streams that are answered and not closed: how much of the answer the client's window kept
        # back when that was last looked at, and since when it is so much.
        self._answered: dict[int, tuple[int, int]] = {}
        self._used_ns = context.now_ns()
        self._senders: dict[Call, None] = {}
        self._waiting: list[Call] = []
        self._unsent_bytes = 0
        self._is_flush_due = False
        self._is_accepting = True
        self._is_write_paused = False
        self._paused_since_ns = 0
        self._unwritten_bytes = 0
        self._made_ns = self.heard_ns = context.now_ns()
        self._draining_since_ns = 0
        self._idle_frames = 0
        self._read_bytes = 0
        self._resets = 0
        self._last_ping_ns = 0
        self._strikes = 0
        self._pinged_ns = 0
        self._idle_pings = 0
        self._is_greeted = False

    # --- asyncio's callbacks ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport, join the server's connections, and send our settings."""
        self._transport = cast("asyncio.Transport", transport)
        self.session = Http2Session(self.context.limits, self)
        is_one_too_many = not self.context.add(self, self.context.options.max_connections)
        tls = transport.get_extra_info("ssl_object")
        if tls is not None and tls.selected_alpn_protocol() != "h2":
            self._transport.close()
            return
        self._transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        # Our settings wait for the client's first bytes, in case these are HTTP/1, whose answer has
        # to come first. A client of HTTP/2 sends its own at once (RFC 9113 section 3.4).
        if is_one_too_many:
            self._terminate(ErrorCode.ENHANCE_YOUR_CALM, b"the server has too many connections")

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the kernel writes next."""
        return self.context.scratch

    def buffer_updated(self, nbytes: int) -> None:
        """Go on with ``nbytes`` more bytes."""
        if self._transport.is_closing():
            return
        self.heard_ns = self.context.now_ns()
        try:
            self.session.receive(self.context.scratch[:nbytes])
        except Http2Error as error:
            self._break(error, bytes(self.context.scratch[:nbytes]))
            return
        self._read_bytes += nbytes
        if self._read_bytes >= _READ_BYTES:
            self._transport.pause_reading()
            self.context.loop.call_soon(self._read_on)
        self.flush()

    def _read_on(self) -> None:
        self._read_bytes = 0
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def eof_received(self) -> bool:
        """The client sends no more, so it can not take part in HTTP/2 any longer."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed: drop every call."""
        self.context.remove(self)
        for call in tuple(self._calls.values()):
            call.lose()

    def pause_writing(self) -> None:
        """The client's machine takes less than it is sent."""
        self._is_write_paused = True
        self._unwritten_bytes = self._transport.get_write_buffer_size()
        self._paused_since_ns = self.context.now_ns()

    def resume_writing(self) -> None:
        """It has caught up."""
        self._is_write_paused = False
        self.flush()

    # --- HTTP/2's callbacks ----------------------------------------------------------------------

    def on_headers(self, stream_id: int, headers: Headers, *, is_ended: bool) -> None:
        """A call begins."""
        if self._transport.is_closing():
            return
        fields = dict(headers)
        context = self.context
        if fields.get(b":method") != b"POST":
            self._refuse(stream_id, b"405", is_ended=is_ended)
            return
        if not fields.get(b"content-type", b"").startswith(b"application/grpc"):
            self._refuse(stream_id, b"415", is_ended=is_ended)
            return
        path = fields.get(b":path", b"")
        method = context.methods.get(path, _UNKNOWN)
        call = Call(self, stream_id, method, headers, is_ended=is_ended)
        self._calls[stream_id] = call
        self._used_ns = self.heard_ns
        if method is _UNKNOWN:
            call.fail(
                StatusCode.UNIMPLEMENTED,
                f"this server has no method '{path.decode('latin-1')}'",
            )
            return
        if not self._admit(call, method, fields):
            return
        if self._unsent_bytes > _MAX_UNSENT_BYTES:
            call.hold()
            self._waiting.append(call)
        call.begin()
        if is_ended:
            call.receive(b"", is_ended=True)

    def _admit(self, call: Call, method: "Method", fields: dict[bytes, bytes]) -> bool:
        """Whether the call may go on; answers it otherwise."""
        if self.context.is_stopping:
            call.fail(StatusCode.UNAVAILABLE, SHUTTING_DOWN)
            return False
        if method.restriction is not None:
            key, value = method.restriction
            if not is_secret(fields.get(key), value):
                call.fail(
                    StatusCode.UNAVAILABLE,
                    f"This protocol is restricted, expecting header '{key.decode()}'",
                )
                return False
        timeout = fields.get(b"grpc-timeout")
        if timeout is not None:
            try:
                call.expire_in(parse_timeout_ns(timeout))
            except BadTimeoutError:
                call.fail(StatusCode.INTERNAL, "grpc-timeout is not a time")
                return False
        return True

    def on_data(self, stream_id: int, data: bytes, *, is_ended: bool) -> None:
        """More of a request."""
        call = self._calls.get(stream_id)
        if call is not None:
            if not data and not is_ended:
                self._count_idle_frame()
            call.receive(data, is_ended=is_ended)
            return
        if data:
            self.session.consume(stream_id, len(data))
        if is_ended:
            self._unfinished.discard(stream_id)

    def on_stream_closed(self, stream_id: int, error_code: int) -> None:
        """A stream is over; if its call is not, the client gave up."""
        self._unfinished.discard(stream_id)
        call = self._calls.get(stream_id)
        if call is not None:
            call.lose()
        self._answered.pop(stream_id, None)
        if error_code != ErrorCode.NO_ERROR:
            self._resets += 1
            if self._resets > _RESET_BURST:
                self._terminate(ErrorCode.ENHANCE_YOUR_CALM, b"too many streams are reset")

    def on_ping(self) -> None:
        """Count the pings of a client that is too curious, and end it."""
        self._count_idle_frame()
        keepalive = self.context.options.keepalive
        now_ns = self.context.now_ns()
        interval_ns = (
            keepalive.min_recv_interval_ms * _MS
            if self._calls or keepalive.permit_without_calls
            else _IDLE_PING_INTERVAL_NS
        )
        if self._last_ping_ns and now_ns - self._last_ping_ns < interval_ns:
            self._strikes += 1
            if keepalive.max_strikes and self._strikes > keepalive.max_strikes:
                self._terminate(ErrorCode.ENHANCE_YOUR_CALM, b"too_many_pings")
                return
        self._last_ping_ns = now_ns

    def on_ping_acknowledged(self, opaque: bytes) -> None:
        """The client is there; while draining, it has also seen that it should go."""
        self._pinged_ns = 0
        if opaque == _DRAIN_PING and self._draining_since_ns:
            self._stop_accepting()

    def on_settings(self) -> None:
        """Count the settings of a client that has nothing else to say."""
        self._is_greeted = True
        self._count_idle_frame()

    def on_session_closed(self) -> None:
        """Both sides are done, or HTTP/2 has had enough of the client."""
        self.context.loop.call_soon(self._hang_up)

    def _count_idle_frame(self) -> None:
        self._idle_frames += 1
        if self._idle_frames > _MAX_IDLE_FRAMES:
            self._terminate(ErrorCode.ENHANCE_YOUR_CALM, b"too many frames that carry nothing")

    def _refuse(self, stream_id: int, status: bytes, *, is_ended: bool) -> None:
        """Answer what is no gRPC call."""
        self.session.respond(stream_id, ((b":status", status),), ends=True)
        if not is_ended:
            self._unfinished.add(stream_id)

    # --- what calls need -------------------------------------------------------------------------

    def remove_call(self, stream_id: int, *, is_ended: bool) -> None:
        """A call is over; while the client still sends, its stream is reset after the answer."""
        call = self._calls.pop(stream_id, None)
        if call is not None:
            self._senders.pop(call, None)
            self._answered[stream_id] = (0, 0)
        if not is_ended:
            self._unfinished.add(stream_id)
        if not self._is_accepting and not self._calls:
            self.context.loop.call_soon(self._close)

    def schedule_flush(self) -> None:
        """Send, later in this turn of the loop, what was given to HTTP/2."""
        self._last_ping_ns = 0
        self._strikes = 0
        self._idle_pings = 0
        if self._resets:
            self._resets -= 1
        if not self._is_flush_due:
            self._is_flush_due = True
            self.context.flush_soon(self)

    def add_sender(self, call: Call) -> None:
        """A call has more to send than HTTP/2 was given."""
        self._senders[call] = None
        self.schedule_flush()

    def count_unsent(self, size: int) -> None:
        """What calls have to send became more, or less."""
        self._unsent_bytes += size
        if self._waiting and self._unsent_bytes <= _MAX_UNSENT_BYTES:
            waiting, self._waiting = self._waiting, []
            for call in waiting:
                if call.is_open:
                    call.resume()

    # --- sending ---------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write everything that the client and its machine take now."""
        self._is_flush_due = False
        transport = self._transport
        session = self.session
        try:
            while not self._is_write_paused and not transport.is_closing():
                if self._senders:
                    self._pump()
                data = session.take_output(_WRITE_BYTES)
                if data:
                    transport.write(data)
                    if len(data) == _WRITE_BYTES or self._senders:
                        continue
                if not self._unfinished or not self._reset_unfinished():
                    break
        except Http2Error as error:
            self._break(error)

    def _pump(self) -> None:
        for call in tuple(self._senders):
            if not call.pump():
                self._senders.pop(call, None)

    def _reset_unfinished(self) -> bool:
        """Reset the streams whose answer has left while the client still sends."""
        done = [stream for stream in self._unfinished if not self.session.unsent_bytes(stream)]
        for stream_id in done:
            self._unfinished.discard(stream_id)
            self.session.reset(stream_id, ErrorCode.NO_ERROR)
        return bool(done)

    # --- the end ---------------------------------------------------------------------------------

    def drain(self) -> None:
        """Ask the client to go elsewhere, and close when its calls are answered."""
        if self._draining_since_ns or self._transport.is_closing():
            return
        self._draining_since_ns = self.context.now_ns()
        self.session.announce_shutdown()
        # When the answer is here, the client has seen the notice and its last calls are here too.
        self.session.ping(_DRAIN_PING)
        self.flush()

    def _stop_accepting(self) -> None:
        if self._is_accepting:
            self._is_accepting = False
            self.session.stop_accepting()
            self.context.flush_soon(self)
            if not self._calls:
                self.context.loop.call_soon(self._close)

    def _close(self) -> None:
        if not self._calls:
            self._hang_up()

    def _hang_up(self) -> None:
        if not self._transport.is_closing():
            self.flush()
            self._transport.close()

    def abort(self) -> None:
        """Close at once, whatever is under way."""
        self._transport.abort()

    def _terminate(self, error_code: ErrorCode, reason: bytes) -> None:
        """End a connection whose client does not behave."""
        if self._transport.is_closing():
            return
        _LOGGER.warning("connection ended: %s", reason.decode("latin-1"))
        self._transport.write(self.session.terminate(error_code, reason))
        self._transport.close()

    def _break(self, error: Http2Error, data: bytes = b"") -> None:
        """End a connection whose client, by the bytes that came last, does not speak HTTP/2."""
        if not self._is_greeted and is_http_1(data):
            http_port = self.context.options.http_port
            _LOGGER.info("connection ended: %s", describe_http_1(http_port))
            self._transport.write(answer_http_1(http_port))
        else:
            _LOGGER.info("connection ended: %s", error)
            if error.farewell:
                self._transport.write(error.farewell)
        self._transport.close()

    # --- once a second ---------------------------------------------------------------------------

    def check_time(self, now_ns: int) -> None:
        """Look after a client that is too slow, too old, or gone."""
        self._idle_frames = 0
        self._resets = max(self._resets - _RESETS_PER_S, 0)
        for call in tuple(self._calls.values()):
            call.check_time(now_ns)
        if self._is_write_paused:
            self._check_progress(now_ns)
        elif self._answered:
            self._check_answered(now_ns)
        if self._draining_since_ns:
            self._check_draining(now_ns)
        else:
            self._check_age(now_ns)
        self._check_life(now_ns)

    def _check_progress(self, now_ns: int) -> None:
        unwritten = self._transport.get_write_buffer_size()
        if unwritten < self._unwritten_bytes:
            self._unwritten_bytes = unwritten
            self._paused_since_ns = now_ns
        elif (now_ns - self._paused_since_ns) / _S > self.context.options.write_timeout_s:
            self._transport.abort()

    def _check_answered(self, now_ns: int) -> None:
        """Reset streams whose client grants no window for the answer."""
        limit_ns = self.context.options.write_timeout_s * _S
        for stream_id, (unsent, since_ns) in tuple(self._answered.items()):
            left = self.session.unsent_bytes(stream_id)
            if not since_ns or left < unsent:
                self._answered[stream_id] = (left, now_ns)
            elif now_ns - since_ns > limit_ns:
                _LOGGER.info("stream reset: the client takes nothing more of its answer")
                self.session.reset(stream_id, ErrorCode.CANCEL)
                self.flush()

    def _check_age(self, now_ns: int) -> None:
        options = self.context.options
        if self._calls:
            self._used_ns = now_ns
        idle_ns = now_ns - self._used_ns
        age_ms = options.max_connection_age_ms
        if (age_ms and now_ns - self._made_ns > age_ms * _MS) or (
            options.max_idle_ms and idle_ns > options.max_idle_ms * _MS
        ):
            self.drain()

    def _check_draining(self, now_ns: int) -> None:
        waited_ns = now_ns - self._draining_since_ns
        if waited_ns > _S:
            # A client that does not answer the ping has had time enough to see the notice.
            self._stop_accepting()
            if self.context.is_stopping:
                for call in tuple(self._calls.values()):
                    call.stop()
        options = self.context.options
        grace_ms = options.max_connection_age_grace_ms
        if options.max_connection_age_ms and grace_ms and waited_ns > grace_ms * _MS:
            self._transport.abort()

    def _check_life(self, now_ns: int) -> None:
        keepalive = self.context.options.keepalive
        if self._pinged_ns:
            if self.heard_ns >= self._pinged_ns:
                self._pinged_ns = 0
            elif now_ns - self._pinged_ns > keepalive.timeout_ms * _MS:
                _LOGGER.info("connection ended: the client does not answer")
                self._transport.abort()
            return
        if now_ns - self.heard_ns < keepalive.time_ms * _MS:
            return
        if not self._calls and not keepalive.permit_without_calls:
            return
        limit = keepalive.max_pings_without_data
        if limit and self._idle_pings >= limit:
            return
        self._idle_pings += 1
        self._pinged_ns = now_ns
        self.session.ping(_KEEPALIVE_PING)
        self.flush()
