import io
import json

import numpy as np
import pytest
from rich.console import Console

from naiad.inference.comparison import EXACT, compare
from naiad.verify.report import ExitCode, ModelReport, Report, Row, Verdict, print_report


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
    for piece in ("m 1", "exported file alone", "5.00e-01", "DIFFERENT"):
        assert piece in text
    # Square brackets of an error text are text, not markup.
    assert "see [here]" in text
