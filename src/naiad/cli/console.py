"""The terminal that the verbs write to."""

from collections.abc import Iterable, Iterator
from typing import IO, Final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from naiad.printable import terminal_text

# COLUMNS=0, which some CI runners set, would leave no room for a single character.
_LOWEST_WIDTH: Final = 40


def make_console(
    file: IO[str] | None = None, *, stderr: bool = False, lowest_width: int = _LOWEST_WIDTH
) -> Console:
    """A console as wide as the terminal, and wide enough that nothing is lost.

    What models and files say is shown, and never obeyed.

    Args:
        file: to write to; else the standard output of the time of writing.
        stderr: the standard error instead.
        lowest_width: that a table needs; a narrower terminal breaks its lines.
    """
    console = _SafeConsole(file=file, stderr=stderr)
    console.width = max(console.width, lowest_width)
    return console


class _SafeConsole(Console):
    """Shows control characters of a text by their escapes; styles come after it."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        segments: Iterable[Segment] = super().render(renderable, options)
        for text, style, control in segments:
            yield Segment(text if control else terminal_text(text), style, control)
