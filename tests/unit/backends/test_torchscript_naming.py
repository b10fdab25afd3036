import pytest

from naiad.backends.pytorch.naming import (
    Argument,
    ArgumentKind,
    InputBinding,
    InputStyle,
    bind_inputs,
    bind_outputs,
    parse_indices,
)
from naiad.errors import InternalError, InvalidArgumentError


def argument(name: str, kind: ArgumentKind | None = ArgumentKind.TENSOR) -> Argument:
    return Argument(name, kind, kind.value if kind else "Device", is_required=True)


def arguments(*names: str) -> list[Argument]:
    return [argument(name) for name in names]


def where(binding: InputBinding) -> dict[str, str]:
    """The argument of each input."""
    return {slot.name: slot.argument for slot in binding.slots}


def test_argument_names_win() -> None:
    binding = bind_inputs("m", ("b", "a"), arguments("a", "b"))
    assert where(binding) == {"b": "b", "a": "a"}


def test_indices_choose_the_arguments() -> None:
    binding = bind_inputs("m", ("x__1", "y__0"), arguments("a", "b"))
    assert where(binding) == {"x__1": "b", "y__0": "a"}


def test_a_name_that_is_neither_makes_the_order_of_the_config_count() -> None:
    binding = bind_inputs("m", ("a", "x__0"), arguments("a", "b"))
    assert where(binding) == {"a": "a", "x__0": "b"}


@pytest.mark.parametrize("names", [("x__0", "y__2"), ("x__0", "y__0")])
def test_indices_must_count(names: tuple[str, ...]) -> None:
    with pytest.raises(InvalidArgumentError, match="must count 0, 1, 2"):
        bind_inputs("m", names, arguments("a", "b"))


def test_another_number_of_inputs_is_refused_with_both_numbers() -> None:
    with pytest.raises(
        InvalidArgumentError,
        match="unable to load model 'm', configuration expects 1 inputs, model provides 2",
    ):
        bind_inputs("m", ("a",), arguments("a", "b"))


def test_a_dict_takes_any_number_by_name() -> None:
    binding = bind_inputs("m", ("x", "y", "z"), [argument("t", ArgumentKind.TENSOR_DICT)])
    assert binding.style is InputStyle.AS_DICT
    assert where(binding) == {"x": "x", "y": "y", "z": "z"}


@pytest.mark.parametrize(
    ("names", "order"), [(("x", "y"), ["x", "y"]), (("x__1", "y__0"), ["y__0", "x__1"])]
)
def test_a_list_takes_any_number_in_order(names: tuple[str, ...], order: list[str]) -> None:
    binding = bind_inputs("m", names, [argument("t", ArgumentKind.TENSOR_LIST)])
    assert binding.style is InputStyle.AS_LIST
    assert [slot.name for slot in binding.slots] == order


def test_an_argument_that_no_tensor_can_be_is_named() -> None:
    with pytest.raises(InternalError, match=r"type 'Device' .*Argument 'where'"):
        bind_inputs("m", ("a", "b"), [argument("a"), argument("where", None)])


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("b__1", "a__0"), {"b__1": 1, "a__0": 0}),
        (("only__3",), {"only__3": 3}),
        (("x", "y__0"), {"x": 0, "y__0": 1}),
        (("x", "y"), {"x": 0, "y": 1}),
    ],
)
@pytest.mark.parametrize("result_count", [None, 4])
def test_outputs(
    names: tuple[str, ...], expected: dict[str, int], result_count: int | None
) -> None:
    assert bind_outputs(names, result_count) == expected


def test_a_result_that_there_is_not() -> None:
    with pytest.raises(InvalidArgumentError, match=r"The output only__3 .* has 2 outputs"):
        bind_outputs(("only__3",), 2)


@pytest.mark.parametrize("name", ["x_0", "x__", "x__-1", "x__a", "x__0_"])
def test_what_is_no_index(name: str) -> None:
    assert parse_indices([name]) is None
