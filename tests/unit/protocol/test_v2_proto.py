"""Requests of the gRPC API, from bytes to the engine's words."""

from typing import Any

import numpy as np
import pytest

from naiad.errors import InternalError, InvalidArgumentError, NaiadError, NotFoundError
from naiad.inference.datatypes import BY_NAME
from naiad.inference.request import InferRequest
from naiad.inference.response import InferResponse
from naiad.inference.tensor import SharedTensor
from naiad.model_config.signature import ModelSignature, TensorSpec
from naiad.protocol.infer_message import InferMessageReader, find_raw_contents
from naiad.protocol.pb.grpc_service import InferParameter, InferTensorContents, ModelInferRequest
from naiad.protocol.requested_outputs import ALL_AS_BINARY, AS_BINARY, RequestedOutputs
from naiad.protocol.v2_proto import InferRequestDecoder, parse_version

LABEL = "[request id: <id_unknown>] "


def ignore(response: InferResponse) -> None:
    """What the engine would call."""


class Regions:
    """Two regions of shared memory."""

    def __init__(self) -> None:
        self.memory = {"a": bytearray(np.arange(4, dtype=np.float32).tobytes())}

    def view(self, name: str, offset: int, byte_size: int) -> memoryview:
        if name not in self.memory:
            raise NotFoundError(f"Unable to find shared memory region: '{name}'")
        return memoryview(self.memory[name])[offset : offset + byte_size]


def signature(datatype: str) -> ModelSignature:
    kind = BY_NAME.get(datatype, BY_NAME["FP32"])
    return ModelSignature("m", 8, [TensorSpec("IN", kind, (-1,))], [TensorSpec("OUT", kind, (-1,))])


def message(**fields: Any) -> ModelInferRequest:
    return ModelInferRequest(model_name="m", **fields)


def entry(
    datatype: str = "FP32",
    shape: tuple[int, ...] = (1, 2),
    contents: InferTensorContents | None = None,
    parameters: dict[str, InferParameter] | None = None,
) -> ModelInferRequest.InferInputTensor:
    return ModelInferRequest.InferInputTensor(
        name="IN", datatype=datatype, shape=shape, contents=contents, parameters=parameters
    )


def output(name: str, **parameters: InferParameter) -> ModelInferRequest.InferRequestedOutputTensor:
    return ModelInferRequest.InferRequestedOutputTensor(name=name, parameters=parameters)


def decode(request: ModelInferRequest) -> tuple[InferRequest, RequestedOutputs, bool]:
    read = InferMessageReader().read(request.SerializeToString())
    kind = request.inputs[0].datatype if request.inputs else "FP32"
    decoded = InferRequestDecoder(Regions()).decode(signature(kind), read, ignore, 7)
    for steps in decoded.unfinished or ():
        assert sum(1 for _ in steps) > 1
    return decoded.request, decoded.outputs, decoded.wants_empty_final


def refusal(request: ModelInferRequest) -> NaiadError:
    with pytest.raises(NaiadError) as caught:
        decode(request)
    return caught.value


def raw(data: bytes, **fields: Any) -> ModelInferRequest:
    return message(inputs=[entry(**fields)], raw_input_contents=[data])


def integer(value: int) -> InferParameter:
    return InferParameter(int64_param=value)


def text(value: str) -> InferParameter:
    return InferParameter(string_param=value)


# --- raw contents --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "datatype",
    ["BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16",
     "FP32", "FP64", "BF16"],
)  # fmt: skip
def test_raw_contents(datatype: str) -> None:
    sent = np.array([[1, 0, 1]]).astype(BY_NAME[datatype].dtype)
    request, outputs, _ = decode(raw(sent.tobytes(), datatype=datatype, shape=(1, 3)))
    tensor = request.inputs["IN"]
    assert (tensor.datatype.name, tuple(tensor.shape)) == (datatype, (1, 3))
    np.testing.assert_array_equal(tensor.data, sent)
    assert outputs is ALL_AS_BINARY
    assert (request.output_names, request.received_ns) == (None, 7)


def test_raw_contents_are_views_of_the_message() -> None:
    data = bytes(4 << 20)
    received = memoryview(bytearray(raw(data, shape=(1, 1 << 20)).SerializeToString()))
    read = InferMessageReader().read(received)
    decoded = InferRequestDecoder().decode(signature("FP32"), read, ignore, 0)
    received[-4:] = np.float32(5).tobytes()
    assert decoded.request.inputs["IN"].data[0, -1] == 5


def test_strings() -> None:
    request, _, _ = decode(raw(b"\1\0\0\0a\0\0\0\0", datatype="BYTES"))
    assert request.inputs["IN"].data.tolist() == [[b"a", b""]]


