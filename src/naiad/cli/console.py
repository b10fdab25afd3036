"""The terminal that the verbs write to."""

from typing import IO, Final

from rich.console import Console

# COLUMNS=0, which some CI runners set, would leave no room for a single character.
_LOWEST_WIDTH: Final = 40


def make_console(file: IO[str] | None = None, *, stderr: bool = False) -> Console:
    """A console as wide as the terminal, and wide enough that nothing is lost.

    Args:
        file: to write to; else the standard output of the time of writing.
        stderr: the standard error instead.
    """
    console = Console(file=file, stderr=stderr)
    console.width = max(console.width, _LOWEST_WIDTH)
    return console
