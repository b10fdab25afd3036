"""Calls, manners and limits of a connection, without sockets."""

import asyncio
import zlib
from collections.abc import Callable
from typing import Any

import ngh2
import pytest
from tests.support.fake_engine import FakeEngine, identity_model
from tests.support.grpc_peer import INFER, SERVER_LIVE, STREAM_INFER, Peer, frame

from naiad.frontends.byte_budget import ByteBudget
from naiad.frontends.grpc.connection import Connection
from naiad.frontends.grpc.context import ConnectionContext
from naiad.frontends.grpc.h2 import ErrorCode, Http2Limits
from naiad.frontends.grpc.health import HealthHandlers
from naiad.frontends.grpc.infer import InferHandler, InferProtocol
from naiad.frontends.grpc.methods import index_methods
from naiad.frontends.grpc.options import GrpcOptions, Keepalive
from naiad.frontends.grpc.stream_infer import StreamInferHandler
from naiad.protocol.pb.grpc_service import ModelInferRequest, ModelInferResponse

S = 1_000_000_000
ENHANCE_YOUR_CALM = 0xB
PROTOCOL_ERROR = 0x1
GO_AWAY = 0x7


class Server:
    """What the connections share, and a clock that tests turn."""

    def __init__(self, **options: Any) -> None:
        self.engine = FakeEngine(identity_model())
        self.now = 1000 * S  # as on a machine that has been up for a while
        self.budget = ByteBudget(options.pop("budget_bytes", 1 << 30))
        self.options = GrpcOptions(**options)
        protocol = InferProtocol(self.engine, None)
        self.context = ConnectionContext(
            asyncio.get_running_loop(),
            self.options,
            Http2Limits(self.options.max_concurrent_streams, 1 << 20, 4 << 20, 1 << 16, 1 << 16),
            index_methods(
                [
                    *InferHandler(protocol).methods(),
                    *StreamInferHandler(protocol, self.options.max_stream_requests).methods(),
                    *HealthHandlers(self.engine).methods(),
                ],
                self.options.restrictions,
            ),
            self.budget,
            lambda: self.now,
        )

    def peer(self, settings: dict[int, int] | None = None, *, grants_windows: bool = True) -> Peer:
        return Peer(self.context, settings, grants_windows=grants_windows)

    def pass_time(self, peer: Peer, seconds: float) -> None:
        """A second after another, with the sweep in each."""
        end = self.now + int(seconds * S)
        while self.now < end:
            self.now = min(self.now + S, end)
            peer.connection.check_time(self.now)
            peer.exchange()


def infer_request(elements: int = 3, request_id: str = "") -> bytes:
    return ModelInferRequest(
        model_name="id_fp32",
        id=request_id,
        inputs=[
            ModelInferRequest.InferInputTensor(name="IN", datatype="FP32", shape=[1, elements])
        ],
        raw_input_contents=[bytes(range(4)) * elements],
    ).SerializeToString()


def received(data: bytes) -> ModelInferResponse:
    assert data[0] == 0
    assert int.from_bytes(data[1:5], "big") == len(data) - 5
    return ModelInferResponse.FromString(data[5:])


async def test_infer() -> None:
    server = Server()
    answer = await server.peer().ask(INFER, infer_request(3, "x"))
    assert answer.headers[b":status"] == b"200"
    assert answer.headers[b"content-type"] == b"application/grpc"
    assert answer.status == 0
    response = received(answer.data)
    assert (response.id, response.raw_output_contents[0]) == ("x", bytes(range(4)) * 3)
    assert server.budget.reserved_bytes == 0


@pytest.mark.parametrize("size", [1, 2, 5, 7, 64])
async def test_a_message_in_pieces(size: int) -> None:
    server = Server()
    peer = server.peer()
    stream_id = peer.begin(INFER)
    data = frame(infer_request(20))
    for start in range(0, len(data), size):
        peer.h2.send_data(stream_id, data[start : start + size])
        peer.exchange()
    peer.h2.end_stream(stream_id)
    await peer.settle()
    assert received(peer.answers[stream_id].data).outputs[0].shape == [1, 20]
    assert server.budget.reserved_bytes == 0


async def test_after_much_of_one_client_the_others_have_their_turn() -> None:
    peer = Server().peer()
    await peer.ask(INFER, infer_request(10))
    assert peer.transport.pauses == 0
    await peer.ask(INFER, infer_request(200_000))
    assert peer.transport.pauses >= 2
    assert not peer.transport.is_paused


