"""What a model process says may be anything: the server reads within bounds, or refuses."""

import json
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naiad.backends.python.messages import request_from_wire, response_from_wire
from naiad.backends.python.stub.naiad_stub import wire
from naiad.backends.python.stub.naiad_stub.region import (
    RegionReader,
    RegionWriter,
    create_region,
)
from naiad.errors import InvalidArgumentError

# What the thread that reads takes for "it sent what can't be read".
UNREADABLE = (ValueError, KeyError, IndexError, struct.error)
BLOCK_BYTES = 64 << 10
numbers = st.one_of(
    st.integers(0, 4),
    st.integers(0, 2 * BLOCK_BYTES),
    st.sampled_from([2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1]),
)
lengths = st.one_of(st.integers(-2, 5), st.sampled_from([2**31, 2**62, -(2**63)]))


@pytest.fixture(scope="module")
def reader() -> Iterator[RegionReader]:
    """A region with one block of a process in it."""
    descriptor = create_region()
    writer = RegionWriter(descriptor, 1 << 20)
    writer.write(np.arange(BLOCK_BYTES, dtype=np.uint8))
    made = RegionReader(descriptor, lambda: None)
    yield made
    made.close()


def text(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data


@st.composite
def tensors(draw: st.DrawFn) -> bytes:
    """A tensor as it crosses, whose numbers say anything."""
    shape = draw(st.lists(lengths, max_size=4))
    rank = draw(st.sampled_from([len(shape), len(shape), len(shape) + 1, 255]))
    code = draw(st.one_of(st.integers(0, 15), st.just(255)))
    head = struct.pack("<BBBQQ", code, rank, draw(st.booleans()), draw(numbers), draw(numbers))
    shape_bytes = struct.pack(f"<{len(shape)}q", *shape)
    return text(draw(st.binary(max_size=3))) + head + shape_bytes + draw(st.binary(max_size=64))


def address_range(array: Any) -> tuple[int, int]:
    start = array.ctypes.data
    return start, start + array.nbytes


def lies_within(data: Any, payload: bytearray, reader: RegionReader) -> bool:
    """Whether an array is inside of the frame or of the region."""
    start, end = address_range(data)
    holders = [np.frombuffer(payload, np.uint8)]
    holders += [np.frombuffer(reader._map, np.uint8)] if reader._map is not None else []
    return start == end or any(
        low <= start and end <= high for low, high in map(address_range, holders)
    )


@given(content=tensors())
@settings(max_examples=200, deadline=None)
def test_a_tensor_lies_within_what_was_sent(reader: RegionReader, content: bytes) -> None:
    payload = bytearray(content)
    try:
        tensor = wire.Reader(payload, reader).tensor()
    except UNREADABLE:
        return
    assert lies_within(tensor.data, payload, reader)


def check_answer(content: bytes, reader: RegionReader) -> None:
    payload = bytearray(content)
    try:
        sent = wire.Reader(payload, reader).response()
    except UNREADABLE:
        return
    response = response_from_wire(sent, is_final=True)
    for output in response.outputs:
        assert output.shape == output.data.shape
        assert all(length >= 0 for length in output.shape)
        output.name.encode()
    if response.error is not None:
        assert response.outputs == ()
        response.error.reason().encode()
    # What clients get is JSON.
    json.dumps(response.parameters)


@given(
    head=st.tuples(st.integers(0, 255), st.sampled_from([0xFF, 0xFF, 0, 3, 7, 8, 200])).map(bytes),
    message=st.binary(max_size=8),
    parameters=st.one_of(
        st.binary(max_size=8),
        st.sampled_from([b"", b"[]", b'{"a": 1.5}', b'{"a": []}', b'{"a": 1}', b"[" * 3000]),
    ),
    outputs=st.lists(tensors(), max_size=2),
    count=st.sampled_from([0, 1, 2, 2**32 - 1]),
)
@settings(max_examples=200, deadline=None)
def test_a_response_is_whole_or_refused(
    reader: RegionReader,
    head: bytes,
    message: bytes,
    parameters: bytes,
    outputs: list[bytes],
    count: int,
) -> None:
    texts = text(message) + text(parameters)
    check_answer(head + texts + struct.pack("<I", count) + b"".join(outputs), reader)


@given(content=st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_a_response_or_refused(reader: RegionReader, content: bytes) -> None:
    check_answer(content, reader)


@given(
    head=st.binary(min_size=36, max_size=36),
    names=st.lists(st.binary(max_size=4), min_size=4, max_size=4),
    inputs=st.lists(tensors(), max_size=2),
)
@settings(max_examples=200, deadline=None)
def test_a_request_is_whole_or_refused(
    reader: RegionReader, head: bytes, names: list[bytes], inputs: list[bytes]
) -> None:
    request_id, correlation_id, parameters, model_name = map(text, names)
    payload = bytearray(
        bytes(8)
        + request_id
        + correlation_id
        + head
        + parameters
        + model_name
        + bytes(4)
        + struct.pack("<I", len(inputs))
        + b"".join(inputs)
    )
    try:
        asked = wire.Reader(payload, reader).request()
        request = request_from_wire(asked, lambda _: None)
    except (*UNREADABLE, InvalidArgumentError):
        return
    for name, tensor in request.inputs.items():
        name.encode()
        assert tensor.shape == tensor.data.shape


def test_a_tensor_that_says_more_than_its_frame_holds_is_refused() -> None:
    # One FP32 of 2 ** 64 - 1 bytes: what follows it would be read from beyond all memory.
    fp32 = next(code for code, dtype in wire.DTYPES.items() if dtype == np.dtype("f4"))
    head = struct.pack("<BBBQQq", fp32, 1, 0, 0, 2**64 - 1, 1)
    payload = bytearray(struct.pack("<I", 2) + text(b"x") + head + bytes(64))
    with pytest.raises(ValueError, match=r"bytes at .* of a frame of"):
        wire.Reader(payload, None).tensors()
