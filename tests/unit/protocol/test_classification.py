from typing import Any

import numpy as np
import pytest

from naiad.errors import InvalidArgumentError
from naiad.inference.datatypes import BF16, BOOL, BYTES, FP16, FP32, FP64, INT32, UINT8, Datatype
from naiad.inference.tensor import Tensor
from naiad.protocol.classification import classify


def classes(
    values: Any, datatype: Datatype = FP32, count: int = 2, labels: Any = (), *, batch: bool = True
) -> Any:
    data = np.array(values, datatype.dtype)
    result = classify(
        Tensor("OUT", datatype, data.shape, data), count, labels, has_batch_axis=batch
    )
    assert result.datatype is BYTES
    assert result.data.shape == tuple(result.shape)
    return result.data.tolist()


def test_the_highest_come_first_with_their_labels() -> None:
    assert classes([[0.1, 0.9, 0.3, 0.2]], labels=["cat", "dog", "bird"]) == [
        [b"0.900000:1:dog", b"0.300000:2:bird"]
    ]


def test_each_row_is_classified_by_itself() -> None:
    assert classes([[1, 2], [4, 3]], count=1) == [[b"2.000000:1"], [b"4.000000:0"]]


def test_an_index_without_a_label_or_with_an_empty_one_is_bare() -> None:
    assert classes([[4, -3, 9, 2]], INT32, 4, ["a", "b", ""]) == [
        [b"9:2", b"4:0:a", b"2:3", b"-3:1:b"]
    ]


def test_equal_values_keep_their_order() -> None:
    assert classes([[0.1, 0.9, 0.3, 0.9]], count=3) == [
        [b"0.900000:1", b"0.900000:3", b"0.300000:2"]
    ]


def test_nan_and_infinity() -> None:
    nan, inf = float("nan"), float("inf")
    assert classes([[2, nan, 1]], count=3) == [[b"2.000000:0", b"nan:1", b"1.000000:2"]]
    assert classes([[-inf, inf, 1]], count=3) == [[b"inf:1", b"1.000000:2", b"-inf:0"]]


def test_more_classes_than_values_gives_all() -> None:
    assert classes([[1, 2]], UINT8, 99) == [[b"2:1", b"1:0"]]


def test_axes_behind_the_batch_are_taken_together() -> None:
    assert classes([[[1, 4], [3, 2]]]) == [[b"4.000000:1", b"3.000000:2"]]


def test_without_a_batch_axis_there_is_one_row() -> None:
    assert classes([[1, 4], [3, 2]], FP64, batch=False) == [b"4.000000:1", b"3.000000:2"]


@pytest.mark.parametrize("datatype", [BOOL, FP16, BF16])
def test_types_that_triton_does_not_classify(datatype: Datatype) -> None:
    with pytest.raises(InvalidArgumentError, match=f"unsupported type '{datatype.name}'"):
        classes([[1]], datatype)


def test_bytes_are_not_classified() -> None:
    with pytest.raises(InvalidArgumentError, match="unsupported type 'BYTES'"):
        classes([[b"a"]], BYTES)


def test_an_output_without_elements_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="has no elements"):
        classes([[]])


def test_a_huge_output_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="classification output tensor too large"):
        classes(np.zeros((1, 1_000_001)))


@pytest.mark.parametrize("count", [1, 5, 700, 2999])
@pytest.mark.parametrize(
    "values",
    [
        np.random.default_rng(0).standard_normal(3000),
        np.random.default_rng(0).integers(0, 10, 3000),  # most are equal
        np.zeros(3000),
        np.where(np.arange(3000) % 7 == 3, np.nan, np.arange(3000) % 5),
    ],
)
def test_of_many_values_the_top_ones_are_those_of_a_stable_sort(values: Any, count: int) -> None:
    row = values.astype(np.float32).tolist()
    order = sorted(range(len(row)), key=row.__getitem__, reverse=True)[:count]
    (best,) = classes([row], count=count)
    assert [int(element.split(b":")[1]) for element in best] == order
