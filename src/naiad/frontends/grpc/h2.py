"""The server's half of one HTTP/2 connection, sans I/O: the only module that knows ngh2.

The rest of the front end sees `Http2Session` and the callbacks of `StreamHandler`, so that another
HTTP/2 library could take its place.
"""

import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Protocol

import ngh2
from ngh2 import (
    ConnectionClosed,
    DataReceived,
    PingAcknowledged,
    PingReceived,
    RequestReceived,
    SettingsReceived,
    StreamClosed,
    TrailersReceived,
)

Headers = Sequence[tuple[bytes, bytes]]

# RST_STREAM frames that a client may send at once and per second, before libnghttp2 calls it an
# internal error. The owner of the session counts too, stops earlier and says why.
_RESET_BURST: Final = 10_000
_RESETS_PER_S: Final = 10_000
# CONTINUATION frames behind one HEADERS frame.
_MAX_CONTINUATIONS: Final = 8
_MAX_HEADER_FIELDS: Final = 256
# SETTINGS and PING frames that wait to be acknowledged.
_MAX_UNSENT_ACKS: Final = 1000

_FRAME_HEAD: Final = struct.Struct(">HBBBL")
_GO_AWAY_TYPE: Final = 7


class ErrorCode(IntEnum):
    """Why a stream or a connection ends (RFC 9113 section 7)."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    ENHANCE_YOUR_CALM = 0xB


@dataclass(frozen=True, slots=True)
class Http2Limits:
    """What a client may do on one connection.

    Attributes:
        max_concurrent_streams: calls at a time.
        stream_window_bytes: unconsumed bytes of one call.
        connection_window_bytes: the same of all calls.
        max_frame_bytes: of one DATA frame.
        max_header_bytes: of one header block, decoded, by HTTP/2's way of counting.
    """

    max_concurrent_streams: int
    stream_window_bytes: int
    connection_window_bytes: int
    max_frame_bytes: int
    max_header_bytes: int


class Http2Error(Exception):
    """The client broke the protocol so badly that the session can not go on.

    Attributes:
        farewell: what to send before the connection is closed.
    """

    def __init__(self, message: str, farewell: bytes) -> None:
        super().__init__(message)
        self.farewell = farewell


class StreamHandler(Protocol):
    """What a session tells its owner."""

    def on_headers(self, stream_id: int, headers: Headers, *, is_ended: bool) -> None:
        """A stream begins."""
        ...

    def on_data(self, stream_id: int, data: bytes, *, is_ended: bool) -> None:
        """More of its body; consume it later, or the client stops."""
        ...

    def on_stream_closed(self, stream_id: int, error_code: int) -> None:
        """It is over, by both sides' will or by a reset."""
        ...

    def on_ping(self) -> None:
        """The client sent a ping, which was answered."""
        ...

    def on_ping_acknowledged(self, opaque: bytes) -> None:
        """The client answered ours."""
        ...

    def on_settings(self) -> None:
        """The client sent settings, which were acknowledged."""
        ...

    def on_session_closed(self) -> None:
        """Both sides are done; send what is left and close."""
        ...


