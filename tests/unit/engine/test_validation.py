"""Texts and precedence as recorded from Triton 2.51."""

import re

import numpy as np
import pytest
from tests.support.requests import make_request, tensor

from naiad.engine.validation import validate_request
from naiad.errors import InvalidArgumentError
from naiad.inference.datatypes import BYTES, FP32, INT64
from naiad.inference.request import InferRequest
from naiad.model_config.signature import ModelSignature, TensorSpec

BATCHED = ModelSignature(
    "m",
    8,
    [TensorSpec("A", FP32, (4,)), TensorSpec("B", INT64, (-1, 2), is_optional=True)],
    [TensorSpec("OUT", FP32, (4,))],
)
UNBATCHED = ModelSignature(
    "n", 0, [TensorSpec("A", FP32, (2, -1))], [TensorSpec("OUT", FP32, (1,))]
)
STRINGS = ModelSignature("s", 4, [TensorSpec("S", BYTES, (-1,))], [TensorSpec("OUT", FP32, (1,))])


def a(*shape: int, dtype: type = np.float32) -> InferRequest:
    return make_request(tensor("A", np.zeros(shape, dtype)))


def refusal(signature: ModelSignature, request: InferRequest) -> str:
    with pytest.raises(InvalidArgumentError) as caught:
        validate_request(signature, request)
    return caught.value.message


def test_a_good_request_gets_its_batch_size() -> None:
    request = a(3, 4)
    validate_request(BATCHED, request)
    assert request.batch_size == 3


def test_without_a_batch_axis_a_request_is_one_row() -> None:
    request = a(2, 7)
    validate_request(UNBATCHED, request)
    assert request.batch_size == 1


def test_requests_share_a_batch_only_with_the_same_inputs_of_the_same_dims() -> None:
    def key(*dims: int) -> object:
        tensors = [tensor("A", np.zeros((1, 4), np.float32))]
        if dims:
            tensors.append(tensor("B", np.zeros((1, *dims), np.int64)))
        request = make_request(*tensors)
        validate_request(BATCHED, request)
        return request.batch_key

    assert key(3, 2) == key(3, 2)
    assert len({key(3, 2), key(4, 2), key()}) == 3


def test_a_uniform_model_needs_no_key() -> None:
    signature = ModelSignature("u", 4, [TensorSpec("A", FP32, (4,))], [])
    request = a(1, 4)
    validate_request(signature, request)
    assert request.batch_key is None


@pytest.mark.parametrize(
    ("signature", "request_", "text"),
    [
        (
            BATCHED,
            make_request(),
            "[request id: <id_unknown>] expected number of inputs between 1 and 2 but got 0 inputs "
            "for model 'm'. Got input(s) [], but missing required input(s) ['A']. Please "
            "provide all required input(s).",
        ),
        (
            UNBATCHED,
            make_request(request_id="7"),
            "[request id: 7] expected 1 inputs but got 0 inputs for model 'n'. Got input(s) [], "
            "but missing required input(s) ['A']. Please provide all required input(s).",
        ),
        (
            UNBATCHED,
            make_request(tensor("X", np.zeros(1, np.float32))),
            "unexpected inference input 'X' for model 'n'",
        ),
        (
            UNBATCHED,
            a(2, 1, dtype=np.int32),
            "[request id: <id_unknown>] inference input 'A' data-type is 'INT32', but model 'n' "
            "expects 'FP32'",
        ),
        (
            UNBATCHED,
            a(3, 1),
            "[request id: <id_unknown>] unexpected shape for input 'A' for model 'n'. Expected "
            "[2,-1], got [3,1]. ",
        ),
        (
            BATCHED,
            a(9, 4),
            "[request id: <id_unknown>] inference request batch-size must be <= 8 for 'm'",
        ),
        (
            BATCHED,
            a(),
            "[request id: <id_unknown>] input 'A' has no shape but model requires batch dimension "
            "for 'm'",
        ),
        (
            BATCHED,
            make_request(
                tensor("A", np.zeros((1, 4), np.float32)),
                tensor("B", np.zeros((2, 1, 2), np.int64)),
            ),
            "[request id: <id_unknown>] input 'A' batch size does not match other inputs for 'm'",
        ),
        (
            BATCHED,
            a(0, 4),
            "[request id: <id_unknown>] input byte size mismatch for input 'A' for model 'm'. "
            "Expected 16, got 0",
        ),
        (
            STRINGS,
            make_request(tensor("S", np.zeros((0, 3), np.object_))),
            "[request id: <id_unknown>] expected 3 string elements for inference input 'S' for "
            "model 's', got 0",
        ),
        (
            STRINGS,
            make_request(tensor("S", np.zeros((0, 0), np.object_))),
            "[request id: <id_unknown>] inference request batch-size must be >= 1 for 's'",
        ),
    ],
)
def test_refusals(signature: ModelSignature, request_: InferRequest, text: str) -> None:
    assert refusal(signature, request_) == text


def test_a_wrong_shape_explains_the_batch_axis() -> None:
    text = refusal(BATCHED, a(4))
    assert text.startswith(
        "[request id: <id_unknown>] unexpected shape for input 'A' for model 'm'. Expected [-1,4], "
        "got [4]. NOTE: Setting a non-zero max_batch_size in the model config requires a batch "
        "dimension to be prepended"
    )


@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_scalar_is_a_vector_of_one_or_what_it_is(shape: tuple[int, ...]) -> None:
    spec = TensorSpec("A", FP32, (1,), reshape=())
    validate_request(ModelSignature("m", 0, [spec], [spec]), a(*shape))


def test_a_scalar_per_row_has_one_shape_so_that_requests_can_be_joined() -> None:
    spec = TensorSpec("A", FP32, (1,), reshape=())
    signature = ModelSignature("m", 8, [spec], [spec])
    validate_request(signature, a(3, 1))
    assert "Expected [-1,1], got [3]" in refusal(signature, a(3))


def test_no_dims_are_refused_where_the_model_has_some() -> None:
    signature = ModelSignature("m", 0, [TensorSpec("A", FP32, (1,))], [])
    assert "Expected [1], got []" in refusal(signature, a())


def test_an_unknown_output_is_refused_first() -> None:
    request = make_request(output_names=["OUT", "NOPE"])
    assert re.fullmatch(
        "unexpected inference output 'NOPE' for model 'm'", refusal(BATCHED, request)
    )
