"""The ``naiad`` command: finds the verb and hands over."""

import difflib
from collections.abc import Mapping
from importlib import import_module
from typing import Final

import click

# One line each, here and not in the verbs' modules, which load what they need to run.
_VERBS: Final[Mapping[str, str]] = {
    "export": "Write a PyTorch model into a model repository, proven equal.",
    "serve": "Serve model repositories by Triton's HTTP and gRPC protocols.",
    "verify": "Compare what is served with the PyTorch model, hop by hop.",
    "check": "Explain what is wrong with a model repository, and correct it.",
    "doctor": "Look at this machine, and say how to correct what is not right.",
    "infer": "Send one request to a server and print the answer.",
}


class _VerbGroup(click.Group):
    """A group whose commands are imported when they are asked for, and not for the help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _VERBS:
            return None
        command: click.Command = getattr(import_module(f"naiad.cli.{cmd_name}"), cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        verb = args[0]
        if verb not in _VERBS and verb[:1].isalnum():
            near = difflib.get_close_matches(verb, _VERBS, n=1)
            advice = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(_VERBS)}."
            ctx.fail(f"No such command '{verb}'; {advice}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_VERBS.items()))


@click.command(cls=_VerbGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="naiad", message="%(prog)s %(version)s")
def main() -> None:
    """Take a trained PyTorch model to a production inference service.

    'naiad COMMAND --help' explains a command.
    """
