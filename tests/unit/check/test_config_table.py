"""A config's sides at any width: the numbers are whole, and no word is broken."""

import io
import re

import pytest
from rich.console import Console

from naiad.check.config_table import ConfigRow, fit_widths, print_config

ROWS = [
    ConfigRow("default_model_filename", "", "model.onnx", "model.onnx", "from the model"),
    ConfigRow("max_batch_size", "8", "4", "8", "as declared"),
    ConfigRow(
        "input a_name[0]",
        "TYPE_FP32 [-1, 3, 224, 224]",
        "TYPE_FP32 [3, 224, 224]",
        "TYPE_FP32 [3, 224, 224]",
        "corrected, as the model has it",
    ),
    ConfigRow("output gone", "TYPE_FP32 [1]", "", "", "taken out"),
]
WORDS = {
    "default_model_filename", "model.onnx", "from", "the", "model", "max_batch_size", "8", "4",
    "input", "a_name[0]", "[-1,3,224,224]", "TYPE_FP32", "[3,224,224]", "corrected,", "output",
    "gone", "[1]", "taken", "out", "has", "it", "declared",
}  # fmt: skip


def printed(width: int) -> list[str]:
    stream = io.StringIO()
    print_config(ROWS, Console(file=stream, width=width, color_system=None))
    return [line.rstrip() for line in stream.getvalue().splitlines()]


@pytest.mark.parametrize("width", range(20, 140, 5))
def test_no_word_is_broken_at_any_width(width: int) -> None:
    assert set(re.split(r"[\s():]+", " ".join(printed(width)))) >= WORDS


@pytest.mark.parametrize("width", [80, 120])
def test_it_is_a_table_where_there_is_room(width: int) -> None:
    lines = printed(width)
    assert max(map(len, lines)) <= width
    assert lines[0].split() == ["field", "effective", "declared", "inferred", "why"]
    assert lines[2].split()[:4] == ["default_model_filename", "model.onnx", "-", "same"]
    (batch,) = [line.split() for line in lines if line.startswith("max_batch_size")]
    assert batch == ["max_batch_size", "8", "same", "4", "as", "declared"]


def test_a_narrow_terminal_gets_a_list_with_what_differs() -> None:
    assert printed(40) == [
        "default_model_filename: model.onnx (from the model)",
        "max_batch_size: 8 (as declared)",
        "  inferred: 4",
        "input a_name[0]: TYPE_FP32 [3,224,224] (corrected, as the model has it)",
        "  declared: TYPE_FP32 [-1,3,224,224]",
        "output gone: - (taken out)",
        "  declared: TYPE_FP32 [1]",
    ]


def test_the_widest_column_gives_way_first_and_never_below_its_longest_word() -> None:
    lines = [["one two three", "a bb"], ["x", "four"]]
    assert fit_widths(lines, 80) == [13, 4]
    assert fit_widths(lines, 15) == [9, 4]
    assert fit_widths(lines, 11) == [5, 4]
    assert fit_widths(lines, 10) is None
