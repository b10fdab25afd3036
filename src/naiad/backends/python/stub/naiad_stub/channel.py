"""One end of the connection between the server and a model process."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections import deque
from typing import NamedTuple

from . import wire
from .region import RegionReader, RegionWriter

# A frame of so many offsets is sent whole or not at all, even where the peer has stopped reading.
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
        # The collector of garbage may send something while its own thread is about to.
        self._lock = threading.RLock()
        self._posted: deque[bytes] = deque()
        self._is_abandoned = False

    def abandon(self) -> None:
        """This is a process that the model's has forked: the connection is the other's.

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
        head = wire.HEAD.pack(len(payload), kind, flags, key)
        with self._lock:
            self._send_now(self._release_frame() + head + payload)
        self._flush()

    def try_send(self, kind: int, key: int, payload: bytes) -> bool:
        """Send a small frame if that takes no waiting; False where nothing was sent."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            released = self._release_frame()
            data = released + wire.HEAD.pack(len(payload), kind, 0, key) + payload
            try:
                count = self._socket.send(data, socket.MSG_DONTWAIT)
            except OSError:  # full, or gone, which `send` tells from each other
                if released:
                    self._take_back(released)
                return False
            if count < len(data):  # a frame that has begun must go on
                self._send_now(data[count:])
        finally:
            self._lock.release()
        self._flush()
        return True

    def post(self, kind: int, key: int = 0, payload: bytes = b"", flags: int = 0) -> None:
        """Send a small frame without ever waiting.

        It goes behind what is being sent; where the other end has stopped reading it stays here
        until something else is sent.
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
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise ChannelClosedError(str(error)) from error

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
        while not self._is_abandoned and self._has_small() and self._lock.acquire(blocking=False):
            try:
                is_sent = self._send_small()
            finally:
                self._lock.release()
            if not is_sent:
                return

    def _has_small(self) -> bool:
        incoming = self._incoming
        return bool(self._posted) or (incoming is not None and incoming.is_release_due())

    def _send_small(self) -> bool:
        """Send one small frame; False where the other end doesn't take it."""
        is_posted = bool(self._posted)
        data = self._posted.popleft() if is_posted else self._release_frame()
        if not data:
            return False
        try:
            self._socket.send(data, socket.MSG_DONTWAIT)
        except OSError:
            # Full, and then it may be tried again; or gone, and then it does not matter.
            if is_posted:
                self._posted.appendleft(data)
            else:
                self._take_back(data)
            return False
        return True
