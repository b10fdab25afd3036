"""Who sends waits, and goes on once for each response that was taken."""

from naiad.inference.pace import ResponsePace


def test_each_response_that_is_taken_lets_one_go_on() -> None:
    pace, gone = ResponsePace(), list[int]()
    for number in range(3):
        pace.wait(lambda number=number: gone.append(number))  # type: ignore[misc]
    assert gone == []
    pace.go_on(2)
    assert gone == [0, 1]
    # One that was sent without waiting has nobody to let go on.
    pace.go_on(5)
    assert gone == [0, 1, 2]


def test_once_open_nobody_waits() -> None:
    pace, gone = ResponsePace(), list[str]()
    pace.wait(lambda: gone.append("before"))
    pace.open()
    assert gone == ["before"]
    pace.wait(lambda: gone.append("after"))
    assert gone == ["before", "after"]
