"""A request that is split, carried over and joined is the request that it was."""

import json
from typing import Any

import numpy as np
import pytest
from tests.unit.protocol.test_v2_json import SIGNATURE, ignore

from naiad.errors import InvalidArgumentError
from naiad.inference.request import InferRequest
from naiad.protocol.large_json import join_document, split_document
from naiad.protocol.v2_json import DecodeLimits, decode_infer_document, decode_infer_request

LIMIT = 4096
MANY = [str(number) for number in range(20_000)]


def carried(text: bytes, tail: bytes = b"", limit: int = LIMIT) -> InferRequest:
    split = split_document(text, limit)
    payload = bytearray(split.payload_bytes)
    for start, data in split.pieces:
        payload[start : start + len(data)] = data
    document = join_document(split.head, memoryview(payload))
    decoded = decode_infer_document(SIGNATURE, document, tail, DecodeLimits(limit), ignore, 5)
    for steps in decoded.unfinished:
        assert list(steps) == [None] * 6
    return decoded.request


def direct(text: bytes, tail: bytes = b"", limit: int = LIMIT) -> InferRequest:
    return decode_infer_request(SIGNATURE, text, tail, DecodeLimits(limit), ignore, 5)[0]


def text_of(*inputs: Any, **members: Any) -> bytes:
    return json.dumps({"inputs": inputs, **members}).encode()


def tensor(datatype: str, data: Any, shape: Any = (1, 2), name: str = "IN") -> Any:
    return {"name": name, "datatype": datatype, "shape": shape, "data": data}


@pytest.mark.parametrize(
    ("text", "tail"),
    [
        (text_of(tensor("FP32", [1, 2.5])), b""),
        (text_of(tensor("FP64", [[1, float("nan")]])), b""),
        (text_of(tensor("INT64", [-(1 << 63), (1 << 63) - 1])), b""),
        (text_of(tensor("UINT64", [0, (1 << 64) - 1])), b""),
        (text_of(tensor("BOOL", [True, False])), b""),
        (text_of(tensor("BYTES", ["", "é\0"])), b""),
        (text_of(tensor("FP32", [], [1, 0])), b""),
        (text_of(tensor("INT8", [1, 2]), tensor("UINT8", [3, 4], name="B")), b""),
        (
            text_of(
                {
                    "name": "A",
                    "datatype": "FP32",
                    "shape": [1],
                    "parameters": {"binary_data_size": 4},
                },
                tensor("INT32", [5, 6], name="B"),
                id="x",
                outputs=[{"name": "OUT", "parameters": {"binary_data": True}}],
                parameters={"own": 1.5, "not a number": float("nan"), "priority": 2},
                unknown={"to": ["both"]},
            ),
            b"\0\0\x80?",
        ),
    ],
)
def test_requests(text: bytes, tail: bytes) -> None:
    ours, theirs = carried(text, tail), direct(text, tail)
    assert ours.request_id == theirs.request_id
    assert ours.output_names == theirs.output_names
    assert str(ours.parameters) == str(theirs.parameters)
    assert ours.priority == theirs.priority
    assert list(ours.inputs) == list(theirs.inputs)
    for name, want in theirs.inputs.items():
        got = ours.inputs[name]
        assert (got.datatype, got.shape) == (want.datatype, want.shape)
        assert got.data.dtype == want.data.dtype
        np.testing.assert_array_equal(got.data, want.data)


def test_many_strings_come_in_steps() -> None:
    text = text_of(tensor("BYTES", MANY, [1, len(MANY)]))
    ours = carried(text, limit=1 << 20)
    assert ours.inputs["IN"].data.shape == (1, len(MANY))
    assert [element.decode() for element in ours.inputs["IN"].data[0]] == MANY


@pytest.mark.parametrize(
    "text",
    [
        b"{",
        b"[]",
        b"1",
        b"{}",
        b'{"inputs":1}',
        b'{"inputs":[1]}',
        b'{"inputs":[[]]}',
        b'{"inputs":[{}]}',
        b'{"id":1,"inputs":[]}',
        b'{"inputs":[],"outputs":1}',
        b'{"inputs":[],"parameters":[]}',
        b"[" * 3000,
        text_of(tensor("FP32", [1])),
        text_of(tensor("FP32", "12")),
        text_of(tensor("FP32", None)),
        text_of(tensor("FP32", ["1", 2])),
        text_of(tensor("FP16", [1, 2])),
        text_of(tensor("UINT8", [300, 2])),
        text_of(tensor("NONE", [1, 2])),
        text_of(tensor("FP32", [1, 2], [1 << 40])),
        text_of(tensor("FP32", [1, 2], [1 << 62, 2])),
        text_of(tensor("FP32", [1, 2], ["1"])),
        text_of(tensor("BYTES", ["a"])),
        text_of(tensor("BYTES", [1, 2])),
        text_of(tensor("FP32", [1, 2]), tensor("FP32", [1, 2])),
        text_of({**tensor("FP32", [1, 2]), "parameters": {"binary_data_size": 8}}),
        b" " * (LIMIT + 1),
    ],
)
def test_the_errors_are_those_of_a_small_request(text: bytes) -> None:
    with pytest.raises(InvalidArgumentError) as want:
        direct(text)
    with pytest.raises(InvalidArgumentError) as got:
        carried(text)
    assert got.value.message == want.value.message


def test_what_is_left_for_the_server_must_be_small() -> None:
    text = text_of(tensor("FP32", [1, 2]), parameters={"own": "x" * 300_000})
    with pytest.raises(InvalidArgumentError, match="besides its tensors or files, the limit"):
        carried(text, limit=1 << 20)
