import math

import numpy as np
import pytest

from naiad.inference.comparison import (
    EXACT,
    Array,
    Tolerance,
    compare,
    compare_outputs,
    cosine,
    default_tolerance,
    max_ulp,
    same_top5,
    worst,
)

FP32 = Tolerance(1e-4, 1e-5)


def f32(*values: float) -> Array:
    return np.array(values, dtype=np.float32)


def test_equal_tensors_have_no_difference_and_no_worst_place() -> None:
    found = compare("y", f32(1, 2), f32(1, 2), "FP32", EXACT)
    assert (found.max_abs, found.max_rel, found.worst_index) == (0.0, 0.0, None)
    assert found.equal
    assert found.same_bits


def test_numbers_name_the_largest_difference_and_its_place() -> None:
    expected = np.array([[1.0, 2.0], [4.0, 8.0]], dtype=np.float32)
    actual = np.array([[1.0, 2.5], [4.0, 9.0]], dtype=np.float32)
    found = compare("y", expected, actual, "FP32", FP32)
    assert found.max_abs == 1.0
    assert found.max_rel == 0.25
    assert found.worst_index == (1, 1)
    assert not found.equal


@pytest.mark.parametrize(("actual", "equal"), [(100.0109, True), (100.0121, False)])
def test_the_tolerance_is_absolute_plus_relative_to_the_expected(
    actual: float, equal: bool
) -> None:
    # Allowed at 100 is 1e-5 + 1e-4 * 100 = 0.01001, with FP64 so that nothing rounds.
    expected = np.array([100.0])
    shifted = np.array([100.0 + (actual - 100.001)])
    assert compare("y", expected, shifted, "FP64", FP32).equal is equal


def test_relative_difference_leaves_out_zeros() -> None:
    found = compare("y", f32(0.0, 10.0), f32(1e-6, 11.0), "FP32", FP32)
    assert found.max_rel == pytest.approx(0.1)


def test_nan_equals_nan_and_nothing_else() -> None:
    assert compare("y", f32(math.nan, 1), f32(math.nan, 1), "FP32", EXACT).equal
    found = compare("y", f32(math.nan, 1), f32(0, 1), "FP32", FP32)
    assert not found.equal
    assert found.max_abs == math.inf
    assert found.worst_index == (0,)
    assert not compare("y", f32(0), f32(math.nan), "FP32", FP32).equal


def test_infinities_must_match_outright() -> None:
    assert compare("y", f32(math.inf), f32(math.inf), "FP32", EXACT).equal
    assert not compare("y", f32(math.inf), f32(3e38), "FP32", FP32).equal
    assert not compare("y", f32(math.inf), f32(-math.inf), "FP32", FP32).equal


def test_bits_tell_what_a_tolerance_forgives() -> None:
    found = compare("y", f32(0.0), f32(-0.0), "FP32", EXACT)
    assert found.equal
    assert not found.same_bits
    next_up = np.nextafter(np.float32(1), np.float32(2))
    found = compare("y", f32(1), f32(float(next_up)), "FP32", FP32)
    assert found.equal
    assert not found.same_bits


def test_large_unsigned_integers_differ_by_exactly_one() -> None:
    expected = np.array([2**64 - 1], dtype=np.uint64)
    actual = np.array([2**64 - 2], dtype=np.uint64)
    found = compare("y", expected, actual, "UINT64", default_tolerance("UINT64"))
    assert found.max_abs == 1.0
    assert not found.equal


def test_signed_extremes_do_not_wrap_around() -> None:
    expected = np.array([-128], dtype=np.int8)
    actual = np.array([127], dtype=np.int8)
    assert compare("y", expected, actual, "INT8", EXACT).max_abs == 255.0


def test_booleans_and_text_are_exact() -> None:
    assert not compare("y", np.array([True]), np.array([False]), "BOOL", EXACT).equal
    expected = np.array([b"cat", b"dog"], dtype=object)
    found = compare("y", expected, np.array([b"cat", b"owl"], dtype=object), "BYTES", EXACT)
    assert not found.equal
    assert found.worst_index == (1,)
    assert compare("y", expected, expected.copy(), "BYTES", EXACT).equal


def test_bf16_patterns_are_compared_as_the_numbers_they_mean() -> None:
    # 1.0 is 0x3F80 in BF16 and 1.0078125 is 0x3F81: one step of 2^-7.
    expected = np.array([0x3F80], dtype=np.uint16)
    actual = np.array([0x3F81], dtype=np.uint16)
    found = compare("y", expected, actual, "BF16", default_tolerance("BF16"))
    assert found.max_abs == 2**-7
    assert found.equal
    assert not compare("y", expected, actual, "UINT16", EXACT).equal


def test_top1_follows_the_last_axis() -> None:
    expected = np.array([[0.1, 0.9], [0.8, 0.2]], dtype=np.float32)
    assert compare("y", expected, expected * 2, "FP32", FP32).same_top1 is True
    assert compare("y", expected, expected[:, ::-1], "FP32", FP32).same_top1 is False
    assert compare("y", f32(1), f32(2), "FP32", FP32).same_top1 is None
    counts = np.array([1, 2], dtype=np.int64)
    assert compare("y", counts, counts, "INT64", EXACT).same_top1 is None


