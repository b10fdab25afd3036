import pytest

from naiad.backends.pytorch.naming import (
    Argument,
    InputStyle,
    bind_inputs,
    bind_outputs,
    parse_indices,
)
from naiad.errors import InvalidArgumentError


def arguments(*names: str) -> list[Argument]:
    return [Argument(name, is_required=True, is_tensor_dict=False) for name in names]


def test_argument_names_win() -> None:
    binding = bind_inputs("m", ("b", "a"), arguments("a", "b"))
    assert binding.style is InputStyle.BY_NAME


def test_indices_order_the_arguments() -> None:
    binding = bind_inputs("m", ("x__1", "y__0"), arguments("a", "b"))
    assert (binding.style, binding.names) == (InputStyle.BY_POSITION, ("y__0", "x__1"))


def test_a_name_that_is_neither_makes_the_order_of_the_config_count() -> None:
    binding = bind_inputs("m", ("a", "x__0"), arguments("a", "b"))
    assert (binding.style, binding.names) == (InputStyle.BY_POSITION, ("a", "x__0"))


def test_indices_must_count() -> None:
    with pytest.raises(InvalidArgumentError, match="must count 0, 1, 2"):
        bind_inputs("m", ("x__0", "y__2"), arguments("a", "b"))


def test_a_dict_takes_any_number() -> None:
    single = [Argument("tensors", is_required=True, is_tensor_dict=True)]
    assert bind_inputs("m", ("x", "y", "z"), single).style is InputStyle.AS_DICT


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("b__1", "a__0"), {"b__1": 1, "a__0": 0}),
        (("only__3",), {"only__3": 3}),
        (("x", "y__0"), {"x": 0, "y__0": 1}),
        (("x", "y"), {"x": 0, "y": 1}),
    ],
)
def test_outputs(names: tuple[str, ...], expected: dict[str, int]) -> None:
    assert bind_outputs(names) == expected


@pytest.mark.parametrize("name", ["x_0", "x__", "x__-1", "x__a", "x__0_"])
def test_what_is_no_index(name: str) -> None:
    assert parse_indices([name]) is None