def test_many_strings_are_taken_apart_in_steps() -> None:
    count = 50_000
    data = b"\1\0\0\0a" * count
    request, _, _ = decode(raw(data, datatype="BYTES", shape=(1, count)))
    assert set(request.inputs["IN"].data.ravel().tolist()) == {b"a"}
    assert request.inputs["IN"].data.shape == (1, count)
    error = refusal(raw(data, datatype="BYTES", shape=(1, count + 1)))
    assert error.message.startswith(LABEL + f"expected {count + 1} string elements")


def test_surplus_raw_contents_are_ignored() -> None:
    request, _, _ = decode(message(inputs=[entry()], raw_input_contents=[bytes(8), b"x"]))
    assert request.inputs["IN"].data.tolist() == [[0, 0]]


def test_no_elements() -> None:
    request, _, _ = decode(raw(b"", shape=(1, 0)))
    assert request.inputs["IN"].data.shape == (1, 0)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (raw(bytes(7)), LABEL + "input byte size mismatch for input 'IN' for model 'm'. Expected "
         "8, got 7"),
        (raw(bytes(4), shape=(1, -1)), LABEL + "All input dimensions should be specified for input "
         "'IN' for model 'm', got [1,-1]"),
        (raw(bytes(4), datatype="FLOAT"), LABEL + "inference input 'IN' data-type is '<invalid>', "
         "but model 'm' expects 'FP32'"),
        (raw(b"\1\0\0\0a", datatype="BYTES"), LABEL + "expected 2 string elements for inference "
         "input 'IN' for model 'm', got 1"),
        (raw(b"\1\0\0\0a" * 3, datatype="BYTES"), LABEL + "unexpected number of string elements 3 "
         "for inference input 'IN' for model 'm', expecting 2"),
        (raw(bytes(4), shape=(1,) * 40), "shape of input 'IN' has 40 dimensions, the limit is 32"),
        (message(inputs=[entry()]), "unable to find data for input tensor 'IN' for model 'm' in "
         "request."),
        (message(inputs=[entry(), entry()], raw_input_contents=[bytes(8)] * 2),
         LABEL + "input 'IN' already exists in request"),
        (message(inputs=[entry(contents=InferTensorContents(fp32_contents=[1, 2]))],
         raw_input_contents=[bytes(8)]), "contents field must not be specified when using "
         "raw_input_contents for 'IN' for model 'm'"),
    ],
)  # fmt: skip
def test_wrong_contents(request_: ModelInferRequest, expected: str) -> None:
    error = refusal(request_)
    assert isinstance(error, InvalidArgumentError)
    assert error.message == expected


@pytest.mark.parametrize("shape", [(1 << 40, 1 << 40), (0, 1 << 62, 8), (0, 1 << 61)])
def test_shapes_beyond_all_memory_cost_nothing(shape: tuple[int, ...]) -> None:
    assert "exceed maximum size" in refusal(raw(b"", shape=shape)).message


def test_the_request_is_named_in_errors() -> None:
    request = raw(bytes(7))
    request.id = "abc"
    assert refusal(request).message.startswith("[request id: abc] input byte size mismatch")


# --- typed contents ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("datatype", "field", "values"),
    [
        ("BOOL", "bool_contents", [True, False]),
        ("INT8", "int_contents", [-128, 127]),
        ("INT16", "int_contents", [-32768, 32767]),
        ("INT32", "int_contents", [-(1 << 31), (1 << 31) - 1]),
        ("INT64", "int64_contents", [-(1 << 63), (1 << 63) - 1]),
        ("UINT8", "uint_contents", [0, 255]),
        ("UINT16", "uint_contents", [0, 65535]),
        ("UINT32", "uint_contents", [0, (1 << 32) - 1]),
        ("UINT64", "uint64_contents", [0, (1 << 64) - 1]),
        ("FP32", "fp32_contents", [1.5, float("inf")]),
        ("FP64", "fp64_contents", [0.1, -1e300]),
        ("BYTES", "bytes_contents", [b"", b"a\0"]),
    ],
)
def test_typed_contents(datatype: str, field: str, values: list[Any]) -> None:
    contents = InferTensorContents(**{field: values})
    request, _, _ = decode(message(inputs=[entry(datatype, contents=contents)]))
    tensor = request.inputs["IN"]
    assert tensor.data.dtype == BY_NAME[datatype].dtype
    assert tensor.data.tolist() == [values]


def test_typed_contents_beside_fields_of_a_later_version() -> None:
    contents = InferTensorContents.FromString(
        InferTensorContents(fp32_contents=[1, 2]).SerializeToString() + b"\x7a\x04abcd"
    )
    request, _, _ = decode(message(inputs=[entry(contents=contents)]))
    assert request.inputs["IN"].data.tolist() == [[1, 2]]


