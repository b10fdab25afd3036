"""Blocks of shared memory: none overlaps another, and what comes free is used again."""

import gc
import itertools
import random
from collections.abc import Iterator

import numpy as np
import pytest

from naiad.backends.python.stub.naiad_stub.region import (
    RELEASE_AT_BYTES,
    RegionFullError,
    RegionReader,
    RegionWriter,
    create_region,
)

LIMIT = 8 << 20


class Ends:
    """Writer and reader of one region, as in two processes."""

    def __init__(self) -> None:
        self.calls = 0
        descriptor = create_region()
        assert descriptor >= 0
        self.writer = RegionWriter(descriptor, LIMIT)
        # The reader closes the descriptor; one close is enough here.
        self.reader = RegionReader(descriptor, self._count)

    def _count(self) -> None:
        self.calls += 1


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.reader.close()


def test_what_is_written_is_read_without_a_copy(ends: Ends) -> None:
    data = np.arange(1000, dtype=np.uint8)
    offset = ends.writer.write(data)
    block = ends.reader.read(offset, data.nbytes)
    np.testing.assert_array_equal(block, data)
    again = ends.reader.read(offset, data.nbytes)
    block[0] = 77
    assert again[0] == 77


def test_blocks_do_not_overlap_and_the_region_does_not_grow_for_ever(ends: Ends) -> None:
    choose = random.Random(4)
    held: dict[int, int] = {}
    for step in range(3000):
        if held and (len(held) > 40 or choose.random() < 0.5):
            offset = choose.choice(list(held))
            size = held.pop(offset)
            content = ends.reader.read(offset, size)
            assert (content == offset % 251).all()
            del content
            ends.writer.release(offset)
        else:
            size = choose.randrange(1, 60_000)
            # The value tells whose block it is; it is known only once the block is.
            offset = ends.writer.write(np.zeros(size, np.uint8))
            ends.reader.read(offset, size)[:] = offset % 251
            spans = sorted([(o, o + s) for o, s in held.items()] + [(offset, offset + size)])
            assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans)), step
            held[offset] = size
    for offset in held:
        ends.writer.release(offset)
    assert ends.writer.used_bytes() == 0
    # All of it is one free range again.
    assert ends.writer.write(np.zeros(LIMIT // 2, np.uint8)) == 0


def test_the_limit_holds_before_memory_is_taken(ends: Ends) -> None:
    with pytest.raises(RegionFullError, match=f"{LIMIT} are allowed"):
        ends.writer.write(np.zeros(LIMIT + 64, np.uint8))
    offset = ends.writer.write(np.zeros(LIMIT, np.uint8))
    with pytest.raises(RegionFullError):
        ends.writer.write(np.zeros(1, np.uint8))
    ends.writer.release(offset)
    ends.writer.write(np.zeros(1, np.uint8))


def test_releasing_what_is_not_there_does_nothing(ends: Ends) -> None:
    offset = ends.writer.write(np.zeros(10, np.uint8))
    ends.writer.release(offset + 64)
    ends.writer.release(offset)
    ends.writer.release(offset)
    assert ends.writer.used_bytes() == 0


def test_a_block_lives_as_long_as_any_array_on_it(ends: Ends) -> None:
    offset = ends.writer.write(np.arange(64, dtype=np.uint8))
    part = np.ndarray((4, 2), np.float32, ends.reader.read(offset, 64), 16)[1:].T
    gc.collect()
    assert ends.reader.take_released(10) == []
    del part
    gc.collect()
    assert ends.reader.take_released(10) == [offset]


def test_much_that_comes_free_is_told_at_once(ends: Ends) -> None:
    small = ends.writer.write(np.zeros(64, np.uint8))
    large = ends.writer.write(np.zeros(RELEASE_AT_BYTES, np.uint8))
    blocks = [ends.reader.read(small, 64), ends.reader.read(large, RELEASE_AT_BYTES)]
    blocks.pop(0)
    assert ends.calls == 0
    assert not ends.reader.is_release_due()
    blocks.pop()
    assert ends.calls == 1
    assert ends.reader.is_release_due()
    assert ends.reader.take_released(1) == [small]
    assert ends.reader.take_released(10) == [large]
    assert not ends.reader.is_release_due()


@pytest.mark.parametrize(("offset", "size"), [(1 << 40, 8), (0, 1 << 40)])
def test_a_block_outside_of_the_region_is_refused(ends: Ends, offset: int, size: int) -> None:
    ends.writer.write(np.zeros(8, np.uint8))
    with pytest.raises(ValueError, match="is not in a region of"):
        ends.reader.read(offset, size)


def test_a_refused_block_does_not_spoil_the_next(ends: Ends) -> None:
    offset = ends.writer.write(np.arange(8, dtype=np.uint8))
    with pytest.raises(ValueError, match="is not in a region"):
        ends.reader.read(1 << 40, 8)
    assert ends.reader.read(offset, 8).tolist() == list(range(8))
