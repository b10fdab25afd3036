"""One call: its messages in, its answer out.

Message framing (gRPC's PROTOCOL-HTTP2.md): a byte that says whether the message is compressed, four
bytes of length, the message. A message that lies whole in one piece of data is handed on where it
lies; any other gets one buffer of its length, placed so that its first tensor is aligned.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from naiad.errors import NaiadError
from naiad.frontends.grpc import compression
from naiad.frontends.grpc.call_headers import find_metadata
from naiad.frontends.grpc.h2 import ErrorCode, Headers
from naiad.frontends.grpc.status import OK_TRAILERS, StatusCode, code_of, format_trailers
from naiad.protocol.infer_message import find_raw_contents
from naiad.protocol.json_text import Buffer

if TYPE_CHECKING:
    import asyncio

    from naiad.frontends.grpc.connection import Connection
    from naiad.frontends.grpc.methods import Method, Receiver

_LOGGER: Final = logging.getLogger(__name__)

SHUTTING_DOWN: Final = "GRPC server is shutting down and has stopped accepting new requests."

_PREFIX_BYTES: Final = 5
# Of the first raw tensor: a cache line, and enough for every vector instruction.
_ALIGNMENT: Final = 64
# Up to here an answer is joined and given to HTTP/2 at once; a larger one in pieces of this size,
# each only when the one before has left, so that no second copy of it waits for a slow reader.
_PIECE_BYTES: Final = 64 << 10
# A stream whose answers wait is read again below this.
_MAX_UNSENT_BYTES: Final = 1 << 20
# Unpacked, and reserved, at a time.
_FIRST_STEP_BYTES: Final = 64 << 10
_STEP_BYTES: Final = 1 << 20
# Below this, packing costs the loop less than a hand-over to a thread.
_MAX_INLINE_PACKED_BYTES: Final = 32 << 10

_HEADERS: Final = (
    (b":status", b"200"),
    (b"content-type", b"application/grpc"),
    (b"grpc-accept-encoding", compression.ACCEPTED),
)


class Call:
    """A call that is not over.

    Attributes:
        method: what is called.
        headers: of the request.
        started_ns: when it began, on the engine's clock.
        received_ns: when its message was complete, on the engine's clock.
        on_lost: called if the client gives up, or its time is over.
        since_ns: since when a message has been arriving, or the end of a unary call is waited for
            after its message; 0 while neither is so.
        received_bytes: of that message.
        reserved_bytes: of the server's budget.
    """

    __slots__ = (
        "_backlog",
        "_connection",
        "_deadline",
        "_filled",
        "_given_bytes",
        "_has_responded",
        "_is_ended",
        "_is_held",
        "_message",
        "_outgoing",
        "_prefix",
        "_receiver",
        "_stream_id",
        "_stuck_since_ns",
        "_taken_bytes",
        "_to_pack",
        "_trailers",
        "_unary_message",
        "_unpacker",
        "_unsent_bytes",
        "headers",
        "is_open",
        "method",
        "on_lost",
        "received_ns",
        "reserved_bytes",
        "since_ns",
        "started_ns",
    )

    def __init__(
        self,
        connection: "Connection",
        stream_id: int,
        method: "Method",
        headers: Headers,
        *,
        is_ended: bool = False,
    ) -> None:
        self._connection = connection
        self._stream_id = stream_id
        self.method = method
        self.headers = headers
        self.is_open = True
        self.started_ns = connection.heard_ns
        self.received_ns = 0
        self.on_lost: Callable[[], None] | None = None
        self.since_ns = 0
        self.reserved_bytes = 0
        self._deadline: asyncio.TimerHandle | None = None
        self._receiver: Receiver | None = None
        # Receiving.
        self._prefix = b""
        self._message: memoryview | None = None
        self._filled = 0
        self._unary_message: tuple[bytes | memoryview, int] | None = None
        self._unpacker: compression.Unpacker | None = None
        self._is_ended = is_ended
        self._is_held = False
        # What was received and not taken, and how much of it still counts against the window.
        self._backlog: list[tuple[bytes, int]] = []
        # Sending.
        self._has_responded = False
        self._outgoing: deque[Buffer] | None = None
        self._unsent_bytes = 0
        # Of all that was to be sent, and what the client's window had let through when that was
        # last looked at.
        self._given_bytes = 0
        self._taken_bytes = -1
        self._stuck_since_ns = 0
        self._to_pack: deque[Sequence[Buffer]] = deque()
        self._trailers: Headers | None = None

    # --- receiving -------------------------------------------------------------------------------

    def begin(self) -> None:
        """Let a streaming method get ready for its messages."""
        if self.method.stream is not None:
            self._receiver = self.method.stream(self)

    def expire_in(self, timeout_ns: int) -> None:
        """End the call with an error when that time is over."""
        self._deadline = self._connection.context.loop.call_later(timeout_ns / 1e9, self._expire)

    def receive(self, data: bytes, *, is_ended: bool) -> None:
        """Take more of the request's body."""
        if is_ended:
            self._is_ended = True
        if self._is_held:
            if data:
                self._backlog.append((data, len(data)))
            return
        if data:
            self._connection.session.consume(self._stream_id, len(data))
            self._take(data)
        self._check_end()

    def _check_end(self) -> None:
        if self._is_ended and self.is_open and not self._is_held:
            self._end_receiving()

    def _take(self, data: bytes) -> None:
        if (
            self._message is None
            and not self._prefix
            and len(data) >= _PREFIX_BYTES
            and int.from_bytes(data[1:5], "big") == len(data) - _PREFIX_BYTES
        ):
            # The usual case: one message, whole.
            size = len(data) - _PREFIX_BYTES
            if self._accept(data[0], size) and self.reserve(size):
                self._deliver(data[0], data, _PREFIX_BYTES)
            return
        self._assemble(data)

    def _assemble(self, data: bytes) -> None:
        """Split and join messages."""
        position = 0
        end = len(data)
        while position < end and self.is_open:
            if self._is_held:
                self._backlog.insert(0, (data[position:], 0))
                return
            if self._message is None:
                missing = _PREFIX_BYTES - len(self._prefix)
                self._prefix += data[position : position + missing]
                position += missing
                if len(self._prefix) < _PREFIX_BYTES:
                    self.since_ns = self.since_ns or self._connection.context.now_ns()
                    return
                if not self._begin_message(data, position):
                    return
            position = self._fill(data, position, end)

    def _begin_message(self, data: bytes, position: int) -> bool:
        """Make room for the message whose prefix is there; false where it is refused."""
        length = int.from_bytes(self._prefix[1:], "big")
        if not self._accept(self._prefix[0], length):
            return False
        self.since_ns = self._connection.context.now_ns()
        # What the first tensor's offset is shows in the first piece, or it is a small message.
        offset = find_raw_contents(data, position) - position if length > _PIECE_BYTES else 0
        try:
            self._message = _allocate(length, offset)
        except MemoryError:
            self._refuse_memory()
            return False
        self._filled = 0
        return True

    def _fill(self, data: bytes, position: int, end: int) -> int:
        """Copy into the message, and hand it on when it is complete; returns where to go on."""
        message = self._message
        assert message is not None  # noqa: S101 - it was just begun
        taken = min(len(message) - self._filled, end - position)
        if not self.reserve(taken):
            return end
        message[self._filled : self._filled + taken] = data[position : position + taken]
        self._filled += taken
        if self._filled == len(message):
            flag = self._prefix[0]
            self._message = None
            self._prefix = b""
            self.since_ns = 0
            self._deliver(flag, message, 0)
        return position + taken

    def _accept(self, flag: int, length: int) -> bool:
        """Check a prefix; refuses the call where it is wrong."""
        if flag > 1:
            self.fail(StatusCode.INTERNAL, f"the compressed flag of a message is {flag}")
            return False
        limit = self._connection.context.options.max_receive_message_bytes
        if length > limit:
            self._refuse_size(length, limit)
            return False
        return True

    def _refuse_size(self, length: int | str, limit: int) -> None:
        self.fail(
            StatusCode.RESOURCE_EXHAUSTED,
            f"Received message larger than max ({length} vs. {limit}). Use "
            "--grpc-max-receive-message-size to increase the limit.",
        )

    def reserve(self, size: int) -> bool:
        """Count memory of requests against the server's budget; refuses the call beyond it."""
        if self._connection.context.budget.try_reserve(size):
            self.reserved_bytes += size
            return True
        self._refuse_memory()
        return False

    def _refuse_memory(self) -> None:
        limit_bytes = self._connection.context.budget.limit_bytes
        self.fail(
            StatusCode.UNAVAILABLE,
            f"the requests that the server holds have reached its limit of {limit_bytes} bytes; "
            "send this one again later",
        )

    def release(self, size: int) -> None:
        """A message of a streaming call is done with; unary calls need not say it."""
        if self.is_open:
            self.reserved_bytes -= size
            self._connection.context.budget.release(size)

    def _deliver(self, flag: int, data: bytes | memoryview, start: int) -> None:
        if flag:
            self._unpack(data[start:])
        elif self._receiver is not None:
            self._receiver.on_message(data, start)
        elif self._unary_message is None:
            self._unary_message = (data, start)
            if not self._is_ended:
                # It holds memory, so the client must not take its time.
                self._filled = 0
                self.since_ns = self._connection.context.now_ns()
        else:
            self.fail(StatusCode.INTERNAL, "a unary call brings one message, not several")

    def _end_receiving(self) -> None:
        """The client sends no more."""
        self.since_ns = 0
        if self._message is not None or self._prefix:
            self.fail(StatusCode.INTERNAL, "the call ended within a message")
        elif self._receiver is not None:
            self._receiver.on_half_close()
        elif self._unary_message is None:
            self.fail(StatusCode.INTERNAL, "the call ended without a message")
        else:
            data, start = self._unary_message
            self._unary_message = None
            self.received_ns = self._connection.context.now_ns()
            handler = self.method.unary
            assert handler is not None  # noqa: S101 - or it had a receiver
            try:
                handler(self, data, start)
            except Exception:
                # A fault in one handler must not leave the call without an answer.
                _LOGGER.exception("handler failed")
                self.fail_unexpectedly()

    def hold(self) -> None:
        """Take nothing more of a streaming call for now; the client is soon stopped."""
        self._is_held = True

    def resume(self) -> None:
        """Go on after `hold`."""
        if self._unpacker is not None:
            return  # what follows the message that is unpacked must not overtake it
        self._is_held = False
        backlog, self._backlog = self._backlog, []
        for index, (data, unconsumed) in enumerate(backlog):
            if self._is_held or not self.is_open:
                self._backlog += backlog[index:]
                break
            if unconsumed:
                self._connection.session.consume(self._stream_id, unconsumed)
            self._take(data)
        self._check_end()

    @property
    def is_held(self) -> bool:
        """Between `hold` and `resume`."""
        return self._is_held

    # --- compressed messages ---------------------------------------------------------------------

    def _unpack(self, data: bytes | memoryview) -> None:
        encoding = find_metadata(self.headers, b"grpc-encoding") or compression.IDENTITY
        if not compression.is_known(encoding):
            if encoding == compression.IDENTITY:
                self.fail(
                    StatusCode.INTERNAL,
                    "a message is compressed, and grpc-encoding does not say how",
                )
            else:
                self.fail(
                    StatusCode.UNIMPLEMENTED,
                    f"Compression algorithm '{encoding.decode('latin-1')}' is not supported",
                )
            return
        limit = self._connection.context.options.max_receive_message_bytes
        self.hold()
        self._unpacker = compression.Unpacker(encoding, data, limit)
        self._unpack_more(self._unpacker, _FIRST_STEP_BYTES)

    def _unpack_more(self, unpacker: compression.Unpacker, size: int) -> None:
        """Count a step against the server's budget, then take it."""
        if not self.reserve(size):
            return
        unpacker.reserved_bytes += size
        loop = self._connection.context.loop
        work = loop.run_in_executor(None, unpacker.advance, size)
        work.add_done_callback(partial(self._end_step, unpacker))

    def _end_step(self, unpacker: compression.Unpacker, work: "asyncio.Future[bool]") -> None:
        if not self.is_open or work.cancelled():
            return
        error = work.exception()
        if isinstance(error, compression.TooLargeError):
            limit = self._connection.context.options.max_receive_message_bytes
            self._refuse_size("more", limit)
        elif error is not None:
            self._refuse_packed(error)
        elif work.result():
            self._end_unpacking(unpacker)
        else:
            self._unpack_more(unpacker, _STEP_BYTES)
        self._connection.schedule_flush()

    def _end_unpacking(self, unpacker: compression.Unpacker) -> None:
        unpacked = unpacker.data
        self.release(unpacker.reserved_bytes - len(unpacked) + unpacker.packed_bytes)
        self._unpacker = None
        self._is_held = False
        self._deliver(0, memoryview(unpacked), 0)
        if self.is_open and not self._is_held:
            self.resume()

    def _refuse_packed(self, error: BaseException) -> None:
        self.fail(StatusCode.INTERNAL, f"a compressed message can not be unpacked: {error}")

    # --- answering -------------------------------------------------------------------------------

    def respond(self, parts: Sequence[Buffer], size: int) -> None:
        """Answer a unary call; without effect if it is over.

        Args:
            parts: of the message; unchanged until they are sent.
            size: their bytes.
        """
        self.on_lost = None
        if not self.is_open or not self._check_size(size):
            return
        if size <= _PIECE_BYTES and not self._packs(size):
            connection = self._connection
            prefix = b"\0%b" % size.to_bytes(4, "big")
            connection.session.answer(
                self._stream_id, _HEADERS, b"".join((prefix, *parts)), OK_TRAILERS
            )
            self._close()
            connection.schedule_flush()
        else:
            self._send(parts, size)
            self.finish()

    def send(self, parts: Sequence[Buffer], size: int) -> None:
        """Send one message of a streaming call; the rest as `respond`."""
        if self.is_open and self._check_size(size):
            self._send(parts, size)

    def finish(self) -> None:
        """End a call that went well, after what was sent."""
        if self.is_open:
            self._end(OK_TRAILERS)

    def fail(self, code: StatusCode, message: str) -> None:
        """End a call that did not go well."""
        if not self.is_open:
            return
        trailers = format_trailers(code, message)
        if self._has_responded:
            self._end(trailers)
            return
        connection = self._connection
        connection.session.respond(self._stream_id, (*_HEADERS, *trailers), ends=True)
        self._close()
        connection.schedule_flush()

    def fail_with(self, error: NaiadError) -> None:
        """The same with an error of the engine or the decoder."""
        self.fail(code_of(error), error.message)

    def fail_unexpectedly(self) -> None:
        """The same for a fault of our own, which the caller has logged."""
        self.fail(StatusCode.INTERNAL, "internal error; the server's log says more")

    def _check_size(self, size: int) -> bool:
        limit = self._connection.context.options.max_send_message_bytes
        if size <= limit:
            return True
        self._give_up()
        self.fail(
            StatusCode.RESOURCE_EXHAUSTED,
            f"Response has byte size {size} which exceeds gRPC's byte size limit {limit}. Use "
            "--grpc-max-send-message-size to increase the limit.",
        )
        return False

    def _packs(self, size: int) -> bool:
        """Whether the answers of this call are compressed."""
        return (
            self.method.is_packed
            and size > 0
            and self._connection.context.options.compression_level > 0
            and self._encoding() != compression.IDENTITY
        )

    def _encoding(self) -> bytes:
        accepted = find_metadata(self.headers, b"grpc-accept-encoding")
        return compression.choose(accepted) if accepted is not None else compression.IDENTITY

    def _send(self, parts: Sequence[Buffer], size: int) -> None:
        packs = self._packs(size)
        session = self._connection.session
        if not self._has_responded:
            self._has_responded = True
            headers = (*_HEADERS, (b"grpc-encoding", self._encoding())) if packs else _HEADERS
            session.respond(self._stream_id, headers)
        if packs:
            self._pack(parts, size)
            return
        self._given_bytes += size + _PREFIX_BYTES
        prefix = b"\0%b" % size.to_bytes(4, "big")
        if (
            size <= _PIECE_BYTES
            and not self._outgoing
            and session.unsent_bytes(self._stream_id) < _PIECE_BYTES
        ):
            session.send(self._stream_id, b"".join((prefix, *parts)))
            self._connection.schedule_flush()
        else:
            self._enqueue((prefix, *parts), size + _PREFIX_BYTES)

    def _enqueue(self, parts: Sequence[Buffer], size: int) -> None:
        if self._outgoing is None:
            self._outgoing = deque()
        self._outgoing.extend(parts)
        self._count_unsent(size)
        self._connection.add_sender(self)

    def _pack(self, parts: Sequence[Buffer], size: int) -> None:
        """Compress one message, or queue it behind those that are being compressed."""
        if size <= _MAX_INLINE_PACKED_BYTES and not self._to_pack:
            self._enqueue_packed(compression.compress(*self._packing(parts)))
            return
        self._to_pack.append(parts)
        if len(self._to_pack) == 1:
            self._pack_next()

    def _packing(self, parts: Sequence[Buffer]) -> tuple[bytes, Sequence[Buffer], int]:
        return self._encoding(), parts, self._connection.context.options.compression_level

    def _pack_next(self) -> None:
        loop = self._connection.context.loop
        work = loop.run_in_executor(None, compression.compress, *self._packing(self._to_pack[0]))
        work.add_done_callback(self._end_packing)

    def _end_packing(self, work: "asyncio.Future[bytes]") -> None:
        if not self.is_open or work.cancelled():
            return
        self._to_pack.popleft()
        self._enqueue_packed(work.result())
        if self._to_pack:
            self._pack_next()

    def _enqueue_packed(self, packed: bytes) -> None:
        self._given_bytes += len(packed) + _PREFIX_BYTES
        prefix = b"\1%b" % len(packed).to_bytes(4, "big")
        self._enqueue((prefix, packed), len(packed) + _PREFIX_BYTES)

    def pump(self) -> bool:
        """Give HTTP/2 the next piece if it is out of them; returns whether there is more."""
        session = self._connection.session
        outgoing = self._outgoing
        if not self.is_open or outgoing is None:
            return False
        if session.unsent_bytes(self._stream_id) >= _PIECE_BYTES:
            return True
        piece: list[Buffer] = []
        size = 0
        while outgoing and size < _PIECE_BYTES:
            part = outgoing.popleft()
            room = _PIECE_BYTES - size
            if len(part) > room:
                view = memoryview(part)
                outgoing.appendleft(view[room:])
                part = view[:room]
            piece.append(part)
            size += len(part)
        session.send(self._stream_id, b"".join(piece))
        self._count_unsent(-size)
        if outgoing or self._to_pack:
            return bool(outgoing)
        if self._trailers is not None:
            session.finish(self._stream_id, self._trailers)
            self._close()
        elif self._receiver is not None:
            self._receiver.on_writable()
        return bool(outgoing)

    @property
    def is_congested(self) -> bool:
        """Whether the client takes its answers more slowly than they are made."""
        return self._unsent_bytes > _MAX_UNSENT_BYTES

    # --- the end ---------------------------------------------------------------------------------

    def _end(self, trailers: Headers) -> None:
        session = self._connection.session
        if not self._has_responded:
            self._has_responded = True
            session.respond(self._stream_id, _HEADERS)
        if self._outgoing or self._to_pack:
            self._trailers = trailers
            return
        session.finish(self._stream_id, trailers)
        self._close()
        self._connection.schedule_flush()

    def _close(self) -> None:
        self.is_open = False
        if self._deadline is not None:
            self._deadline.cancel()
        if self.reserved_bytes:
            self._connection.context.budget.release(self.reserved_bytes)
        for _, unconsumed in self._backlog:
            self._connection.session.consume(self._stream_id, unconsumed)
        self._backlog.clear()
        self._message = None
        self._unpacker = None
        self._receiver = None
        self._outgoing = None
        self._count_unsent(-self._unsent_bytes)
        self._connection.remove_call(self._stream_id, is_ended=self._is_ended)

    def _count_unsent(self, size: int) -> None:
        self._unsent_bytes += size
        self._connection.count_unsent(size)

    def _give_up(self) -> None:
        on_lost, self.on_lost = self.on_lost, None
        if on_lost is not None:
            on_lost()

    def _expire(self) -> None:
        self._give_up()
        # What waits to be sent comes too late now.
        self._outgoing = None
        self._to_pack.clear()
        self.fail(StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")

    def lose(self) -> None:
        """The client gave up, or went away."""
        if self.is_open:
            _LOGGER.debug(
                "Cancellation notification received for %s", self.method.path.decode("latin-1")
            )
            self._is_ended = True
            self._close()
            self._give_up()

    def stop(self) -> None:
        """The server stops: end the call unless there is something to answer, or on its way."""
        if self._receiver is not None:
            is_idle = self._receiver.is_idle
        else:
            is_idle = not self._is_ended and self._message is None and not self._prefix
        if is_idle:
            self._give_up()
            self.fail(StatusCode.UNAVAILABLE, SHUTTING_DOWN)

    def check_time(self, now_ns: int) -> None:
        """Refuse a message that takes too long to arrive, and give up an answer that is not taken.

        Called about once a second.
        """
        options = self._connection.context.options
        unsent = self._unsent_bytes + self._connection.session.unsent_bytes(self._stream_id)
        taken = self._given_bytes - unsent
        if unsent == 0 or taken != self._taken_bytes:
            self._taken_bytes = taken
            self._stuck_since_ns = now_ns
        elif (now_ns - self._stuck_since_ns) / 1e9 > options.write_timeout_s:
            self._abandon()
            return
        if self.since_ns == 0 or self._is_held:
            return
        waited_s = (now_ns - self.since_ns) / 1e9
        if waited_s > options.read_timeout_s + self._filled / options.min_read_bytes_per_s:
            self._give_up()
            self.fail(StatusCode.DEADLINE_EXCEEDED, "the request did not arrive in time")

    def _abandon(self) -> None:
        """Nobody takes the answer: the client grants no window for it."""
        _LOGGER.info("call ended: the client takes nothing more of its answer")
        self._connection.session.reset(self._stream_id, ErrorCode.CANCEL)
        self.lose()
        self._connection.flush()


def _allocate(length: int, offset: int) -> memoryview:
    """A buffer for a message, placed so that what lies at ``offset`` in it is aligned."""
    # Pages that are not written to take no memory, so the announced length costs nothing yet.
    room = np.empty(length + _ALIGNMENT, np.uint8)
    start = -(room.ctypes.data + offset) % _ALIGNMENT
    return room.data[start : start + length]