async def test_a_large_message_is_aligned_and_not_copied() -> None:
    server = Server()
    answer = await server.peer().ask(INFER, infer_request(100_000))
    assert received(answer.data).raw_output_contents[0] == bytes(range(4)) * 100_000
    data = server.engine.requests[0].inputs["IN"].data
    assert data.ctypes.data % 64 == 0
    assert not data.flags.owndata


@pytest.mark.parametrize("size", [1, 3, 40, 1000, 5000])
async def test_many_messages_of_a_stream_in_pieces_of_any_size(size: int) -> None:
    server = Server()
    peer = server.peer()
    stream_id = peer.begin(STREAM_INFER)
    data = b"".join(frame(infer_request(n + 1, str(n))) for n in range(20))
    for start in range(0, len(data), size):
        peer.h2.send_data(stream_id, data[start : start + size])
        peer.exchange()
    peer.h2.end_stream(stream_id)
    await peer.settle()
    answer = peer.answers[stream_id]
    assert answer.status == 0
    assert [r.request_id for r in server.engine.requests] == [str(n) for n in range(20)]
    assert server.budget.reserved_bytes == 0


async def test_a_stream_is_read_no_further_than_its_requests_are_answered() -> None:
    server = Server(max_stream_requests=2)
    server.engine.holds = True
    peer = server.peer()
    stream_id = peer.begin(STREAM_INFER)
    for n in range(7):
        peer.h2.send_data(stream_id, frame(infer_request(1, str(n))))
    peer.h2.end_stream(stream_id)
    for expected in (2, 4, 6, 7):
        await peer.settle()
        assert len(server.engine.requests) == expected
        server.engine.release()
    await peer.settle()
    assert peer.answers[stream_id].status == 0
    assert server.budget.reserved_bytes == 0


async def test_a_client_that_takes_nothing_is_sent_no_more_than_its_window() -> None:
    server = Server()
    peer = server.peer({4: 1000})  # SETTINGS_INITIAL_WINDOW_SIZE
    stream_id = peer.begin(INFER)
    peer.h2.send_data(stream_id, frame(infer_request(50_000)), end_stream=True)
    taken = bytearray()
    server.engine.holds = True
    peer.exchange()
    server.engine.release()
    await asyncio.sleep(0)
    taken += peer.transport.written
    assert len(taken) < 3000
    # HTTP/2 holds two pieces of it at most; the rest is a view of the model's output.
    assert peer.connection.session.unsent_bytes(stream_id) <= 128 << 10
    await peer.settle()
    while peer.answers[stream_id].status is None:
        await peer.settle()
    assert received(peer.answers[stream_id].data).outputs[0].shape == [1, 50_000]


# --- what is wrong with a call -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the call ended without a message"),
        (b"\0\0\0", "the call ended within a message"),
        (b"\0\0\0\0\5abc", "the call ended within a message"),
        (frame(b"") + frame(b""), "a unary call brings one message, not several"),
        (b"\2\0\0\0\0", "the compressed flag of a message is 2"),
        (b"\1\0\0\0\0", "a message is compressed, and grpc-encoding does not say how"),
    ],
)
async def test_wrong_framing(data: bytes, message: str) -> None:
    server = Server()
    peer = server.peer()
    stream_id = peer.begin(SERVER_LIVE)
    peer.h2.send_data(stream_id, data, end_stream=True)
    await peer.settle()
    answer = peer.answers[stream_id]
    assert (answer.status, answer.message) == (13, message)
    assert server.budget.reserved_bytes == 0
    assert (await peer.ask(SERVER_LIVE, b"")).status == 0


async def test_unknown_compression() -> None:
    peer = Server().peer()
    stream_id = peer.begin(SERVER_LIVE, (b"grpc-encoding", b"snappy"))
    peer.h2.send_data(stream_id, frame(b"x", flag=1), end_stream=True)
    await peer.settle()
    answer = peer.answers[stream_id]
    assert answer.status == 12
    assert answer.headers[b"grpc-accept-encoding"] == b"identity,deflate,gzip"


def packed_request(request_id: str = "") -> bytes:
    packer = zlib.compressobj(wbits=zlib.MAX_WBITS + 16)
    return packer.compress(infer_request(request_id=request_id)) + packer.flush()


