import gzip
import random
import zlib
from collections.abc import Callable

import pytest

from naiad.errors import InvalidArgumentError
from naiad.protocol.compression import Decompressor, choose_encoding, compress, is_known

CONTENT = random.Random(0).randbytes(100_000) + bytes(200_000)


def decompress(body: bytes, max_bytes: int = 1 << 20, step: int = 1 << 16) -> bytes:
    decompressor = Decompressor(body, max_bytes)
    while not decompressor.advance(step):
        assert len(decompressor.data) <= max_bytes + 1
    return bytes(decompressor.data)


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
@pytest.mark.parametrize("step", [1, 999, 1 << 20])
def test_a_body_in_steps(pack: Callable[[bytes], bytes], step: int) -> None:
    content = CONTENT if step > 1 else CONTENT[:300]
    assert decompress(pack(content), step=step) == content


def test_no_step_yields_more_than_it_was_told_to() -> None:
    decompressor = Decompressor(zlib.compress(CONTENT), 1 << 20)
    sizes = []
    while not decompressor.advance(1000):
        sizes.append(len(decompressor.data))
    assert sizes == list(range(1000, len(CONTENT), 1000))


def test_nothing_compressed_is_nothing() -> None:
    assert decompress(gzip.compress(b""), max_bytes=0) == b""


def test_exactly_the_limit_is_taken_and_one_byte_more_is_not() -> None:
    body = gzip.compress(bytes(1000))
    assert decompress(body, max_bytes=1000) == bytes(1000)
    with pytest.raises(InvalidArgumentError) as caught:
        decompress(body, max_bytes=999)
    assert caught.value.message == (
        "Decompressed data size exceeds the maximum allowed value of 999 bytes. Use "
        "--http-max-input-size to increase the limit."
    )


def test_a_bomb_is_stopped_at_the_limit() -> None:
    decompressor = Decompressor(zlib.compress(bytes(1 << 24)), 1 << 16)
    with pytest.raises(InvalidArgumentError, match="Decompressed data size exceeds"):
        decompressor.advance(1 << 20)
    assert len(decompressor.data) == (1 << 16) + 1


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "ends before"),
        (b'{"inputs":[]}', "incorrect header check"),
        (gzip.compress(CONTENT, mtime=0)[:-1], "ends before"),
        (gzip.compress(CONTENT, mtime=0)[:5000], "ends before"),
        (gzip.compress(CONTENT, mtime=0) + b"x", "goes on after"),
        (gzip.compress(CONTENT, mtime=0) * 2, "goes on after"),
        (zlib.compress(CONTENT)[:-1] + b"\0", "incorrect data check"),
        (b"\x1f\x8b\x08\x00" + bytes(100), "Error -3|ends before"),
    ],
)
@pytest.mark.parametrize("step", [100, 1 << 20])
def test_what_is_no_compressed_body(body: bytes, reason: str, step: int) -> None:
    with pytest.raises(
        InvalidArgumentError, match=rf"failed to decompress the request body: .*({reason})"
    ):
        decompress(body, step=step)


@pytest.mark.parametrize(
    ("accept", "encoding"),
    [
        (b"", None),
        (b"gzip", b"gzip"),
        (b"deflate", b"deflate"),
        (b" gzip , deflate", b"gzip"),
        (b"deflate, gzip", b"deflate"),
        (b"identity, gzip", None),
        (b"gzip;q=0", None),
        (b"gzip;q=0, identity", None),
        (b"gzip;q=0.5, identity;q=0.4", b"gzip"),
        (b"gzip;q=0.5, deflate ; q=0.9", b"deflate"),
        (b"gzip;q=0.5, identity", None),
        (b"gzip;q=x", None),
        (b"gzip;level=9", b"gzip"),
        (b"GZIP", None),
        (b"xgzip", None),
        (b"br", None),
        (b"*", None),
    ],
)
def test_the_choice(accept: bytes, encoding: bytes | None) -> None:
    assert choose_encoding(accept) == encoding


@pytest.mark.parametrize(
    ("encoding", "unpack"), [(b"gzip", gzip.decompress), (b"deflate", zlib.decompress)]
)
def test_what_is_compressed_can_be_read(encoding: bytes, unpack: Callable[[bytes], bytes]) -> None:
    assert is_known(encoding)
    assert unpack(compress([b"ab", memoryview(b"cd"), b""], encoding)) == b"abcd"


def test_unknown_names() -> None:
    assert not is_known(b"br")
    assert not is_known(b"GZIP")
