"""The HTML report: whole, escaped and self-contained."""

from html.parser import HTMLParser

import numpy as np

from naiad.inference.comparison import EXACT, Tolerance, compare
from naiad.repository.golden import GoldenCase
from naiad.verify.explanation import Cause, Explanation
from naiad.verify.page import format_page
from naiad.verify.plots import PlotCollector, decades
from naiad.verify.report import ModelReport, Report, Row, Verdict

_VOID = {"meta"}


class Outline(HTMLParser):
    """The elements that are open, the attributes that load something, and the text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in _VOID:
            self.open.append(tag)
        self.loads.extend(name for name, _ in attrs if name in {"src", "href", "srcset"})

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def make_report(actual: float = 2.5) -> Report:
    expected = np.array([[1.0, 2.0]], np.float32)
    found = np.array([[1.0, actual]], np.float32)
    case = GoldenCase("c", 1, "made up", {}, {"y": expected})
    collector = PlotCollector({"y": "FP32"})
    collector.add("served, <HTTP>", [(case, {"y": found})])
    difference = compare("y", expected, found, "FP32", EXACT)
    rows = [
        Row("served, <HTTP>", "1", [difference], False, Verdict.DIFFERENT, "a <note>", 1.25),
        Row("served, gRPC", "1", [], None, Verdict.SKIPPED, "none"),
    ]
    cause = Explanation(Cause.ROUNDING, "served", "reduced <precision>")
    model = ModelReport(
        "m", 1, "model.onnx", rows=rows, causes=[cause], plots=collector.plots(),
        tolerances={"y": Tolerance(1e-4, 1e-5)}, noise={"y": 1e-7}, batch_sizes={2: 1},
        problems=["hash <x>"],
    )  # fmt: skip
    return Report([model], ["without golden cases"])


def outline(page: str) -> Outline:
    found = Outline()
    found.feed(page)
    return found


def test_every_element_is_closed_and_nothing_is_loaded() -> None:
    page = format_page(make_report())
    found = outline(page)
    assert found.open == []
    assert found.loads == []
    assert "script" not in found.tags
    assert found.tags.count("svg") == 3
    assert "url(" not in page
    assert "@import" not in page


def test_what_is_quoted_stays_text() -> None:
    text = outline(format_page(make_report())).text
    for piece in ("served, <HTTP>", "a <note>", "reduced <precision>", "hash <x>"):
        assert piece in text
    for piece in ("Something differs", "1 different, 1 skipped", "1.25 ms", "without golden"):
        assert piece in text


def test_numbers_that_are_not_finite_are_drawn_around() -> None:
    page = format_page(make_report(float("inf")))
    assert outline(page).open == []
    assert "nan" not in page.lower().replace("naiad", "")


def test_a_report_without_rows_says_why() -> None:
    page = format_page(Report([ModelReport("m", 1, could_not_run="no server")]))
    assert "no server" in outline(page).text
    assert "Could not be verified" in page


def test_a_histogram_counts_every_element_by_its_decade() -> None:
    expected = np.array([0, 1, 2, 3, 4], np.float64)
    errors = np.array([0, 2e-5, 1e-20, 1e9, np.inf])
    case = GoldenCase("c", 0, "made up", {}, {"y": expected})
    collector = PlotCollector({"y": "FP64"})
    collector.add("hop", [(case, {"y": expected + errors})])
    (plot,) = collector.plots()
    counted = {key: count for key, count in plot.histogram.items() if count}
    # 1e-20 is lost in the sum with 2.
    assert counted == {"0": 2, "1e-5": 1, "1e1": 2}
    assert list(plot.histogram) == decades()
    assert all(np.isfinite(point).all() for point in plot.points)


def test_a_cause_is_named_once_and_exact_is_said_so() -> None:
    cause = Explanation(Cause.SWAPPED_INPUTS, "h", "swapped inputs: with them back it is right")
    model = ModelReport("m", 1, causes=[cause], tolerances={"best": EXACT})
    text = outline(format_page(Report([model]))).text
    assert text.count("swapped inputs") == 1
    assert "with them back it is right" in text
    assert "the same value" in text