@pytest.mark.slow
async def test_what_unpacks_to_more_than_the_budget_is_not_unpacked() -> None:
    server = Server(budget_bytes=10 << 20)
    peer = server.peer()
    packer = zlib.compressobj(wbits=zlib.MAX_WBITS + 16)
    bomb = b"".join(packer.compress(bytes(1 << 20)) for _ in range(100)) + packer.flush()
    stream_id = peer.begin(INFER, (b"grpc-encoding", b"gzip"))
    peer.h2.send_data(stream_id, frame(bomb, flag=1), end_stream=True)
    highest = 0
    async with asyncio.timeout(60):
        # Looked at in each turn of the loop, as no two steps of the work are in one.
        while stream_id not in peer.answers:
            peer.exchange()
            await asyncio.sleep(0)
            highest = max(highest, server.budget.reserved_bytes)
    assert peer.answers[stream_id].status == 14
    assert "10485760 bytes" in peer.answers[stream_id].message
    assert highest > 1 << 20
    assert server.budget.reserved_bytes == 0


async def test_compressed_requests_keep_their_order_and_leave_nothing_reserved() -> None:
    count = 50
    server = Server()
    peer = server.peer()
    stream_id = peer.begin(STREAM_INFER, (b"grpc-encoding", b"gzip"))
    messages = [frame(packed_request(str(index)), flag=1) for index in range(count)]
    for message in messages[:-1]:
        peer.h2.send_data(stream_id, message)
    async with asyncio.timeout(60):
        while len(server.engine.requests) < count - 1 or server.budget.reserved_bytes:
            await peer.settle()
    peer.h2.send_data(stream_id, messages[-1], end_stream=True)
    async with asyncio.timeout(60):
        while not peer.answers[stream_id].trailers:
            await peer.settle()
    assert [request.request_id for request in server.engine.requests] == list(
        map(str, range(count))
    )
    assert server.budget.reserved_bytes == 0


async def test_answers_are_compressed_where_the_client_can_read_it() -> None:
    server = Server(compression_level=6)
    peer = server.peer()
    answer = await peer.ask(INFER, infer_request(1000), (b"grpc-accept-encoding", b"gzip"))
    assert answer.headers[b"grpc-encoding"] == b"gzip"
    assert answer.data[0] == 1
    message = zlib.decompress(answer.data[5:], zlib.MAX_WBITS + 16)
    assert ModelInferResponse.FromString(message).outputs[0].shape == [1, 1000]
    answer = await peer.ask(INFER, infer_request(1000))
    assert b"grpc-encoding" not in answer.headers
    assert answer.data[0] == 0


@pytest.mark.parametrize(
    ("headers", "method", "status"),
    [((), b"GET", b"405"), (((b"content-type", b"text/html"),), b"POST", b"415")],
)
async def test_what_is_no_grpc(
    headers: tuple[tuple[bytes, bytes], ...], method: bytes, status: bytes
) -> None:
    peer = Server().peer()
    stream_id = peer.begin(SERVER_LIVE, *headers, method=method)
    peer.h2.send_data(stream_id, frame(b""), end_stream=True)
    await peer.settle()
    assert peer.answers[stream_id].headers == {b":status": status}


@pytest.mark.parametrize("value", [b"", b"5", b"S", b"-1S", b"123456789S", b"1s"])
async def test_wrong_timeouts(value: bytes) -> None:
    answer = await Server().peer().ask(SERVER_LIVE, b"", (b"grpc-timeout", value))
    assert answer.status == 13


async def test_the_longest_timeout() -> None:
    answer = await Server().peer().ask(SERVER_LIVE, b"", (b"grpc-timeout", b"99999999H"))
    assert answer.status == 0


async def test_a_refused_call_is_reset_so_that_its_rest_is_not_sent() -> None:
    server = Server(max_receive_message_bytes=100)
    peer = server.peer()
    stream_id = peer.begin(INFER)
    peer.h2.send_data(stream_id, frame(bytes(1000)))
    await peer.settle()
    answer = peer.answers[stream_id]
    assert answer.status == 8
    assert answer.reset_code == 0
    assert "--grpc-max-receive-message-size" in answer.message


async def test_a_message_that_is_too_slow() -> None:
    server = Server(read_timeout_s=10)
    peer = server.peer()
    slow = peer.begin(INFER)
    peer.h2.send_data(slow, frame(infer_request())[:20])
    idle = peer.begin(INFER)
    peer.exchange()
    server.pass_time(peer, 9)
    assert slow not in peer.answers
    server.pass_time(peer, 5)
    await peer.settle()
    assert peer.answers[slow].status == 4
    assert idle not in peer.answers  # it takes no memory
    assert server.budget.reserved_bytes == 0


