import numpy as np
import pytest

from naiad.errors import InvalidArgumentError
from naiad.inference.datatypes import BYTES, FP32, Datatype
from naiad.inference.request import InferRequest
from naiad.model_config.signature import ModelSignature, TensorSpec
from naiad.protocol.requested_outputs import ALL_AS_BINARY
from naiad.protocol.v2_json import DecodeLimits, decode_infer_request

LABEL = "[request id: <id_unknown>] "


def decode(
    body: bytes,
    dims: tuple[int, ...] = (-1,),
    *,
    datatype: Datatype = FP32,
    max_batch_size: int = 8,
    inputs: int = 1,
    limit: int = 1000,
) -> InferRequest:
    specs = [TensorSpec(f"IN{i}", datatype, dims) for i in range(inputs)]
    signature = ModelSignature("m", max_batch_size, specs, [])
    request, outputs = decode_infer_request(
        signature, b"", body, DecodeLimits(limit), lambda response: None, 0
    )
    assert outputs is ALL_AS_BINARY
    return request


def refusal(body: bytes, dims: tuple[int, ...] = (-1,), **more: int | Datatype) -> str:
    with pytest.raises(InvalidArgumentError) as caught:
        decode(body, dims, **more)  # type: ignore[arg-type]
    return caught.value.message


FLOATS = np.arange(1, 5, dtype=np.float32).tobytes()


@pytest.mark.parametrize(
    ("dims", "max_batch_size", "shape"),
    [((-1,), 8, (1, 4)), ((-1,), 0, (4,)), ((4,), 8, (1, 4)), ((2, -1), 8, (1, 2, 2))],
)
def test_the_shape_follows_from_the_config(
    dims: tuple[int, ...], max_batch_size: int, shape: tuple[int, ...]
) -> None:
    tensor = decode(FLOATS, dims, max_batch_size=max_batch_size).inputs["IN0"]
    assert tuple(tensor.shape) == tensor.data.shape == shape
    assert tensor.data.ravel().tolist() == [1.0, 2.0, 3.0, 4.0]


def test_an_empty_body_is_an_input_without_elements() -> None:
    assert decode(b"").inputs["IN0"].data.shape == (1, 0)


def test_bytes_take_the_body_as_one_element() -> None:
    tensor = decode(b"whole\0body", (1,), datatype=BYTES).inputs["IN0"]
    assert tensor.data.tolist() == [[b"whole\0body"]]


def test_bodies_that_do_not_fit() -> None:
    assert refusal(bytes(6)) == (
        f"{LABEL}input byte size mismatch for input 'raw_input' for model 'm'. Expected 4, got 6"
    )
    assert refusal(bytes(12), (4,)) == (
        f"{LABEL}input byte size mismatch for input 'raw_input' for model 'm'. Expected 16, got 12"
    )


def test_shapes_that_do_not_follow() -> None:
    assert refusal(FLOATS, (-1, -1)) == (
        f"{LABEL}The shape of the raw input 'IN0' can not be deduced because there are more than "
        "one variable-sized dimension"
    )
    assert refusal(b"x", (-1,), datatype=BYTES) == (
        f"{LABEL}For BYTE datatype raw input 'IN0', the model must have input shape [1]"
    )


def test_a_model_of_two_inputs() -> None:
    assert refusal(b"", inputs=2) == (
        f"{LABEL}Raw request must only have 1 input (found 1) to be deduced but got 2 inputs in "
        "'m' model configuration"
    )


def test_a_body_over_the_limit() -> None:
    assert refusal(FLOATS, limit=8) == (
        "Raw input has a byte_size (16 bytes) that exceeds the maximum allowed value of 8 bytes. "
        "Use --http-max-input-size to increase the limit."
    )
