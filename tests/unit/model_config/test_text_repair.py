"""A config that does not parse: what was meant, and on which line."""

import pytest

from naiad.model_config.text_format import parse_config
from naiad.model_config.text_repair import repair_text


@pytest.mark.parametrize(
    ("text", "repaired", "place"),
    [
        ("dynamic_batchin { }", "dynamic_batching { }", (1, 1)),
        (
            "input [ { data_type: FP32 } ]",
            "input [ { data_type: TYPE_FP32 } ]",
            (1, 22),
        ),
        ("input { dims: [ 3 224 ] }", "input { dims: [ 3, 224 ] }", (1, 19)),
        ("input { dims: [ 3, 224 }", "input { dims: [ 3, 224 ] }", (1, 24)),
        ("input { dims: [ 3, ] }", "input { dims: [ 3 ] }", (1, 20)),
        (
            "input {\n  dims: [ 3, 224\n  data_type: TYPE_FP32\n}",
            "input {\n  dims: [ 3, 224 ]\n  data_type: TYPE_FP32\n}",
            (2, 16),
        ),
        (
            'input [\n  {\n    name: "a"\n  }\n  {\n    name: "b"\n  }\n]',
            'input [\n  {\n    name: "a"\n  },\n  {\n    name: "b"\n  }\n]',
            (4, 3),
        ),
        ("name: m", 'name: "m"', (1, 7)),
        ('name: "m\nmax_batch_size: 1', 'name: "m"\nmax_batch_size: 1', (1, 7)),
        ('name "m"', 'name: "m"', (1, 6)),
        ("max_batch_size = 4", "max_batch_size: 4", (1, 16)),
        ('max_batch_size: "4"', "max_batch_size: 4", (1, 17)),
        ("max_batch_size: 4 ]", "max_batch_size: 4 ", (1, 19)),
        ("dynamic_batching {\n", "dynamic_batching { }\n", (1, 18)),
    ],
)
def test_repair(text: str, repaired: str, place: tuple[int, int]) -> None:
    found, (repair,) = repair_text(text, "config.pbtxt")

    assert found == repaired
    parse_config(repaired, "config.pbtxt")
    assert (repair.line, repair.column) == place
    assert repair.before == text.split("\n")[repair.line - 1]
    assert repair.after == repaired.split("\n")[repair.line - 1].strip()
    assert repair.is_repaired


@pytest.mark.parametrize(
    ("text", "repaired"),
    [
        ("max_batch_size: ${size}\n", "\n"),
        ("input { dims: [ ${d}, 3 ] }", "input {  }"),
        ("max_batch_size: $SIZE", ""),
    ],
)
def test_variable_is_taken_out(text: str, repaired: str) -> None:
    found, (repair,) = repair_text(text, "config.pbtxt")

    assert found == repaired
    assert repair.variable.startswith("$")
    assert repair.column == text.index("$") + 1


def test_several_mistakes_are_all_named() -> None:
    text = "name: m\nbackend: onnxruntime\ninput { dims: [ 1 2 3 ] }\n"

    found, repairs = repair_text(text, "config.pbtxt")

    assert found == 'name: "m"\nbackend: "onnxruntime"\ninput { dims: [ 1, 2, 3 ] }\n'
    assert [repair.line for repair in repairs] == [1, 2, 3, 3]


@pytest.mark.parametrize(
    "text",
    [
        "xyzzy { }",
        "max_batch_size: 99999999999",
        "{",
        "input #{ }",
        'input { name: "a"\noutput { }',
    ],
)
def test_what_nobody_can_know_stays(text: str) -> None:
    found, repairs = repair_text(text, "config.pbtxt")

    assert found is None
    assert not repairs[-1].is_repaired
    assert repairs[-1].line >= 1


def test_right_text_has_no_mistakes() -> None:
    assert repair_text('name: "m"\n', "config.pbtxt") == ('name: "m"\n', [])