async def test_a_message_whose_call_does_not_end() -> None:
    server = Server(read_timeout_s=10, min_read_bytes_per_s=1)
    peer = server.peer()
    whole = peer.begin(INFER)
    peer.h2.send_data(whole, frame(infer_request()))
    pieces = peer.begin(INFER)
    message = frame(infer_request())
    peer.h2.send_data(pieces, message[:9])
    peer.exchange()
    peer.h2.send_data(pieces, message[9:])
    peer.exchange()
    assert server.budget.reserved_bytes
    server.pass_time(peer, 9)
    assert not peer.answers
    server.pass_time(peer, 3)
    await peer.settle()
    assert [peer.answers[stream].status for stream in (whole, pieces)] == [4, 4]
    assert server.budget.reserved_bytes == 0
    # One that works for longer than that is left alone.
    server.engine.holds = True
    late = peer.begin(INFER)
    peer.h2.send_data(late, message)
    peer.exchange()
    peer.h2.send_data(late, b"", end_stream=True)
    peer.exchange()
    server.pass_time(peer, 60)
    server.engine.release()
    await peer.settle()
    assert peer.answers[late].status == 0


async def test_a_lost_connection_cancels_its_calls() -> None:
    server = Server()
    server.engine.holds = True
    peer = server.peer()
    peer.call(INFER, infer_request())
    stream = peer.begin(STREAM_INFER)
    peer.h2.send_data(stream, frame(infer_request()))
    peer.exchange()
    peer.connection.connection_lost(None)
    assert server.engine.cancelled == server.engine.requests
    assert len(server.engine.cancelled) == 2
    assert server.budget.reserved_bytes == 0
    server.engine.release()
    assert not server.context.connections


async def test_new_calls_are_refused_while_the_server_stops() -> None:
    server = Server()
    peer = server.peer()
    server.context.is_stopping = True
    answer = await peer.ask(SERVER_LIVE, b"")
    assert answer.status == 14
    assert answer.message == (
        "GRPC server is shutting down and has stopped accepting new requests."
    )


async def test_draining() -> None:
    server = Server()
    server.engine.holds = True
    peer = server.peer()
    stream_id = peer.call(INFER, infer_request())
    peer.exchange()
    peer.connection.drain()
    await peer.settle()
    assert [code for code, _ in peer.go_aways] == [0, 0]
    assert not peer.transport.closed
    server.engine.release()
    await peer.settle()
    assert peer.answers[stream_id].status == 0
    assert peer.transport.closed


async def test_a_server_that_stops_waits_for_answers_alone() -> None:
    server = Server()
    server.engine.holds = True
    peer = server.peer()
    idle = [peer.begin(STREAM_INFER), peer.begin(INFER)]
    watch = peer.call("/grpc.health.v1.Health/Watch", b"")
    busy = peer.begin(STREAM_INFER)
    peer.h2.send_data(busy, frame(infer_request()))
    unary = peer.call(INFER, infer_request())
    peer.exchange()
    server.context.is_stopping = True
    peer.connection.drain()
    server.pass_time(peer, 3)
    await peer.settle()
    assert [peer.answers[stream].status for stream in (*idle, watch)] == [14] * 3
    assert not peer.transport.closed
    server.engine.release()
    await peer.settle()
    server.pass_time(peer, 1)
    await peer.settle()
    assert received(peer.answers[unary].data)
    assert peer.answers[busy].data
    assert peer.answers[busy].status == 14
    assert peer.transport.closed


async def test_a_client_that_speaks_no_http_2_over_tls_is_sent_away() -> None:
    class Tls:
        def selected_alpn_protocol(self) -> str | None:
            return "http/1.1"

    server = Server()
    connection = Connection(server.context)
    transport = server.peer().transport
    transport.extra["ssl_object"] = Tls()
    connection.connection_made(transport)
    assert transport.closed


# --- keepalive and age ---------------------------------------------------------------------------


async def test_pings_too_often_end_the_connection() -> None:
    peer = Server().peer()
    for _ in range(3):
        peer.h2.ping()
        peer.exchange()
    assert not peer.transport.closed
    peer.h2.ping()
    peer.exchange()
    assert peer.go_aways == [(ENHANCE_YOUR_CALM, b"too_many_pings")]
    assert peer.transport.closed


