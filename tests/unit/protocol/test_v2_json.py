import json
from typing import Any

import numpy as np
import pytest

from naiad.errors import InvalidArgumentError, NaiadError, NotFoundError
from naiad.inference.datatypes import BYTES, FP32, INT32
from naiad.inference.request import InferRequest
from naiad.inference.response import InferResponse
from naiad.model_config.signature import ModelSignature, TensorSpec
from naiad.protocol.requested_outputs import ALL_AS_BINARY, ALL_AS_JSON, RequestedOutputs
from naiad.protocol.v2_json import DecodeLimits, decode_infer_request

SIGNATURE = ModelSignature(
    "m",
    8,
    [TensorSpec("IN", FP32, (-1,)), TensorSpec("B", INT32, (-1,))],
    [TensorSpec("OUT", FP32, (-1,))],
)
PLAIN = {"name": "IN", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}


def ignore(response: InferResponse) -> None:
    raise AssertionError(response)


def decode_raw(
    text: bytes, tail: bytes = b"", limits: DecodeLimits | None = None
) -> tuple[InferRequest, RequestedOutputs]:
    return decode_infer_request(SIGNATURE, text, tail, limits or DecodeLimits(), ignore, 5)


def decode(
    *inputs: Any, tail: bytes = b"", limits: DecodeLimits | None = None, **members: Any
) -> tuple[InferRequest, RequestedOutputs]:
    return decode_raw(json.dumps({"inputs": inputs, **members}).encode(), tail, limits)


def refusal(*inputs: Any, tail: bytes = b"", **members: Any) -> str:
    with pytest.raises(InvalidArgumentError) as caught:
        decode(*inputs, tail=tail, **members)
    return caught.value.message


def binary(size: Any, shape: Any = (1, 2), datatype: str = "FP32", name: str = "IN") -> Any:
    return {
        "name": name,
        "datatype": datatype,
        "shape": list(shape),
        "parameters": {"binary_data_size": size},
    }


def test_a_plain_request() -> None:
    request, outputs = decode(PLAIN)
    assert request.request_id == ""
    assert request.received_ns == 5
    assert request.on_response is ignore
    assert request.output_names is None
    assert request.parameters is None
    assert outputs is ALL_AS_JSON
    tensor = request.inputs["IN"]
    assert (tensor.name, tensor.datatype, list(tensor.shape)) == ("IN", FP32, [1, 2])
    assert tensor.data.tolist() == [[1.0, 2.0]]
    assert tensor.data.dtype == np.float32


def test_the_id_is_kept() -> None:
    assert decode(PLAIN, id='a "b"')[0].request_id == 'a "b"'


def test_inputs_keep_their_order() -> None:
    other = {"name": "B", "datatype": "INT32", "shape": [1, 1], "data": [3]}
    assert list(decode(other, PLAIN)[0].inputs) == ["B", "IN"]


def test_binary_inputs_take_the_tail_in_order() -> None:
    tail = np.array([1, 2], np.float32).tobytes() + np.array([7], np.int32).tobytes()
    request, outputs = decode(
        binary(8),
        binary(4, (1, 1), "INT32", "B"),
        tail=tail,
        parameters={"binary_data_output": True},
    )
    assert request.inputs["IN"].data.tolist() == [[1.0, 2.0]]
    assert request.inputs["B"].data.tolist() == [[7]]
    assert outputs is ALL_AS_BINARY
    assert np.shares_memory(request.inputs["IN"].data, np.frombuffer(tail, np.uint8))


def test_json_and_binary_inputs_mix() -> None:
    request, _ = decode(PLAIN, binary(4, (1, 1), "INT32", "B"), tail=b"\1\0\0\0")
    assert request.inputs["B"].data.tolist() == [[1]]


def test_binary_bytes() -> None:
    request, _ = decode(binary(13, (1, 2), "BYTES"), tail=b"\2\0\0\0a\0\3\0\0\0\xff\xfeb")
    tensor = request.inputs["IN"]
    assert tensor.datatype is BYTES
    assert tensor.data.tolist() == [[b"a\0", b"\xff\xfeb"]]


