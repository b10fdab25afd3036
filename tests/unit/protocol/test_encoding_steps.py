"""Whatever is encoded or decoded in steps is what it would be at once."""

from collections.abc import Generator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from naiad.errors import InvalidArgumentError
from naiad.inference.datatypes import BOOL, BYTES, FP16, FP32, FP64, INT64, UINT8, Datatype
from naiad.inference.response import InferResponse
from naiad.inference.tensor import Tensor
from naiad.protocol.binary_data import (
    MalformedElementsError,
    arrange_elements,
    arrange_elements_in_steps,
    decode_elements_in_steps,
    encode_elements,
    encode_elements_in_steps,
)
from naiad.protocol.json_data import encode_data, encode_data_in_steps
from naiad.protocol.output_data import has_large_output
from naiad.protocol.requested_outputs import (
    ALL_AS_BINARY,
    ALL_AS_JSON,
    AS_BINARY,
    AS_JSON,
    OutputOptions,
    RequestedOutputs,
)
from naiad.protocol.v2_json_response import InferResponseEncoder

WORDS = [b"%d" % number for number in range(10_000)]


def finish(steps: Generator[None, None, Any]) -> tuple[Any, int]:
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, count
        count += 1


def strings(elements: list[bytes]) -> npt.NDArray[Any]:
    return arrange_elements(elements, [len(elements)])


@pytest.mark.parametrize(
    ("elements", "least"),
    [([], 0), ([b""], 1), (WORDS, 3), ([bytes(1 << 20)] * 3, 3), ([bytes(3 << 20)], 1)],
)
def test_elements(elements: list[bytes], least: int) -> None:
    array = strings(elements)
    whole = encode_elements(array)
    pieces = list(encode_elements_in_steps(array))
    assert b"".join(pieces) == whole
    assert len(pieces) >= least
    decoded, count = finish(decode_elements_in_steps(whole, "IN", len(elements)))
    assert decoded == elements
    assert count >= least
    arranged, _ = finish(arrange_elements_in_steps(decoded, [1, len(elements)]))
    np.testing.assert_array_equal(arranged, array.reshape(1, -1))


def test_elements_that_are_cut_off() -> None:
    whole = encode_elements(strings(WORDS))
    with pytest.raises(MalformedElementsError, match="incomplete string data"):
        finish(decode_elements_in_steps(whole[:-1], "IN", len(WORDS)))


def big(datatype: Datatype) -> Tensor:
    if datatype is BYTES:
        return Tensor("OUT", BYTES, (2, 5000), strings(WORDS).reshape(2, 5000))
    data = np.arange(40_000).astype(datatype.dtype).reshape(2, 20_000)
    return Tensor("OUT", datatype, data.shape, data)


@pytest.mark.parametrize("datatype", [BOOL, UINT8, INT64, FP32, FP64, BYTES])
def test_json_data(datatype: Datatype) -> None:
    tensor = big(datatype)
    pieces = list(encode_data_in_steps(tensor))
    assert b"".join(pieces) == encode_data(tensor)
    assert len(pieces) > 3


def test_json_data_with_literals_comes_in_smaller_steps() -> None:
    tensor = big(FP32)
    tensor.data[1, 7] = np.nan
    tensor.data[1, 8] = -np.inf
    pieces = list(encode_data_in_steps(tensor))
    assert b"".join(pieces) == encode_data(tensor)
    assert len(pieces) > 16


def test_no_data() -> None:
    tensor = Tensor("OUT", FP32, (0,), np.empty(0, np.float32))
    assert b"".join(encode_data_in_steps(tensor)) == b"[]"


ENCODER = InferResponseEncoder("m", 1, {}, has_batch_axis=True)
HALF = RequestedOutputs(AS_JSON, {"OUT": AS_BINARY, "SMALL": AS_JSON})
CLASSES = RequestedOutputs(
    AS_JSON, {"OUT": OutputOptions(is_binary=True, classification=2), "SMALL": AS_BINARY}
)


@pytest.mark.parametrize("datatype", [INT64, FP32, BYTES])
@pytest.mark.parametrize("wishes", [ALL_AS_JSON, ALL_AS_BINARY, HALF, CLASSES])
def test_a_response(datatype: Datatype, wishes: RequestedOutputs) -> None:
    if datatype is BYTES and wishes is CLASSES:
        pytest.skip("BYTES have no classes")
    small = np.ones((2, 3), np.float32)
    response = InferResponse("m", 1, "id", [big(datatype), Tensor("SMALL", FP32, (2, 3), small)])
    body, tail, tail_bytes = ENCODER.encode(response, wishes)
    (parts, pieces, size), _ = finish(ENCODER.encode_in_steps(response, wishes))
    assert b"".join(parts) == body
    assert b"".join(pieces) == b"".join(tail)
    assert size == tail_bytes


@pytest.mark.parametrize(
    ("datatype", "wishes", "is_large"),
    [
        (FP32, ALL_AS_JSON, True),
        (FP32, ALL_AS_BINARY, False),
        (BYTES, ALL_AS_JSON, True),
        (BYTES, ALL_AS_BINARY, True),
    ],
)
def test_what_is_large(datatype: Datatype, wishes: RequestedOutputs, *, is_large: bool) -> None:
    response = InferResponse("m", 1, "", [big(datatype)])
    assert has_large_output(response, wishes) == is_large


def test_a_small_response_is_not() -> None:
    response = InferResponse("m", 1, "", [Tensor("OUT", FP32, (3,), np.ones(3, np.float32))])
    assert not has_large_output(response, ALL_AS_JSON)


def test_half_precision_is_refused_in_steps_too() -> None:
    response = InferResponse("m", 1, "", [big(FP16)])
    with pytest.raises(InvalidArgumentError, match="sending FP16 data via JSON is not supported"):
        finish(ENCODER.encode_in_steps(response, ALL_AS_JSON))
