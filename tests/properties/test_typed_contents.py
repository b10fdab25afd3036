"""Typed contents are what protobuf says they are, however they are encoded."""

import tracemalloc
from collections.abc import Generator
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.errors import InvalidArgumentError
from naiad.inference.datatypes import BY_NAME
from naiad.protocol.pb.grpc_service import InferTensorContents
from naiad.protocol.typed_contents import ElementCountError, decode_contents_in_steps
from naiad.protocol.wire import MalformedMessageError, encode_varint, read_fields

T = TypeVar("T")


def finish(steps: Generator[None, None, T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def integers(bits: int, *, is_signed: bool) -> st.SearchStrategy[int]:
    low = -(1 << (bits - 1)) if is_signed else 0
    return st.integers(low, low + (1 << bits) - 1)


FIELDS: dict[str, tuple[str, st.SearchStrategy[Any]]] = {
    "BOOL": ("bool_contents", st.booleans()),
    "INT32": ("int_contents", integers(32, is_signed=True)),
    "INT64": ("int64_contents", integers(64, is_signed=True)),
    "UINT32": ("uint_contents", integers(32, is_signed=False)),
    "UINT64": ("uint64_contents", integers(64, is_signed=False)),
    "FP32": ("fp32_contents", st.floats(width=32)),
    "FP64": ("fp64_contents", st.floats()),
    "BYTES": ("bytes_contents", st.binary(max_size=20)),
}


def unpack(encoded: bytes) -> bytes:
    """The same message with a tag before each element."""
    out = bytearray()
    for field in read_fields(encoded, 0, len(encoded)):
        content = encoded[field.content : field.end]
        width = {6: 4, 7: 8}.get(field.number)
        if field.number == 8:
            out += encoded[field.start : field.end]
        elif width is not None:
            for start in range(0, len(content), width):
                out += encode_varint(field.number << 3 | (5 if width == 4 else 1))
                out += content[start : start + width]
        else:
            for byte in content:
                if not out or out[-1] < 0x80:
                    out += encode_varint(field.number << 3)
                out.append(byte)
            assert not content or out[-1] < 0x80
    return bytes(out)


@pytest.mark.parametrize("datatype", FIELDS)
@given(data=st.data())
def test_like_protobuf(datatype: str, data: st.DataObject) -> None:
    field, elements = FIELDS[datatype]
    lists = data.draw(st.lists(st.lists(elements, max_size=30), max_size=3))
    parts = [InferTensorContents(**{field: values}).SerializeToString() for values in lists]
    encoded = b"".join(
        unpack(part) if data.draw(st.booleans(), label="one by one") else part for part in parts
    )
    theirs: Any = getattr(InferTensorContents.FromString(encoded), field)
    ours = finish(decode_contents_in_steps(encoded, BY_NAME[datatype], len(theirs), "IN", "m"))
    if isinstance(ours, list):
        assert ours == list(theirs)
    else:
        np.testing.assert_array_equal(ours, np.array(theirs, BY_NAME[datatype].dtype))
        assert ours.dtype == BY_NAME[datatype].dtype


@given(
    encoded=st.binary(max_size=60),
    datatype=st.sampled_from(sorted(FIELDS)),
    count=st.integers(0, 60),
)
def test_any_bytes_are_contents_or_an_error(encoded: bytes, datatype: str, count: int) -> None:
    with suppress(MalformedMessageError, InvalidArgumentError, ElementCountError):
        finish(decode_contents_in_steps(encoded, BY_NAME[datatype], count, "IN", "m"))


@pytest.mark.parametrize("datatype", sorted(FIELDS))
@pytest.mark.parametrize("claimed", [0, 1, 2_000_000])
def test_elements_of_another_number_take_no_memory(datatype: str, claimed: int) -> None:
    values: list[Any] = [b"ab"] * 300_000 if datatype == "BYTES" else [1] * 300_000
    contents = InferTensorContents(**{FIELDS[datatype][0]: values}).SerializeToString()
    tracemalloc.start()
    try:
        steps = decode_contents_in_steps(contents, BY_NAME[datatype], claimed, "IN", "m")
        if datatype == "BYTES":
            assert len(finish(steps)) == 300_000 or claimed < len(values)
        else:
            with pytest.raises(ElementCountError) as caught:
                finish(steps)
            assert caught.value.count == 300_000
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < (len(contents) + 150_000 if claimed < len(values) else 20_000_000)


@pytest.mark.parametrize("datatype", ["INT8", "INT32", "BOOL", "FP64", "BYTES"])
def test_many_elements_come_in_many_steps(datatype: str) -> None:
    count = 100_000
    field = {"INT8": "int_contents"}.get(datatype) or FIELDS[datatype][0]
    values: list[Any] = [b"some"] * count if datatype == "BYTES" else [1, 0] * (count // 2)
    contents = InferTensorContents(**{field: values}).SerializeToString()
    steps = decode_contents_in_steps(contents, BY_NAME[datatype], count, "IN", "m")
    assert sum(1 for _ in steps) >= len(contents) // (1 << 20) + 1
    decoded = finish(decode_contents_in_steps(contents, BY_NAME[datatype], count, "IN", "m"))
    assert list(decoded) == values
