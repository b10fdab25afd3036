import pytest

from naiad.cli.export import parse_dynamic, parse_ranges
from naiad.errors import InvalidArgumentError


def test_axes_by_place_with_gaps() -> None:
    assert parse_dynamic(("input_ids:batch,tokens", "image:batch,,height, width", "a:b:n")) == {
        "input_ids": {0: "batch", 1: "tokens"},
        "image": {0: "batch", 2: "height", 3: "width"},
        "a:b": {0: "n"},
    }
    assert parse_dynamic(()) == {}


@pytest.mark.parametrize("value", ["", "x", "x:", ":batch", "x:,"])
def test_other_forms(value: str) -> None:
    with pytest.raises(InvalidArgumentError, match="not of the form INPUT:AXIS,AXIS"):
        parse_dynamic((value,))


def test_ranges_of_inputs() -> None:
    assert parse_ranges(("input_ids:0,29999", "image:-1,1.5", "a:b:2,2")) == {
        "input_ids": (0.0, 29999.0),
        "image": (-1.0, 1.5),
        "a:b": (2.0, 2.0),
    }
    assert parse_ranges(()) == {}


@pytest.mark.parametrize("value", ["", "x", "x:", ":0,1", "x:1", "x:0,1,2", "x:0,nan", "x:0,inf"])
def test_other_forms_of_a_range(value: str) -> None:
    with pytest.raises(InvalidArgumentError, match="not of the form INPUT:LOWEST,HIGHEST"):
        parse_ranges((value,))


def test_an_input_has_one_range() -> None:
    with pytest.raises(InvalidArgumentError, match="names the input 'x' twice"):
        parse_ranges(("x:0,1", "x:0,2"))
