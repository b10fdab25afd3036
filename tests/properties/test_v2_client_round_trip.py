import json
from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from naiad.inference import datatypes
from naiad.inference.datatypes import BY_NAME, Datatype
from naiad.inference.tensor import Tensor
from naiad.protocol.v2_client import decode_infer_response, encode_infer_request

SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
JSON_DATATYPES = [
    d for d in BY_NAME.values() if d is not datatypes.FP16 and d is not datatypes.BF16
]


@st.composite
def tensors(draw: st.DrawFn, among: Sequence[Datatype], *, text: bool = False) -> list[Tensor]:
    made = []
    for index in range(draw(st.integers(0, 3))):
        datatype = draw(st.sampled_from(among))
        shape = draw(SHAPES)
        if datatype is datatypes.BYTES:
            element = st.text().map(str.encode) if text else st.binary()
            count = int(np.prod(shape))
            data = np.empty(count, np.object_)
            data[:] = draw(st.lists(element, min_size=count, max_size=count))
            data = data.reshape(shape)
        else:
            data = draw(hnp.arrays(datatype.dtype, shape))
        made.append(Tensor(f"t{index}", datatype, shape, data))
    return made


def as_response(body: bytes, header_length: int) -> tuple[bytes, int]:
    """The request's tensors as the outputs of a response: the two forms are the same."""
    header = json.loads(body[:header_length])
    answer = {"model_name": "m", "model_version": "3", "outputs": header["inputs"]}
    if "id" in header:
        answer["id"] = header["id"]
    encoded = json.dumps(answer).encode()
    return encoded + body[header_length:], len(encoded)


def assert_same(sent: Sequence[Tensor], received: dict[str, Tensor]) -> None:
    assert list(received) == [tensor.name for tensor in sent]
    for tensor in sent:
        other = received[tensor.name]
        assert other.datatype is tensor.datatype
        assert tuple(other.shape) == tuple(tensor.shape) == other.data.shape
        assert other.data.dtype == tensor.data.dtype
        is_float = tensor.data.dtype.kind == "f"
        assert np.array_equal(other.data, tensor.data, equal_nan=is_float)


@given(tensors(list(BY_NAME.values())), st.text())
def test_binary_tensors_come_back_as_they_went(sent: list[Tensor], request_id: str) -> None:
    body, header_length = encode_infer_request(sent, request_id=request_id)

    result = decode_infer_response(*as_response(body, header_length))

    assert_same(sent, result.outputs)
    assert result.request_id == request_id


@given(tensors(JSON_DATATYPES, text=True))
def test_json_tensors_come_back_as_they_went(sent: list[Tensor]) -> None:
    body, header_length = encode_infer_request(sent, binary=False)
    assert header_length == len(body)

    result = decode_infer_response(*as_response(body, header_length))

    assert_same(sent, result.outputs)
