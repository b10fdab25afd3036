"""``naiad verify``: is what is served still what the PyTorch model answers?"""

import sys
from pathlib import Path

import click
from rich.console import Console

from naiad.cli.current_folder import add_current_folder
from naiad.errors import NaiadError


@click.command("verify")
@click.argument("repository", type=click.Path(path_type=Path), metavar="DIR")
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@click.option(
    "--url",
    metavar="HOST:PORT",
    help="A server that serves DIR. Without it one is started on free ports and stopped again.",
)
@click.option(
    "--source",
    metavar="MODULE:CALLABLE",
    help="Ask the PyTorch model again: a callable that returns it, as for 'naiad export'. "
    "Needs one MODEL.",
)
@click.option(
    "--args",
    "example",
    metavar="MODULE:CALLABLE",
    help="Example inputs, where the callable of --source returns none.",
)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="Requests of each of the 16 concurrent clients.",
)
@click.option(
    "--json",
    "json_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the whole report as JSON too.",
)
def verify(  # noqa: PLR0913  # one parameter for each option
    *,
    repository: Path,
    models: tuple[str, ...],
    url: str | None,
    source: str | None,
    example: str | None,
    rounds: int,
    json_file: Path | None,
) -> None:
    """Compare every hop from PyTorch to the served answer, number by number.

    DIR is a model repository that 'naiad export' wrote. Each golden case goes through: the
    PyTorch model again (with --source), the exported file alone, the server by HTTP JSON and by
    HTTP binary tensors, and 16 clients at once whose requests the server joins into batches.

    Exit codes: 0 every hop holds, 1 something differs (the cause is named where an experiment
    shows it), 2 the comparison could not be run.
    """
    from naiad.verify.report import ExitCode, print_report
    from naiad.verify.verification import VerifyOptions, verify_repository

    if source is not None:
        add_current_folder()
    options = VerifyOptions(
        repository, models, address=url, source=source, example=example, rounds=rounds
    )
    progress = Console(stderr=True)
    try:
        with progress.status("reading the model repository") as status:
            report = verify_repository(options, status.update)
    except (NaiadError, OSError) as error:
        click.echo(f"naiad verify: {error}", err=True)
        sys.exit(ExitCode.COULD_NOT_RUN)
    print_report(report, Console())
    if json_file is not None:
        try:
            json_file.write_text(report.to_json(), encoding="utf-8")
        except OSError as error:
            click.echo(f"naiad verify: cannot write the report: {error}", err=True)
            sys.exit(ExitCode.COULD_NOT_RUN)
    sys.exit(report.exit_code())
