"""One end of the connection between the server and a model process."""

from __future__ import annotations

import _thread
import contextlib
import os
import socket
import struct
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from . import wire
from .region import RegionReader, RegionWriter

if TYPE_CHECKING:
    from collections.abc import Callable

# So many offsets make a small frame.
_RELEASED_IN_FRAME = 256


class Frame(NamedTuple):
    """A message."""

    kind: int
    flags: int
    key: int
    payload: bytearray


class ChannelClosedError(Exception):
    """The other end is gone."""


class Channel:
    """Frames over a socket, and the two regions beside it. Any thread may send; one receives.

    Args:
        connection: a stream socket; closed by `close`.
        outgoing: descriptor of the region that this end writes; -1 for none.
        incoming: descriptor of the region that the other end writes; -1 for none.
        limit_bytes: of the region that this end writes.
    """

    def __init__(
        self, connection: socket.socket, outgoing: int, incoming: int, limit_bytes: int
    ) -> None:
        self._socket = connection
        self.region = RegionWriter(outgoing, limit_bytes) if outgoing >= 0 else None
        self._incoming = RegionReader(incoming, self._flush) if incoming >= 0 else None
        # The collector of garbage may send something while its own thread is about to; while it
        # is at it, that must wait.
        self._lock = threading.RLock()
        self._is_mid_frame = False
        self._posted: deque[bytes] = deque()
        # Of a frame that the socket took the beginning of.
        self._rest = b""
        self._is_finishing = False
        self._is_abandoned = False
        # Such a hook stays for ever, and must not keep what it is for.
        abandon = weakref.WeakMethod(self.abandon)
        os.register_at_fork(after_in_child=lambda: _call(abandon))

    def abandon(self) -> None:
        """This is a process that the one of this end has forked: the connection is the other's.

        Whatever ends here, such as a request or a tensor that was copied with the rest, must not
        be reported as if it had ended there.
        """
        self._is_abandoned = True

    def writer(self) -> wire.Writer:
        """For the payload of a frame that this end sends."""
        return wire.Writer(self.region)

    def reader(self, frame: Frame) -> wire.Reader:
        """For the payload of a frame that this end received."""
        return wire.Reader(frame.payload, self._incoming)

    def send(self, kind: int, key: int = 0, payload: bytes = b"", flags: int = 0) -> None:
        """Send a frame; waits while the other end does not read.

        Raises:
            ChannelClosedError: the other end is gone.
        """
        if self._is_abandoned:
            raise ChannelClosedError(
                "a process that a model has forked can't speak to the server; let the model's own "
                "process do so"
            )
        frame = wire.HEAD.pack(len(payload), kind, flags, key) + payload
        with self._lock:
            if self._is_mid_frame:
                self._posted.append(frame)
            else:
                self._send_now(self._release_frame() + frame)
        self._flush()

    def try_send(self, kind: int, key: int, payload: bytes) -> bool:
        """Send a small frame if that takes no waiting; False where nothing was sent.

        Where the socket takes a part of it, a thread sees to the rest.
        """
        if not self._lock.acquire(blocking=False):
            return False
        try:
            released = self._release_frame()
            is_sent = self._send_at_once(
                released + wire.HEAD.pack(len(payload), kind, 0, key) + payload
            )
            if released and not is_sent:
                self._take_back(released)
        finally:
            self._lock.release()
        self._flush()
        return is_sent

    def post(self, kind: int, key: int = 0, payload: bytes = b"", flags: int = 0) -> None:
        """Send a small frame without ever waiting.

        It goes behind what is being sent; where the other end does not read, a thread waits for
        that.
        """
        self._posted.append(wire.HEAD.pack(len(payload), kind, flags, key) + payload)
        self._flush()

    def receive(self) -> Frame:
        """The next frame that is not about blocks; waits for it.

        Raises:
            ChannelClosedError: the other end is gone, or what it says is no frame.
        """
        while True:
            size, kind, flags, key = wire.HEAD.unpack(self._receive_bytes(wire.HEAD.size))
            if size > wire.MAX_FRAME_BYTES:
                raise ChannelClosedError(f"a frame of {size} bytes")
            payload = self._receive_bytes(size)
            if kind != wire.RELEASE:
                return Frame(kind, flags, key, payload)
            if self.region is not None:
                for (offset,) in struct.iter_unpack("<Q", payload):
                    self.region.release(offset)

    def hang_up(self) -> None:
        """Let nothing more come or go: what has come is received, and then the end."""
        with contextlib.suppress(OSError):  # closed already
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection; whoever waits for a frame is told that the other end is gone."""
        self.hang_up()
        # Not under the hands of a thread that sends: its descriptor may be another's by then.
        with self._lock:
            self._socket.close()
        if self.region is not None:
            self.region.close()
        if self._incoming is not None:
            self._incoming.close()

    def _receive_bytes(self, size: int) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        at = 0
        while at < size:
            try:
                count = self._socket.recv_into(view[at:])
            except OSError as error:
                raise ChannelClosedError(str(error)) from error
            if not count:
                raise ChannelClosedError("end of the connection")
            at += count
        return data

    def _send_now(self, data: bytes) -> None:
        """Send all of it, and first the rest of what was begun.

        Raises:
            ChannelClosedError: the other end is gone, or will be told so: half a frame ends all.
        """
        data, self._rest = self._rest + data, b""
        self._is_mid_frame = True
        try:
            self._socket.sendall(data)
        except OSError as error:
            self.hang_up()
            raise ChannelClosedError(str(error)) from error
        finally:
            self._is_mid_frame = False

    def _send_at_once(self, data: bytes) -> bool:
        """Send frames unless that means to wait; False where nothing was sent."""
        if self._rest:
            return False
        self._is_mid_frame = True
        try:
            count = self._socket.send(data, socket.MSG_DONTWAIT)
            self._rest = data[count:]
        except OSError:  # full, or gone, which who waits for it tells from each other
            return False
        finally:
            self._is_mid_frame = False
        if self._rest:
            self._finish_later()
        return True

    def _finish_later(self) -> None:
        """Let a thread send what is left, since nobody else may ever send anything."""
        if self._is_finishing:
            return
        self._is_finishing = True
        # Not by `threading`, whose locks the collector of garbage may have interrupted.
        try:
            _thread.start_new_thread(self._finish, ())
        except RuntimeError:  # there can be no more threads: what is sent next takes it along
            self._is_finishing = False

    def _finish(self) -> None:
        with self._lock:
            left = []
            while self._posted:
                left.append(self._posted.popleft())
            self._is_finishing = False
            with contextlib.suppress(ChannelClosedError):  # the one that receives sees it, too
                self._send_now(b"".join(left))
        self._flush()

    def _release_frame(self) -> bytes:
        if self._incoming is None or not self._incoming.released:
            return b""
        offsets = self._incoming.take_released(_RELEASED_IN_FRAME)
        payload = struct.pack(f"<{len(offsets)}Q", *offsets)
        return wire.HEAD.pack(len(payload), wire.RELEASE, 0, 0) + payload

    def _take_back(self, frame: bytes) -> None:
        if self._incoming is not None:
            offsets = struct.iter_unpack("<Q", frame[wire.HEAD.size :])
            self._incoming.released.extendleft(offset for (offset,) in offsets)

    def _flush(self) -> None:
        """Send what was posted and what is known to be free, unless that would mean to wait.

        Called by the collector of garbage too, in the middle of anything, so it takes no lock that
        its own thread may hold.
        """
        while self._may_flush() and self._lock.acquire(blocking=False):
            try:
                is_sent = self._send_small()
            finally:
                self._lock.release()
            if not is_sent:
                return

    def _may_flush(self) -> bool:
        if self._is_abandoned or self._is_mid_frame:
            return False
        incoming = self._incoming
        return bool(self._posted) or (incoming is not None and incoming.is_release_due())

    def _send_small(self) -> bool:
        """Send one small frame; False where the other end doesn't take it."""
        is_posted = bool(self._posted)
        data = self._posted.popleft() if is_posted else self._release_frame()
        if not data:
            return False
        if self._send_at_once(data):
            return True
        if is_posted:
            self._posted.appendleft(data)
            self._finish_later()
        else:
            self._take_back(data)
        return False


def _call(method: weakref.WeakMethod[Callable[[], None]]) -> None:
    found = method()
    if found is not None:
        found()
