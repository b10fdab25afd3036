"""What a verification found, as values, as a table for people and as JSON for machines."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import IntEnum, StrEnum
from typing import Any, Final
from xml.etree.ElementTree import Element, SubElement, tostring

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from naiad.inference.comparison import Difference, Tolerance, worst
from naiad.printable import file_text, xml_text
from naiad.verify.explanation import HARMLESS, Explanation
from naiad.verify.plots import Plot

TABLE_WIDTH: Final = 80
# Of a table's column: up to four batch sizes of one digit, or three and one of three.
_BATCH_WIDTH: Final = 9


class ExitCode(IntEnum):
    """Exit status of ``naiad verify``."""

    EQUAL = 0
    DIFFERENT = 1
    COULD_NOT_RUN = 2


class Verdict(StrEnum):
    """What one row says."""

    EQUAL = "equal"
    DIFFERENT = "DIFFERENT"
    FAILED = "FAILED"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Row:
    """One hop at one batch size.

    Attributes:
        hop: which.
        batch: rows of the case, or text for a mix of them.
        differences: against eager PyTorch's golden outputs, one for each output; empty where
            the hop gave no answer.
        same_bits: the served outputs are bit for bit those of the file alone; None where that
            isn't asked (the file itself, mixed batches).
        verdict: equal only where every rule of the hop holds.
        note: the reason for any other verdict, or what to know about an equal one; else "".
        latency_ms: of the fastest request; None where none was timed.
        is_noisy: equal only by the tolerance of depth or FP64, not by the datatype's.
    """

    hop: str
    batch: str
    differences: Sequence[Difference]
    same_bits: bool | None
    verdict: Verdict
    note: str = ""
    latency_ms: float | None = None
    is_noisy: bool = False

    def worst(self) -> Difference | None:
        """The output that decides, or None without an answer."""
        return worst(self.differences) if self.differences else None


@dataclass(frozen=True, slots=True)
class ModelReport:
    """One model version.

    Attributes:
        model: name.
        version: number.
        artifact: name of the model file.
        problems: what is wrong with the files themselves (hashes of the manifest).
        rows: every hop at every batch size, in the order of the hops.
        causes: each cause that an experiment showed, or one that is unexplained; and what sets
            equal answers apart.
        batch_sizes: rows in an executed batch -> how many such batches the server ran for the
            concurrent clients.
        could_not_run: why nothing was compared, else "".
        tolerances: output name -> what counted as equal.
        noise: output name -> how far eager PyTorch is from the same model in FP64, where known.
        plots: of each hop that answered, for the page; JSON has their histograms.
    """

    model: str
    version: int
    artifact: str = ""
    problems: Sequence[str] = ()
    rows: Sequence[Row] = ()
    causes: Sequence[Explanation] = ()
    batch_sizes: Mapping[int, int] | None = None
    could_not_run: str = ""
    tolerances: Mapping[str, Tolerance] = field(default_factory=dict)
    noise: Mapping[str, float] = field(default_factory=dict)
    plots: Sequence[Plot] = ()

    def exit_code(self) -> ExitCode:
        """Of this model alone."""
        bad = {Verdict.DIFFERENT, Verdict.FAILED}
        if self.problems or any(row.verdict in bad for row in self.rows):
            return ExitCode.DIFFERENT
        return ExitCode.COULD_NOT_RUN if self.could_not_run else ExitCode.EQUAL


@dataclass(frozen=True, slots=True)
class Report:
    """All model versions of one verification.

    Attributes:
        models: what was verified.
        unverified: names of the repository's other models, which have no golden cases.
    """

    models: Sequence[ModelReport]
    unverified: Sequence[str] = ()

    def exit_code(self) -> ExitCode:
        """A difference outweighs a model that could not run; nothing to verify is no proof."""
        codes = {model.exit_code() for model in self.models}
        for code in (ExitCode.DIFFERENT, ExitCode.COULD_NOT_RUN):
            if code in codes:
                return code
        return ExitCode.EQUAL if codes else ExitCode.COULD_NOT_RUN

    def title(self) -> str:
        """The outcome in three words or so."""
        return {
            ExitCode.EQUAL: "Every hop holds",
            ExitCode.DIFFERENT: "Something differs",
            ExitCode.COULD_NOT_RUN: "Could not be verified",
        }[self.exit_code()]

    def to_json(self) -> str:
        """The whole report; infinite differences are the string ``"inf"``, since JSON has none."""
        document = {
            "exit_code": int(self.exit_code()),
            "models": [_model(model) for model in self.models],
            "unverified": list(self.unverified),
        }
        text = json.dumps(_finite(document), indent=2, allow_nan=False, ensure_ascii=False)
        return file_text(text) + "\n"

    def to_junit(self) -> str:
        """A test suite for each model version, a test case for each row."""
        suites = Element("testsuites", name="naiad verify")
        for model in self.models:
            _add_suite(suites, model)
        for name in self.unverified:
            suite = SubElement(suites, "testsuite", name=name, tests="1", skipped="1")
            case = SubElement(suite, "testcase", classname=name, name="verify")
            SubElement(case, "skipped", message="naiad export wrote no golden cases for it")
        text = xml_text(tostring(suites, encoding="unicode"))
        return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'


def print_report(report: Report, console: Console) -> None:
    """A table for each model, then all problems, notes and causes, and at last the outcome.

    Args:
        report: to print.
        console: of at least ``TABLE_WIDTH`` columns; a narrower one would hide numbers.
    """
    for model in report.models:
        if model.rows:
            title = Text.assemble(
                (f"{model.model} {model.version}", "bold"), ", differences from eager PyTorch:"
            )
            console.print(title, soft_wrap=True)
            console.print(build_table(model))
            console.print()
    for model in report.models:
        _print_findings(model, console)
    if report.unverified:
        names = ", ".join(report.unverified)
        text = f"not verified, because 'naiad export' wrote no golden cases for them: {names}"
        console.print(Text(text, style="dim"), soft_wrap=True)
    style = "bold green" if report.exit_code() == ExitCode.EQUAL else "bold red"
    outcome = Text.assemble((report.title(), style), f": {count_verdicts(report)}")
    console.print(outcome, soft_wrap=True)


def count_verdicts(report: Report) -> str:
    """How many comparisons came to each verdict, a hop at a batch size being one."""
    rows = [row for model in report.models for row in model.rows]
    counts = {verdict: sum(row.verdict is verdict for row in rows) for verdict in Verdict}
    told = [f"{count} {verdict.lower()}" for verdict, count in counts.items() if count]
    return ", ".join(told) or "nothing was compared"


def build_table(model: ModelReport) -> Table:
    """A row for each hop and verdict: batches, differences from eager PyTorch, latency.

    The numbers are the worst over the batch sizes, the latency the least. It fits into
    ``TABLE_WIDTH`` columns, so that a continuous-integration log shows it whole, a line for a hop.
    """
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=0)
    table.add_column("hop")
    table.add_column("batch", no_wrap=True)
    for heading in ("max abs\ndiff", "max rel\ndiff", "ULP"):
        table.add_column(heading, justify="right", no_wrap=True)
    for heading in ("same\ntop-1", "same\nbits"):
        table.add_column(heading, justify="center", no_wrap=True)
    table.add_column("ms", justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    groups: dict[tuple[str, Verdict], list[Row]] = {}
    for row in model.rows:
        groups.setdefault((row.hop, row.verdict), []).append(row)
    for (hop, verdict), rows in groups.items():
        table.add_row(hop, _fold_batches(rows), *_cells(rows), _mark(verdict))
    return table


def _fold_batches(rows: Sequence[Row]) -> str:
    """Their batch sizes, on several lines where they are many; no number is cut in two."""
    lines = [""]
    for row in rows:
        if lines[-1] and len(lines[-1]) + len(row.batch) > _BATCH_WIDTH:
            lines.append("")
        lines[-1] += f"{row.batch},"
    return "\n".join(lines).rstrip(",")


def _mark(verdict: Verdict) -> Text:
    style = {"equal": "green", "skipped": "dim"}.get(verdict, "bold red")
    return Text(verdict.value, style=style)


def _cells(rows: Sequence[Row]) -> list[str]:
    found = [difference for row in rows for difference in row.differences]
    if not found:
        return ["-"] * 6
    ulps = [d.max_ulp for d in found if d.max_ulp is not None]
    latencies = [row.latency_ms for row in rows if row.latency_ms is not None]
    return [
        format_number(max(d.max_abs for d in found)),
        format_number(max(d.max_rel for d in found)),
        format_count(max(ulps)) if ulps else "-",
        _yes_or_no(_all_of([d.same_top1 for d in found])),
        _yes_or_no(_all_of([row.same_bits for row in rows])),
        f"{min(latencies):.2f}" if latencies else "-",
    ]


def _all_of(answers: Sequence[bool | None]) -> bool | None:
    known = [answer for answer in answers if answer is not None]
    return all(known) if known else None


def _print_findings(model: ModelReport, console: Console) -> None:
    label = f"{model.model} {model.version}"
    findings: list[tuple[str, str]] = [("bold red", problem) for problem in model.problems]
    findings.extend(("bold", note) for note in merge_notes(model.rows))
    findings.extend(
        ("dim", f"note: {found.sentence}")
        if found.cause in HARMLESS
        else ("bold red", f"cause: {found.sentence}")
        for found in model.causes
    )
    if model.batch_sizes is not None:
        findings.append(("dim", describe_batches(model.batch_sizes)))
    if model.could_not_run:
        findings.append(("bold red", f"could not be verified: {model.could_not_run}"))
    for style, text in findings:
        # Text, not markup: messages of libraries are full of square brackets.
        console.print(Text.assemble((f"{label}: ", style), text), soft_wrap=True)
    for difference in _worst_differences(model):
        text = f"{label}: {describe_difference(difference)}"
        console.print(Text(text, style="dim"), soft_wrap=True)


def merge_notes(rows: Sequence[Row]) -> list[str]:
    """What the rows have to say, each once, with the hop and the batch sizes that it is about."""
    batches: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.note:
            batches.setdefault((row.hop, row.note), []).append(row.batch)
    return [f"{hop}, batch {', '.join(sizes)}: {note}" for (hop, note), sizes in batches.items()]


def describe_difference(difference: Difference) -> str:
    """The numbers of one output that don't fit into the table."""
    parts = [f"output '{difference.output}'"]
    if difference.worst_index is not None and difference.expected_value is not None:
        place = list(difference.worst_index)
        parts.append(
            f"worst at {place}: {difference.actual_value:.9g} instead of "
            f"{difference.expected_value:.9g}"
        )
    if difference.max_ulp is not None:
        parts.append(f"{difference.max_ulp} ULP")
    if difference.cosine is not None:
        parts.append(f"cosine {difference.cosine:.9f}")
    if difference.same_top5 is not None:
        parts.append(f"same top-5: {_yes_or_no(difference.same_top5)}")
    return ", ".join(parts)


