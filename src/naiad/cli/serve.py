"""``naiad serve`` and ``tritonserver``: Triton's command line by Triton's rules, not click's."""

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from naiad.server.command_line import (
    NAIAD_SERVE,
    TRITONSERVER,
    Command,
    HelpRequested,
    format_help,
    parse_arguments,
)
from naiad.server.logging import ServerLog
from naiad.server.run import run_server
from naiad.server.settings import BadOptionError


class _Verbatim(click.Command):
    """A command that leaves its arguments to somebody else."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.args = args
        return args


@click.command("serve", cls=_Verbatim, add_help_option=False)
@click.pass_context
def serve(context: click.Context) -> None:
    """Serve the models of the repositories until SIGTERM or SIGINT."""
    _serve(context.args, NAIAD_SERVE)


def tritonserver() -> None:
    """The same server by Triton's name and with Triton's defaults."""
    _serve(sys.argv[1:], TRITONSERVER)


def _serve(arguments: Sequence[str], command: Command) -> NoReturn:
    try:
        settings = parse_arguments(arguments, command=command)
    except HelpRequested:
        click.echo(format_help(command))
        sys.exit(command.help_exit_code)
    except BadOptionError as error:
        help_hint = f"Try '{command.name} --help'."
        click.echo(f"{command.usage}\n{help_hint}\n\n{error.message}", err=True)
        sys.exit(1)
    try:
        log = ServerLog(settings.log_values())
    except OSError as error:
        click.echo(f"error: --log-file: {error}", err=True)
        sys.exit(1)
    outcome = run_server(settings, log)
    if outcome.message:
        click.echo(outcome.message, err=True)
    if outcome.is_hanging:
        sys.stderr.flush()
        # Python's own exit would wait for threads that a model holds.
        os._exit(outcome.exit_code)
    sys.exit(outcome.exit_code)
