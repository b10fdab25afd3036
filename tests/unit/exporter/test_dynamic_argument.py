import pytest

from naiad.cli.export import parse_dynamic
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
