"""The server's arguments, read as Triton's getopt_long reads them, and the help.

Two commands start the same server: ``naiad serve``, and ``tritonserver`` for tools and scripts that
know no other.
"""

import difflib
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NoReturn

from naiad.server.option import Group, Option
from naiad.server.settings import (
    OPTIONS,
    BadOptionError,
    Settings,
    default_text,
    make_settings,
    read_environment,
)


@dataclass(frozen=True, slots=True)
class Command:
    """One of the names that the server is started by.

    Attributes:
        name: what the user types.
        usage: first line of the help.
        defaults: texts by option name, where they are not those of ``Settings``.
        purpose: what it serves, in the help.
        takes_folders: whether an argument without dashes is a model repository.
        help_exit_code: of ``--help``.
    """

    name: str
    usage: str
    defaults: Mapping[str, str] = field(default_factory=dict)
    purpose: str = "Serve the models of the repositories"
    takes_folders: bool = True
    help_exit_code: int = 0


NAIAD_SERVE: Final = Command(
    "naiad serve",
    "Usage: naiad serve [OPTIONS] DIR...\n       naiad serve FILE.py [OPTIONS] [DIR]...",
    purpose="Serve the models of the repositories DIR, and those that FILE.py defines,",
)
# As Triton's own, down to the exit code. It listens on every interface because Triton does, and
# containers and tools count on that.
TRITONSERVER: Final = Command(
    "tritonserver",
    "Usage: tritonserver [OPTIONS]",
    {"http-address": "0.0.0.0", "grpc-address": "0.0.0.0"},  # noqa: S104 - see above
    takes_folders=False,
    help_exit_code=1,
)
_REPOSITORY: Final = "model-repository"
_HELP: Final = "help"

_BY_NAME: Final[Mapping[str, Option]] = {
    name: option for option in OPTIONS for name in option.names
}


class HelpRequested(Exception):  # noqa: N818 - not an error
    """``--help`` was among the arguments."""


def parse_arguments(
    arguments: Sequence[str],
    environment: Mapping[str, str] | None = None,
    command: Command = NAIAD_SERVE,
) -> Settings:
    """The settings of a command line, over those of the environment.

    ``--name=value`` and ``--name value`` mean the same, a name may be cut short as long as one
    option alone begins so, and what is no option is a model repository, if the command takes one.

    Args:
        arguments: after the command's name.
        environment: the process's own where it is None.
        command: which one it is.

    Raises:
        BadOptionError: an unknown or ambiguous name, a value missing or wrong.
        HelpRequested: ``--help`` is among the arguments.
    """
    given: dict[str, list[str]] = {}
    deprecated: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if argument == "--":
            for folder in rest:
                _add_folder(given, folder, command)
        elif not argument.startswith("-") or argument == "-":
            _add_folder(given, argument, command)
        else:
            name, equals, text = argument.removeprefix("--").partition("=")
            known = _find(argument, name)
            option = _BY_NAME[known]
            value = text if equals else next(rest, None)
            if value is None:
                raise BadOptionError(f"option '--{known}' requires an argument")
            if known in option.deprecated_aliases:
                deprecated.append(f"--{known} is deprecated, use --{option.name}")
            given.setdefault(option.name, []).append(value)
    defaults = {name: [text] for name, text in command.defaults.items()}
    return make_settings({**defaults, **read_environment(environment), **given}, deprecated)


def _add_folder(given: dict[str, list[str]], folder: str, command: Command) -> None:
    if not command.takes_folders:
        raise BadOptionError(f"Unexpected argument: {folder}")
    given.setdefault(_REPOSITORY, []).append(folder)


def format_help(command: Command = NAIAD_SERVE) -> str:
    """All options by group, with their defaults."""
    lines = [
        command.usage,
        "",
        *textwrap.wrap(
            f"{command.purpose} by Triton's HTTP and gRPC protocols. Options are Triton's; each "
            "can also be set by an environment variable, --http-port by NAIAD_HTTP_PORT.",
            79,
        ),
    ]
    for group in Group:
        options = [option for option in OPTIONS if option.group is group and not option.is_inert]
        if options:
            lines.extend(("", f"{group}:"))
            for option in options:
                lines.extend(_describe(option, command))
    inert = ", ".join(f"--{option.name}" for option in OPTIONS if option.is_inert)
    lines.extend(("", "Taken for Triton's sake, without effect in this version:"))
    lines.extend(
        textwrap.wrap(
            inert, 79, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
        )
    )
    return "\n".join(lines)


def _describe(option: Option, command: Command) -> list[str]:
    default = command.defaults.get(option.name, default_text(option))
    text = f"{option.help} [{default}]" if default else option.help
    return [
        f"  --{option.name} {option.placeholder}",
        *textwrap.wrap(text, 79, initial_indent=" " * 6, subsequent_indent=" " * 6),
    ]


def _find(argument: str, name: str) -> str:
    """The whole name of the option that an argument gives."""
    if argument == "-h" or (name and _HELP.startswith(name)):
        raise HelpRequested
    if name in _BY_NAME and argument.startswith("--"):
        return name
    matches = sorted(known for known in _BY_NAME if known.startswith(name))
    if not argument.startswith("--") or not matches:
        _refuse_unknown(argument, name)
    found = {_BY_NAME[match].name for match in matches}
    if len(found) > 1:
        possibilities = " ".join(f"'--{match}'" for match in matches)
        raise BadOptionError(f"option '{argument}' is ambiguous; possibilities: {possibilities}")
    return matches[0]


def _refuse_unknown(argument: str, name: str) -> NoReturn:
    close = difflib.get_close_matches(name, _BY_NAME, n=1)
    hint = f"; did you mean '--{close[0]}'?" if close else ""
    raise BadOptionError(f"unrecognized option '{argument}'{hint}")
