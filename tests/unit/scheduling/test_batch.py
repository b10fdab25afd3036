import numpy as np
import pytest

from naiad.errors import InternalError
from naiad.scheduling.batch import join_rows, split_rows


def test_one_request_is_not_copied() -> None:
    array = np.zeros((2, 3), np.float32)
    assert join_rows([array]) is array


def test_rows_come_back_in_the_order_they_were_joined() -> None:
    arrays = [np.full((rows, 2), rows, np.int32) for rows in (3, 1, 2)]
    pieces = split_rows(join_rows(arrays), [3, 1, 2])
    for piece, array in zip(pieces, arrays, strict=True):
        np.testing.assert_array_equal(piece, array)


def test_pieces_are_views() -> None:
    output = np.zeros((4, 2), np.float32)
    assert all(np.shares_memory(piece, output) for piece in split_rows(output, [1, 3]))


@pytest.mark.parametrize("shape", [(3, 2), (5, 2), (), (0, 2)])
def test_another_number_of_rows_is_an_error_that_names_both(shape: tuple[int, ...]) -> None:
    with pytest.raises(InternalError, match=r"batch of 4 rows .* \[") as caught:
        split_rows(np.zeros(shape, np.float32), [1, 3])
    assert str(list(shape)) in caught.value.message
