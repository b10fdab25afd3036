import numpy as np
import pytest

from naiad.inference.datatypes import round_to_bf16, widen_bf16


def test_every_number_survives_the_way_there_and_back() -> None:
    patterns = np.arange(2**16, dtype=np.uint16)
    numbers = widen_bf16(patterns)
    is_number = ~np.isnan(numbers)
    assert numbers[0x3F81] == 1 + 2**-7
    assert np.array_equal(round_to_bf16(numbers[is_number]), patterns[is_number])


@pytest.mark.parametrize(
    ("value", "pattern"),
    [
        (1 + 2**-8, 0x3F80),  # a tie, down to even
        (1 + 3 * 2**-8, 0x3F82),  # a tie, up to even
        (1 + 2**-8 + 2**-20, 0x3F81),
        (3.4e38, 0x7F80),  # beyond the largest
    ],
)
def test_rounding_is_to_the_nearest_ties_to_even(value: float, pattern: int) -> None:
    assert round_to_bf16(np.array([value])).tolist() == [pattern]
