"""A connection whose other end is slow: frames arrive whole and once, and nobody waits for it."""

import random
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from naiad.backends.python.stub.naiad_stub import wire
from naiad.backends.python.stub.naiad_stub.channel import Channel, ChannelClosedError, Frame

pytestmark = pytest.mark.slow

# Linux allows no smaller buffer, and cuts what goes through it into pieces of 2 kB or so.
_BUFFER_BYTES = 4608
LARGE = bytes(range(256)) * 120
# The last frame of a test.
OVER = wire.FINALIZE


def connect(kind: type[socket.socket] = socket.socket) -> tuple[Channel, Channel]:
    """The two ends of a connection that holds little; ``kind`` is the first one's socket."""
    ends = socket.socketpair()
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
    first = kind(fileno=ends[0].detach())
    return Channel(first, -1, -1, 0), Channel(ends[1], -1, -1, 0)


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    made = connect()
    yield made
    for channel in made:
        channel.close()


def fill(channel: Channel) -> int:
    """Send as many frames as go without waiting; how many that were."""
    count = 0
    while channel.try_send(wire.EXECUTE, count, b"x" * 500):
        count += 1
    assert count
    return count


def receive_until_over(channel: Channel) -> list[Frame]:
    frames = []
    while (frame := channel.receive()).kind != OVER:
        frames.append(frame)
    return frames


def in_threads(*calls: Callable[[], None]) -> list[threading.Thread]:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    return threads


def test_what_the_socket_takes_a_part_of_is_sent_without_its_sender(
    ends: tuple[Channel, Channel],
) -> None:
    ours, theirs = ends
    # Nobody reads yet, and this thread is the one that would.
    assert ours.try_send(wire.EXECUTE, 1, LARGE)
    ours.post(wire.CANCEL, 2, b"behind it")
    assert theirs.receive() == Frame(wire.EXECUTE, 0, 1, bytearray(LARGE))
    assert theirs.receive() == Frame(wire.CANCEL, 0, 2, bytearray(b"behind it"))


def test_what_was_posted_while_the_other_end_did_not_read_needs_no_other_frame(
    ends: tuple[Channel, Channel],
) -> None:
    ours, theirs = ends
    count = fill(ours)
    for key in range(3):
        ours.post(wire.GO_ON, key)
    frames = [theirs.receive() for _ in range(count + 3)]
    assert [frame.key for frame in frames] == [*range(count), 0, 1, 2]


class InterruptedSocket(socket.socket):
    """Sends as if the collector of garbage came in between."""

    interrupt: Callable[[], None] = staticmethod(lambda: None)

    def send(self, data: bytes, flags: int = 0) -> int:  # type: ignore[override]
        count = super().send(data[:100], flags)
        self.interrupt()
        return count


def test_what_is_sent_in_the_middle_of_a_frame_goes_behind_it() -> None:
    ours, theirs = connect(InterruptedSocket)
    calls = 0

    def interrupt() -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            ours.send(wire.RESPONSE, 2, b"by a finalizer")
            ours.post(wire.CANCEL, 3)

    InterruptedSocket.interrupt = staticmethod(interrupt)
    assert ours.try_send(wire.EXECUTE, 1, b"y" * 300)
    assert theirs.receive() == Frame(wire.EXECUTE, 0, 1, bytearray(b"y" * 300))
    assert {theirs.receive().key, theirs.receive().key} == {2, 3}
    ours.close()
    theirs.close()


@pytest.mark.parametrize("seed", range(4))
def test_frames_of_many_threads_arrive_once_whole_and_in_the_order_of_each(
    ends: tuple[Channel, Channel], seed: int
) -> None:
    ours, theirs = ends
    sent: list[list[int]] = [[] for _ in range(4)]
    posted: list[list[int]] = [[] for _ in range(4)]

    def content(key: int, size: int) -> bytes:
        return bytes([key % 251]) * size

    def speak(index: int) -> None:
        choose = random.Random(10 * seed + index)
        for number in range(60):
            key = 1000 * index + number
            size = choose.choice((0, 10, 900, 3000, 20_000))
            way = choose.choice(("send", "try", "try", "post"))
            if way == "post":
                ours.post(wire.TELL, key, content(key, size))
                posted[index].append(key)
            elif way == "send":
                ours.send(wire.EXECUTE, key, content(key, size))
                sent[index].append(key)
            elif ours.try_send(wire.EXECUTE, key, content(key, size)):
                sent[index].append(key)

    def end() -> None:
        for thread in speakers:
            thread.join()
        ours.send(OVER)

    speakers = in_threads(*(lambda index=index: speak(index) for index in range(4)))
    in_threads(end)
    frames = receive_until_over(theirs)
    assert all(frame.payload == content(frame.key, len(frame.payload)) for frame in frames)
    for index in range(4):
        own = [frame for frame in frames if frame.key // 1000 == index]
        assert [frame.key for frame in own if frame.kind == wire.EXECUTE] == sent[index]
        # The last of them may come behind the end.
        told = [frame.key for frame in own if frame.kind == wire.TELL]
        assert told == posted[index][: len(told)]
    late = sum(map(len, posted)) - sum(frame.kind == wire.TELL for frame in frames)
    assert all(theirs.receive().kind == wire.TELL for _ in range(late))


def test_the_end_of_a_connection_ends_all_that_wait_for_it(
    ends: tuple[Channel, Channel],
) -> None:
    ours, _ = ends
    fill(ours)
    ended = []

    def wait(key: int) -> None:
        with pytest.raises(ChannelClosedError):
            ours.send(wire.EXECUTE, key, LARGE)
        ended.append(key)

    threads = in_threads(*(lambda key=key: wait(key) for key in range(3)))
    ours.post(wire.CANCEL, 9)
    ours.close()
    for thread in threads:
        thread.join()
    assert sorted(ended) == [0, 1, 2]
    assert not ours.try_send(wire.EXECUTE, 4, b"")
    with pytest.raises(ChannelClosedError):
        ours.receive()


FORKING = """
import os, socket
from naiad.backends.python.stub.naiad_stub.channel import Channel, ChannelClosedError

ends = socket.socketpair()
gone, ours, theirs = (Channel(end, -1, -1, 0) for end in (ends[0].dup(), *ends))
del gone
if os.fork() == 0:
    ours.post(9, 1)
    try:
        ours.send(9, 2)
    except ChannelClosedError:
        os._exit(0)
    os._exit(1)
_, status = os.wait()
assert status == 0
ours.send(9, 3)
assert theirs.receive().key == 3
"""


def test_a_process_that_is_forked_from_either_end_says_nothing() -> None:
    subprocess.run([sys.executable, "-c", FORKING], check=True)
