"""Generate requests and responses as bytes."""

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.errors import InvalidArgumentError
from naiad.inference.datatypes import BF16, BOOL, BYTES, FP16, FP32, FP64, INT32, INT64, Datatype
from naiad.inference.request import InferRequest
from naiad.inference.response import InferResponse
from naiad.inference.tensor import Tensor
from naiad.model_config.signature import ModelSignature, TensorSpec
from naiad.protocol.generate import (
    EMPTY_COMMENT,
    decode_generate_request,
    encode_event,
    encode_generate_response,
)


def signature(
    *specs: TensorSpec, max_batch_size: int = 8, datatype: Datatype = FP32, dims: Any = (-1,)
) -> ModelSignature:
    return ModelSignature(
        "m", max_batch_size, specs or (TensorSpec("IN", datatype, tuple(dims)),), ()
    )


def ignore(response: InferResponse) -> None:
    raise AssertionError(response)


def decode(body: object, model: ModelSignature, max_input_bytes: int = 1 << 20) -> InferRequest:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return decode_generate_request(model, memoryview(text), max_input_bytes, ignore, 7)


def refusal(body: object, model: ModelSignature, max_input_bytes: int = 1 << 20) -> str:
    with pytest.raises(InvalidArgumentError) as caught:
        decode(body, model, max_input_bytes)
    return caught.value.message


def answer(*outputs: Tensor, **members: Any) -> dict[str, Any]:
    response = InferResponse("m", 3, members.pop("request_id", ""), outputs)
    response.parameters = members or None
    parsed: dict[str, Any] = json.loads(encode_generate_response(response))
    assert list(parsed) == sorted(parsed)
    return parsed


def tensor(datatype: Datatype, values: Any, name: str = "OUT") -> Tensor:
    data = np.array(values, datatype.dtype)
    return Tensor(name, datatype, data.shape, data)


# --- requests ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("datatype", "value", "shape", "expected"),
    [
        (FP32, 1.5, [1, 1], [1.5]),
        (FP32, 2, [1, 1], [2.0]),
        (INT32, 7, [1, 1], [7]),
        (BOOL, True, [1, 1], [True]),
        (BYTES, "", [1, 1], [b""]),
        (BYTES, "é\0", [1, 1], ["é\0".encode()]),
        (INT64, [1 << 62, -1], [1, 2], [1 << 62, -1]),
        (BYTES, ["a", "b"], [1, 2], [b"a", b"b"]),
    ],
)
def test_scalars_and_lists(
    datatype: Datatype, value: object, shape: list[int], expected: list[object]
) -> None:
    request = decode({"IN": value}, signature(datatype=datatype))
    taken = request.inputs["IN"]
    assert (taken.datatype, list(taken.shape)) == (datatype, shape)
    assert taken.data.shape == tuple(shape)
    assert taken.data.ravel().tolist() == expected
    assert request.output_names is None
    assert request.received_ns == 7


@pytest.mark.parametrize(
    ("dims", "max_batch_size", "count", "shape"),
    [
        ((4,), 8, 4, [1, 4]),
        ((4,), 8, 8, [2, 4]),
        ((4,), 0, 4, [4]),
        ((-1,), 0, 3, [3]),
        ((-1, 2), 8, 6, [1, 3, 2]),
        ((2, -1), 8, 6, [1, 2, 3]),
        ((-1, -1), 8, 6, [1, 1, 6]),
        ((-1, 3, -1), 0, 6, [1, 3, 2]),
        ((), 8, 3, [3]),
        ((), 0, 1, []),
    ],
)
def test_fixed_dims_divide_and_the_innermost_free_one_takes_the_rest(
    dims: tuple[int, ...], max_batch_size: int, count: int, shape: list[int]
) -> None:
    model = signature(max_batch_size=max_batch_size, dims=dims)
    request = decode({"IN": list(range(count))}, model)
    assert list(request.inputs["IN"].shape) == shape


@pytest.mark.parametrize(
    ("dims", "max_batch_size", "value"),
    [((4,), 8, 1), ((4,), 0, list(range(8))), ((3, -1), 8, [1, 2]), ((0,), 8, 1), ((), 0, [1, 2])],
)
def test_what_does_not_divide(dims: tuple[int, ...], max_batch_size: int, value: object) -> None:
    model = signature(max_batch_size=max_batch_size, dims=dims)
    assert refusal({"IN": value}, model) == (
        "The schema can not convert input 'IN' to tensor with proper shape"
    )


