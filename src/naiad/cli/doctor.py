"""``naiad doctor``: can this machine export, serve and verify?"""

import sys

import click
from rich import box
from rich.table import Table
from rich.text import Text

from naiad.cli.console import make_console
from naiad.errors import InvalidArgumentError

_STYLES = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "bold red"}


@click.command("doctor")
@click.option(
    "--target",
    metavar="triton:RELEASE",
    help="A release of Triton, such as triton:24.10, that models are to move to.",
)
@click.option(
    "--port",
    "ports",
    type=click.IntRange(1, 65535),
    multiple=True,
    default=(8000, 8001, 8002),
    show_default=True,
    help="That a server is to listen on. Repeat it for each.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def doctor(*, target: str | None, ports: tuple[int, ...], as_json: bool) -> None:
    """Look at this machine, and say how to correct what is not right.

    Versions of Python, torch, onnx and onnxruntime against what Naiad needs and against a release
    of Triton, GPU driver and CUDA, Docker, ports, shared memory and the limit of open files.

    Exit codes: 0 nothing stands in the way (notes and warnings may), 1 an error was found, 2 the
    machine could not be looked at.
    """
    from naiad.check.doctor import Level, examine, to_json
    from naiad.check.machine import look_at_machine
    from naiad.model_config.triton_release import find_release

    try:
        release = None if target is None else find_release(target)
    except InvalidArgumentError as error:
        click.echo(f"naiad doctor: {error.message}", err=True)
        sys.exit(2)
    findings = examine(look_at_machine(ports), release)
    if as_json:
        click.echo(to_json(findings), nl=False)
    else:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for heading in ("", "what", "found"):
            table.add_column(heading, overflow="fold")
        for finding in findings:
            found = Text(finding.found)
            if finding.fix:
                found.append(f"\n-> {finding.fix}", style="bold")
            table.add_row(Text(finding.level, style=_STYLES[finding.level]), finding.subject, found)
        make_console().print(table)
    sys.exit(1 if any(finding.level is Level.ERROR for finding in findings) else 0)