@pytest.mark.parametrize(
    ("datatype", "contents", "expected"),
    [
        ("FP16", InferTensorContents(fp32_contents=[1, 2]), "unexpected explicit tensor data for "
         "input tensor 'IN' for model 'm' of type 'FP32', expected datatype 'FP16'"),
        ("FP32", InferTensorContents(int_contents=[1]), "unexpected explicit tensor data for input "
         "tensor 'IN' for model 'm' of type 'INT32', expected datatype 'FP32'"),
        ("FP32", InferTensorContents(fp32_contents=[1]), LABEL + "input byte size mismatch for "
         "input 'IN' for model 'm'. Expected 8, got 4"),
        ("BYTES", InferTensorContents(bytes_contents=[b"a"]), LABEL + "expected 2 string elements "
         "for inference input 'IN' for model 'm', got 1"),
        ("INT8", InferTensorContents(int_contents=[300, 0]), "unexpected value 300 in the contents "
         "of input tensor 'IN' for model 'm', which does not fit into datatype 'INT8'"),
        ("UINT16", InferTensorContents(uint_contents=[0, 65536]), "unexpected value 65536 in the "
         "contents of input tensor 'IN' for model 'm', which does not fit into datatype 'UINT16'"),
    ],
)  # fmt: skip
def test_wrong_typed_contents(datatype: str, contents: InferTensorContents, expected: str) -> None:
    assert refusal(message(inputs=[entry(datatype, contents=contents)])).message == expected


# --- shared memory -------------------------------------------------------------------------------


def test_an_input_in_shared_memory() -> None:
    where = {"shared_memory_region": text("a"), "shared_memory_byte_size": integer(8)}
    request, _, _ = decode(
        message(inputs=[entry(parameters={**where, "shared_memory_offset": integer(4)})])
    )
    tensor = request.inputs["IN"]
    assert tensor.data.tolist() == [[1, 2]]
    assert isinstance(tensor, SharedTensor)
    assert not tensor.data.flags.writeable


def test_shared_and_raw_inputs_side_by_side() -> None:
    where = {"shared_memory_region": text("a"), "shared_memory_byte_size": integer(8)}
    other = entry()
    other.name = "IN2"
    request, _, _ = decode(
        message(
            inputs=[entry(parameters=where), other], raw_input_contents=[np.ones(2, "f4").tobytes()]
        )
    )
    assert request.inputs["IN"].data.tolist() == [[0, 1]]
    assert request.inputs["IN2"].data.tolist() == [[1, 1]]


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"shared_memory_region": text("a")}, "'shared_memory_byte_size' must be specified along "
         "with 'shared_memory_region' parameter for tensor 'IN'"),
        ({"shared_memory_region": integer(1)}, "invalid value type for 'shared_memory_region' "
         "parameter for tensor 'IN', expected string_param."),
        ({"shared_memory_region": text("a"), "shared_memory_byte_size": text("8")}, "invalid value "
         "type for 'shared_memory_byte_size' parameter for tensor 'IN', expected int64_param."),
        ({"shared_memory_region": text("b"), "shared_memory_byte_size": integer(8)},
         "Unable to find shared memory region: 'b'"),
    ],
)  # fmt: skip
def test_wrong_shared_memory(parameters: dict[str, InferParameter], expected: str) -> None:
    assert refusal(message(inputs=[entry(parameters=parameters)])).message == expected


def test_shared_memory_and_typed_contents() -> None:
    where = {"shared_memory_region": text("a"), "shared_memory_byte_size": integer(8)}
    contents = InferTensorContents(fp32_contents=[1, 2])
    assert refusal(message(inputs=[entry(contents=contents, parameters=where)])).message == (
        "unexpected 'content' provided when using shared memory for input tensor 'IN' for model 'm'"
    )


# --- outputs and parameters ----------------------------------------------------------------------


def test_outputs_by_name() -> None:
    request, outputs, _ = decode(message(outputs=[output("B"), output("A")]))
    assert request.output_names == ("B", "A")
    assert outputs is ALL_AS_BINARY


def test_an_output_that_is_asked_for_twice() -> None:
    twice = refusal(message(outputs=[output("B"), output("A"), output("B")]))
    assert twice.message == LABEL + "output 'B' already exists in request"


