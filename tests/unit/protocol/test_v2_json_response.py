import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from naiad.errors import InternalError, InvalidArgumentError
from naiad.inference.datatypes import BYTES, FP16, FP32, INT64
from naiad.inference.response import InferResponse
from naiad.inference.tensor import Tensor
from naiad.protocol.requested_outputs import (
    ALL_AS_BINARY,
    ALL_AS_JSON,
    AS_BINARY,
    AS_JSON,
    OutputOptions,
    RequestedOutputs,
)
from naiad.protocol.v2_json_response import InferResponseEncoder

ENCODER = InferResponseEncoder("m", 3, {"OUT": ["cat", "dog"]}, has_batch_axis=True)


def fp32(values: Any, name: str = "OUT") -> Tensor:
    data = np.array(values, np.float32)
    return Tensor(name, FP32, data.shape, data)


def encode(
    outputs: Sequence[Tensor], wishes: RequestedOutputs = ALL_AS_JSON, **more: Any
) -> tuple[str, bytes]:
    response = InferResponse("m", 3, more.get("request_id", ""), outputs)
    response.parameters = more.get("parameters")
    text, tail, tail_bytes = ENCODER.encode(response, wishes)
    joined = b"".join(tail)
    assert len(joined) == tail_bytes
    return text.decode(), joined


def test_json_in_triton_s_key_order() -> None:
    assert encode([fp32([[1, 2.5]])], request_id='a"', parameters={"p": 1}) == (
        '{"id":"a\\"","model_name":"m","model_version":"3","parameters":{"p":1},"outputs":'
        '[{"name":"OUT","datatype":"FP32","shape":[1,2],"data":[1.0,2.5]}]}',
        b"",
    )


def test_an_empty_id_is_left_out() -> None:
    assert encode([]) == ('{"model_name":"m","model_version":"3","outputs":[]}', b"")


def test_binary_outputs_follow_each_other_in_order() -> None:
    data = np.array([[5]], np.int64)
    wide = Tensor("N", INT64, (1, 1), data)
    text, tail = encode([fp32([[1]]), wide], ALL_AS_BINARY)
    assert [o["parameters"] for o in json.loads(text)["outputs"]] == [
        {"binary_data_size": 4},
        {"binary_data_size": 8},
    ]
    assert tail == np.array([1], np.float32).tobytes() + data.tobytes()


def test_the_same_output_in_another_shape_is_described_anew() -> None:
    for shape in ([1, 2], [2, 1], [1, 2]):
        text, tail = encode([fp32(np.ones(shape))], ALL_AS_BINARY)
        assert json.loads(text)["outputs"][0]["shape"] == shape
        assert len(tail) == 8


def test_many_shapes_do_not_pile_up() -> None:
    encoder = InferResponseEncoder("m", 1, {}, has_batch_axis=True)
    for size in range(1500):
        response = InferResponse("m", 1, "", [fp32(np.zeros((1, size)))])
        text, _, tail_bytes = encoder.encode(response, ALL_AS_BINARY)
        assert tail_bytes == 4 * size
        assert json.loads(text)["outputs"][0]["shape"] == [1, size]


def test_each_output_as_it_was_asked_for() -> None:
    wishes = RequestedOutputs(AS_JSON, {"A": AS_BINARY, "B": AS_JSON})
    text, tail = encode([fp32([[1]], "A"), fp32([[2]], "B")], wishes)
    first, second = json.loads(text)["outputs"]
    assert first["parameters"] == {"binary_data_size": 4}
    assert second["data"] == [2.0]
    assert tail == np.array([1], np.float32).tobytes()


def test_binary_bytes_have_lengths() -> None:
    data = np.array([[b"a\0", b""]], np.object_)
    text, tail = encode([Tensor("OUT", BYTES, (1, 2), data)], ALL_AS_BINARY)
    assert tail == b"\2\0\0\0a\0\0\0\0\0"
    assert json.loads(text)["outputs"][0]["parameters"] == {"binary_data_size": 10}


def test_outputs_without_elements_leave_plain_json() -> None:
    text, tail = encode([fp32(np.empty((1, 0)))], ALL_AS_BINARY)
    assert json.loads(text)["outputs"][0]["parameters"] == {"binary_data_size": 0}
    assert tail == b""


def test_binary_data_is_not_copied() -> None:
    tensor = fp32(np.zeros((4, 8)))
    _, tail, _ = ENCODER.encode(InferResponse("m", 3, "", [tensor]), ALL_AS_BINARY)
    assert np.shares_memory(np.frombuffer(tail[0], np.uint8), tensor.data)


@pytest.mark.parametrize("is_binary", [False, True])
def test_classification(*, is_binary: bool) -> None:
    wishes = RequestedOutputs(
        AS_JSON, {"OUT": OutputOptions(is_binary=is_binary, classification=1)}
    )
    text, tail = encode([fp32([[0.1, 0.9]])], wishes)
    output = json.loads(text)["outputs"][0]
    assert (output["datatype"], output["shape"]) == ("BYTES", [1, 1])
    if is_binary:
        assert tail == b"\x0e\0\0\x000.900000:1:dog"
    else:
        assert output["data"] == ["0.900000:1:dog"]


def test_shared_memory_is_written_and_not_sent() -> None:
    memory = bytearray(16)
    region = memoryview(memory)
    wishes = RequestedOutputs(AS_JSON, {"OUT": OutputOptions(is_binary=True, region=region)})
    text, tail = encode([fp32([[1, 2]])], wishes)
    assert json.loads(text)["outputs"] == [{"name": "OUT", "datatype": "FP32", "shape": [1, 2]}]
    assert tail == b""
    assert bytes(memory) == np.array([1, 2, 0, 0], np.float32).tobytes()
    with pytest.raises(InternalError) as caught:
        encode([fp32(np.zeros((1, 5)))], wishes)
    assert caught.value.message == (
        "shared memory size specified with the request for output 'OUT' (16 bytes) should be at "
        "least 20 bytes to hold the results"
    )


def test_what_json_does_not_carry_is_refused() -> None:
    half = Tensor("OUT", FP16, (1,), np.zeros(1, np.float16))
    with pytest.raises(InvalidArgumentError, match="sending FP16 data via JSON"):
        encode([half])
    assert encode([half], ALL_AS_BINARY)[1] == b"\0\0"
