"""The report as one page with plots, that needs neither network nor script."""

from collections.abc import Iterator, Sequence
from html import escape
from importlib import resources
from typing import Final

from naiad.inference.comparison import Difference, Tolerance, worst
from naiad.printable import file_text
from naiad.verify import charts
from naiad.verify.explanation import HARMLESS
from naiad.verify.report import (
    ExitCode,
    ModelReport,
    Report,
    Row,
    count_verdicts,
    describe_batches,
    format_count,
    format_number,
    merge_notes,
)

_CLASSES: Final = {
    ExitCode.EQUAL: "good",
    ExitCode.DIFFERENT: "bad",
    ExitCode.COULD_NOT_RUN: "unknown",
}


def format_page(report: Report) -> str:
    """HTML with its style and its plots inside; everything that is quoted is escaped."""
    style = resources.files(__package__).joinpath("page.css").read_text("utf-8")
    code = report.exit_code()
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>naiad verify: {report.title()}</title><style>{style}</style></head><body><main>",
        f'<header class="{_CLASSES[code]}"><p class="tool">naiad verify</p>'
        f"<h1>{report.title()}</h1><p>{_summary(report)}</p></header>",
        *(_model(model) for model in report.models),
    ]
    if report.unverified:
        names = ", ".join(escape(name) for name in report.unverified)
        parts.append(f'<p class="quiet">Without golden cases, so not verified: {names}</p>')
    return file_text("\n".join([*parts, "</main></body></html>\n"]))


def _summary(report: Report) -> str:
    names = ", ".join(f"{escape(m.model)} {m.version}" for m in report.models)
    return f"{names}: {count_verdicts(report)}"


def _model(model: ModelReport) -> str:
    code = model.exit_code()
    parts = [
        f'<section><h2><span class="mark {_CLASSES[code]}"></span>{escape(model.model)} '
        f"<small>version {model.version}, {escape(model.artifact)}</small></h2>",
        *_findings(model),
    ]
    if model.rows:
        parts.append(_hop_table(model.rows))
    if model.plots:
        parts.append('<div class="plots">')
        parts.append(_figure("Absolute error by hop", charts.error_histogram(model.plots)))
        parts.append(_figure("Latency by hop, fastest request", charts.latency(model.rows)))
        parts.append(_figure("Expected and answered values", charts.scatter(model.plots)))
        parts.append("</div>")
    parts.append(_tolerance_table(model))
    notes = merge_notes(model.rows)
    if model.batch_sizes is not None:
        notes.append(describe_batches(model.batch_sizes))
    if notes:
        items = "".join(f"<li>{escape(note)}</li>" for note in notes)
        parts.append(f'<h3>Notes</h3><ul class="quiet">{items}</ul>')
    return "\n".join([*parts, "</section>"])


def _findings(model: ModelReport) -> Iterator[str]:
    if model.could_not_run:
        yield f'<p class="finding unknown"><b>not verified</b> {escape(model.could_not_run)}</p>'
    for problem in model.problems:
        yield f'<p class="finding bad"><b>file</b> {escape(problem)}</p>'
    for found in model.causes:
        kind = "known" if found.cause in HARMLESS else "bad"
        # The label has said it.
        told = found.sentence.removeprefix(f"{found.cause}: ")
        yield f'<p class="finding {kind}"><b>{escape(found.cause)}</b> {escape(told)}</p>'


def _figure(title: str, drawing: str) -> str:
    return f"<figure><figcaption>{title}</figcaption>{drawing}</figure>"


def _hop_table(rows: Sequence[Row]) -> str:
    headings = (
        "hop", "batch", "max abs", "max rel", "ULP", "cosine", "top-1", "top-5", "bits", "ms",
        "verdict",
    )  # fmt: skip
    head = "".join(f"<th>{heading}</th>" for heading in headings)
    body = []
    previous = ""
    for row in rows:
        cells = [row.hop if row.hop != previous else "", row.batch, *_numbers(row)]
        previous = row.hop
        cells.append("" if row.latency_ms is None else f"{row.latency_ms:.2f}")
        filled = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        mark = f'<td><span class="verdict {row.verdict.lower()}">{row.verdict.lower()}</span></td>'
        start = ' class="first"' if cells[0] else ""
        body.append(f"<tr{start}>{filled}{mark}</tr>")
    return (
        f'<div class="scroll"><table class="hops"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _numbers(row: Row) -> list[str]:
    found = row.differences
    if not found:
        return [""] * 7
    ulps = [d.max_ulp for d in found if d.max_ulp is not None]
    cosines = [d.cosine for d in found if d.cosine is not None]
    return [
        format_number(max(d.max_abs for d in found)),
        format_number(max(d.max_rel for d in found)),
        format_count(max(ulps)) if ulps else "",
        f"{min(cosines):.7f}" if cosines else "",
        _agreement([d.same_top1 for d in found]),
        _agreement([d.same_top5 for d in found]),
        _agreement([row.same_bits]),
    ]


def _agreement(answers: Sequence[bool | None]) -> str:
    known = [answer for answer in answers if answer is not None]
    if not known:
        return ""
    return "same" if all(known) else "other"


def _tolerance_table(model: ModelReport) -> str:
    if not model.tolerances:
        return ""
    rows = []
    for name, tolerance in model.tolerances.items():
        found = [d for row in model.rows for d in row.differences if d.output == name]
        noise = model.noise.get(name)
        cells = [
            name, _within(tolerance),
            "" if noise is None else format_number(noise), *_worst_cells(found),
        ]  # fmt: skip
        rows.append(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>")
    headings = ("output", "equal within", "eager from FP64", "worst at", "expected", "answered")
    head = "".join(f"<th>{heading}</th>" for heading in headings)
    return (
        '<h3>Outputs</h3><div class="scroll"><table><thead>'
        f"<tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _within(tolerance: Tolerance) -> str:
    if tolerance.atol == tolerance.rtol == 0:
        return "the same value"
    return f"{tolerance.atol:.1e} + {tolerance.rtol:.1e} of the value"


def _worst_cells(found: Sequence[Difference]) -> list[str]:
    placed = [d for d in found if d.worst_index is not None and d.expected_value is not None]
    if not placed:
        return ["nothing differs" if found else "", "", ""]
    chosen = worst(placed)
    return [
        str(list(chosen.worst_index or ())),
        f"{chosen.expected_value:.9g}",
        f"{chosen.actual_value:.9g}",
    ]
