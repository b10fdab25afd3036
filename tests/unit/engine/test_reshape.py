"""What the backend sees where a config reshapes."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from naiad.engine.reshape import Reshaper
from naiad.inference.datatypes import FP32
from naiad.inference.tensor import Tensor
from naiad.model_config.signature import ModelSignature, TensorSpec

Dims = tuple[int, ...]


def reshaper(dims: Dims, reshape: Dims | None, *, max_batch_size: int) -> Reshaper:
    """The same reshape for the input and the output."""
    spec = TensorSpec("T", FP32, dims, reshape=reshape)
    return Reshaper(ModelSignature("m", max_batch_size, [spec], [spec]))


def array(*shape: int) -> npt.NDArray[Any]:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


@pytest.mark.parametrize(
    ("dims", "reshape", "max_batch_size", "seen_by_client", "seen_by_backend"),
    [
        ((1,), (), 8, (3, 1), (3,)),
        ((1,), (), 0, (1,), ()),
        ((4, 2), (8,), 8, (3, 4, 2), (3, 8)),
        ((4, 2), (8,), 0, (4, 2), (8,)),
        ((-1, 2, -1), (-1, 1, 2, -1), 8, (3, 5, 2, 7), (3, 5, 1, 2, 7)),
        ((-1, 4), (2, -1, 2), 0, (5, 4), (2, 5, 2)),
    ],
)
def test_both_ways(
    dims: Dims, reshape: Dims, max_batch_size: int, seen_by_client: Dims, seen_by_backend: Dims
) -> None:
    both = reshaper(dims, reshape, max_batch_size=max_batch_size)
    assert both
    given = array(*seen_by_client)

    inputs = both.to_backend({"T": given, "other": given})

    assert inputs["T"].shape == seen_by_backend
    assert np.shares_memory(inputs["T"], given)
    assert inputs["other"] is given
    (output,) = both.to_client([Tensor("T", FP32, seen_by_backend, inputs["T"])])
    assert output.shape == seen_by_client
    np.testing.assert_array_equal(output.data, given)


def test_a_model_without_reshapes_has_none() -> None:
    assert not reshaper((4, 2), None, max_batch_size=8)


def test_a_scalar_may_come_as_one() -> None:
    both = reshaper((1,), (), max_batch_size=0)

    assert both.to_backend({"T": array()})["T"].shape == ()


@pytest.mark.parametrize("shape", [(3, 2), (3,), (3, 8, 1)])
def test_an_output_of_another_shape_than_declared_stays_as_it_is(shape: Dims) -> None:
    both = reshaper((4, 2), (8,), max_batch_size=8)
    given = Tensor("T", FP32, shape, array(*shape))

    assert both.to_client([given]) == [given]
