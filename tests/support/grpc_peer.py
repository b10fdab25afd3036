"""A gRPC client without sockets: it and a server's connection pass bytes to each other."""

import asyncio
from collections.abc import Sequence
from typing import Any

import ngh2
from ngh2 import (
    ConnectionClosed,
    DataReceived,
    GoAwayReceived,
    PingReceived,
    ResponseReceived,
    StreamReset,
    TrailersReceived,
)

from naiad.frontends.grpc.connection import Connection
from naiad.frontends.grpc.context import ConnectionContext

Headers = Sequence[tuple[bytes, bytes]]

INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM_INFER = "/inference.GRPCInferenceService/ModelStreamInfer"
SERVER_LIVE = "/inference.GRPCInferenceService/ServerLive"


def frame(message: bytes, *, flag: int = 0) -> bytes:
    """A message with its prefix."""
    return bytes((flag,)) + len(message).to_bytes(4, "big") + message


class FakeTransport(asyncio.Transport):
    """Keeps what is written; `is_stuck` makes it as full as a socket that nobody reads."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.closed = False
        self.aborted = False
        self.extra: dict[str, Any] = {}
        self.high = 0
        self.stuck_bytes = 0
        self.pauses = 0
        self.is_paused = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.extra.get(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high = high or 0

    def get_write_buffer_size(self) -> int:
        return self.stuck_bytes

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def pause_reading(self) -> None:
        self.pauses += 1
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True
        self.aborted = True


class Answer:
    """What came back on one stream."""

    def __init__(self) -> None:
        self.headers: dict[bytes, bytes] = {}
        self.data = b""
        self.trailers: dict[bytes, bytes] = {}
        self.reset_code: int | None = None

    @property
    def status(self) -> int | None:
        """The gRPC status, wherever it came."""
        value = self.trailers.get(b"grpc-status", self.headers.get(b"grpc-status"))
        return None if value is None else int(value)

    @property
    def message(self) -> str:
        """The message of the status, still percent-encoded."""
        return self.trailers.get(b"grpc-message", self.headers.get(b"grpc-message", b"")).decode()


class Peer:
    """The client's half of a connection to a server that has no socket."""

    def __init__(
        self,
        context: ConnectionContext,
        settings: dict[int, int] | None = None,
        *,
        grants_windows: bool = True,
    ) -> None:
        self.connection = Connection(context)
        self.transport = FakeTransport()
        self.h2 = ngh2.Connection(
            ngh2.Role.CLIENT,
            ngh2.Configuration(
                auto_window_update=grants_windows,
                peer_max_concurrent_streams=10_000,
                max_send_header_block_length=1 << 20,
            ),
        )
        self.h2.initiate_connection(settings or {})
        self.answers: dict[int, Answer] = {}
        self.go_aways: list[tuple[int, bytes]] = []
        self.pings = 0
        self.connection.connection_made(self.transport)
        self.exchange()

    def exchange(self) -> None:
        """Pass bytes until both sides have nothing more to say."""
        while self._pass_to_server() or self._pass_to_client():
            pass

    async def settle(self) -> None:
        """The same, with turns of the loop between for what the server puts off."""
        for _ in range(5):
            self.exchange()
            await asyncio.sleep(0)
        self.exchange()

    def _pass_to_server(self) -> bool:
        data = self.h2.data_to_send()
        self.feed(data)
        return bool(data)

    def feed(self, data: bytes) -> None:
        """Give bytes to the server, as a socket would."""
        while data and not self.transport.closed:
            room = self.connection.get_buffer(-1)
            taken = min(len(room), len(data))
            room[:taken] = data[:taken]
            self.connection.buffer_updated(taken)
            data = data[taken:]

    def _pass_to_client(self) -> bool:
        data = bytes(self.transport.written)
        self.transport.written.clear()
        if data:
            self.h2.receive_data(data)
            for event in self.h2.events():
                self._note(event)
        return bool(data)

    def _note(self, event: ngh2.Event) -> None:
        if isinstance(event, ResponseReceived):
            self._answer(event.stream_id).headers = dict(event.headers)
        elif isinstance(event, DataReceived):
            self._answer(event.stream_id).data += event.data
        elif isinstance(event, TrailersReceived):
            self._answer(event.stream_id).trailers = dict(event.headers)
        elif isinstance(event, StreamReset):
            self._answer(event.stream_id).reset_code = event.error_code
        elif isinstance(event, GoAwayReceived):
            self.go_aways.append((event.error_code, event.debug_data))
        elif isinstance(event, PingReceived):
            self.pings += 1
        elif isinstance(event, ConnectionClosed):
            pass

    def _answer(self, stream_id: int) -> Answer:
        return self.answers.setdefault(stream_id, Answer())

    def begin(self, path: str, *headers: tuple[bytes, bytes], method: bytes = b"POST") -> int:
        """Start a call; returns its stream."""
        return self.h2.send_request(
            (
                (b":method", method),
                (b":scheme", b"http"),
                (b":path", path.encode()),
                (b":authority", b"h"),
                (b"te", b"trailers"),
                (b"content-type", b"application/grpc"),
                *headers,
            )
        )

    def call(self, path: str, message: bytes, *headers: tuple[bytes, bytes]) -> int:
        """A whole unary call; returns its stream."""
        stream_id = self.begin(path, *headers)
        self.h2.send_data(stream_id, frame(message), end_stream=True)
        return stream_id

    async def ask(self, path: str, message: bytes, *headers: tuple[bytes, bytes]) -> Answer:
        """A whole unary call and its answer."""
        stream_id = self.call(path, message, *headers)
        await self.settle()
        return self.answers[stream_id]
