"""What a check found, as values, as text for people, as JSON and as JUnit XML for machines."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum
from xml.etree.ElementTree import Element, SubElement, tostring

from rich.console import Console
from rich.text import Text

from naiad.check.config_table import ConfigRow, print_config
from naiad.check.trial import Run
from naiad.model_config.diagnose import Finding, format_finding
from naiad.printable import file_text, xml_text


class ExitCode(IntEnum):
    """Exit status of ``naiad check``."""

    CLEAN = 0
    FINDINGS = 1
    COULD_NOT_RUN = 2


@dataclass(frozen=True, slots=True)
class ReportedFinding:
    """A finding at its place.

    Attributes:
        code: short and stable.
        file: path, as the repository was named.
        line: from 1.
        column: from 1.
        problem: what is wrong.
        why: what shows it.
        block: the corrected text to paste; "" where none can be known.
        is_fixable: ``--fix`` writes the block.
        is_fixed: ``--fix`` has written it.
    """

    code: str
    file: str
    line: int
    column: int
    problem: str
    why: str
    block: str
    is_fixable: bool
    is_fixed: bool = False

    def place(self) -> str:
        """``path:line:column``, which terminals and editors make a link of."""
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class ModelReport:
    """One model.

    Attributes:
        model: name.
        findings: in the order in which they were found.
        rows: of its config, side by side.
        runs: of the config with the corrections.
        could_not_run: why nothing was run, though nothing speaks against the model; else "".
        log: warnings and errors of its loads and runs, such as tracebacks, each once.
    """

    model: str
    findings: Sequence[ReportedFinding]
    rows: Sequence[ConfigRow] = ()
    runs: Sequence[Run] = ()
    could_not_run: str = ""
    log: Sequence[str] = ()

    def open_findings(self) -> list[ReportedFinding]:
        """Those that are not fixed."""
        return [finding for finding in self.findings if not finding.is_fixed]


@dataclass(frozen=True, slots=True)
class Report:
    """All models of one check."""

    models: Sequence[ModelReport]

    def exit_code(self) -> ExitCode:
        """Findings outweigh what could not be run; nothing to check is no clean repository."""
        if any(model.open_findings() for model in self.models):
            return ExitCode.FINDINGS
        if not self.models or any(model.could_not_run for model in self.models):
            return ExitCode.COULD_NOT_RUN
        return ExitCode.CLEAN

    def to_json(self) -> str:
        """The whole report."""
        document = {
            "exit_code": int(self.exit_code()),
            "models": [asdict(model) for model in self.models],
        }
        return file_text(json.dumps(document, indent=2, ensure_ascii=False)) + "\n"

    def to_junit(self) -> str:
        """A test case for each model, which fails with its findings."""
        suite = Element("testsuite", name="naiad check", tests=str(len(self.models)))
        failures = [model for model in self.models if model.open_findings()]
        suite.set("failures", str(len(failures)))
        suite.set("errors", "0")
        suite.set("skipped", str(sum(bool(model.could_not_run) for model in self.models)))
        for model in self.models:
            case = SubElement(suite, "testcase", classname="naiad.check", name=model.model)
            for finding in model.open_findings():
                failure = SubElement(case, "failure", type=finding.code)
                failure.set("message", f"{finding.place()}: {finding.problem}")
                failure.text = "\n".join(_lines(finding))
            if model.could_not_run:
                SubElement(case, "skipped", message=model.could_not_run)
            if model.log:
                SubElement(case, "system-err").text = "\n".join(model.log)
        text = xml_text(tostring(suite, encoding="unicode"))
        return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'


def print_report(report: Report, console: Console) -> None:
    """For each model: its config side by side, its runs, and what is wrong with it."""
    for model in report.models:
        console.print(Text(f"model {model.model}", style="bold"), soft_wrap=True)
        if model.rows:
            print_config(model.rows, console)
        for line in describe_runs(model.runs):
            console.print(Text(line), soft_wrap=True)
        for finding in model.findings:
            console.print()
            # The place has a line of its own that is never broken, so that it can be clicked.
            place, *lines = _lines(finding)
            console.print(Text(place, style="bold"), soft_wrap=True)
            for text in lines:
                console.print(Text(text), soft_wrap=True)
        for message in model.log:
            console.print()
            console.print(Text(f"logged: {message}", style="dim"), soft_wrap=True)
        if model.could_not_run:
            console.print(Text(f"not run: {model.could_not_run}", style="bold red"), soft_wrap=True)
        console.print()
    console.print(Text(_summary(report), style="bold"), soft_wrap=True)


def describe_runs(runs: Sequence[Run]) -> Iterator[str]:
    """One line for each execution."""
    for run in runs:
        size = f"batch {run.batch_size}" if run.batch_size else "without batch axis"
        if run.error:
            told = "ran {}: FAILED" if run.is_tried else "not run {}"
            yield f"{told.format(size)}: {run.error.splitlines()[0]}"
            continue
        inputs = ", ".join(f"{name} {list(shape)}" for name, shape in run.inputs.items())
        outputs = ", ".join(f"{name} {list(shape)}" for name, shape in run.outputs.items())
        yield f"ran {size}: {inputs} -> {outputs}"


def _lines(finding: ReportedFinding) -> list[str]:
    plain = Finding(
        finding.code,
        finding.problem,
        finding.why,
        block=finding.block,
        is_fixable=finding.is_fixable,
    )
    return format_finding(plain, finding.place(), " (fixed)" if finding.is_fixed else "")


def _summary(report: Report) -> str:
    findings = [finding for model in report.models for finding in model.findings]
    fixed = sum(finding.is_fixed for finding in findings)
    fixable = sum(finding.is_fixable and not finding.is_fixed for finding in findings)
    text = f"{_count(len(report.models), 'model')}, {_count(len(findings), 'finding')}"
    if fixed:
        text += f", {fixed} fixed"
    if fixable:
        text += f", {fixable} that --fix corrects"
    return text


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