@pytest.mark.parametrize("shape", [[1, 0], [0, 4]])
def test_shapes_without_elements(shape: list[int]) -> None:
    assert decode(binary(0, shape))[0].inputs["IN"].data.shape == tuple(shape)
    assert decode({**PLAIN, "shape": shape, "data": []})[0].inputs["IN"].data.size == 0


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({}, "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"),
        ([], "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"),
        ({"inputs": {}}, "Unable to parse 'inputs': attempt to access JSON non-array as array"),
        ({"inputs": None}, "Unable to parse 'inputs': attempt to access JSON non-array as array"),
        (
            {"inputs": [], "id": 7},
            "Unable to parse 'id': attempt to access JSON non-string as string",
        ),
        (
            {"inputs": [], "id": None},
            "Unable to parse 'id': attempt to access JSON non-string as string",
        ),
        (
            {"inputs": [], "parameters": 5},
            "Unable to parse 'parameters': attempt to access JSON non-object as object",
        ),
        (
            {"inputs": [5]},
            "Unable to parse 'name': attempt to access non-existing object member 'name'",
        ),
        (
            {"inputs": [], "outputs": "OUT"},
            "Unable to parse 'outputs': attempt to access JSON non-array as array",
        ),
        (
            {"inputs": [], "outputs": None},
            "Unable to parse 'outputs': attempt to access JSON non-array as array",
        ),
        (
            {"inputs": [], "outputs": [{}]},
            "Unable to parse 'name': attempt to access non-existing object member 'name'",
        ),
        (
            {"inputs": [], "outputs": ["OUT"]},
            "Unable to parse 'name': attempt to access non-existing object member 'name'",
        ),
        (
            {"inputs": [], "outputs": [{"name": "OUT", "parameters": []}]},
            "Unable to parse 'parameters': attempt to access JSON non-object as object",
        ),
    ],
)
def test_a_document_of_the_wrong_form(document: Any, text: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        decode_raw(json.dumps(document).encode())
    assert caught.value.message == text


@pytest.mark.parametrize("member", ["name", "datatype", "shape"])
def test_an_input_without_a_member_it_needs(member: str) -> None:
    entry = {key: value for key, value in PLAIN.items() if key != member}
    assert refusal(entry) == (
        f"Unable to parse '{member}': attempt to access non-existing object member '{member}'"
    )


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        (None, "attempt to access JSON non-array as array"),
        ("1,2", "attempt to access JSON non-array as array"),
        ([1, 2.0], "attempt to access JSON non-unsigned-integer as unsigned-integer"),
        ([1, -1], "attempt to access JSON non-unsigned-integer as unsigned-integer"),
        ([True, 2], "attempt to access JSON non-unsigned-integer as unsigned-integer"),
        (["1", 2], "attempt to access JSON non-unsigned-integer as unsigned-integer"),
    ],
)
def test_a_shape_of_the_wrong_form(shape: Any, text: str) -> None:
    assert refusal({**PLAIN, "shape": shape}) == f"Unable to parse 'shape': {text}"


@pytest.mark.parametrize("shape", [[2**33, 2**33], [1, 2**63], [0, 2**62, 2**62], [0, 2**62]])
def test_a_product_beyond_64_bits_is_refused(shape: list[int]) -> None:
    assert "causes total element count to exceed maximum size of" in refusal(
        {**PLAIN, "shape": shape}
    )


def test_a_byte_size_that_no_int64_holds_is_refused() -> None:
    wide = {"name": "IN", "datatype": "FP32", "shape": [4, 2**58 + 2], "data": [1]}
    assert refusal(wide | {"shape": [4, 2**60 + 2]}) == (
        "byte size overflow for input 'IN': element count (4611686018427387912) * data type size "
        "(4) exceeds maximum allowed size (9223372036854775807)"
    )
    assert "exceeds the maximum allowed value" in refusal(wide)


def test_a_shape_of_many_dimensions_is_refused() -> None:
    assert "has 33 dimensions, the limit is 32" in refusal({**PLAIN, "shape": [1] * 33})


@pytest.mark.parametrize("datatype", ["FLOAT", "STRING", "TYPE_FP32", "fp32", ""])
def test_an_unknown_datatype(datatype: str) -> None:
    assert refusal({**PLAIN, "datatype": datatype}) == "invalid datatype for input IN"


def test_an_input_that_is_given_twice() -> None:
    assert refusal(PLAIN, PLAIN) == "input 'IN' already exists in request"


NO_SOURCE = (
    "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
    "'shared_memory_region' in 'parameters'. But "
)


def test_an_input_has_exactly_one_source() -> None:
    none = {key: value for key, value in PLAIN.items() if key != "data"}
    assert refusal(none) == NO_SOURCE + "no field is set"
    both = {**PLAIN, "parameters": {"binary_data_size": 4}}
    assert refusal(both) == NO_SOURCE + "set 'data' 'binary_data_size'"
    region = {"shared_memory_region": "r", "shared_memory_byte_size": 8}
    assert refusal({**PLAIN, "parameters": region}) == (
        NO_SOURCE + "set 'data' 'shared_memory_region'"
    )
    assert refusal({**none, "parameters": {**region, "binary_data_size": 8}}) == (
        NO_SOURCE + "set 'binary_data_size' 'shared_memory_region'"
    )


