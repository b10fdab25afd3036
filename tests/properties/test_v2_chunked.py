"""A chunked body is the same however it was cut and however it arrives."""

from hypothesis import given
from hypothesis import strategies as st

from naiad.frontends.http.chunked import ChunkedBody
from naiad.frontends.rest.response import HttpError


@given(st.lists(st.binary(min_size=1, max_size=30), max_size=10), st.lists(st.integers(1, 9)))
def test_chunks(chunks: list[bytes], steps: list[int]) -> None:
    stream = b"".join(b"%X\r\n%b\r\n" % (len(c), c) for c in chunks) + b"0\r\n\r\n"
    body = ChunkedBody(1000, 100)
    position = 0
    used = None
    for step in [*steps, len(stream) + 1]:
        piece = stream[position : position + step]
        if used is None and piece:
            used = body.feed(piece + (b"next" if position + step >= len(stream) else b""))
            position += len(piece)
            if used is not None:
                assert used == len(piece)
                assert position == len(stream)
    assert bytes(body.data) == b"".join(chunks)
    assert used is not None


@given(st.binary(max_size=100))
def test_any_bytes_are_taken_or_refused(stream: bytes) -> None:
    body = ChunkedBody(50, 5)
    try:
        used = body.feed(stream)
    except HttpError:
        return
    assert used is None or 0 < used <= len(stream)
    assert len(body.data) <= 50
