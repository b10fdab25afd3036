from pathlib import Path

import numpy as np
import pytest

from naiad.cli.infer import InputSpec, build_inputs, make_example, parse_value
from naiad.errors import InvalidArgumentError
from naiad.inference.datatypes import BY_NAME


def spec(datatype: str = "FP32", *shape: int, name: str = "x") -> InputSpec:
    return InputSpec(name, BY_NAME[datatype], shape)


def test_a_spec_comes_from_the_metadata() -> None:
    parsed = InputSpec.parse({"name": "x", "datatype": "INT64", "shape": [-1, 3]})
    assert parsed == spec("INT64", -1, 3)
    assert str(parsed) == "'x' (INT64, shape [-1, 3])"


@pytest.mark.parametrize(
    ("text", "shape", "found"),
    [
        ("[[1, 2, 3]]", (-1, 3), (1, 3)),
        ("[1, 2, 3]", (-1, 3), (1, 3)),
        ("[1, 2, 3, 4, 5, 6]", (-1, 3), (2, 3)),
        ("[1, 2, 3, 4]", (-1, 2, 2), (1, 2, 2)),
        ("[1, 2, 3]", (-1, -1), (1, 3)),
        ("[1, 2, 3]", (3,), (3,)),
        ("7", (-1, 1), (1, 1)),
        ("7", (1,), (1,)),
    ],
)
def test_a_value_takes_the_shape_of_the_model(
    text: str, shape: tuple[int, ...], found: tuple[int, ...]
) -> None:
    array = parse_value(spec("FP32", *shape), text)
    assert array.shape == found
    assert array.dtype == np.float32


@pytest.mark.parametrize(
    ("text", "shape"),
    [("[1, 2]", (-1, 3)), ("[[1, 2], [3, 4]]", (-1, 3)), ("[[[1]]]", (-1, 1)), ("[1, 2]", (3,))],
)
def test_a_value_that_does_not_fit_names_what_would(text: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        parse_value(spec("FP32", *shape), text)
    assert f"shape {list(shape)}" in raised.value.message


@pytest.mark.parametrize(
    ("datatype", "text"),
    [("INT64", "[1.5]"), ("UINT8", "[300]"), ("UINT8", "[-1]"), ("INT64", '["a"]')],
)
def test_numbers_are_never_changed_to_fit(datatype: str, text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="input 'x'"):
        parse_value(spec(datatype, -1), text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[1, 2], [3]]", "lists of different lengths"),
        ('["a", 1]', "takes numbers"),
        ("[null]", "takes numbers"),
        ("@missing.npy", "cannot read missing.npy: No such file or directory$"),
    ],
)
def test_a_value_of_another_kind_is_told_in_plain_words(text: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        parse_value(spec("FP32", -1, 2), text)


def test_text_needs_no_quotes_and_lists_are_json() -> None:
    assert parse_value(spec("BYTES", -1, 1), "a cat").tolist() == [[b"a cat"]]
    assert parse_value(spec("BYTES", -1, 2), '["a", "Käse"]').tolist() == [[b"a", "Käse".encode()]]
    with pytest.raises(InvalidArgumentError, match="is not text"):
        parse_value(spec("BYTES", -1, 1), "[[5]]")


def test_bf16_rounds_to_nearest_even() -> None:
    # 1 + 2^-8 lies between 0x3F80 and 0x3F81 and goes to the even one; 1 + 3 * 2^-8 goes up.
    array = parse_value(spec("BF16", -1), "[1.0, 1.00390625, 1.01171875]")
    assert array.tolist() == [0x3F80, 0x3F80, 0x3F82]


def test_values_from_files(tmp_path: Path) -> None:
    numbers = tmp_path / "numbers.npy"
    np.save(numbers, np.array([[1.0, 2.0]], dtype=np.float32))
    listing = tmp_path / "listing.json"
    listing.write_text("[[3, 4]]", encoding="utf-8")
    assert parse_value(spec("FP32", -1, 2), f"@{numbers}").tolist() == [[1.0, 2.0]]
    assert parse_value(spec("FP32", -1, 2), f"@{listing}").tolist() == [[3.0, 4.0]]
    for bad in ("missing.npy", "picture.png"):
        with pytest.raises(InvalidArgumentError, match=bad):
            parse_value(spec("FP32", -1, 2), f"@{tmp_path / bad}")


def test_json_errors_name_the_input() -> None:
    with pytest.raises(InvalidArgumentError, match=r"input 'x' .* is not JSON.*x=@FILE\.npy"):
        parse_value(spec("FP32", -1), "[1, ")


@pytest.mark.parametrize("datatype", sorted(BY_NAME))
def test_examples_have_the_model_s_datatype_and_shape(datatype: str) -> None:
    array = make_example(spec(datatype, -1, 3))
    assert array.shape == (1, 3)
    assert array.dtype == BY_NAME[datatype].dtype


def test_inputs_follow_the_metadata_s_order() -> None:
    specs = [spec("FP32", -1, name="a"), spec("FP32", -1, name="b")]
    tensors = build_inputs(specs, ["b=[2]", "a=[1]"], example=False)
    assert [(t.name, t.data.tolist()) for t in tensors] == [("a", [1.0]), ("b", [2.0])]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["a"], "'a' is not of the form NAME=VALUE"),
        (["c=1", "a=1", "b=1"], "the model has no input 'c'; it has 'a'"),
        (["a=1", "a=2"], "'a' is given twice"),
        (["a=[1]"], r"no value for 'b' \(FP32, shape \[-1\]\)"),
    ],
)
def test_wrong_inputs_say_what_is_wrong(given: list[str], message: str) -> None:
    specs = [spec("FP32", -1, name="a"), spec("FP32", -1, name="b")]
    with pytest.raises(InvalidArgumentError, match=message):
        build_inputs(specs, given, example=False)


def test_example_fills_in_only_what_is_missing() -> None:
    specs = [spec("FP32", -1, name="a"), spec("INT64", -1, 2, name="b")]
    a, b = build_inputs(specs, ["a=[5]"], example=True)
    assert a.data.tolist() == [5.0]
    assert tuple(b.shape) == (1, 2)
