"""Our reader and writer of inference messages mean what protobuf means, for every message."""

from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from naiad.errors import InternalError
from naiad.inference.datatypes import BY_NAME, BYTES
from naiad.inference.response import InferResponse
from naiad.inference.tensor import Tensor
from naiad.protocol.infer_message import InferMessage, InferMessageReader
from naiad.protocol.pb.grpc_service import (
    InferParameter,
    InferTensorContents,
    ModelInferRequest,
    ModelInferResponse,
)
from naiad.protocol.requested_outputs import ALL_AS_BINARY
from naiad.protocol.v2_proto_response import InferResponseEncoder

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
TEXT = st.text(max_size=8)
PARAMETERS = st.dictionaries(
    TEXT,
    st.one_of(
        st.builds(InferParameter, bool_param=st.booleans()),
        st.builds(InferParameter, int64_param=INT64),
        st.builds(InferParameter, string_param=TEXT),
        st.builds(InferParameter, double_param=st.floats(allow_nan=False)),
        st.builds(InferParameter),
    ),
    max_size=3,
)
DATATYPES = st.one_of(st.sampled_from(sorted(BY_NAME)), TEXT)
INPUTS = st.builds(
    ModelInferRequest.InferInputTensor,
    name=TEXT,
    datatype=DATATYPES,
    shape=st.lists(INT64, max_size=4),
    parameters=PARAMETERS,
    contents=st.one_of(
        st.none(), st.builds(InferTensorContents, int64_contents=st.lists(INT64, max_size=3))
    ),
)
OUTPUTS = st.builds(ModelInferRequest.InferRequestedOutputTensor, name=TEXT, parameters=PARAMETERS)
REQUESTS = st.builds(
    ModelInferRequest,
    model_name=TEXT,
    model_version=TEXT,
    id=TEXT,
    parameters=PARAMETERS,
    inputs=st.lists(INPUTS, max_size=3),
    outputs=st.lists(OUTPUTS, max_size=3),
    raw_input_contents=st.lists(st.binary(max_size=200), max_size=3),
)
# Fields that no version of the message has, of every wire type.
UNKNOWN = st.sampled_from(
    [b"\x78\x05", b"\x79" + bytes(8), b"\x7a\x03abc", b"\x7b\x08\x01\x7c", b"\x7d" + bytes(4),
     b"\xfa\x7f\x01a", b"\x0d" + bytes(4), b"\x10\x01"]
)  # fmt: skip
# One reader for all examples: what it remembers must not change what it reads.
READER = InferMessageReader()


def assert_equal(read: InferMessage, expected: ModelInferRequest) -> None:
    assert read.model_name == expected.model_name
    assert read.model_version == expected.model_version
    assert read.request_id == expected.id
    assert dict(read.parameters or {}) == dict(expected.parameters)
    assert [entry.name for entry in read.inputs] == [entry.name for entry in expected.inputs]
    for ours, theirs in zip(read.inputs, expected.inputs, strict=True):
        assert ours.datatype is BY_NAME.get(theirs.datatype)
        assert list(ours.shape) == list(theirs.shape)
        assert dict(ours.parameters or {}) == dict(theirs.parameters)
        assert (ours.contents is not None) == theirs.HasField("contents")
        if ours.contents is not None:
            assert InferTensorContents.FromString(bytes(ours.contents)) == theirs.contents
    assert [entry.name for entry in read.outputs] == [entry.name for entry in expected.outputs]
    for wanted, their in zip(read.outputs, expected.outputs, strict=True):
        assert dict(wanted.parameters or {}) == dict(their.parameters)
    contents = [bytes(data[start : start + size]) for data, start, size in read.raw_contents]
    assert contents == list(expected.raw_input_contents)


def assert_reads_as_protobuf(data: bytes) -> None:
    try:
        expected = ModelInferRequest.FromString(data)
    except DecodeError:
        with pytest.raises(InternalError):
            READER.read(data)
        return
    assert_equal(READER.read(data), expected)
    shifted = memoryview(bytearray(b"12345" + data))
    assert_equal(READER.read(shifted, 5), expected)


@given(REQUESTS)
def test_any_request(request: ModelInferRequest) -> None:
    assert_reads_as_protobuf(request.SerializeToString())


@given(REQUESTS, REQUESTS)
def test_messages_one_behind_the_other_are_merged(
    first: ModelInferRequest, second: ModelInferRequest
) -> None:
    assert_reads_as_protobuf(first.SerializeToString() + second.SerializeToString())


@given(REQUESTS, UNKNOWN, REQUESTS)
def test_unknown_fields_are_skipped(
    first: ModelInferRequest, unknown: bytes, second: ModelInferRequest
) -> None:
    assert_reads_as_protobuf(first.SerializeToString() + unknown + second.SerializeToString())


@given(REQUESTS, st.data())
def test_damaged_messages(request: ModelInferRequest, data: st.DataObject) -> None:
    damaged = bytearray(request.SerializeToString())
    for _ in range(data.draw(st.integers(0, 3))):
        if damaged:
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, len(damaged)))
    assert_reads_as_protobuf(bytes(damaged[:end]))


@given(st.binary(max_size=64))
def test_any_bytes(data: bytes) -> None:
    assert_reads_as_protobuf(data)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    datatype = BY_NAME[draw(st.sampled_from(sorted(BY_NAME)))]
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
    count = int(np.prod(shape))
    data: Any
    if datatype is BYTES:
        data = np.empty(count, np.object_)
        data[:] = draw(st.lists(st.binary(max_size=4), min_size=count, max_size=count))
    else:
        size = count * datatype.byte_size
        raw = draw(st.binary(min_size=size, max_size=size))
        data = np.frombuffer(raw, datatype.dtype) if count else np.empty(0, datatype.dtype)
    return Tensor(draw(TEXT), datatype, shape, data.reshape(shape))


@given(TEXT, st.integers(1, 1 << 62), TEXT, st.lists(tensors(), max_size=3))
def test_any_response(name: str, version: int, request_id: str, outputs: list[Tensor]) -> None:
    encoder = InferResponseEncoder(name, version, {}, has_batch_axis=False)
    parts, size = encoder.encode(InferResponse(name, version, request_id, outputs), ALL_AS_BINARY)
    data = b"".join(parts)
    assert len(data) == size
    message = ModelInferResponse.FromString(data)
    assert message.SerializeToString() == data
    assert (message.model_name, message.model_version) == (name, str(version))
    assert message.id == request_id
    assert [(o.name, o.datatype, tuple(o.shape)) for o in message.outputs] == [
        (t.name, t.datatype.name, tuple(t.shape)) for t in outputs
    ]
    for tensor, raw in zip(outputs, message.raw_output_contents, strict=True):
        if tensor.datatype is not BYTES:
            assert raw == tensor.data.tobytes()
