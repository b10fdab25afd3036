"""What is logged while models are checked: kept for the report, and told once."""

import logging
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Self

_ROOT: Final = "naiad"
# A model that fails in another way each time has more to say than anybody reads.
_MAX_MESSAGES: Final = 8
_MAX_LENGTH: Final = 16_384
_FRAME: Final = re.compile(r'^ *File "(?P<path>[^"\n]+)", line (?P<line>\d+)', re.MULTILINE)


class ModelLog(logging.Handler):
    """Takes the warnings and errors of backends; use as a context manager.

    Attributes:
        count: of all that was logged so far.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.count = 0
        # By text, when it was logged last: the same load is tried several times, and fails alike.
        self._messages: dict[str, int] = {}

    def __enter__(self) -> Self:
        logging.getLogger(_ROOT).addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger(_ROOT).removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`. Called by any thread, one at a time."""
        text = record.getMessage()[:_MAX_LENGTH]
        self.count += 1
        if text in self._messages or len(self._messages) < _MAX_MESSAGES:
            self._messages[text] = self.count

    def since(self, count: int) -> list[str]:
        """What was logged after so many messages, each once."""
        return [text for text, number in self._messages.items() if number > count]

    def take(self) -> list[str]:
        """All that was logged since the last time, each once."""
        messages, self._messages = self._messages, {}
        return list(messages)


def find_frame(messages: Iterable[str], folder: Path) -> tuple[Path, int] | None:
    """Where the model's own code failed: the innermost line of a traceback that is in its folder.

    Args:
        messages: with tracebacks, as Python prints them.
        folder: of the model.
    """
    inside = folder.resolve()
    for message in messages:
        for match in reversed(list(_FRAME.finditer(message))):
            path = Path(match["path"])
            if path.is_relative_to(folder) or path.resolve().is_relative_to(inside):
                return path, int(match["line"])
    return None