@pytest.mark.parametrize("size", [-8, "8", 8.0, True])
def test_a_binary_size_of_the_wrong_form(size: Any) -> None:
    assert refusal(binary(size), tail=bytes(8)) == (
        "Unable to parse 'binary_data_size': attempt to access JSON non-unsigned-integer as "
        "unsigned-integer"
    )


def test_binary_sizes_that_do_not_fit_the_tail() -> None:
    assert refusal(binary(16), tail=bytes(8)) == (
        "unexpected size for input 'IN', expecting 8 additional bytes for model 'm'"
    )
    assert refusal(binary(8), tail=bytes(12)) == "unexpected additional input data for model 'm'"
    assert refusal(PLAIN, tail=b"x") == "unexpected additional input data for model 'm'"


@pytest.mark.parametrize("size", [0, 7, 9])
def test_binary_sizes_that_do_not_fit_the_shape(size: int) -> None:
    assert refusal(binary(size), tail=bytes(size)) == (
        "[request id: <id_unknown>] input byte size mismatch for input 'IN' for model 'm'. "
        f"Expected 8, got {size}"
    )
    assert refusal(binary(size), tail=bytes(size), id="q").startswith("[request id: q] ")


@pytest.mark.parametrize("as_json", [True, False])
def test_bytes_elements_in_another_number_than_the_shape_s(*, as_json: bool) -> None:
    def text(count: int) -> str:
        if as_json:
            return refusal({**PLAIN, "datatype": "BYTES", "data": ["a"] * count})
        return refusal(binary(5 * count, datatype="BYTES"), tail=b"\1\0\0\0a" * count)

    assert text(1) == (
        "[request id: <id_unknown>] expected 2 string elements for inference input 'IN' for model "
        "'m', got 1"
    )
    assert text(3) == (
        "[request id: <id_unknown>] unexpected number of string elements 3 for inference input "
        "'IN' for model 'm', expecting 2"
    )


def test_the_limit_holds_for_json_and_not_for_the_tail() -> None:
    small = DecodeLimits(max_input_bytes=100)
    with pytest.raises(InvalidArgumentError) as caught:
        decode({**PLAIN, "data": [1, 2], "shape": [1, 2], "zzz": "x" * 100}, limits=small)
    assert caught.value.message.endswith(
        "exceeds the maximum allowed input size of 100 bytes. Use --http-max-input-size to "
        "increase the limit."
    )
    with pytest.raises(InvalidArgumentError) as caught:
        decode({**PLAIN, "shape": [1, 50]}, limits=small)
    assert caught.value.message == (
        "JSON input 'IN' has a byte_size (200 bytes) that exceeds the maximum allowed value of 100 "
        "bytes. Use --http-max-input-size to increase the limit."
    )
    request, _ = decode(
        binary(400, (1, 100)), tail=bytes(400), limits=DecodeLimits(max_input_bytes=130)
    )
    assert request.inputs["IN"].data.nbytes == 400


def test_parameters_go_to_their_places() -> None:
    request, outputs = decode(
        PLAIN,
        parameters={
            "sequence_id": 2**64 - 1,
            "sequence_start": True,
            "sequence_end": True,
            "priority": 3,
            "timeout": 1000,
            "binary_data_output": False,
            "a": "x",
            "b": -1,
            "c": 1.5,
            "d": True,
            "headers": "h",
        },
    )
    assert request.correlation_id == 2**64 - 1
    assert (request.sequence_start, request.sequence_end) == (True, True)
    assert (request.priority, request.timeout_us) == (3, 1000)
    assert request.parameters == {"a": "x", "b": -1, "c": 1.5, "d": True, "headers": "h"}
    assert outputs is ALL_AS_JSON
    assert decode(PLAIN, parameters={"sequence_id": "abc"})[0].correlation_id == "abc"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("sequence_id", -1, "non-string as string"),
        ("sequence_id", 1.5, "non-string as string"),
        ("sequence_start", 1, "non-boolean as boolean"),
        ("sequence_end", "true", "non-boolean as boolean"),
        ("priority", "1", "non-unsigned-integer as unsigned-integer"),
        ("priority", -1, "non-unsigned-integer as unsigned-integer"),
        ("timeout", "1", "non-unsigned-integer as unsigned-integer"),
        ("timeout", None, "non-unsigned-integer as unsigned-integer"),
        ("binary_data_output", 1, "non-boolean as boolean"),
    ],
)
def test_parameters_of_the_wrong_kind(name: str, value: Any, expected: str) -> None:
    assert refusal(PLAIN, parameters={name: value}) == (
        f"Unable to parse '{name}': attempt to access JSON {expected}"
    )


