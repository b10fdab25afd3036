"""Responses of the gRPC API, held against protobuf."""

from collections.abc import Generator

import numpy as np
import pytest

from naiad.errors import InternalError, InvalidArgumentError
from naiad.inference.datatypes import BYTES, FP16, FP32
from naiad.inference.response import InferResponse
from naiad.inference.tensor import Tensor
from naiad.protocol.json_text import Buffer
from naiad.protocol.output_data import has_large_output
from naiad.protocol.pb.grpc_service import ModelInferResponse, ModelStreamInferResponse
from naiad.protocol.requested_outputs import ALL_AS_BINARY, OutputOptions, RequestedOutputs
from naiad.protocol.v2_proto_response import InferResponseEncoder, encode_refusal

ENCODER = InferResponseEncoder("m", 3, {"OUT": ["zero", "one"]}, has_batch_axis=True)


def tensor(*values: float, name: str = "OUT") -> Tensor:
    data = np.array([values], np.float32)
    return Tensor(name, FP32, data.shape, data)


def joined(encoded: tuple[list[Buffer], int]) -> bytes:
    parts, size = encoded
    data = b"".join(parts)
    assert len(data) == size
    return data


def test_plain_outputs() -> None:
    second = Tensor("S", BYTES, (1, 2), np.array([[b"a", b""]], np.object_))
    response = InferResponse("m", 3, "id", [tensor(1, 2), second, tensor(name="EMPTY")])
    response.parameters = {"b": True, "i": -1, "f": 0.5, "s": "x"}
    message = ModelInferResponse.FromString(joined(ENCODER.encode(response, ALL_AS_BINARY)))
    assert (message.model_name, message.model_version, message.id) == ("m", "3", "id")
    assert [(o.name, o.datatype, list(o.shape)) for o in message.outputs] == [
        ("OUT", "FP32", [1, 2]),
        ("S", "BYTES", [1, 2]),
        ("EMPTY", "FP32", [1, 0]),
    ]
    assert list(message.raw_output_contents) == [
        np.array([1, 2], np.float32).tobytes(),
        b"\1\0\0\0a\0\0\0\0",
        b"",
    ]
    assert message.parameters["b"].bool_param is True
    assert message.parameters["i"].int64_param == -1
    assert message.parameters["f"].double_param == 0.5
    assert message.parameters["s"].string_param == "x"


def test_outputs_are_not_copied() -> None:
    sent = tensor(*range(100))
    parts, _ = ENCODER.encode(InferResponse("m", 3, "", [sent]), ALL_AS_BINARY)
    sent.data[0, 0] = 7
    assert np.frombuffer(parts[-1], np.float32)[0] == 7


def test_many_strings_are_put_together_in_steps() -> None:
    data = np.full((1, 50_000), b"a", np.object_)
    response = InferResponse("m", 3, "", [Tensor("S", BYTES, data.shape, data), tensor(1)])
    assert has_large_output(response, ALL_AS_BINARY)
    plain = InferResponse("m", 3, "", [tensor(*range(20_000))])
    assert not has_large_output(plain, ALL_AS_BINARY)
    for is_streamed, at_once in (
        (False, ENCODER.encode(response, ALL_AS_BINARY)),
        (True, ENCODER.encode_streamed(response, ALL_AS_BINARY)),
    ):
        steps = ENCODER.encode_in_steps(response, ALL_AS_BINARY, is_streamed=is_streamed)
        pauses, encoded = exhaust(steps)
        assert pauses > 5
        assert joined(encoded) == joined(at_once)


def exhaust(
    steps: Generator[None, None, tuple[list[Buffer], int]],
) -> tuple[int, tuple[list[Buffer], int]]:
    """How often it pauses, and what it returns."""
    pauses = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return pauses, end.value
        pauses += 1


def test_classes() -> None:
    outputs = RequestedOutputs(
        OutputOptions(is_binary=True), {"OUT": OutputOptions(is_binary=True, classification=1)}
    )
    response = InferResponse("m", 3, "", [tensor(1, 2)])
    message = ModelInferResponse.FromString(joined(ENCODER.encode(response, outputs)))
    assert (message.outputs[0].datatype, list(message.outputs[0].shape)) == ("BYTES", [1, 1])
    assert message.raw_output_contents[0][4:] == b"2.000000:1:one"
    half = Tensor("OUT", FP16, (1, 1), np.zeros((1, 1), np.float16))
    with pytest.raises(InvalidArgumentError, match="unsupported type 'FP16'"):
        ENCODER.encode(InferResponse("m", 3, "", [half]), outputs)


def test_shared_memory() -> None:
    memory = memoryview(bytearray(8))
    outputs = RequestedOutputs(
        OutputOptions(is_binary=True), {"OUT": OutputOptions(is_binary=True, region=memory)}
    )
    response = InferResponse("m", 3, "", [tensor(1, 2)])
    message = ModelInferResponse.FromString(joined(ENCODER.encode(response, outputs)))
    assert message.outputs[0].shape == [1, 2]
    assert list(message.raw_output_contents) == [b""]
    assert bytes(memory) == np.array([1, 2], np.float32).tobytes()
    with pytest.raises(InternalError, match="should be at least 12 bytes to hold the results"):
        ENCODER.encode(InferResponse("m", 3, "", [tensor(1, 2, 3)]), outputs)


@pytest.mark.parametrize("is_final", [True, False])
def test_streamed(is_final: bool) -> None:
    response = InferResponse("m", 3, "id", [tensor(*range(100))])
    response.is_final = is_final
    data = joined(ENCODER.encode_streamed(response, ALL_AS_BINARY))
    message = ModelStreamInferResponse.FromString(data)
    assert message.error_message == ""
    infer_response = message.infer_response
    assert infer_response.parameters["triton_final_response"].bool_param is is_final
    assert infer_response.parameters["triton_final_response"].HasField("bool_param")
    assert (infer_response.id, len(infer_response.raw_output_contents[0])) == ("id", 400)


def test_streamed_end_without_outputs() -> None:
    data = joined(ENCODER.encode_streamed(InferResponse("m", 3, "id", []), ALL_AS_BINARY))
    message = ModelStreamInferResponse.FromString(data).infer_response
    assert (message.model_name, message.model_version, message.id) == ("m", "", "id")
    assert message.parameters["triton_final_response"].bool_param is True


def test_streamed_errors() -> None:
    response = InferResponse("m", 3, "id", [])
    data = ENCODER.encode_streamed_error(response, "no \N{WHITE SMILING FACE}")
    message = ModelStreamInferResponse.FromString(data)
    assert message.error_message == "no \N{WHITE SMILING FACE}"
    assert (message.infer_response.model_name, message.infer_response.id) == ("m", "id")
    assert message.infer_response.parameters["triton_final_response"].bool_param is True
    refusal = ModelStreamInferResponse.FromString(encode_refusal("no", "id"))
    assert refusal.infer_response == ModelInferResponse(id="id")
    assert ModelStreamInferResponse.FromString(encode_refusal("no", "")).HasField("infer_response")
