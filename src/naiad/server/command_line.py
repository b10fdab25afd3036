"""``naiad serve``'s arguments, read as Triton's getopt_long reads them, and its help."""

import difflib
import textwrap
from collections.abc import Mapping, Sequence
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

USAGE: Final = "Usage: naiad serve [OPTIONS] DIR..."
_REPOSITORY: Final = "model-repository"
_HELP: Final = "help"

_BY_NAME: Final[Mapping[str, Option]] = {
    name: option for option in OPTIONS for name in (option.name, *option.aliases)
}


class HelpRequested(Exception):  # noqa: N818 - not an error
    """``--help`` was among the arguments."""


def parse_arguments(
    arguments: Sequence[str], environment: Mapping[str, str] | None = None
) -> Settings:
    """The settings of a command line, over those of the environment.

    ``--name=value`` and ``--name value`` mean the same, a name may be cut short as long as one
    option alone begins so, and what is no option is a model repository.

    Args:
        arguments: after the verb.
        environment: the process's own where it is None.

    Raises:
        BadOptionError: an unknown or ambiguous name, a value missing or wrong.
        HelpRequested: ``--help`` is among the arguments.
    """
    given: dict[str, list[str]] = {}
    rest = iter(arguments)
    for argument in rest:
        if argument == "--":
            given.setdefault(_REPOSITORY, []).extend(rest)
        elif not argument.startswith("-") or argument == "-":
            given.setdefault(_REPOSITORY, []).append(argument)
        else:
            name, equals, text = argument.removeprefix("--").partition("=")
            option = _find(argument, name)
            value = text if equals else next(rest, None)
            if value is None:
                raise BadOptionError(f"option '--{option.name}' requires an argument")
            given.setdefault(option.name, []).append(value)
    return make_settings({**read_environment(environment), **given})


def format_help() -> str:
    """All options by group, with their defaults."""
    lines = [
        USAGE,
        "",
        *textwrap.wrap(
            "Serve the models of the repositories by Triton's HTTP protocol. Options are Triton's; "
            "each can also be set by an environment variable, --http-port by NAIAD_HTTP_PORT.",
            79,
        ),
    ]
    for group in Group:
        options = [option for option in OPTIONS if option.group is group and not option.is_inert]
        if options:
            lines.extend(("", f"{group}:"))
            for option in options:
                lines.extend(_describe(option))
    inert = ", ".join(f"--{option.name}" for option in OPTIONS if option.is_inert)
    lines.extend(("", "Taken for Triton's sake, without effect in this version:"))
    lines.extend(
        textwrap.wrap(
            inert, 79, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
        )
    )
    return "\n".join(lines)


def _describe(option: Option) -> list[str]:
    default = default_text(option)
    text = f"{option.help} [{default}]" if default else option.help
    return [
        f"  --{option.name} {option.placeholder}",
        *textwrap.wrap(text, 79, initial_indent=" " * 6, subsequent_indent=" " * 6),
    ]


def _find(argument: str, name: str) -> Option:
    if argument == "-h" or (name and _HELP.startswith(name)):
        raise HelpRequested
    exact = _BY_NAME.get(name)
    if exact is not None and argument.startswith("--"):
        return exact
    matches = sorted(known for known in _BY_NAME if known.startswith(name))
    if not argument.startswith("--") or not matches:
        _refuse_unknown(argument, name)
    found = {_BY_NAME[match].name for match in matches}
    if len(found) > 1:
        possibilities = " ".join(f"'--{match}'" for match in matches)
        raise BadOptionError(f"option '{argument}' is ambiguous; possibilities: {possibilities}")
    return _BY_NAME[matches[0]]


def _refuse_unknown(argument: str, name: str) -> NoReturn:
    close = difflib.get_close_matches(name, _BY_NAME, n=1)
    hint = f"; did you mean '--{close[0]}'?" if close else ""
    raise BadOptionError(f"unrecognized option '{argument}'{hint}")