async def test_pings_at_their_time_are_welcome() -> None:
    server = Server(keepalive=Keepalive(min_recv_interval_ms=1000, permit_without_calls=True))
    peer = server.peer()
    for _ in range(10):
        peer.h2.ping()
        server.pass_time(peer, 2)
    assert not peer.transport.closed


async def test_answers_forgive_pings() -> None:
    peer = Server().peer()
    for _ in range(10):
        peer.h2.ping()
        await peer.ask(SERVER_LIVE, b"")
    assert not peer.transport.closed


async def test_a_silent_client_is_asked_whether_it_lives() -> None:
    server = Server(keepalive=Keepalive(time_ms=5000, timeout_ms=2000, permit_without_calls=True))
    peer = server.peer()
    server.pass_time(peer, 6)
    assert peer.pings == 1
    assert not peer.transport.closed
    # It answered; now it does not.
    server.now += 6 * S
    peer.connection.check_time(server.now)
    server.now += 3 * S
    peer.connection.check_time(server.now)
    assert peer.transport.aborted


async def test_idle_connections_are_not_asked() -> None:
    server = Server(keepalive=Keepalive(time_ms=5000))
    peer = server.peer()
    server.pass_time(peer, 60)
    assert peer.pings == 0


async def test_an_old_connection_is_closed_with_grace() -> None:
    server = Server(max_connection_age_ms=5000, max_connection_age_grace_ms=3000)
    server.engine.holds = True
    peer = server.peer()
    peer.call(INFER, infer_request())
    peer.exchange()
    server.pass_time(peer, 7)
    assert [code for code, _ in peer.go_aways] == [0, 0]
    assert not peer.transport.closed
    server.pass_time(peer, 4)
    assert peer.transport.aborted


async def test_a_client_that_reads_nothing_is_cut_off() -> None:
    server = Server(write_timeout_s=10)
    peer = server.peer()
    peer.transport.stuck_bytes = 5000
    peer.connection.pause_writing()
    server.pass_time(peer, 9)
    peer.transport.stuck_bytes = 4000
    server.pass_time(peer, 9)
    assert not peer.transport.closed
    server.pass_time(peer, 4)
    assert peer.transport.aborted


async def test_an_idle_connection_is_asked_to_go() -> None:
    server = Server(max_idle_ms=5000)
    server.engine.holds = True
    peer = server.peer()
    peer.call(INFER, infer_request())
    peer.exchange()
    server.pass_time(peer, 20)
    assert not peer.go_aways  # a call is under way
    peer.h2.reset_stream(1)
    peer.exchange()
    server.pass_time(peer, 4)
    assert not peer.go_aways
    for _ in range(2):  # the second time because the client does not answer the ping
        server.now += 2 * S
        peer.connection.check_time(server.now)
    await asyncio.sleep(0)
    assert raw(GO_AWAY, 0, 0, bytes(8))[:5] in peer.transport.written
    await asyncio.sleep(0)
    assert peer.transport.closed


async def test_one_connection_too_many() -> None:
    server = Server(max_connections=1)
    first, second = server.peer(), server.peer()
    assert goodbye(second) == ErrorCode.ENHANCE_YOUR_CALM
    second.connection.connection_lost(None)
    assert (await first.ask(INFER, infer_request())).status == 0
    first.connection.connection_lost(None)
    third = server.peer()
    assert (await third.ask(INFER, infer_request())).status == 0


NO_WINDOW = {int(ngh2.Setting.INITIAL_WINDOW_SIZE): 0}


@pytest.mark.parametrize("elements", [3, 100_000])
async def test_an_answer_for_which_no_window_is_granted(elements: int) -> None:
    server = Server(write_timeout_s=10)
    peer = server.peer(NO_WINDOW)
    answer = await peer.ask(INFER, infer_request(elements))
    server.pass_time(peer, 9)
    assert answer.reset_code is None
    server.pass_time(peer, 4)
    assert answer.reset_code == ErrorCode.CANCEL
    assert server.budget.reserved_bytes == 0


async def test_a_stream_for_which_no_window_is_granted() -> None:
    server = Server(write_timeout_s=10)
    peer = server.peer(NO_WINDOW)
    stream_id = peer.begin(STREAM_INFER)
    peer.h2.send_data(stream_id, frame(infer_request()))
    await peer.settle()
    server.pass_time(peer, 8)
    peer.h2.send_data(stream_id, frame(infer_request()))
    await peer.settle()
    server.pass_time(peer, 4)  # that there is more now does not mean that anything was taken
    assert peer.answers[stream_id].reset_code == ErrorCode.CANCEL


