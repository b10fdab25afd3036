"""What the command prints of several formats."""

import io
from pathlib import Path

from rich.console import Console

from naiad.cli.export_report import print_formats
from naiad.exporter.agreement import CaseDifference
from naiad.exporter.result import ExportResult
from naiad.exporter.several import FormatsResult


def result(form: str, *notes: str) -> ExportResult:
    difference = CaseDifference("example", "y", 0.5, equal=True, detail="")
    return ExportResult(
        f"net_{form}", 3, Path("models") / f"net_{form}" / "3", form, "", 8, (), (),
        {f"model.{form}": 1234, "naiad.json": 9}, (difference,), notes, 1_500_000,
    )  # fmt: skip


def test_what_is_so_in_every_format_is_said_once() -> None:
    made = FormatsResult(
        (result("onnx", "all", "two", "one"), result("pt2", "all", "two"), result("aoti", "all")),
        {},
    )
    stream = io.StringIO()
    print_formats(Console(file=stream, width=80), "net", made)
    table, _, rest = stream.getvalue().partition("└")
    rows = [line.split("│") for line in table.splitlines() if "net_" in line]
    assert [[cell.strip() for cell in row[1:4]] for row in rows] == [
        ["onnx", "net_onnx 3", "1,234"],
        ["pt2", "net_pt2 3", "1,234"],
        ["aoti", "net_aoti 3", "1,234"],
    ]
    assert rest.splitlines()[1:] == [
        "- all",
        "- onnx, pt2: two",
        "- onnx: one",
        "Next: naiad serve models, and in another shell naiad infer net_onnx --example",
    ]