def test_another_shape_or_dtype_is_never_equal() -> None:
    found = compare("y", f32(1, 2), f32(1), "FP32", FP32)
    assert found.problem == "shape [1] instead of [2]"
    assert not found.equal
    found = compare("y", f32(1), np.array([1.0]), "FP32", FP32)
    assert found.problem == "dtype float64 instead of float32"
    assert not found.equal


def test_empty_tensors_compare() -> None:
    empty = np.empty((0, 3), dtype=np.float32)
    found = compare("y", empty, empty.copy(), "FP32", EXACT)
    assert found.equal
    assert found.same_top1 is None


def test_missing_and_surplus_outputs_are_differences() -> None:
    found = compare_outputs({"a": f32(1)}, {"b": f32(1)}, {"a": "FP32"}, {})
    assert [d.problem for d in found] == ["output 'a' is missing", "output 'b' was not expected"]
    assert not any(d.equal for d in found)


def test_a_named_tolerance_beats_the_datatypes() -> None:
    loose = {"y": Tolerance(0.0, 1.0)}
    expected, actual = {"y": f32(1)}, {"y": f32(1.5)}
    assert compare_outputs(expected, actual, {"y": "FP32"}, loose)[0].equal
    assert not compare_outputs(expected, actual, {"y": "FP32"}, {})[0].equal


def test_the_worst_difference_is_an_unequal_one() -> None:
    large_but_equal = compare("a", f32(1e6), f32(1e6 + 10), "FP32", FP32)
    small_but_unequal = compare("b", f32(1), f32(1.5), "FP32", FP32)
    assert large_but_equal.equal
    assert worst([large_but_equal, small_but_unequal]).output == "b"


def test_the_worst_element_is_the_one_furthest_beyond_its_tolerance() -> None:
    found = compare("y", f32(1000.0, 0.0), f32(1000.05, 0.01), "FP32", FP32)
    assert found.max_abs == pytest.approx(0.05, rel=0.01)
    assert found.worst_index == (1,)


@pytest.mark.parametrize(
    ("values", "actual", "equal"),
    [([6.0, 5.0, 5.0], [0, 2, 1], True), ([6.0, 5.0, 4.0], [0, 2, 1], False)],
)
def test_indices_may_differ_where_their_values_are_tied(
    values: list[float], actual: list[int], equal: bool
) -> None:
    expected = {"values": f32(*values), "indices": np.array([0, 1, 2])}
    answer = {"values": f32(*values), "indices": np.array(actual)}
    datatypes = {"values": "FP32", "indices": "INT64"}
    _, indices = compare_outputs(expected, answer, datatypes, {})
    assert (indices.equal, indices.only_ties) == (equal, equal)
    assert not indices.same_bits


def test_the_worst_element_is_told_with_both_values() -> None:
    found = compare("y", f32(1, 2), f32(1, 2.5), "FP32", FP32)
    assert (found.expected_value, found.actual_value) == (2.0, 2.5)
    assert compare("y", f32(1), f32(1), "FP32", FP32).expected_value is None


def test_units_in_the_last_place_count_the_values_between() -> None:
    one = np.float32(1)
    above = np.nextafter(np.nextafter(one, np.float32(2)), np.float32(2))
    assert max_ulp(f32(1, 3), f32(float(above), 3)) == 2
    tiny = 1e-45
    assert max_ulp(f32(tiny), f32(-tiny)) == 2
    assert max_ulp(f32(0.0), f32(-0.0)) == 0
    assert max_ulp(f32(math.nan, math.inf), f32(1, 2)) == 0
    assert max_ulp(np.array([1]), np.array([2])) is None
    huge = np.array([np.finfo(np.float64).max])
    # Further apart than an int64 can say.
    assert (max_ulp(huge, -huge) or 0) > 2**63


def test_a_step_of_bf16_is_one_unit_of_bf16() -> None:
    step = compare("y", np.array([0x3F80], np.uint16), np.array([0x3F81], np.uint16), "BF16", EXACT)
    assert step.max_ulp == 1


def test_the_cosine_is_that_of_the_angle() -> None:
    assert cosine(f32(1, 0), f32(0, 2)) == pytest.approx(0)
    assert cosine(f32(1, 1), f32(2, 2)) == pytest.approx(1)
    assert cosine(f32(1, 1), f32(-1, -1)) == pytest.approx(-1)
    assert cosine(f32(0, 0), f32(1, 1)) is None
    assert cosine(np.array([1e300, 1e300]), np.array([1e300, 1e300])) == pytest.approx(1)
    assert cosine(np.array([1]), np.array([1])) is None


def test_the_five_best_may_come_in_any_order() -> None:
    expected = np.array([[6, 5, 4, 3, 2, 1]], np.float32)
    assert same_top5(expected, expected[:, [1, 0, 2, 3, 4, 5]]) is True
    assert same_top5(expected, expected[:, [5, 1, 2, 3, 4, 0]]) is False
    assert same_top5(expected[:, :5], expected[:, :5]) is None
    assert same_top5(expected[:0], expected[:0]) is None


def test_deep_models_may_differ_more() -> None:
    shallow = default_tolerance("FP32")
    assert default_tolerance("FP32", 64) == shallow
    assert default_tolerance("FP32", 256).rtol == pytest.approx(2 * shallow.rtol)
    assert default_tolerance("INT64", 256) == EXACT
