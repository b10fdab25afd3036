"""Memory that server and model process share: one side writes blocks, the other reads them.

A region has no name. It is a file in memory whose descriptor the process inherits, sealed against
shrinking and further seals, so that neither side can take memory away from under the other. A block
belongs to its reader until nothing there refers to it any more; then its number goes back to the
writer.
"""

from __future__ import annotations

import bisect
import fcntl
import mmap
import os
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

# A cache line, and more than any element needs.
_ALIGNMENT = 64
_FIRST_BYTES = 1 << 20
# Linux's numbers, which Python's fcntl module does not know before 3.9 on every build.
_F_ADD_SEALS = 1033
_F_SEAL_SEAL = 1
_F_SEAL_SHRINK = 2
# Room that comes free is told at once when it is this much, and with the next message otherwise.
RELEASE_AT_BYTES = 1 << 20


def create_region() -> int:
    """A descriptor of an empty region; -1 where the system has no such memory."""
    if not hasattr(os, "memfd_create"):
        return -1
    descriptor = os.memfd_create("naiad", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    fcntl.fcntl(descriptor, _F_ADD_SEALS, _F_SEAL_SHRINK | _F_SEAL_SEAL)
    return descriptor


class RegionFullError(Exception):
    """A block does not fit under the region's limit."""


class RegionWriter:
    """Hands out blocks of a region to write to.

    Args:
        descriptor: of the region; closed by `close`.
        limit_bytes: the region does not grow past this.
    """

    def __init__(self, descriptor: int, limit_bytes: int) -> None:
        self._descriptor = descriptor
        self._limit_bytes = limit_bytes
        self._size = 0
        self._map: Any = None
        # Free ranges by offset, neighbours joined.
        self._offsets: list[int] = []
        self._sizes: dict[int, int] = {}
        self._used: dict[int, int] = {}
        self._lock = threading.Lock()

    def write(self, source: Any) -> int:
        """Copy a C-contiguous array of bytes into a block.

        Returns:
            The block's offset; it stays taken until `release` is called with it.

        Raises:
            RegionFullError: there is no room, and there may be none.
        """
        with self._lock:
            offset = self._take(source.nbytes)
            target = np.frombuffer(self._map, np.uint8, source.nbytes, offset)
        target[:] = source
        return offset

    def release(self, offset: int) -> None:
        """The reader does not need a block any more; unknown offsets are ignored."""
        with self._lock:
            size = self._used.pop(offset, None)
            if size is not None:
                self._insert(offset, size)

    def close(self) -> None:
        """Let go of the region; nothing more is written."""
        with self._lock:
            if self._descriptor >= 0:
                os.close(self._descriptor)
            self._descriptor = -1
            self._map = None
            self._limit_bytes = 0
            self._offsets, self._sizes = [], {}

    def used_bytes(self) -> int:
        """What is in blocks that were not released."""
        with self._lock:
            return sum(self._used.values())

    def _take(self, size: int) -> int:
        size = -(-max(size, 1) // _ALIGNMENT) * _ALIGNMENT
        # The lowest first, so that the same pages are used again while they are warm.
        for offset in self._offsets:
            if self._sizes[offset] >= size:
                return self._cut(offset, size)
        self._grow(size)
        return self._cut(self._offsets[-1], size)

    def _cut(self, offset: int, size: int) -> int:
        self._offsets.remove(offset)
        rest = self._sizes.pop(offset) - size
        if rest:
            self._insert(offset + size, rest)
        self._used[offset] = size
        return offset

    def _grow(self, size: int) -> None:
        tail = 0
        if self._offsets:
            last = self._offsets[-1]
            if last + self._sizes[last] == self._size:
                tail = self._sizes[last]
        wanted = self._size - tail + size
        if wanted > self._limit_bytes:
            raise RegionFullError(
                "the memory shared between the server and the model process would grow to "
                f"{wanted} bytes, and {self._limit_bytes} are allowed"
            )
        grown = min(max(wanted, 2 * self._size, _FIRST_BYTES), self._limit_bytes)
        grown = max(-(-grown // mmap.PAGESIZE) * mmap.PAGESIZE, wanted)
        os.ftruncate(self._descriptor, grown)
        self._map = mmap.mmap(self._descriptor, grown)
        self._insert(self._size, grown - self._size)
        self._size = grown

    def _insert(self, offset: int, size: int) -> None:
        """Put a range among the free ones, joined with its neighbours."""
        index = bisect.bisect(self._offsets, offset)
        if index < len(self._offsets) and self._offsets[index] == offset + size:
            size += self._sizes.pop(self._offsets.pop(index))
        if index and self._offsets[index - 1] + self._sizes[self._offsets[index - 1]] == offset:
            self._sizes[self._offsets[index - 1]] += size
            return
        self._offsets.insert(index, offset)
        self._sizes[offset] = size


class _Block(np.ndarray):
    """The bytes of a block. Every array on them keeps this one, so its end is the end of all."""


class _BlockEnd(weakref.ref):  # type: ignore[type-arg]
    __slots__ = ("offset", "size")

    offset: int
    size: int


class RegionReader:
    """Blocks of a region as arrays, without copying.

    Args:
        descriptor: of the region; closed by `close`.
        on_released: called by whatever thread drops the last array on a block, once much has
            come free; see `take_released`.

    Attributes:
        released: offsets of the blocks that nothing refers to any more.
    """

    def __init__(self, descriptor: int, on_released: Callable[[], None]) -> None:
        self._descriptor = descriptor
        self._on_released = on_released
        self._map: mmap.mmap | None = None
        self._size = 0
        self._ends: dict[int, _BlockEnd] = {}
        self._released_bytes = 0
        self.released: deque[int] = deque()

    def read(self, offset: int, size: int) -> Any:
        """The block at ``offset`` as an array of ``size`` bytes that may be written to.

        Raises:
            ValueError: that is not inside the region.
        """
        if offset + size > self._size:
            grown = os.fstat(self._descriptor).st_size
            if offset + size > grown:
                raise ValueError(f"block {offset}+{size} is not in a region of {grown} bytes")
            self._map = mmap.mmap(self._descriptor, grown)
            self._size = grown
        block = _Block((size,), np.uint8, self._map, offset)
        end = _BlockEnd(block, self._end)
        end.offset, end.size = offset, size
        self._ends[offset] = end
        return block

    def close(self) -> None:
        """Let go of the region; arrays on its blocks stay what they are."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1
        self._map = None

    def is_release_due(self) -> bool:
        """Whether so much has come free that the writer should hear of it now."""
        return self._released_bytes >= RELEASE_AT_BYTES and bool(self.released)

    def take_released(self, limit: int) -> list[int]:
        """Up to ``limit`` offsets that the writer may have back."""
        taken: list[int] = []
        while self.released and len(taken) < limit:
            taken.append(self.released.popleft())
        if not self.released:
            self._released_bytes = 0
        return taken

    def _end(self, end: _BlockEnd) -> None:
        self._ends.pop(end.offset, None)
        self.released.append(end.offset)
        self._released_bytes += end.size
        if self._released_bytes >= RELEASE_AT_BYTES:
            self._on_released()
