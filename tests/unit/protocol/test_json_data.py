import math
from typing import Any

import numpy as np
import pytest

from naiad.errors import InvalidArgumentError
from naiad.inference.datatypes import BF16, BY_NAME, BYTES, FP16, FP32, FP64, INT64, UINT64
from naiad.inference.tensor import Tensor
from naiad.protocol.json_data import decode_data, encode_data

INTEGERS = ["INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"]


def decode(data: Any, datatype: str, shape: list[int]) -> Any:
    return decode_data(data, BY_NAME[datatype], shape, math.prod(shape), "IN")


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_are_exact_to_the_ends_of_their_range(name: str) -> None:
    bounds = np.iinfo(BY_NAME[name].dtype)
    values = [int(bounds.min), int(bounds.max), 1]
    array = decode(values, name, [3])
    assert array.dtype == BY_NAME[name].dtype
    assert array.tolist() == values
    assert (
        encode_data(Tensor("OUT", BY_NAME[name], [3], array))
        == ("[" + ",".join(map(str, values)) + "]").encode()
    )


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("beyond", [-1, 1])
def test_integers_beyond_their_range_are_refused_not_wrapped(name: str, beyond: int) -> None:
    bounds = np.iinfo(BY_NAME[name].dtype)
    value = int(bounds.max) + 1 if beyond > 0 else int(bounds.min) - 1
    with pytest.raises(InvalidArgumentError, match=f"{value} does not fit into {name}"):
        decode([0, value], name, [2])


@pytest.mark.parametrize(
    ("value", "datatype", "text"),
    [
        (1.5, "INT8", "non-signed-integer as signed-integer"),
        (2.0, "UINT8", "non-unsigned-integer as unsigned-integer"),
        (True, "INT32", "non-signed-integer as signed-integer"),
        ("1", "INT32", "non-signed-integer as signed-integer"),
        ("1.5", "FP32", "non-number as double"),
        (None, "FP32", "non-number as double"),
        (True, "FP64", "non-number as double"),
        ({}, "FP32", "non-number as double"),
        (1, "BOOL", "non-boolean as boolean"),
        (5, "BYTES", "non-string as string"),
        (None, "BYTES", "non-string as string"),
    ],
)
def test_values_of_another_kind_are_refused(value: Any, datatype: str, text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"attempt to access JSON {text}"):
        decode([value], datatype, [1])


@pytest.mark.parametrize("data", [1, "abc", None, {}])
def test_data_that_is_no_list_is_refused(data: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="non-array as array"):
        decode(data, "FP32", [1])


@pytest.mark.parametrize(
    "data",
    [[1, 2, 3, 4], [[1, 2], [3, 4]], [1, [2, 3, [4]]], [[[1], [2]], [[3], [4]]], [[1, 2, 3], [4]]],
)
def test_nesting_is_free(data: list[Any]) -> None:
    assert decode(data, "INT32", [2, 2]).tolist() == [[1, 2], [3, 4]]


def test_nesting_ends_at_100() -> None:
    data: Any = 1
    for _ in range(100):
        data = [data]
    assert decode(data, "FP32", [1]).tolist() == [1.0]
    with pytest.raises(InvalidArgumentError, match="JSON nesting depth exceeds maximum"):
        decode([data], "FP32", [1])


@pytest.mark.parametrize("data", [[], [1], [1, 2, 3]])
def test_the_number_of_values_must_be_the_shape_s(data: list[int]) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        decode(data, "FP32", [1, 2])
    assert caught.value.message.startswith(
        "Unable to parse 'data': Shape does not match true shape of 'data' field"
    )


def test_a_huge_shape_is_refused_before_it_is_allocated() -> None:
    with pytest.raises(InvalidArgumentError, match="has 1099511627776 elements, 'data' has 1"):
        decode([1], "FP32", [1, 2**40])


@pytest.mark.parametrize("shape", [[0], [1, 0], [0, 4], [2, 0, 3]])
@pytest.mark.parametrize("datatype", ["FP32", "INT8", "BOOL", "UINT64"])
def test_shapes_without_elements(shape: list[int], datatype: str) -> None:
    assert decode([], datatype, shape).shape == tuple(shape)


def test_a_scalar_shape_takes_one_value() -> None:
    assert decode([7], "INT32", []).shape == ()


def test_numbers_that_fp32_does_not_hold_are_refused_and_infinity_is_not() -> None:
    with pytest.raises(InvalidArgumentError, match=r"1e\+39 does not fit into FP32"):
        decode([math.inf, 1e39], "FP32", [2])
    assert decode([-math.inf, 3.0e38], "FP32", [2]).tolist()[0] == -math.inf


def test_an_integer_that_no_double_holds_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="does not fit into FP64"):
        decode([10**400], "FP64", [1])


def test_integers_become_floats_as_in_c() -> None:
    assert decode([16777217], "FP32", [1]).tolist() == [16777216.0]


@pytest.mark.parametrize("datatype", [FP16, BF16])
def test_half_precision_does_not_travel_as_json(datatype: Any) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        decode_data([1], datatype, [1], 1, "x")
    assert caught.value.message == (
        f"receiving {datatype.name} data via JSON is not supported. Please use the binary data "
        "format for input x"
    )
    tensor = Tensor("OUT", datatype, [1], np.zeros(1, datatype.dtype))
    with pytest.raises(InvalidArgumentError) as caught:
        encode_data(tensor)
    assert caught.value.message == (
        f"sending {datatype.name} data via JSON is not supported. Please use the binary data "
        "format for output"
    )


def test_not_finite_floats_are_written_as_bare_literals() -> None:
    data = np.array([[math.nan, math.inf], [-math.inf, 1.5]], np.float32)
    assert encode_data(Tensor("OUT", FP32, [2, 2], data)) == b"[NaN,Infinity,-Infinity,1.5]"


def test_fp32_is_written_with_the_digits_of_its_double() -> None:
    data = np.array([0.1, 1], np.float32)
    assert encode_data(Tensor("OUT", FP32, [2], data)) == b"[0.10000000149011612,1.0]"
    wide = np.array([0.1, -0.0], np.float64)
    assert encode_data(Tensor("OUT", FP64, [2], wide)) == b"[0.1,-0.0]"


def test_wide_integers_and_booleans_are_written_exactly() -> None:
    assert encode_data(Tensor("O", INT64, [1], np.array([2**63 - 1]))) == b"[9223372036854775807]"
    wide = np.array([2**64 - 1], np.uint64)
    assert encode_data(Tensor("O", UINT64, [1], wide)) == b"[18446744073709551615]"
    flags = np.array([True, False])
    assert encode_data(Tensor("O", BY_NAME["BOOL"], [2], flags)) == b"[true,false]"


def test_a_scalar_is_written_as_a_list_of_one() -> None:
    assert encode_data(Tensor("O", FP32, [], np.array(2.5, np.float32))) == b"[2.5]"


def test_bytes_as_text() -> None:
    texts = ["", "a\0", 'q"\\\n', "ü你"]
    array = decode(texts, "BYTES", [2, 2])
    assert array.tolist() == [[b"", b"a\0"], [b'q"\\\n', "ü你".encode()]]
    assert encode_data(Tensor("O", BYTES, [2, 2], array)) == (
        '["","a\\u0000","q\\"\\\\\\n","ü你"]'.encode()
    )


def test_bytes_that_are_no_text_are_refused_with_the_way_out() -> None:
    array = np.array([b"\xff\xfe"], np.object_)
    with pytest.raises(InvalidArgumentError, match=r"'OUT' has BYTES that are not UTF-8.*binary"):
        encode_data(Tensor("OUT", BYTES, [1], array))
