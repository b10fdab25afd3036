"""``naiad serve`` and ``tritonserver``: Triton's command line by Triton's rules, not click's."""

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import click
from click.shell_completion import CompletionItem

from naiad.app.repository import write_models
from naiad.errors import NaiadError
from naiad.server.command_line import (
    NAIAD_SERVE,
    TRITONSERVER,
    Command,
    HelpRequested,
    format_help,
    parse_arguments,
)
from naiad.server.logging import ServerLog
from naiad.server.run import Outcome, run_server
from naiad.server.settings import OPTIONS, BadOptionError


class _Verbatim(click.Command):
    """A command that leaves its arguments to somebody else."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.args = args
        return args

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The server's options; anything else is a path, as repositories and most values are."""
        if not incomplete.startswith("-"):
            return [CompletionItem(incomplete, type="file")]
        known = [
            ("help", "Show this text."),
            *((o.name, o.help) for o in OPTIONS if not o.is_inert),
        ]
        return [
            CompletionItem(f"--{name}", help=told)
            for name, told in known
            if f"--{name}".startswith(incomplete)
        ]


@click.command("serve", cls=_Verbatim, add_help_option=False)
@click.pass_context
def serve(context: click.Context) -> None:
    """Serve the models of the repositories, or of a Python file, until SIGTERM or SIGINT."""
    _serve(context.args, NAIAD_SERVE)


def tritonserver() -> None:
    """The same server by Triton's name and with Triton's defaults."""
    _serve(sys.argv[1:], TRITONSERVER)


def _serve(arguments: Sequence[str], command: Command) -> NoReturn:
    if arguments and arguments[0].endswith(".py"):
        outcome = _run_application(Path(arguments[0]), arguments[1:], command)
    else:
        outcome = _run(arguments, command)
    if outcome.message:
        click.echo(outcome.message, err=True)
    if outcome.is_hanging:
        sys.stderr.flush()
        # Python's own exit would wait for threads that a model holds.
        os._exit(outcome.exit_code)
    sys.exit(outcome.exit_code)


def _run_application(path: Path, arguments: Sequence[str], command: Command) -> Outcome:
    """Serve the models that a Python file defines, besides those of the repositories."""
    with tempfile.TemporaryDirectory(prefix="naiad-", ignore_cleanup_errors=True) as folder:
        try:
            write_models(path, Path(folder))
        except (NaiadError, OSError) as error:
            return Outcome(1, f"error: {error}")
        return _run([f"--model-repository={folder}", *arguments], command)


def _run(arguments: Sequence[str], command: Command) -> Outcome:
    try:
        settings = parse_arguments(arguments, command=command)
    except HelpRequested:
        click.echo(format_help(command))
        sys.exit(command.help_exit_code)
    except BadOptionError as error:
        help_hint = f"Try '{command.name} --help'."
        click.echo(f"{command.usage}\n{help_hint}\n\n{error.message}", err=True)
        sys.exit(1)
    except NaiadError as error:
        return Outcome(1, f"error: creating server: {error.label} - {error.message}")
    try:
        log = ServerLog(settings.log_values())
    except OSError as error:
        click.echo(f"error: --log-file: {error}", err=True)
        sys.exit(1)
    return run_server(settings, log)
