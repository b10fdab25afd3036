"""``naiad serve``: Triton's command line, so Triton's rules and not click's."""

import os
import sys

import click

from naiad.server.command_line import USAGE, HelpRequested, format_help, parse_arguments
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
    try:
        settings = parse_arguments(context.args)
    except HelpRequested:
        click.echo(format_help())
        return
    except BadOptionError as error:
        click.echo(f"{USAGE}\nTry 'naiad serve --help'.\n\n{error.message}", err=True)
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