class Http2Session:
    """Bytes in, callbacks; calls in, bytes out. A closed stream swallows what is sent to it."""

    __slots__ = ("_connection", "_handler")

    def __init__(self, limits: Http2Limits, handler: StreamHandler) -> None:
        self._handler = handler
        self._connection = connection = ngh2.Connection(ngh2.Role.SERVER, _configuration(limits))
        connection.initiate_connection(
            {
                ngh2.Setting.MAX_CONCURRENT_STREAMS: limits.max_concurrent_streams,
                ngh2.Setting.INITIAL_WINDOW_SIZE: limits.stream_window_bytes,
                ngh2.Setting.MAX_FRAME_SIZE: limits.max_frame_bytes,
                ngh2.Setting.MAX_HEADER_LIST_SIZE: limits.max_header_bytes,
            }
        )
        connection.set_local_window_size(limits.connection_window_bytes)

    def receive(self, data: memoryview) -> None:
        """Take bytes of the client.

        Raises:
            Http2Error: the session is at its end.
        """
        try:
            self._connection.receive_data(data)
        except ngh2.DenialOfServiceError as error:
            raise Http2Error(str(error), _go_away(ErrorCode.ENHANCE_YOUR_CALM)) from error
        except ngh2.NGH2Error as error:
            raise Http2Error(str(error), _go_away(ErrorCode.PROTOCOL_ERROR)) from error
        self._tell()

    def take_output(self, limit: int) -> bytes:
        """At most ``limit`` bytes for the client; empty when there is nothing to send now.

        Raises:
            Http2Error: the session is at its end.
        """
        try:
            data = self._connection.data_to_send(limit)
        except ngh2.NGH2Error as error:
            raise Http2Error(str(error), b"") from error
        self._tell()
        return data

    def answer(self, stream_id: int, headers: Headers, data: bytes, trailers: Headers) -> None:
        """A whole answer: headers, body, trailers."""
        connection = self._connection
        try:
            connection.send_response(stream_id, headers)
            connection.send_data(stream_id, data)
            connection.send_trailers(stream_id, trailers)
        except ngh2.NGH2Error:
            pass

    def respond(self, stream_id: int, headers: Headers, *, ends: bool = False) -> None:
        """The headers of an answer."""
        with suppress(ngh2.NGH2Error):
            self._connection.send_response(stream_id, headers, end_stream=ends)

    def send(self, stream_id: int, data: bytes | memoryview) -> None:
        """More of its body; it is copied."""
        try:  # noqa: SIM105 - a context manager costs more than the call
            self._connection.send_data(stream_id, data)
        except ngh2.NGH2Error:
            pass

    def finish(self, stream_id: int, trailers: Headers) -> None:
        """Its end, which is sent after its body."""
        with suppress(ngh2.NGH2Error):
            self._connection.send_trailers(stream_id, trailers)

    def reset(self, stream_id: int, error_code: ErrorCode) -> None:
        """End a stream at once, without what of its answer is not yet sent."""
        with suppress(ngh2.NGH2Error):
            self._connection.reset_stream(stream_id, error_code)

    def unsent_bytes(self, stream_id: int) -> int:
        """How much of its body waits for the client's permission."""
        return self._connection.queued_body_size(stream_id)

    def consume(self, stream_id: int, size: int) -> None:
        """Bytes of its body are done with; the client may send as many more."""
        try:  # noqa: SIM105 - a context manager costs more than the call
            self._connection.acknowledge_received_data(size, stream_id)
        except ngh2.NGH2Error:
            pass

    def ping(self, opaque: bytes) -> None:
        """Ask whether the client is there; eight bytes come back."""
        with suppress(ngh2.NGH2Error):
            self._connection.ping(opaque)

    def announce_shutdown(self) -> None:
        """Ask for no new streams; those that come nevertheless are still served."""
        with suppress(ngh2.NGH2Error):
            self._connection.send_shutdown_notice()

    def stop_accepting(self) -> None:
        """Say which stream was the last, and go on with those that there are."""
        with suppress(ngh2.NGH2Error):
            self._connection.send_goaway(ErrorCode.NO_ERROR)

    def terminate(self, error_code: ErrorCode, reason: bytes = b"") -> bytes:
        """End everything; returns what to send before the connection is closed."""
        try:
            self._connection.send_goaway(error_code, debug_data=reason)
            return self._connection.data_to_send()
        except ngh2.NGH2Error:
            return b""

    def _tell(self) -> None:
        handler = self._handler
        for event in self._connection.events():
            if isinstance(event, DataReceived):
                handler.on_data(event.stream_id, event.data, is_ended=event.end_stream)
            elif isinstance(event, RequestReceived):
                handler.on_headers(event.stream_id, event.headers, is_ended=event.end_stream)
            elif isinstance(event, StreamClosed):
                handler.on_stream_closed(event.stream_id, event.error_code)
            else:
                self._tell_rare(event)

    def _tell_rare(self, event: ngh2.Event) -> None:
        handler = self._handler
        if isinstance(event, TrailersReceived):
            handler.on_data(event.stream_id, b"", is_ended=True)
        elif isinstance(event, PingReceived):
            handler.on_ping()
        elif isinstance(event, PingAcknowledged):
            handler.on_ping_acknowledged(event.opaque_data)
        elif isinstance(event, SettingsReceived):
            handler.on_settings()
        elif isinstance(event, ConnectionClosed):
            handler.on_session_closed()
        # A reset shows as a closed stream too, a client's GOAWAY when its last stream is closed.


def _configuration(limits: Http2Limits) -> ngh2.Configuration:
    return ngh2.Configuration(
        auto_window_update=False,
        max_outbound_ack=_MAX_UNSENT_ACKS,
        stream_reset_rate_limit=(_RESET_BURST, _RESETS_PER_S),
        max_continuations=_MAX_CONTINUATIONS,
        max_inbound_header_list_size=limits.max_header_bytes,
        max_inbound_header_count=_MAX_HEADER_FIELDS,
    )


def _go_away(error_code: ErrorCode) -> bytes:
    """A GOAWAY frame of our own, for when libnghttp2 has given up the session."""
    return _FRAME_HEAD.pack(0, 8, _GO_AWAY_TYPE, 0, 0) + struct.pack(">LL", 0, error_code)