def test_no_elements_is_no_shape() -> None:
    taken = decode({"IN": []}, signature()).inputs["IN"]
    assert list(taken.shape) == []
    assert "proper shape" in refusal({"IN": []}, signature(max_batch_size=0, dims=()))


def test_the_other_keys_are_parameters() -> None:
    body = {"IN": 1, "temperature": 0.5, "n": 3, "flag": True, "stop": "x", "timeout": 30}
    request = decode(body, signature())
    body.pop("IN")
    assert request.parameters == body
    assert request.timeout_us == 0


def test_the_parameters_object_is_flat() -> None:
    two = signature(TensorSpec("IN", FP32, (1,)), TensorSpec("B", FP32, (1,), is_optional=True))
    request = decode({"IN": 1, "x": 1, "parameters": {"x": 2, "B": 3}}, two)
    assert request.parameters == {"x": 2}
    assert list(request.inputs) == ["IN", "B"]


def test_the_id_is_no_parameter() -> None:
    assert decode({"id": "g-1", "IN": 1}, signature()).request_id == "g-1"
    assert decode({"id": "g-1", "IN": 1}, signature()).parameters is None
    named = signature(TensorSpec("id", BYTES, (1,)))
    request = decode({"id": "g-1"}, named)
    assert request.request_id == "g-1"
    assert request.inputs["id"].data.ravel().tolist() == [b"g-1"]


NOT_AN_INTEGER = "attempt to access JSON non-signed-integer as signed-integer"


@pytest.mark.parametrize(
    ("datatype", "body", "text"),
    [
        (INT32, {"IN": "x"}, f"Unable to parse 'data': {NOT_AN_INTEGER}"),
        (INT32, {"IN": None}, f"Unable to parse 'data': {NOT_AN_INTEGER}"),
        (INT32, {"IN": {"a": 1}}, f"Unable to parse 'data': {NOT_AN_INTEGER}"),
        (BOOL, {"IN": 1}, "Unable to parse 'data': attempt to access JSON non-boolean as boolean"),
        (BYTES, {"IN": 1}, "attempt to access JSON non-string as string"),
        (
            FP16,
            {"IN": 1.0},
            "receiving FP16 data via JSON is not supported. Please use the binary data format for "
            "input IN",
        ),
        (
            BYTES,
            {"IN": [["a", "b"]]},
            "[request id: <id_unknown>] unexpected number of string elements 2 for inference input "
            "'IN' for model 'm', expecting 1",
        ),
        (
            BYTES,
            {"id": "q", "IN": [[], "b"]},
            "[request id: q] expected 2 string elements for inference input 'IN' for model 'm', "
            "got 1",
        ),
        (FP32, {"IN": [[1, 2]]}, "Shape does not match true shape of 'data' field"),
        (
            FP32,
            {"IN": 1, "stop": ["x"]},
            "parameter 'stop' has invalid type. It should be either 'int', 'bool', or 'string'.",
        ),
        (FP32, {"IN": 1, "triton_x": 1}, "parameter keys starting with 'triton_' are reserved"),
        (
            FP32,
            {"IN": 1, "parameters": 1},
            "Expected JSON object for keyword: 'parameters': attempt to access JSON non-object as "
            "object",
        ),
        (
            FP32,
            {"IN": 1, "parameters": {"nested": {}}},
            "Converting keyword: 'parameters': parameter 'nested' has invalid type.",
        ),
        (FP32, {"IN": 1, "parameters": {"IN": 2}}, "input 'IN' already exists in request"),
        (FP32, {"IN": 1, "id": 4}, "Unable to parse 'id': attempt to access JSON non-string"),
        (FP32, b'{"IN": 1, "IN": 2}', "input 'IN' already exists in request"),
        (FP32, b"[]", "attempt to get members for non-object"),
        (FP32, b"hello", "failed to parse the request JSON buffer: Invalid value. at 0"),
        (FP32, b"", "failed to parse the request JSON buffer: The document is empty. at 0"),
    ],
)
def test_what_is_refused(datatype: Datatype, body: object, text: str) -> None:
    assert text in refusal(body, signature(datatype=datatype))


def test_an_input_whose_name_is_the_keyword() -> None:
    named = signature(TensorSpec("parameters", FP32, (1,)))
    assert "also given as input tensor name" in refusal({"parameters": {}}, named)


