import io
import json
from dataclasses import replace
from xml.etree.ElementTree import fromstring

import numpy as np
import pytest
from rich.console import Console

from naiad.inference.comparison import EXACT, compare
from naiad.verify.artifact import ARTIFACT_HOP
from naiad.verify.engine_hop import ENGINE_HOP, ENGINE_MIXED_HOP
from naiad.verify.explanation import Cause, Explanation
from naiad.verify.hops import ConcurrentHop, Transport
from naiad.verify.page import format_page
from naiad.verify.proof import RELOADED_HOP
from naiad.verify.report import (
    TABLE_WIDTH,
    ExitCode,
    ModelReport,
    Report,
    Row,
    Verdict,
    merge_notes,
    print_report,
)


def row(verdict: Verdict, actual: float = 1.0, note: str = "") -> Row:
    expected = np.array([1.0], dtype=np.float32)
    difference = compare("y", expected, np.array([actual], dtype=np.float32), "FP32", EXACT)
    return Row("exported file alone", "2", [difference], None, verdict, note)


def report(*rows: Row, could_not_run: str = "", problems: tuple[str, ...] = ()) -> Report:
    model = ModelReport(
        "m", 1, "model.onnx", problems=problems, rows=rows, could_not_run=could_not_run
    )
    return Report([model])


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (report(row(Verdict.EQUAL), row(Verdict.EQUAL)), "Every hop holds: 2 equal"),
        (report(row(Verdict.EQUAL), row(Verdict.SKIPPED)), "Every hop holds: 1 equal, 1 skipped"),
        (report(row(Verdict.EQUAL), row(Verdict.DIFFERENT)), "Something differs: 1 equal, 1 diff"),
        (report(could_not_run="no"), "Could not be verified: nothing was compared"),
    ],
)
def test_the_last_line_says_how_it_went(found: Report, told: str) -> None:
    out = io.StringIO()
    print_report(found, Console(file=out, width=80))
    assert out.getvalue().splitlines()[-1].startswith(told)


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (report(row(Verdict.EQUAL)), ExitCode.EQUAL),
        (report(row(Verdict.EQUAL), row(Verdict.SKIPPED)), ExitCode.EQUAL),
        (report(row(Verdict.EQUAL), row(Verdict.DIFFERENT)), ExitCode.DIFFERENT),
        (report(row(Verdict.FAILED)), ExitCode.DIFFERENT),
        (report(row(Verdict.EQUAL), problems=("hash",)), ExitCode.DIFFERENT),
        (report(could_not_run="no file"), ExitCode.COULD_NOT_RUN),
        (report(row(Verdict.DIFFERENT), could_not_run="no server"), ExitCode.DIFFERENT),
        (Report([]), ExitCode.COULD_NOT_RUN),
    ],
)
def test_exit_code(found: Report, code: ExitCode) -> None:
    assert found.exit_code() == code


def test_one_bad_model_decides_for_all() -> None:
    good, bad = report(row(Verdict.EQUAL)), report(row(Verdict.DIFFERENT))
    assert Report([*good.models, *bad.models]).exit_code() == ExitCode.DIFFERENT


def test_json_has_the_numbers_and_stays_json_with_infinities() -> None:
    document = json.loads(report(row(Verdict.DIFFERENT, actual=float("nan"))).to_json())
    assert document["exit_code"] == 1
    (found,) = document["models"][0]["rows"]
    assert found["verdict"] == "DIFFERENT"
    assert found["differences"][0]["max_abs"] == "inf"
    assert found["batch"] == "2"


def test_the_table_shows_hop_batch_numbers_and_verdict() -> None:
    out = io.StringIO()
    print_report(
        report(row(Verdict.DIFFERENT, actual=1.5, note="see [here]")),
        Console(file=out, width=140),
    )
    text = out.getvalue()
    for piece in ("m 1", "exported file alone", "5.0e-01", "DIFFERENT"):
        assert piece in text
    # Square brackets of an error text are text, not markup.
    assert "see [here]" in text


def test_one_note_is_told_once_for_all_batches() -> None:
    rows = [replace(row(Verdict.FAILED, note="no such op"), batch=batch) for batch in ("1", "2")]
    assert merge_notes(rows) == ["exported file alone, batch 1, 2: no such op"]