@pytest.mark.parametrize("value", [None, {"x": 1}, [1], 2**63])
def test_custom_parameters_are_scalars(value: Any) -> None:
    assert refusal(PLAIN, parameters={"a": value}) == (
        "parameter 'a' has invalid type. It should be either 'int', 'bool', or 'string'."
    )


def test_reserved_parameters() -> None:
    assert refusal(PLAIN, parameters={"triton_x": 1}) == (
        "parameter keys starting with 'triton_' are reserved for Triton usage and should not be "
        "specified."
    )


def test_named_outputs_are_json_unless_their_own_parameter_says_binary() -> None:
    request, outputs = decode(
        PLAIN,
        parameters={"binary_data_output": True},
        outputs=[
            {"name": "A"},
            {"name": "B", "parameters": {"binary_data": True}},
            {"name": "C", "parameters": {"binary_data": False, "zzz": 1}},
            {"name": "D", "parameters": {"classification": 3, "binary_data": True}},
        ],
    )
    assert request.output_names == ("A", "B", "C", "D")
    assert outputs.by_name is not None
    assert [outputs.by_name[name].is_binary for name in "ABCD"] == [False, True, False, True]
    assert outputs.by_name["D"].classification == 3


def test_an_output_that_is_named_twice_is_refused() -> None:
    assert (
        refusal(PLAIN, outputs=[{"name": "A"}, {"name": "B"}, {"name": "A"}], id="7")
        == "[request id: 7] output 'A' already exists in request"
    )


def test_an_empty_list_of_outputs_asks_for_all() -> None:
    request, outputs = decode(PLAIN, outputs=[])
    assert request.output_names is None
    assert outputs is ALL_AS_JSON


@pytest.mark.parametrize("value", [-1, "2", 1.0])
def test_a_classification_of_the_wrong_kind(value: Any) -> None:
    assert refusal(PLAIN, outputs=[{"name": "OUT", "parameters": {"classification": value}}]) == (
        "Unable to set 'classification': attempt to access JSON non-unsigned-integer as "
        "unsigned-integer"
    )


class Regions:
    """One region of 32 bytes, named r."""

    def __init__(self) -> None:
        self.memory = bytearray(np.arange(8, dtype=np.float32).tobytes())

    def view(self, name: str, offset: int, byte_size: int) -> memoryview:
        if name != "r":
            raise NotFoundError(f"Unable to find shared memory region: '{name}'")
        return memoryview(self.memory)[offset : offset + byte_size]


def shared(region: str = "r", **more: Any) -> Any:
    return {"shared_memory_region": region, "shared_memory_byte_size": 8, **more}


def test_inputs_and_outputs_in_shared_memory() -> None:
    regions = Regions()
    request, outputs = decode(
        {"name": "IN", "datatype": "FP32", "shape": [1, 2], "parameters": shared()},
        {
            "name": "B",
            "datatype": "FP32",
            "shape": [1, 2],
            "parameters": shared(shared_memory_offset=8),
        },
        outputs=[{"name": "OUT", "parameters": shared(shared_memory_offset=16)}],
        limits=DecodeLimits(regions=regions),
    )
    assert request.inputs["IN"].data.tolist() == [[0.0, 1.0]]
    assert request.inputs["B"].data.tolist() == [[2.0, 3.0]]
    assert outputs.by_name is not None
    region = outputs.by_name["OUT"].region
    assert region is not None
    region[:] = bytes(8)
    assert regions.memory[16:24] == bytes(8)


@pytest.mark.parametrize("limits", [DecodeLimits(), DecodeLimits(regions=Regions())])
def test_regions_that_are_not_registered(limits: DecodeLimits) -> None:
    entry = {"name": "IN", "datatype": "FP32", "shape": [1, 2], "parameters": shared("zz")}
    with pytest.raises(NaiadError) as caught:
        decode(entry, limits=limits)
    assert caught.value.message == "Unable to find shared memory region: 'zz'"
    assert isinstance(caught.value, NotFoundError)


@pytest.mark.parametrize("other", ["classification", "binary_data"])
def test_shared_memory_excludes(other: str) -> None:
    value: Any = 1 if other == "classification" else True
    assert refusal(PLAIN, outputs=[{"name": "OUT", "parameters": shared(**{other: value})}]) == (
        f"Output can't set both 'shared_memory_region' and '{other}'"
    )
