import pytest

from naiad.frontends.http.chunked import ChunkedBody
from naiad.frontends.rest.response import HttpError


def feed(data: bytes, *, max_bytes: int = 1000, max_chunks: int = 100) -> tuple[bytes, int | None]:
    body = ChunkedBody(max_bytes, max_chunks)
    used = body.feed(data)
    return bytes(body.data), used


def refusal(data: bytes, *, max_bytes: int = 1000, max_chunks: int = 100) -> HttpError:
    with pytest.raises(HttpError) as caught:
        feed(data, max_bytes=max_bytes, max_chunks=max_chunks)
    return caught.value


def test_chunks_are_put_together() -> None:
    data = b"3\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n"
    assert feed(data) == (b"abc0123456789", len(data))


def test_what_follows_the_body_is_not_taken() -> None:
    data = b"1\r\na\r\n0\r\n\r\n"
    assert feed(data + b"GET / HTTP/1.1\r\n\r\n") == (b"a", len(data))


def test_extensions_and_trailers_are_skipped() -> None:
    data = b"2;name=value\r\nab\r\n0;x\r\nTrailer: t\r\nOther: u\r\n\r\n"
    assert feed(data) == (b"ab", len(data))


def test_a_body_without_content() -> None:
    assert feed(b"0\r\n\r\n") == (b"", 5)


@pytest.mark.parametrize("step", [1, 2, 3, 7])
def test_any_division_of_the_stream_gives_the_same(step: int) -> None:
    data = b"3;e=1\r\nabc\r\n2\r\nde\r\n0\r\nT: u\r\n\r\n"
    body = ChunkedBody(100, 100)
    for start in range(0, len(data), step):
        used = body.feed(data[start : start + step])
        assert (used is None) == (start + step < len(data))
    assert bytes(body.data) == b"abcde"


@pytest.mark.parametrize(
    "data",
    [
        b"zz\r\nabc\r\n",
        b"\r\nabc\r\n",
        b"-1\r\n",
        b"+1\r\na\r\n",
        b"0x1\r\na\r\n",
        b" 1\r\na\r\n",
        b"1\na\r\n",
        b"1\r\nab\r\n0\r\n\r\n",
        b"1" * 16 + b"\r\n",
        b"1;" + b"x" * 300,
        b"0\r\n" + b"x" * 300,
    ],
)
def test_wrong_framing_is_refused(data: bytes) -> None:
    assert refusal(data).status == 400


def test_the_number_of_chunks_is_limited() -> None:
    assert feed(b"1\r\na\r\n" * 3 + b"0\r\n\r\n", max_chunks=3)[0] == b"aaa"
    error = refusal(b"1\r\na\r\n" * 4, max_chunks=3)
    assert (error.status, error.message) == (
        400,
        "Chunked request body exceeds maximum of 3 non-empty chunks. Send fewer or larger HTTP "
        "chunks.",
    )


def test_the_size_is_limited_before_the_content_is_there() -> None:
    assert refusal(b"5\r\n", max_bytes=4).status == 413
    assert refusal(b"3\r\nabc\r\n2\r\n", max_bytes=4).status == 413


def test_trailers_are_limited() -> None:
    assert refusal(b"0\r\n" + b"Trailer: x\r\n" * 1000).status == 431
