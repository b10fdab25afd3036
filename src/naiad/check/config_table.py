"""The sides of a config, for a terminal: a table where it fits, else a list; no word is broken."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

_HEADINGS: Final = ("field", "effective", "declared", "inferred", "why")
_GAP: Final = 2
_SAME: Final = "same"
_NONE: Final = "-"
_SHAPE: Final = re.compile(r"\[[-\d, ]*\]")


@dataclass(frozen=True, slots=True)
class ConfigRow:
    """One field of a config as three sources have it; "" where one has it not.

    Attributes:
        field: such as ``input IN``.
        declared: in config.pbtxt.
        inferred: from the model file alone.
        effective: as it is served, with the corrections.
        why: where the effective value comes from.
    """

    field: str
    declared: str
    inferred: str
    effective: str
    why: str


def print_config(rows: Sequence[ConfigRow], console: Console) -> None:
    """What is served, and beside it what the file declares and the model implies, if it differs."""
    lines = [_cells(row) for row in rows]
    widths = fit_widths([_HEADINGS, *lines], console.width)
    if widths is None:
        _print_list(rows, console)
        return
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0))
    for heading, width in zip(_HEADINGS, widths, strict=True):
        table.add_column(heading, width=width)
    for row, cells in zip(rows, lines, strict=True):
        field, effective, *sides, why = cells
        # Text, since a tensor's name with square brackets is no markup.
        table.add_row(
            Text(field),
            Text(effective, style="bold green" if _is_corrected(row) else ""),
            *[Text(side, style="dim" if side in {_SAME, _NONE} else "") for side in sides],
            Text(why),
        )
    console.print(table)


def fit_widths(lines: Sequence[Sequence[str]], width: int) -> list[int] | None:
    """How wide each column is to be, so that cells are broken at spaces alone.

    Args:
        lines: the cells, headings included.
        width: of all columns and the gaps between them.

    Returns:
        Widths of the columns; None where the longest words alone are too wide.
    """
    columns = list(zip(*lines, strict=True))
    widths = [max(map(cell_len, column)) for column in columns]
    lowest = [max(cell_len(word) for cell in column for word in cell.split()) for column in columns]
    for _ in range(sum(widths) + _GAP * (len(widths) - 1) - width):
        spare = [wide - low for wide, low in zip(widths, lowest, strict=True)]
        widest = spare.index(max(spare))
        if not spare[widest]:
            return None
        widths[widest] -= 1
    return widths


def _cells(row: ConfigRow) -> tuple[str, ...]:
    sides = (row.declared, row.inferred)
    told = [_SAME if side and side == row.effective else _compact(side) for side in sides]
    return (row.field, _compact(row.effective), *told, row.why)


def _compact(value: str) -> str:
    # A shape is one word, which no line ends within.
    return _SHAPE.sub(lambda shape: shape[0].replace(" ", ""), value) or _NONE


def _is_corrected(row: ConfigRow) -> bool:
    return row.declared not in {"", row.effective}


def _print_list(rows: Sequence[ConfigRow], console: Console) -> None:
    for row in rows:
        field, effective, declared, inferred, why = _cells(row)
        style = "bold green" if _is_corrected(row) else ""
        console.print(
            Text.assemble((field, "bold"), ": ", (effective, style), f" ({why})"), soft_wrap=True
        )
        for heading, side in (("declared", declared), ("inferred", inferred)):
            if side not in {_SAME, _NONE}:
                console.print(Text(f"  {heading}: {side}", style="dim"), soft_wrap=True)
