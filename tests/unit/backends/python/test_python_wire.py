"""Payloads come back as they were written, and refuse what can't be."""

import struct

import numpy as np
import pytest

from naiad.backends.python.stub.naiad_stub import wire
from naiad.backends.python.stub.naiad_stub.region import (
    RegionReader,
    RegionWriter,
    create_region,
)


def written(writer: wire.Writer) -> wire.Reader:
    return wire.Reader(bytearray(writer.payload()), None)


def tensor(name: str, array: np.ndarray, code: int) -> wire.WireTensor:
    return wire.WireTensor(name, code, array.shape, array)


def test_a_request_comes_back() -> None:
    inputs = [
        tensor("a", np.arange(6, dtype=np.float32).reshape(2, 3), 11),
        tensor("empty", np.zeros((0, 3), np.int64), 9),
        tensor("scalar", np.array(5, np.int8), 6),
        tensor("bits", np.array([1, 2], np.uint16), wire.BF16),
    ]
    request = wire.WireRequest(
        2**64 - 1, "\u00fc", "text", 3, 2**63, '{"a": 1}', "m", -1, ["x", "y"], inputs
    )
    writer = wire.Writer(None)
    writer.request(request)
    read = written(writer).request()
    assert read[:9] == request[:9]
    for found, given in zip(read.inputs, inputs, strict=True):
        assert found[:2] == given[:2]
        assert tuple(found.shape) == given.shape
        np.testing.assert_array_equal(found.data, given.data)
        # What libraries do with it may depend on where it lies.
        assert found.data.flags.aligned
        assert found.data.flags.writeable


@pytest.mark.parametrize("correlation_id", [0, 7, 2**64 - 1, "seven"])
def test_a_correlation_id_is_a_number_or_a_text(correlation_id: int | str) -> None:
    writer = wire.Writer(None)
    writer.request(wire.WireRequest(1, "", correlation_id, 0, 0, "", "", 1, [], []))
    assert written(writer).request().correlation_id == correlation_id


def test_a_response_comes_back() -> None:
    outputs = [tensor("o", np.array([True, False]), 1)]
    for response in (
        wire.WireResponse(outputs, None, '{"b": 2}'),
        wire.WireResponse((), wire.WireError(0, "unknown"), ""),
        wire.WireResponse((), None, "", is_empty=True),
    ):
        writer = wire.Writer(None)
        writer.response(response)
        read = written(writer).response()
        assert read.error == response.error
        assert read.parameters == response.parameters
        assert read.is_empty == response.is_empty
        assert [t.name for t in read.outputs] == [t.name for t in response.outputs]


def test_large_tensors_go_through_the_region_and_small_ones_do_not() -> None:
    descriptor = create_region()
    region = RegionWriter(descriptor, 1 << 30)
    reader = RegionReader(descriptor, lambda: None)
    small = np.ones(wire.INLINE_BYTES // 4, np.float32)
    large = np.ones(wire.INLINE_BYTES // 4 + 1, np.float32)
    writer = wire.Writer(region)
    writer.tensors([tensor("small", small, 11), tensor("large", large, 11)])
    assert region.used_bytes() >= large.nbytes
    assert len(writer.payload()) < small.nbytes + 1000
    read = wire.Reader(bytearray(writer.payload()), reader).tensors()
    np.testing.assert_array_equal(read[0].data, small)
    np.testing.assert_array_equal(read[1].data, large)
    writer.discard()
    assert region.used_bytes() == 0
    reader.close()


def test_a_tensor_that_lies_about_its_size_is_refused() -> None:
    writer = wire.Writer(None)
    writer.tensor(tensor("a", np.zeros(4, np.float32), 11))
    payload = bytearray(writer.payload())
    at = payload.index(struct.pack("<q", 4))
    payload[at : at + 8] = struct.pack("<q", 4000)
    with pytest.raises(ValueError, match="buffer is too small"):
        wire.Reader(payload, None).tensor()


def test_elements_come_back() -> None:
    elements = [b"", b"a\x00b", "\u00fc".encode(), b"x" * 300]
    encoded = wire.encode_elements(elements)
    assert wire.decode_elements(encoded) == elements
    assert wire.decode_elements(wire.encode_elements(["text", 7])) == [b"text", b"7"]
    array = wire.elements_array(elements, (2, 2))
    assert array.shape == (2, 2)
    assert array.tolist() == [elements[:2], elements[2:]]


@pytest.mark.parametrize("encoded", [b"\x01", b"\x05\x00\x00\x00abc", b"\xff\xff\xff\xff"])
def test_elements_that_do_not_add_up_are_refused(encoded: bytes) -> None:
    with pytest.raises(ValueError, match="Invalid bytes tensor data"):
        wire.decode_elements(encoded)
