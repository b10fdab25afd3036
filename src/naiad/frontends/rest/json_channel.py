"""What the server and its JSON process say to each other, over a pair of sockets.

A message is a few numbers and one file that has no name: its pages are shared, so that a large text
or tensor crosses over without passing through a pipe.
"""

import os
import socket
import struct
import tempfile
from enum import IntEnum
from typing import Final

import numpy as np

from naiad.protocol.json_text import Buffer

# What the text is, its bytes, bytes that an input may have, bytes of the model's description behind
# the text.
QUESTION: Final = struct.Struct("<QQQQ")
# Bytes of the head, where the payload starts, bytes of the file.
ANSWER: Final = struct.Struct("<QQQ")

ALIGNMENT: Final = 64


class TextKind(IntEnum):
    """What a text is, which says how it is read."""

    INFER = 0
    GENERATE = 1
    LOAD = 2


def make_file() -> int:
    """A descriptor of a file in memory that ends with its last descriptor."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("naiad-json", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def write(descriptor: int, data: Buffer, offset: int) -> None:
    """Write all of ``data``; other threads run meanwhile."""
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        offset += written
        view = view[written:]


def read(descriptor: int, size: int) -> memoryview:
    """All of a file, aligned; other threads run meanwhile.

    Copied, because a mapping of so many small pages takes longer to undo than the copy, and holds
    Python's lock all the while.
    """
    room = np.empty(size + ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    view = room.data[start : start + size]
    position = 0
    while position < size:
        count = os.preadv(descriptor, [view[position:]], position)
        if not count:
            raise OSError("the file is shorter than its message says")
        position += count
    return view


def send(channel: socket.socket, message: bytes, descriptor: int) -> None:
    """Send a message with its file, which stays open here."""
    socket.send_fds(channel, [message], [descriptor])


def receive(channel: socket.socket, form: struct.Struct) -> tuple[tuple[int, ...], int] | None:
    """Wait for a message of that form and its file; None where the other side has gone."""
    message, descriptors, _, _ = socket.recv_fds(channel, form.size, 1)
    if len(message) < form.size or len(descriptors) != 1:
        for descriptor in descriptors:
            os.close(descriptor)
        return None
    return form.unpack(message), descriptors[0]