def test_output_options() -> None:
    where = {"shared_memory_region": text("a"), "shared_memory_byte_size": integer(8)}
    _, outputs, _ = decode(
        message(
            outputs=[
                output("PLAIN"),
                output("CLASSES", classification=integer(3)),
                output("SHARED", **where),
                output("BINARY", binary_data=InferParameter(bool_param=True)),
            ]
        )
    )
    assert outputs.by_name is not None
    assert outputs.by_name["PLAIN"] is AS_BINARY
    assert outputs.by_name["CLASSES"].classification == 3
    region = outputs.by_name["SHARED"].region
    assert region is not None
    assert len(region) == 8
    assert outputs.by_name["BINARY"].region is None


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"classification": integer(0)},
         "invalid value for 'classification' parameter, expected >= 0"),
        ({"classification": text("2")},
         "invalid value type for 'classification' parameter, expected int64_param"),
        ({"classification": integer(2), "shared_memory_region": text("a"),
          "shared_memory_byte_size": integer(8)},
         "output can't set both 'shared_memory_region' and 'classification'"),
    ],
)  # fmt: skip
def test_wrong_output_options(parameters: dict[str, InferParameter], expected: str) -> None:
    assert refusal(message(outputs=[output("OUT", **parameters)])).message == expected


def test_parameters() -> None:
    request, _, wants_empty_final = decode(
        message(
            parameters={
                "sequence_id": integer(-1),
                "sequence_start": InferParameter(bool_param=True),
                "sequence_end": InferParameter(bool_param=True),
                "priority": InferParameter(uint64_param=2),
                "timeout": integer(5),
                "triton_enable_empty_final_response": InferParameter(bool_param=True),
                "i": integer(-3),
                "b": InferParameter(bool_param=False),
                "s": text("x"),
                "d": InferParameter(double_param=0.5),
            }
        )
    )
    assert request.correlation_id == (1 << 64) - 1
    assert (request.sequence_start, request.sequence_end) == (True, True)
    assert (request.priority, request.timeout_us) == (2, 5)
    assert wants_empty_final
    assert request.parameters == {"i": -3, "b": False, "s": "x", "d": 0.5}


def test_text_correlation_id() -> None:
    request, _, _ = decode(message(parameters={"sequence_id": text("s")}))
    assert request.correlation_id == "s"


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("sequence_id", InferParameter(bool_param=True), "invalid value type for 'sequence_id' "
         "parameter, expected int64_param or string_param."),
        ("sequence_start", integer(1),
         "invalid value type for 'sequence_start' parameter, expected bool_param."),
        ("priority", text("1"), "invalid value type for 'priority' parameter, expected int64_param "
         "or uint64_param."),
        ("priority", integer(-1), "invalid value for 'priority' parameter, expected >= 0"),
        ("timeout", text("1"),
         "invalid value type for 'timeout' parameter, expected int64_param."),
        ("u", InferParameter(uint64_param=5), "invalid value type for 'u' parameter, expected "
         "int64_param, bool_param, or string_param."),
        ("n", InferParameter(), "invalid value type for 'n' parameter, expected int64_param, "
         "bool_param, or string_param."),
        ("triton_x", text("a"), "parameter keys starting with 'triton_' are reserved for Triton "
         "usage. Only the following keys starting with 'triton_' are allowed: "
         "triton_enable_empty_final_response"),
    ],
)  # fmt: skip
def test_wrong_parameters(key: str, value: InferParameter, expected: str) -> None:
    assert refusal(message(parameters={key: value})).message == expected


# --- the rest ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "version"), [("", -1), ("0", 0), ("1", 1), ("01", 1), ("+3", 3), (" 4", 4)]
)
def test_versions(given: str, version: int) -> None:
    assert parse_version(given) == version


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("abc", "failed to get model version from specified version string 'abc' (details: stol), "
         "version should be an integral value > 0"),
        ("9" * 30, "failed to get model version from specified version string '" + "9" * 30
         + "' (details: stol), version should be an integral value > 0"),
        ("-1", "invalid model version specified '-1' , version should be an integral value > 0"),
    ],
)  # fmt: skip
def test_wrong_versions(given: str, expected: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        parse_version(given)
    assert caught.value.message == expected


@pytest.mark.parametrize("data", [b"\xff", b"\x0a\x05abc", b"\x0a\x02\xff\xfe", b"\x2a\x01\xff"])
def test_bytes_that_are_no_message(data: bytes) -> None:
    with pytest.raises(InternalError, match="Unable to parse request"):
        InferMessageReader().read(data)


def test_where_raw_contents_begin() -> None:
    data = b"12345" + raw(b"x" * 300, shape=(1, 75)).SerializeToString()
    at = data.index(b"x" * 300)
    assert find_raw_contents(data, 5) == at
    assert find_raw_contents(data[:at], 5) == at
    assert find_raw_contents(data[: at - 3], 5) == 5
    assert find_raw_contents(b"", 0) == 0
