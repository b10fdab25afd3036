"""Verify's own protobuf against the real one, and against damage."""

import numpy as np
import pytest

from naiad.protocol.pb import grpc_service
from naiad.verify.protobuf import Fields, encode_bytes, encode_packed, encode_text, integers_as


def test_what_is_written_is_what_protobuf_reads() -> None:
    tensor = encode_text(1, "x") + encode_text(2, "FP32") + encode_packed(3, (2, -1, 300))
    message = grpc_service.ModelInferRequest.FromString(
        encode_text(1, "m") + encode_bytes(5, tensor) + encode_bytes(7, b"\0" * 300)
    )
    assert message.model_name == "m"
    assert list(message.inputs[0].shape) == [2, -1, 300]
    assert message.raw_input_contents[0] == b"\0" * 300


def test_what_protobuf_writes_is_read() -> None:
    response = grpc_service.ModelInferResponse(model_name="m", raw_output_contents=[b"ab"])
    output = response.outputs.add(name="y", datatype="INT64", shape=[1, 2])
    output.contents.int64_contents.extend([-5, 2**40])
    output.contents.fp32_contents.extend([1.5])
    fields = Fields(response.SerializeToString())
    assert fields.all_bytes(6) == [b"ab"]
    tensor = Fields(fields.all_bytes(5)[0])
    assert (tensor.text(1), tensor.text(2), tensor.integers(3)) == ("y", "INT64", [1, 2])
    contents = Fields(tensor.all_bytes(5)[0])
    assert integers_as(contents.integers(3), "INT64").tolist() == [-5, 2**40]
    assert np.frombuffer(contents.all_bytes(6)[0], "<f4").tolist() == [1.5]
    assert not contents.has(7)


def test_unsigned_and_small_integers_keep_their_values() -> None:
    assert integers_as([-1], "UINT64").tolist() == [2**64 - 1]
    assert integers_as([-1], "INT8").tolist() == [-1]
    assert integers_as([0, 1], "BOOL").tolist() == [False, True]


@pytest.mark.parametrize(
    "damaged", [b"\x0a", b"\x0a\x05ab", b"\x80", b"\x0b", b"\x09\0", b"\xff" * 11]
)
def test_damage_is_an_error(damaged: bytes) -> None:
    with pytest.raises(ValueError, match="protobuf message"):
        Fields(damaged)
