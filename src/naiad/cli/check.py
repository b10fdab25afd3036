"""``naiad check``: does this model repository load and run, and if not, which line is to blame?"""

import sys
from pathlib import Path

import click

from naiad.cli.console import make_console
from naiad.cli.report_files import junit_option
from naiad.errors import NaiadError
from naiad.printable import terminal_text


@click.command("check")
@click.argument("repository", type=click.Path(path_type=Path), metavar="DIR")
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@click.option("--fix", is_flag=True, help="Write the corrections, and check again.")
@click.option(
    "--json",
    "json_file",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    metavar="FILE",
    help="Write the whole report as JSON too; '-' writes it to the standard output instead.",
)
@junit_option
@click.option(
    "--example",
    "examples",
    multiple=True,
    metavar="[NAME:]SHAPE",
    help="The shape of one input that the model takes, with the batch axis, such as "
    "input_ids:2,16. For models whose file doesn't say.",
)
@click.option(
    "--target",
    default="",
    metavar="triton:RELEASE",
    help="Check against that release of Triton, such as triton:24.10, too.",
)
def check(  # noqa: PLR0913  # one parameter for each option
    *,
    repository: Path,
    models: tuple[str, ...],
    fix: bool,
    json_file: Path | None,
    junit_file: Path | None,
    examples: tuple[str, ...],
    target: str,
) -> None:
    """Load every model of a repository, run it, and explain what is wrong.

    DIR is a model repository. Each model is loaded by its backend, without a server, and run on
    generated inputs at batch 1, 2 and max_batch_size. A finding has its place, the reason and the
    corrected block to paste.

    Exit codes: 0 nothing is wrong (or everything was fixed), 1 findings, 2 the check could not be
    run.
    """
    from naiad.check.report import ExitCode, print_report
    from naiad.check.repository import CheckOptions, check_repository
    from naiad.server.capacity import gpu_ids

    options = CheckOptions(
        repository, models, fix=fix, examples=examples, target=target, gpu_ids=gpu_ids()
    )
    try:
        with make_console(stderr=True).status("reading the model repository") as status:
            report = check_repository(options, status.update)
        if junit_file is not None:
            junit_file.write_text(report.to_junit(), encoding="utf-8")
        if json_file is not None and str(json_file) != "-":
            json_file.write_text(report.to_json(), encoding="utf-8")
    except (NaiadError, OSError) as error:
        click.echo(terminal_text(f"naiad check: {error}"), err=True)
        sys.exit(ExitCode.COULD_NOT_RUN)
    if json_file is not None and str(json_file) == "-":
        click.echo(report.to_json(), nl=False)
    else:
        print_report(report, make_console())
    sys.exit(report.exit_code())