def table_lines(found: Report) -> list[str]:
    out = io.StringIO()
    print_report(found, Console(file=out, width=TABLE_WIDTH))
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    lines = lines[: lines.index("")]
    assert max(map(len, lines)) <= TABLE_WIDTH
    return lines


@pytest.mark.parametrize(
    "hop",
    [ENGINE_HOP, ENGINE_MIXED_HOP, ARTIFACT_HOP, "PyTorch eager again", RELOADED_HOP,
     ConcurrentHop.name, *Transport],
)  # fmt: skip
def test_the_table_fits_into_80_columns_and_has_one_line_for_a_hop(hop: str) -> None:
    different = row(Verdict.DIFFERENT, actual=1.001)
    rows = [
        replace(different, batch=batch, hop=hop, same_bits=False, latency_ms=1234.5)
        for batch in ("1", "2", "3", "128")
    ]
    found = [line for line in table_lines(report(*rows)) if line.startswith(hop)]
    assert [line.removeprefix(hop).split() for line in found] == [
        ["1,2,3,128", "1.0e-03", "1.0e-03", "8389", "-", "NO", "1234.50", "DIFFERENT"]
    ]


def test_many_batch_sizes_take_more_lines_and_none_is_cut() -> None:
    batches = ["1", "2", "3", "16", "64", "1024", "65536"]
    lines = table_lines(report(*[replace(row(Verdict.EQUAL), batch=batch) for batch in batches]))
    start = next(i for i, line in enumerate(lines) if line.startswith("exported file alone"))
    cells = [line[len("exported file alone") :].split()[0] for line in lines[start : start + 3]]
    assert "".join(cells) == ",".join(batches)
    assert [cell.strip(",").split(",") for cell in cells] == [
        ["1", "2", "3", "16"], ["64", "1024"], ["65536"],
    ]  # fmt: skip


def test_a_long_model_name_is_whole_and_leaves_the_table_alone() -> None:
    model = ModelReport("m" * 90, 1, rows=[row(Verdict.EQUAL)])
    out = io.StringIO()
    print_report(Report([model]), Console(file=out, width=TABLE_WIDTH))
    lines = out.getvalue().splitlines()
    assert lines[0] == f"{'m' * 90} 1, differences from eager PyTorch:"
    assert any(line.startswith("exported file alone ") for line in lines)


def test_junit_has_a_case_for_each_row_and_the_cause_with_each_failure() -> None:
    cause = Explanation(Cause.SWAPPED_INPUTS, "exported file alone", "inputs are swapped: <a>")
    model = ModelReport(
        "m", 1, rows=[row(Verdict.EQUAL), row(Verdict.DIFFERENT, 2.0), row(Verdict.SKIPPED)],
        causes=[cause], problems=["hash"], could_not_run="no server",
    )  # fmt: skip
    suites = fromstring(Report([model], ["other"]).to_junit())
    first, second = suites
    counts = {name: first.get(name) for name in ("tests", "failures", "skipped", "errors")}
    assert counts == {"tests": "5", "failures": "2", "skipped": "1", "errors": "1"}
    (failure, _) = first.iter("failure")
    assert failure.text == "inputs are swapped: <a>"
    assert "2 instead of 1" in (failure.get("message") or "")
    assert second.get("name") == "other"


def test_a_harmless_cause_is_a_note() -> None:
    out = io.StringIO()
    causes = [
        Explanation(Cause.TIE_ORDER, "h", "tie order: both are right"),
        Explanation(Cause.UNEXPLAINED, "h", "unexplained: numbers"),
    ]
    print_report(Report([ModelReport("m", 1, causes=causes)]), Console(file=out, width=80))
    assert "note: tie order" in out.getvalue()
    assert "cause: unexplained" in out.getvalue()


def test_reports_for_machines_hold_any_error_of_a_model() -> None:
    said = "\x1b[31mno\x00 file \udcff\ufffe\x0b"
    found = report(row(Verdict.FAILED, note=said), could_not_run=said, problems=(said,))
    for text in (found.to_junit(), found.to_json(), format_page(found)):
        text.encode("utf-8")
    suite = fromstring(found.to_junit()).find("testsuite")
    assert suite is not None
    assert [failure.get("message") for failure in suite.iter("error")] == [
        "\ufffd[31mno\ufffd file \ufffd\ufffd\ufffd"
    ]
    document = json.loads(found.to_json())
    assert document["models"][0]["could_not_run"] == "\x1b[31mno\x00 file \ufffd\ufffe\x0b"
