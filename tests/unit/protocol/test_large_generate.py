"""Large generate requests: what comes back from the other process is what was asked."""

import json
from typing import Any

import numpy as np
import pytest

from naiad.errors import InvalidArgumentError, NaiadError
from naiad.inference.datatypes import BOOL, BYTES, FP32, INT64
from naiad.inference.request import InferRequest
from naiad.inference.response import InferResponse
from naiad.model_config.signature import ModelSignature, TensorSpec
from naiad.protocol.generate import decode_generate_request
from naiad.protocol.large_generate import (
    decode_split_generate,
    describe_signature,
    split_generate,
)
from naiad.protocol.large_json import join_document
from naiad.protocol.v2_json import DecodeLimits

SIGNATURE = ModelSignature(
    "m",
    8,
    [
        TensorSpec("text", BYTES, (-1,)),
        TensorSpec("ids", INT64, (-1,)),
        TensorSpec("mask", BOOL, (2, -1)),
        TensorSpec("one", FP32, (1,)),
    ],
    [],
)
LIMIT = 1 << 20


def ignore(response: InferResponse) -> None:
    raise AssertionError(response)


def directly(text: bytes) -> InferRequest:
    return decode_generate_request(SIGNATURE, text, LIMIT, ignore, 5)


def across(text: bytes, limit: int = LIMIT) -> InferRequest:
    split = split_generate(memoryview(text), describe_signature(SIGNATURE), limit)
    payload = bytearray(split.payload_bytes)
    for offset, data in split.pieces:
        payload[offset : offset + len(data)] = data
    document = join_document(split.head, memoryview(payload))
    decoded = decode_split_generate(SIGNATURE, document, DecodeLimits(limit), ignore, 5)
    for steps in decoded.unfinished:
        for _ in steps:
            pass
    return decoded.request


def described(request: InferRequest) -> Any:
    return (
        request.request_id,
        request.parameters,
        request.output_names,
        request.received_ns,
        request.priority,
        [
            (t.name, t.datatype, list(t.shape), t.data.shape, t.data.ravel().tolist())
            for t in request.inputs.values()
        ],
    )


@pytest.mark.parametrize(
    "body",
    [
        {"text": "one", "ids": [1, -(1 << 63), (1 << 63) - 1], "one": 2},
        {"text": ["a", "", "é\0"] * 9000, "id": "q"},
        {"mask": [True, False] * 4, "stop": "x", "priority": 3, "timeout": 0.5, "is": True},
        {"parameters": {"ids": [1], "n": 3}, "n": 4},
        {"text": [], "ids": []},
        {},
    ],
)
def test_the_request_is_the_same(body: dict[str, Any]) -> None:
    text = json.dumps(body).encode()
    assert described(across(text)) == described(directly(text))


@pytest.mark.parametrize(
    "text",
    [
        b"hello",
        b"[]",
        b'{"ids": 1.5}',
        b'{"ids": 1, "ids": 2}',
        b'{"mask": [true]}',
        b'{"stop": [1]}',
        b'{"text": [["a", "b"]]}',
        b'{"text":' + b"[" * 2000 + b"]" * 2000 + b"}",
    ],
)
def test_the_error_is_the_same(text: bytes) -> None:
    with pytest.raises(NaiadError) as expected:
        directly(text)
    with pytest.raises(InvalidArgumentError) as got:
        across(text)
    assert got.value.message == expected.value.message


def test_a_tensor_over_the_limit() -> None:
    text = json.dumps({"ids": [1] * 100}).encode()
    with pytest.raises(InvalidArgumentError, match="request size of 0 bytes with input 'ids'"):
        across(text, 500)


def test_parameters_that_are_too_many() -> None:
    text = json.dumps({f"p{i}": "x" * 100 for i in range(4000)}).encode()
    with pytest.raises(InvalidArgumentError, match="besides its tensors"):
        across(text)


def test_tensors_are_views() -> None:
    (ids,) = across(b'{"ids": [1, 2]}').inputs.values()
    assert not ids.data.flags.owndata
    np.testing.assert_array_equal(ids.data, [[1, 2]])
