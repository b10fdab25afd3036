import json
import math
from typing import Any

import numpy as np
import pytest

from naiad.errors import (
    InternalError,
    InvalidArgumentError,
    NaiadError,
    NotFoundError,
    PermissionDeniedError,
    UnavailableError,
    UnknownError,
    UnsupportedError,
)
from naiad.inference import datatypes
from naiad.inference.datatypes import Datatype
from naiad.inference.tensor import Tensor
from naiad.protocol.v2_client import (
    decode_error,
    decode_infer_response,
    encode_infer_request,
)


def tensor(datatype: Datatype, values: Any, name: str = "x") -> Tensor:
    data = np.array(values, datatype.dtype)
    return Tensor(name, datatype, data.shape, data)


def response(outputs: list[dict[str, Any]], tail: bytes = b"", **fields: Any) -> tuple[bytes, int]:
    header = json.dumps({"model_name": "m", "model_version": "1", **fields, "outputs": outputs})
    return header.encode() + tail, len(header)


def test_a_binary_request_is_a_json_header_followed_by_the_tensors_in_order() -> None:
    body, header_length = encode_infer_request(
        [tensor(datatypes.FP32, [[1.0, 2.0]], "a"), tensor(datatypes.INT8, [3], "b")]
    )

    assert json.loads(body[:header_length]) == {
        "parameters": {"binary_data_output": True},
        "inputs": [
            {
                "name": "a",
                "shape": [1, 2],
                "datatype": "FP32",
                "parameters": {"binary_data_size": 8},
            },
            {"name": "b", "shape": [1], "datatype": "INT8", "parameters": {"binary_data_size": 1}},
        ],
    }
    assert body[header_length:] == b"\0\0\x80\x3f\0\0\0\x40\x03"


def test_named_outputs_are_asked_for_one_by_one_in_binary() -> None:
    body, header_length = encode_infer_request(
        [], output_names=["q", "p"], request_id="r1", parameters={"sequence_id": 7}
    )

    assert json.loads(body[:header_length]) == {
        "id": "r1",
        "parameters": {"sequence_id": 7},
        "inputs": [],
        "outputs": [
            {"name": "q", "parameters": {"binary_data": True}},
            {"name": "p", "parameters": {"binary_data": True}},
        ],
    }


def test_a_json_request_is_a_header_as_a_whole() -> None:
    body, header_length = encode_infer_request(
        [
            tensor(datatypes.FP64, [[0.1, 2.0]], "a"),
            tensor(datatypes.BYTES, [b"hi", "ä".encode()], "b"),
            tensor(datatypes.BOOL, [True, False], "c"),
            tensor(datatypes.UINT64, [2**64 - 1], "d"),
        ],
        output_names=["y"],
        binary=False,
    )

    decoded = json.loads(body)
    assert header_length == len(body)
    assert [entry["data"] for entry in decoded["inputs"]] == [
        [0.1, 2.0],
        ["hi", "ä"],
        [True, False],
        [2**64 - 1],
    ]
    assert decoded["outputs"] == [{"name": "y"}]
    assert "parameters" not in decoded


def test_non_finite_numbers_are_written_as_tritons_literals() -> None:
    body, _ = encode_infer_request(
        [
            tensor(datatypes.FP32, [1.5, np.nan, np.inf, -np.inf], "a"),
            tensor(datatypes.INT32, [4], "b"),
        ],
        binary=False,
    )

    assert b"NaN" in body
    assert b"-Infinity" in body
    values = json.loads(body)["inputs"][0]["data"]
    assert values[0] == 1.5
    assert math.isnan(values[1])
    assert values[2:] == [math.inf, -math.inf]


def test_data_that_is_not_contiguous_is_sent_row_by_row() -> None:
    data = np.arange(6, dtype=np.int16).reshape(2, 3).T
    body, header_length = encode_infer_request([Tensor("x", datatypes.INT16, (3, 2), data)])

    assert np.frombuffer(body[header_length:], "<i2").tolist() == [0, 3, 1, 4, 2, 5]


def test_bytes_elements_carry_their_length_in_front() -> None:
    body, header_length = encode_infer_request([tensor(datatypes.BYTES, [b"ab", b""])])

    assert body[header_length:] == b"\x02\0\0\0ab\0\0\0\0"


@pytest.mark.parametrize("datatype", [datatypes.FP16, datatypes.BF16])
def test_sixteen_bit_floats_have_no_json_form(datatype: Datatype) -> None:
    with pytest.raises(InvalidArgumentError, match=f"sending {datatype.name} data via JSON"):
        encode_infer_request([tensor(datatype, [1])], binary=False)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (Tensor("x", datatypes.FP32, [2], np.zeros(3, np.float32)), r"shape \[2\] but its data"),
        (Tensor("x", datatypes.FP32, [3], np.zeros(3, np.float64)), "dtype float32, got float64"),
        (Tensor("x", datatypes.BYTES, [1], np.array(["t"], np.object_)), "elements are bytes"),
    ],
)
def test_a_tensor_that_contradicts_itself_is_refused(wrong: Tensor, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        encode_infer_request([wrong])


def test_bytes_that_are_not_text_have_no_json_form() -> None:
    with pytest.raises(InvalidArgumentError, match="use the binary data format"):
        encode_infer_request([tensor(datatypes.BYTES, [b"\xff"])], binary=False)


def test_a_parameter_that_json_cannot_hold_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="can't be written as JSON"):
        encode_infer_request([], parameters={"sequence_id": 2**64})


