"""``naiad verify``: is what is served still what the PyTorch model answers?"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from naiad.access.credentials import Credentials
from naiad.cli.console import make_console
from naiad.cli.credentials import credential_options, take_credentials
from naiad.cli.current_folder import add_current_folder
from naiad.cli.report_files import junit_option
from naiad.errors import NaiadError
from naiad.missing_packages import explain_missing_package
from naiad.printable import terminal_text
from naiad.source_model.description import SourceDescription

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from naiad.verify.report import Report, Row
    from naiad.verify.verification import VerifyOptions


@click.command("verify")
@click.argument("repository", type=click.Path(path_type=Path), metavar="DIR")
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@click.option(
    "--url",
    metavar="[https://]HOST:PORT",
    help="A server that serves DIR, by HTTP: Naiad, NVIDIA's Triton or any other of KServe v2. "
    "Without it one is started on free ports and stopped again.",
)
@click.option(
    "--grpc-url",
    metavar="[grpcs://]HOST:PORT",
    help="The same server by gRPC; without it gRPC is left out where --url is given.",
)
@credential_options
@click.option(
    "--source",
    metavar="SOURCE",
    help="Ask the PyTorch model again, and look for causes in it: MODULE:CALLABLE, a file or a "
    "folder, as for 'naiad export'. Needs one MODEL.",
)
@click.option(
    "--class",
    "model_class",
    metavar="MODULE:CLASS",
    help="Makes the module that a file of weights belongs to.",
)
@click.option(
    "--args",
    "examples",
    metavar="MODULE:CALLABLE",
    help="Example inputs, where --source has none and the golden ones don't do: a dict among "
    "forward's arguments, numbers, or None.",
)
@click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="NAME:DATATYPE:SHAPE",
    help="Describes an example input instead. Repeat it for each.",
)
@click.option(
    "--file-only",
    is_flag=True,
    help="Stop at the exported file alone: no engine, no server.",
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
@junit_option
@click.option(
    "--html",
    "html_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write one page with plots too; it needs no network.",
)
def verify(**given: Any) -> None:
    """Compare every hop from PyTorch to the served answer, number by number.

    DIR is a model repository that 'naiad export' wrote. Each golden case goes through: the
    PyTorch model again (with --source), the exported file alone, the engine of this process, a
    server by HTTP JSON, HTTP binary tensors, gRPC and a gRPC stream, 16 clients at once whose
    requests the server joins into batches, and the server again after it has reloaded the model.

    Exit codes: 0 every hop holds, 1 something differs (the cause is named where an experiment
    shows it), 2 the comparison could not be run.
    """
    from naiad.verify.report import TABLE_WIDTH, ExitCode, print_report
    from naiad.verify.verification import VerifyOptions

    if given["grpc_url"] is not None and given["url"] is None:
        raise click.UsageError("--grpc-url names a server's gRPC port and needs its --url too")
    credentials = take_credentials(given)
    if credentials != Credentials() and given["url"] is None:
        raise click.UsageError("--header, --cacert, --cert and --key belong to a server's --url")
    options = VerifyOptions(
        given["repository"],
        given["models"],
        address=given["url"],
        grpc_address=given["grpc_url"],
        credentials=credentials,
        source=_describe_source(given),
        rounds=given["rounds"],
        is_served=not given["file_only"],
    )
    try:
        report = _run(options)
    except ModuleNotFoundError as error:
        click.echo(f"naiad verify: {explain_missing_package(error)}", err=True)
        sys.exit(ExitCode.COULD_NOT_RUN)
    except (NaiadError, OSError) as error:
        click.echo(terminal_text(f"naiad verify: {error}"), err=True)
        sys.exit(ExitCode.COULD_NOT_RUN)
    # Files first: a reader that has seen enough closes the pipe of the table.
    failure = _write_files(report, given)
    print_report(report, make_console(lowest_width=TABLE_WIDTH))
    if failure:
        click.echo(f"naiad verify: cannot write the report: {failure}", err=True)
        sys.exit(ExitCode.COULD_NOT_RUN)
    sys.exit(report.exit_code())


def _describe_source(given: dict[str, Any]) -> SourceDescription | None:
    if given["source"] is None:
        flags = {"model_class": "--class", "examples": "--args", "inputs": "--input"}
        useless = [flag for name, flag in flags.items() if given[name]]
        if useless:
            raise click.UsageError(f"{', '.join(useless)} describes a --source, which is missing")
        return None
    add_current_folder()
    return SourceDescription(
        source=given["source"],
        model_class=given["model_class"],
        examples=given["examples"],
        inputs=given["inputs"],
    )


def _run(options: "VerifyOptions") -> "Report":
    from naiad.verify.verification import verify_repository

    progress = make_console(stderr=True)
    if progress.is_terminal:
        with progress.status("reading the model repository") as status:
            return verify_repository(options, status.update)
    # A log has no spinner: it gets a line for each hop while the rest is still to come.
    return verify_repository(options, on_hop=_print_hop)


def _print_hop(model: str, rows: "Sequence[Row]") -> None:
    verdicts = ", ".join(dict.fromkeys(row.verdict.value for row in rows))
    batches = ", ".join(row.batch for row in rows)
    click.echo(f"{model}: {rows[0].hop}, batch {batches}: {verdicts}", err=True)


def _write_files(report: "Report", given: dict[str, Any]) -> str:
    """Write what was asked for; returns why something could not be written, or ""."""
    from naiad.verify.page import format_page

    writers: dict[str, Callable[[], str]] = {
        "json_file": report.to_json,
        "junit_file": report.to_junit,
        "html_file": lambda: format_page(report),
    }
    for name, write in writers.items():
        try:
            if given[name] is not None:
                given[name].write_text(write(), encoding="utf-8")
        except OSError as error:
            return str(error)
    return ""
