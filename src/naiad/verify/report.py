"""What a verification found, as values, as a table for people and as JSON for machines."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum, StrEnum
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from naiad.inference.comparison import Difference, worst


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
        note: the reason for any other verdict, else "".
    """

    hop: str
    batch: str
    differences: Sequence[Difference]
    same_bits: bool | None
    verdict: Verdict
    note: str = ""

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
        causes: one sentence for each cause that an experiment showed, or "unexplained: ...".
        batch_sizes: rows in an executed batch -> how many such batches the server ran for the
            concurrent clients.
        could_not_run: why nothing was compared, else "".
    """

    model: str
    version: int
    artifact: str = ""
    problems: Sequence[str] = ()
    rows: Sequence[Row] = ()
    causes: Sequence[str] = ()
    batch_sizes: Mapping[int, int] | None = None
    could_not_run: str = ""

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

    def to_json(self) -> str:
        """The whole report; infinite differences are the string ``"inf"``, since JSON has none."""
        document = {
            "exit_code": int(self.exit_code()),
            "models": [_model(model) for model in self.models],
            "unverified": list(self.unverified),
        }
        return json.dumps(_finite(document), indent=2, allow_nan=False) + "\n"


def print_report(report: Report, console: Console) -> None:
    """One table, then every model's problems, notes and causes."""
    if any(model.rows for model in report.models):
        console.print("Differences from eager PyTorch:")
        console.print(build_table(report.models))
    for model in report.models:
        _print_findings(model, console)
    if report.unverified:
        names = ", ".join(report.unverified)
        text = f"not verified, because 'naiad export' wrote no golden cases for them: {names}"
        console.print(Text(text, style="dim"), soft_wrap=True)


def build_table(models: Sequence[ModelReport]) -> Table:
    """Hop, batch, the two differences from eager PyTorch, top-1, bits and verdict.

    It fits into 80 columns, so that a continuous-integration log shows it whole.
    """
    table = Table(box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    table.add_column("hop")
    for heading in ("batch", "max abs\ndiff", "max rel\ndiff"):
        table.add_column(heading, justify="right", no_wrap=True)
    for heading in ("same\ntop-1", "same\nbits"):
        table.add_column(heading, justify="center", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for model in (model for model in models if model.rows):
        table.add_row(Text(f"{model.model} {model.version}", style="bold"))
        for row in model.rows:
            table.add_row(*_cells(row))
        table.add_section()
    return table


def _cells(row: Row) -> tuple[str | Text, ...]:
    style = {"equal": "green", "skipped": "dim"}.get(row.verdict, "bold red")
    verdict = Text(row.verdict.value, style=style)
    found = row.worst()
    if found is None:
        return row.hop, row.batch, "-", "-", "-", "-", verdict
    top1 = [d.same_top1 for d in row.differences if d.same_top1 is not None]
    return (
        row.hop,
        row.batch,
        format_number(max(d.max_abs for d in row.differences)),
        format_number(max(d.max_rel for d in row.differences)),
        _yes_or_no(all(top1) if top1 else None),
        _yes_or_no(row.same_bits),
        verdict,
    )


def _print_findings(model: ModelReport, console: Console) -> None:
    label = f"{model.model} {model.version}"
    findings: list[tuple[str, str]] = [("bold red", problem) for problem in model.problems]
    findings.extend(
        ("bold", f"{row.hop}, batch {row.batch}: {row.note}") for row in model.rows if row.note
    )
    findings.extend(("bold red", f"cause: {cause}") for cause in model.causes)
    if model.batch_sizes is not None:
        findings.append(("dim", describe_batches(model.batch_sizes)))
    if model.could_not_run:
        findings.append(("bold red", f"could not be verified: {model.could_not_run}"))
    for style, text in findings:
        # Text, not markup: messages of libraries are full of square brackets.
        console.print(Text.assemble((f"{label}: ", style), text), soft_wrap=True)


def describe_batches(batch_sizes: Mapping[int, int]) -> str:
    """How the server executed the concurrent clients' requests, from its own statistics."""
    parts = [f"{count} of {size}" for size, count in sorted(batch_sizes.items())]
    return f"executed batches of the concurrent clients: {', '.join(parts)} rows"


def format_number(value: float) -> str:
    """0, inf, or three digits with an exponent."""
    return "0" if value == 0 else f"{value:.2e}"


def _yes_or_no(answer: bool | None) -> str:  # noqa: FBT001  # a cell's value, not a switch
    return {True: "yes", False: "NO", None: "-"}[answer]


def _model(model: ModelReport) -> dict[str, Any]:
    return {**asdict(model), "exit_code": int(model.exit_code())}


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and value in {float("inf"), float("-inf")}:
        return str(value)
    return value
