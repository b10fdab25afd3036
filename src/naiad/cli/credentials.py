"""The options of every verb that asks a server, by which it is let in."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import click

from naiad.access.credentials import Credentials, parse_headers

Command = Callable[..., Any]

_FILE: Final = click.Path(path_type=Path, dir_okay=False, exists=True)


def _parse_headers(
    _context: click.Context, _parameter: click.Parameter, given: Sequence[str]
) -> dict[str, str]:
    try:
        return parse_headers(given)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


_OPTIONS: Final = (
    click.option(
        "--header",
        "headers",
        multiple=True,
        callback=_parse_headers,
        metavar="'KEY: VALUE'",
        help="Sent with every request, such as the key of a restricted API. Repeat it for each.",
    ),
    click.option(
        "--cacert",
        "ca_certificate",
        type=_FILE,
        help="Who signs the certificate of an https:// server, in place of those that the system "
        "trusts; a PEM file.",
    ),
    click.option(
        "--cert", "certificate", type=_FILE, help="Our own, for a server that wants one; PEM."
    ),
    click.option("--key", type=_FILE, help="Of --cert, where it is not in the same file."),
)


def credential_options(command: Command) -> Command:
    """Add the options; their values are among the command's arguments."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def take_credentials(given: dict[str, Any]) -> Credentials:
    """What the options say, taken out of the command's arguments.

    Raises:
        UsageError: a key without its certificate.
    """
    if given["key"] is not None and given["certificate"] is None:
        raise click.UsageError("--key belongs to a --cert, which is missing")
    return Credentials(
        given.pop("headers"),
        given.pop("ca_certificate"),
        given.pop("certificate"),
        given.pop("key"),
    )
