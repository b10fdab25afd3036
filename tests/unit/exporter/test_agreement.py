from typing import Any

import numpy as np
import pytest

from naiad.exporter.agreement import compare_case, scale_tolerance
from naiad.exporter.options import ExportOptions
from naiad.inference.comparison import Array, Tolerance
from naiad.repository.golden import GoldenCase


def floats(values: list[Any]) -> Array:
    return np.array(values, dtype=np.float32)


def integers(values: list[Any]) -> Array:
    return np.array(values, dtype=np.int64)


def patterns(values: list[int]) -> Array:
    return np.array(values, dtype=np.uint16)


EXACT = Tolerance(0.0, 0.0)
LOOSE = Tolerance(1e-4, 1e-5)


def compare(
    expected: Array, actual: Array, tolerance: Tolerance = LOOSE, datatype: str = "FP32"
) -> tuple[bool, float, str]:
    case = GoldenCase("case", 1, "example", {}, {"out": expected})
    found = compare_case(case, {"out": actual}, {"out": datatype}, {"out": tolerance})[0]
    return found.equal, found.max_abs, found.detail


def test_equal_within_tolerance() -> None:
    equal, max_abs, _ = compare(floats([1.0, 2.0]), floats([1.0, 2.0001]))
    assert equal
    assert max_abs == pytest.approx(1e-4, rel=0.1)


def test_the_worst_element_is_named_not_the_largest_difference() -> None:
    expected, actual = floats([[1000.0, 0.0]]), floats([[1000.05, 0.01]])
    equal, max_abs, detail = compare(expected, actual)
    assert not equal
    assert max_abs == pytest.approx(0.05, rel=0.01)
    assert detail.startswith("at [0, 1]: got 0.0099")


@pytest.mark.parametrize(
    ("expected", "actual", "equal"),
    [
        ([np.nan], [np.nan], True),
        ([np.nan], [0.0], False),
        ([np.inf], [np.inf], True),
        ([np.inf], [-np.inf], False),
        ([np.inf], [1e30], False),
        ([0.0], [-0.0], True),
        ([], [], True),
    ],
)
def test_values_that_are_no_numbers(
    expected: list[float], actual: list[float], equal: bool
) -> None:
    assert compare(floats(expected), floats(actual))[0] is equal


def test_another_shape_or_dtype_cannot_be_compared() -> None:
    assert compare(np.zeros((2, 3), np.float32), np.zeros((3, 2), np.float32)) == (
        False, np.inf, "got float32[3, 2], expected float32[2, 3]",
    )  # fmt: skip
    assert not compare(np.zeros(2, np.float32), np.zeros(2, np.float64))[0]


def test_integers_are_exact_where_floats_would_round() -> None:
    big = integers([2**62])
    assert compare(big, big + 1, EXACT, "INT64") == (
        False, 1.0, f"at [0]: got {2**62 + 1}, expected {2**62}",
    )  # fmt: skip


def test_bf16_patterns_are_compared_as_numbers() -> None:
    one, almost = patterns([0x3F80]), patterns([0x3F81])  # 1.0 and 1.0078125
    equal, max_abs, _ = compare(one, almost, Tolerance(1e-2, 0.0), "BF16")
    assert (equal, max_abs) == (True, 0.0078125)


def topk(values: list[float], expected: list[int], actual: list[int]) -> bool:
    case = GoldenCase(
        "case", 1, "example", {}, {"values": floats([values]), "indices": integers([expected])}
    )
    found = compare_case(
        case,
        {"values": floats([values]), "indices": integers([actual])},
        {"values": "FP32", "indices": "INT64"},
        {"values": LOOSE, "indices": EXACT},
    )
    return all(difference.equal for difference in found)


def test_indices_of_tied_values_may_differ() -> None:
    assert topk([5.0, 5.0], [1, 2], [2, 3])
    assert topk([6.0, 5.0, 5.0], [0, 1, 2], [0, 2, 1])


def test_indices_of_other_values_may_not() -> None:
    assert not topk([6.0, 5.0, 5.0], [0, 1, 2], [3, 1, 2])
    assert not topk([6.0], [0], [1])


def test_the_absolute_tolerance_grows_with_the_output() -> None:
    outputs: list[Array] = [floats([300.0, -300.0]), floats([np.inf, np.nan])]
    scaled = scale_tolerance(LOOSE, outputs, "FP32")
    assert scaled.rtol == 1e-4
    assert scaled.atol == pytest.approx(3e-3)
    assert scale_tolerance(LOOSE, [floats([0.1])], "FP32") == LOOSE
    assert scale_tolerance(LOOSE, [floats([])], "FP32") == LOOSE
    assert scale_tolerance(EXACT, [integers([2**62])], "INT64") == EXACT


def test_tolerances_by_datatype() -> None:
    own = ExportOptions(tolerances={"FP32": EXACT})
    assert own.tolerance("FP32") == EXACT
    assert own.tolerance("FP16") == Tolerance(1e-2, 1e-3)
    assert own.tolerance("INT64") == EXACT