def _worst_differences(model: ModelReport) -> list[Difference]:
    """Of each output the largest difference of any hop, where it differs at all."""
    by_output: dict[str, list[Difference]] = {}
    for row in model.rows:
        for difference in row.differences:
            if not difference.same_bits and not difference.problem:
                by_output.setdefault(difference.output, []).append(difference)
    return [worst(differences) for differences in by_output.values()]


def describe_batches(batch_sizes: Mapping[int, int]) -> str:
    """How the server executed the concurrent clients' requests, from its own statistics."""
    parts = [f"{count} of {size}" for size, count in sorted(batch_sizes.items())]
    return f"executed batches of the concurrent clients: {', '.join(parts)} rows"


def format_count(value: int) -> str:
    """Whole up to four digits, with an exponent above."""
    return (
        str(value)
        if value < 10_000
        else f"{float(value):.0e}".replace("e+0", "e").replace("e+", "e")
    )


def format_number(value: float) -> str:
    """0, inf, or two digits with an exponent."""
    return "0" if value == 0 else f"{value:.1e}"


def _yes_or_no(answer: bool | None) -> str:  # noqa: FBT001  # a cell's value, not a switch
    return {True: "yes", False: "NO", None: "-"}[answer]


def _model(model: ModelReport) -> dict[str, Any]:
    document = asdict(model)
    document["plots"] = [{"hop": p.hop, "histogram": dict(p.histogram)} for p in model.plots]
    return {**document, "exit_code": int(model.exit_code())}