def test_a_binary_response_is_decoded_into_views_of_the_body() -> None:
    body, header_length = response(
        [
            {
                "name": "y",
                "datatype": "UINT8",
                "shape": [2],
                "parameters": {"binary_data_size": 2},
            },
            {"name": "z", "datatype": "INT64", "shape": [1, 1], "data": [9]},
            {
                "name": "t",
                "datatype": "BYTES",
                "shape": [1, 2],
                "parameters": {"binary_data_size": 11},
            },
        ],
        b"\x80\x3f" + b"\x03\0\0\0\xffab\0\0\0\0",
        id="r",
        parameters={"p": 1},
    )

    result = decode_infer_response(body, header_length)

    assert (result.model_name, result.model_version, result.request_id) == ("m", "1", "r")
    assert result.parameters == {"p": 1}
    assert list(result.outputs) == ["y", "z", "t"]
    assert result.outputs["y"].data.tolist() == [0x80, 0x3F]
    assert not result.outputs["y"].data.flags.owndata
    assert result.outputs["z"].data.tolist() == [[9]]
    assert result.outputs["t"].data.tolist() == [[b"\xffab", b""]]


def test_nested_json_data_and_literals_are_understood() -> None:
    body, _ = response(
        [
            {"name": "y", "datatype": "FP32", "shape": [2, 2], "data": [[1, 2], [3, math.nan]]},
            {"name": "t", "datatype": "BYTES", "shape": [2, 1], "data": [["a"], ["b"]]},
        ]
    )

    result = decode_infer_response(body)

    assert np.array_equal(
        result.outputs["y"].data, np.array([[1, 2], [3, np.nan]], np.float32), equal_nan=True
    )
    assert result.outputs["t"].data.tolist() == [[b"a"], [b"b"]]


FP32_TAIL = {"name": "y", "datatype": "FP32", "shape": [1]}


@pytest.mark.parametrize(
    ("body", "header_length"),
    [
        pytest.param(b"<html>", None, id="no JSON"),
        pytest.param(b"[" * 100_000, None, id="nested too deeply"),
        pytest.param(b"[]", None, id="no object"),
        pytest.param(b"{}", 3, id="header longer than the body"),
        pytest.param(b"{}", -1, id="negative header length"),
        pytest.param(b"{}x", 2, id="bytes without an owner"),
        pytest.param(*response([FP32_TAIL]), id="no data at all"),
        pytest.param(*response([{**FP32_TAIL, "data": [1, 2]}]), id="data does not fit the shape"),
        pytest.param(*response([{**FP32_TAIL, "datatype": "FP8", "data": [1]}]), id="datatype"),
        pytest.param(*response([{**FP32_TAIL, "shape": [-1], "data": [1]}]), id="negative dim"),
        pytest.param(
            *response([{**FP32_TAIL, "datatype": "INT8", "data": [300]}]), id="out of range"
        ),
        pytest.param(
            *response([{**FP32_TAIL, "parameters": {"binary_data_size": 4}}], b"123"),
            id="body ends within a tensor",
        ),
        pytest.param(
            *response([{**FP32_TAIL, "parameters": {"binary_data_size": 3}}], b"123"),
            id="size does not fit the shape",
        ),
        pytest.param(
            *response(
                [
                    {
                        "name": "t",
                        "datatype": "BYTES",
                        "shape": [1],
                        "parameters": {"binary_data_size": 5},
                    }
                ],
                b"\x02\0\0\0a",
            ),
            id="body ends within an element",
        ),
    ],
)
def test_a_broken_response_is_an_internal_error(body: bytes, header_length: int | None) -> None:
    with pytest.raises(InternalError):
        decode_infer_response(body, header_length)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, InvalidArgumentError),
        (403, PermissionDeniedError),
        (404, NotFoundError),
        (422, InvalidArgumentError),
        (500, InternalError),
        (501, UnsupportedError),
        (503, UnavailableError),
        (505, UnknownError),
    ],
)
def test_a_status_tells_the_error(status: int, expected: type[NaiadError]) -> None:
    error = decode_error(status, b'{"error":"what happened"}')

    assert type(error) is expected
    assert error.message == "what happened"


def test_a_proxys_page_is_quoted_with_its_status() -> None:
    error = decode_error(502, b"<html><h1>502 Bad Gateway</h1>" + b"x" * 1000)

    assert isinstance(error, UnavailableError)
    assert "502" in error.message
    assert "Bad Gateway" in error.message
    assert len(error.message) < 300


@pytest.mark.parametrize("body", [b"", b'"text"', b'{"error": {}}', b"\xff"])
def test_any_other_body_still_makes_a_message_with_the_status(body: bytes) -> None:
    assert "500" in decode_error(500, body).message


@pytest.mark.parametrize("binary", [False, True])
def test_classes_are_asked_for_by_output(binary: bool) -> None:
    body, header_length = encode_infer_request(
        [], output_names=["scores", "raw"], classes={"scores": 5}, binary=binary
    )

    scores, raw = json.loads(body[:header_length])["outputs"]
    assert scores["parameters"]["classification"] == 5
    assert "classification" not in raw.get("parameters", {})
