import pytest

from naiad.scheduling.execution_times import ExecutionTimes

MS = 1_000_000


def measured(*executions: tuple[int, int]) -> ExecutionTimes:
    times = ExecutionTimes()
    for rows, ns in executions:
        times.add(rows, ns)
    times.settle()
    return times


def test_sizes_that_never_ran_are_read_off_the_line_through_those_that_did() -> None:
    times = measured(*((rows, 5 * MS + rows * MS) for rows in (1, 2, 4, 8)))
    assert times.fixed_ns == pytest.approx(5 * MS)
    assert times.row_ns == pytest.approx(MS)
    assert times.expected_ns(64) == pytest.approx(69 * MS)
    assert times.largest_rows == 8


def test_a_size_that_is_off_the_line_is_known_by_its_own_measurements() -> None:
    straight = [(rows, rows * MS) for rows in (1, 2, 4, 8)] * 20
    times = measured(*straight, *([(16, 64 * MS)] * 60))
    assert times.expected_ns(16) > 55 * MS


def test_of_one_size_alone_a_larger_one_is_taken_to_be_cheaper_per_row() -> None:
    times = measured((4, 8 * MS))
    assert times.expected_ns(4) == pytest.approx(8 * MS)
    assert times.expected_ns(16) < 32 * MS


def test_one_hiccup_does_not_hide_what_was_learned() -> None:
    times = measured(*([(4, 8 * MS)] * 20), (4, 5000 * MS))
    assert times.expected_ns(4) < 10 * MS


def test_a_model_that_became_slower_is_seen_to_be() -> None:
    times = ExecutionTimes()
    for took_ns in (8 * MS, 24 * MS):
        for _ in range(40):
            for rows in (2, 4, 8):
                times.add(rows, took_ns)
            times.settle()
    assert times.expected_ns(4) == pytest.approx(24 * MS, rel=0.1)


def test_noise_makes_no_line_that_falls() -> None:
    times = measured((1, 10 * MS), (8, 5 * MS))
    assert times.row_ns == 0
    assert measured((1, MS), (8, 80 * MS)).fixed_ns >= 0


def test_nothing_is_expected_before_the_first_execution() -> None:
    times = ExecutionTimes()
    times.settle()
    assert times.expected_ns(8) == 0