def _add_suite(suites: Element, model: ModelReport) -> None:
    name = f"{model.model}/{model.version}"
    failed = [row for row in model.rows if row.verdict in {Verdict.DIFFERENT, Verdict.FAILED}]
    skipped = [row for row in model.rows if row.verdict is Verdict.SKIPPED]
    extra = int(bool(model.could_not_run)) + int(bool(model.problems))
    suite = SubElement(
        suites, "testsuite", name=name, tests=str(len(model.rows) + extra),
        failures=str(len(failed) + int(bool(model.problems))), skipped=str(len(skipped)),
        errors=str(int(bool(model.could_not_run))),
    )  # fmt: skip
    causes = "\n".join(found.sentence for found in model.causes)
    for row in model.rows:
        case = SubElement(suite, "testcase", classname=name, name=f"{row.hop}, batch {row.batch}")
        if row.latency_ms is not None:
            case.set("time", f"{row.latency_ms / 1000:.6f}")
        if row in failed:
            found = row.worst()
            message = row.note or (describe_difference(found) if found else "")
            SubElement(case, "failure", type=row.verdict, message=message).text = causes
        elif row in skipped:
            SubElement(case, "skipped", message=row.note)
    if model.problems:
        case = SubElement(suite, "testcase", classname=name, name="files are those of the export")
        SubElement(case, "failure", message=model.problems[0]).text = "\n".join(model.problems)
    if model.could_not_run:
        case = SubElement(suite, "testcase", classname=name, name="verify")
        SubElement(case, "error", message=model.could_not_run)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
