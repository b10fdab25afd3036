"""Whatever a client encodes is what the server decodes, and the other way round."""

import contextlib
import json
import math
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from naiad.errors import NaiadError
from naiad.inference.datatypes import BF16, BY_NAME, BYTES, FP16, Datatype
from naiad.inference.response import InferResponse
from naiad.inference.tensor import Tensor
from naiad.model_config.signature import ModelSignature
from naiad.protocol.binary_data import encode_elements
from naiad.protocol.requested_outputs import ALL_AS_BINARY, ALL_AS_JSON
from naiad.protocol.v2_json import DecodeLimits, decode_infer_request
from naiad.protocol.v2_json_response import InferResponseEncoder

SIGNATURE = ModelSignature("m", 0, [], [])
SHAPES = arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["inputs", "name", "datatype", "shape", "data", "parameters", "id"])
            | st.text(max_size=3),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@st.composite
def tensors(draw: st.DrawFn, *, as_json: bool) -> Tensor:
    names = [d for d in BY_NAME.values() if not (as_json and d in (FP16, BF16))]
    datatype: Datatype = draw(st.sampled_from(names))
    shape = draw(SHAPES)
    count = math.prod(shape)
    if datatype is BYTES:
        elements = st.text(max_size=8).map(str.encode) if as_json else st.binary(max_size=8)
        data = np.empty(count, np.object_)
        data[:] = draw(st.lists(elements, min_size=count, max_size=count))
        return Tensor("IN", datatype, shape, data.reshape(shape))
    return Tensor("IN", datatype, shape, draw(arrays.arrays(datatype.dtype, shape)))


def same(left: npt.NDArray[Any], right: npt.NDArray[Any]) -> bool:
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    if left.dtype.kind == "f":
        return np.array_equal(left, right, equal_nan=True)
    return np.array_equal(left, right)


def decode(document: Any, tail: bytes = b"") -> Tensor:
    request, _ = decode_infer_request(
        SIGNATURE, json.dumps(document).encode(), tail, DecodeLimits(), lambda response: None, 0
    )
    return request.inputs["IN"]


@given(tensors(as_json=True), st.booleans())
def test_json_inputs(tensor: Tensor, is_nested: bool) -> None:
    data = (
        tensor.data
        if tensor.datatype is not BYTES
        else np.vectorize(bytes.decode, otypes=[np.object_])(tensor.data)
    )
    assume(not (is_nested and data.ndim == 0))
    entry = {
        "name": "IN",
        "datatype": tensor.datatype.name,
        "shape": tensor.shape,
        "data": data.tolist() if is_nested else data.ravel().tolist(),
    }
    assert same(decode({"inputs": [entry]}).data, tensor.data)


@given(tensors(as_json=False), st.integers(0, 7))
def test_binary_inputs(tensor: Tensor, shift: int) -> None:
    raw = (
        encode_elements(tensor.data)
        if tensor.datatype is BYTES
        else np.asarray(tensor.data).tobytes()
    )
    padding = {
        "name": "PAD",
        "datatype": "UINT8",
        "shape": [shift],
        "parameters": {"binary_data_size": shift},
    }
    entry = {
        "name": "IN",
        "datatype": tensor.datatype.name,
        "shape": tensor.shape,
        "parameters": {"binary_data_size": len(raw)},
    }
    assert same(decode({"inputs": [padding, entry]}, bytes(shift) + raw).data, tensor.data)


@given(tensors(as_json=True))
def test_json_outputs(tensor: Tensor) -> None:
    encoder = InferResponseEncoder("m", 1, {}, has_batch_axis=False)
    text, tail, tail_bytes = encoder.encode(InferResponse("m", 1, "", [tensor]), ALL_AS_JSON)
    assert (tail, tail_bytes) == ([], 0)
    (output,) = json.loads(text)["outputs"]
    assert same(decode({"inputs": [{**output, "name": "IN"}]}).data, tensor.data)


@given(st.lists(tensors(as_json=False), max_size=4))
def test_binary_outputs(outputs: list[Tensor]) -> None:
    encoder = InferResponseEncoder("m", 1, {}, has_batch_axis=False)
    text, tail, tail_bytes = encoder.encode(InferResponse("m", 1, "", outputs), ALL_AS_BINARY)
    joined = b"".join(tail)
    assert len(joined) == tail_bytes
    position = 0
    for tensor, output in zip(outputs, json.loads(text)["outputs"], strict=True):
        size = output["parameters"]["binary_data_size"]
        piece = joined[position : position + size]
        position += size
        assert same(decode({"inputs": [{**output, "name": "IN"}]}, piece).data, tensor.data)
    assert position == tail_bytes


@given(JSON_VALUES, st.binary(max_size=20))
def test_no_document_makes_the_decoder_fail_otherwise_than_by_refusing(
    document: Any, tail: bytes
) -> None:
    text = json.dumps({"inputs": [document]}).encode()
    with contextlib.suppress(NaiadError):
        decode_infer_request(SIGNATURE, text, tail, DecodeLimits(), lambda response: None, 0)


@given(st.binary(max_size=60), st.binary(max_size=20))
def test_no_bytes_make_the_decoder_fail_otherwise_than_by_refusing(
    text: bytes, tail: bytes
) -> None:
    with contextlib.suppress(NaiadError):
        decode_infer_request(SIGNATURE, text, tail, DecodeLimits(), lambda response: None, 0)