async def test_a_slow_reader_of_a_stream_is_waited_for() -> None:
    server = Server(write_timeout_s=10)
    peer = server.peer(NO_WINDOW, grants_windows=False)
    stream_id = peer.begin(STREAM_INFER)
    peer.h2.send_data(stream_id, frame(infer_request(20)))
    await peer.settle()
    for turn in range(1, 6):
        server.pass_time(peer, 8)
        peer.h2.set_local_window_size(10 * turn, stream_id=stream_id)
        peer.exchange()
        assert len(peer.answers[stream_id].data) == 10 * turn
    assert peer.answers[stream_id].reset_code is None


# --- attacks -------------------------------------------------------------------------------------


def goodbye(peer: Peer) -> int:
    assert peer.transport.closed
    return peer.go_aways[-1][0]


def raw(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    return (
        len(payload).to_bytes(3, "big")
        + bytes((kind, flags))
        + stream_id.to_bytes(4, "big")
        + payload
    )


async def test_rapid_reset() -> None:
    server = Server()
    server.engine.holds = True
    peer = server.peer()
    for _ in range(20_000):
        stream_id = peer.begin(INFER)
        peer.exchange()
        peer.h2.reset_stream(stream_id)
        peer.exchange()
        if peer.go_aways:
            break
    await peer.settle()
    assert goodbye(peer) == ENHANCE_YOUR_CALM
    assert len(server.engine.requests) == 0


async def test_resets_in_a_measure_are_daily_life() -> None:
    server = Server()
    server.engine.holds = True
    peer = server.peer()
    for _ in range(500):
        stream_id = peer.call(INFER, infer_request())
        peer.exchange()
        peer.h2.reset_stream(stream_id)
        peer.exchange()
    assert not peer.transport.closed
    assert len(server.engine.cancelled) == 500
    assert server.budget.reserved_bytes == 0


def settings_flood() -> bytes:
    return raw(4, 0, 0, b"") * 5000


def ping_flood() -> bytes:
    return raw(6, 0, 0, bytes(8)) * 5000


def continuation_flood() -> bytes:
    return raw(1, 0, 1, b"") + raw(9, 0, 1, b"\x82") * 100


def oversize_frame() -> bytes:
    return raw(0, 0, 1, bytes(1 << 17))


def data_of_no_stream() -> bytes:
    return raw(0, 0, 0, b"x")


@pytest.mark.parametrize(
    ("attack", "code"),
    [
        (settings_flood, ENHANCE_YOUR_CALM),
        (ping_flood, ENHANCE_YOUR_CALM),
        (continuation_flood, ENHANCE_YOUR_CALM),
        (oversize_frame, 0x6),
        (data_of_no_stream, PROTOCOL_ERROR),
    ],
)
async def test_floods(attack: Callable[[], bytes], code: int) -> None:
    server = Server(keepalive=Keepalive(max_strikes=0))
    peer = server.peer()
    peer.feed(attack())
    await peer.settle()
    assert goodbye(peer) == code


async def test_header_bomb() -> None:
    """Fields that HPACK packs into a byte each."""
    peer = Server().peer()
    assert (await peer.ask(SERVER_LIVE, b"", (b"same", b"v" * 3000))).status == 0
    peer.begin(SERVER_LIVE, *[(b"same", b"v" * 3000)] * 30)
    peer.exchange()
    assert goodbye(peer) == ENHANCE_YOUR_CALM


async def test_empty_data_flood() -> None:
    peer = Server().peer()
    stream_id = peer.begin(INFER)
    peer.exchange()
    peer.feed(raw(0, 0, stream_id, b"") * 5000)
    await peer.settle()
    assert goodbye(peer) == ENHANCE_YOUR_CALM


async def test_too_many_streams_are_refused() -> None:
    server = Server(max_concurrent_streams=10)
    server.engine.holds = True
    peer = server.peer()
    head = raw(1, 4, 0, b"")  # only its layout is used
    assert len(head) == 9
    streams = [peer.call(INFER, infer_request()) for _ in range(10)]
    peer.exchange()
    assert len(server.engine.requests) == 10
    # ngh2's client waits for the limit; one that does not is refused.
    block = bytes.fromhex("8386") + b"\x04" + bytes([len(INFER)]) + INFER.encode() + b"\x41\x01h"
    peer.feed(raw(1, 4, streams[-1] + 2, block))
    assert peer.transport.written or peer.transport.closed
    assert len(server.engine.requests) == 10