def test_a_value_that_equals_the_name_of_its_input_is_no_repetition() -> None:
    request = decode({"IN": "IN", "note": "IN"}, signature(datatype=BYTES))
    assert request.inputs["IN"].data.ravel().tolist() == [b"IN"]


def test_limits() -> None:
    assert "request JSON size of 10 bytes exceeds" in refusal(b'{"IN": 10}', signature(), 9)
    text = refusal({"A": 1, "IN": [1] * 9}, signature(datatype=FP64), 64)
    assert text == (
        "request size of 0 bytes with input 'IN' of size 72 bytes exceeds the maximum allowed "
        "input size of 64 bytes. Use --http-max-input-size to increase the limit."
    )
    two = signature(TensorSpec("A", FP64, (-1,)), TensorSpec("B", FP64, (-1,)))
    assert "request size of 40 bytes with input 'B' of size 40 bytes exceeds" in refusal(
        {"A": [1] * 5, "B": [1] * 5}, two, 64
    )


@pytest.mark.parametrize("depth", [101, 2000, 300_000])
@pytest.mark.parametrize("start", [b'{"IN":', b'{"parameters":', b'{"other":', b""])
def test_depth_costs_nothing(start: bytes, depth: int) -> None:
    body = start + b"[" * depth + b"]" * depth + (b"}" if start else b"")
    text = refusal(body, signature(datatype=BYTES))
    assert "JSON" in text or "invalid type" in text or "non-object" in text


def test_not_a_number_comes_in() -> None:
    request = decode(b'{"IN": [NaN, -Infinity]}', signature())
    assert math.isnan(request.inputs["IN"].data[0, 0])


# --- responses -----------------------------------------------------------------------------------


def test_a_response_is_flat_and_sorted() -> None:
    outputs = [
        tensor(FP32, [[3]], "F"),
        tensor(BYTES, [b"3"], "S"),
        tensor(INT64, [[1, 2], [3, 4]], "I"),
        tensor(BOOL, [], "none"),
    ]
    assert answer(*outputs, request_id="q", step=1, done=False) == {
        "F": 3.0,
        "I": [1, 2, 3, 4],
        "S": "3",
        "done": False,
        "id": "q",
        "model_name": "m",
        "model_version": "3",
        "none": [],
        "step": 1,
    }


def test_its_bytes() -> None:
    response = InferResponse("m", 1, "", [tensor(FP32, [2])])
    assert encode_generate_response(response) == (
        b'{"OUT":2.0,"model_name":"m","model_version":"1"}'
    )


def test_names_that_collide() -> None:
    assert answer(tensor(INT32, [1], "model_name"), tensor(INT32, [1], "p"), p="x") == {
        "model_name": "m",
        "model_version": "3",
        "p": "x",
    }


@pytest.mark.parametrize("datatype", [FP16, BF16])
def test_what_json_can_not_carry(datatype: Datatype) -> None:
    response = InferResponse("m", 1, "", [tensor(datatype, [1])])
    with pytest.raises(InvalidArgumentError, match="via JSON is not supported"):
        encode_generate_response(response)


@given(st.lists(st.text(), min_size=1, max_size=4))
def test_strings_come_back_as_one_event_without_line_breaks(texts: list[str]) -> None:
    elements = [text.encode() for text in texts]
    data = np.empty(len(elements), np.object_)
    data[:] = elements
    event = encode_event(
        encode_generate_response(InferResponse("m", 1, "", [Tensor("T", BYTES, data.shape, data)]))
    )
    assert event.startswith(b"data: ")
    assert event.index(b"\n") == len(event) - 2
    found = json.loads(event[6:])["T"]
    assert (found if len(texts) > 1 else [found]) == texts


def test_the_empty_comment_is_no_event() -> None:
    assert all(line == b"" or line.startswith(b":") for line in EMPTY_COMMENT.split(b"\n"))


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (b'{"A":1,"B":2,"A":3,"B":4}', "A"),
        (b'{"A":1,"B":2,"B":3,"A":4}', "B"),
    ],
)
def test_of_several_repeated_inputs_the_first_repetition_is_told(body: bytes, name: str) -> None:
    model = ModelSignature("m", 0, [TensorSpec(key, FP32, (1,)) for key in "AB"], ())
    assert refusal(body, model) == f"input '{name}' already exists in request"
