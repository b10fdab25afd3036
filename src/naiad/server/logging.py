"""Triton's log lines out of Python's logging.

``I1130 15:49:56.164807 981 lifecycle.py:47] "loading: add:1"``: level letter, month and day, UTC
with microseconds, process, place, message as a quoted string. Scripts read these lines. Source:
docs/protocol/extension_logging.md, "Logging Formats".
"""

import json
import logging
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from naiad.engine.log_settings import IS_BLOCK
from naiad.protocol.log_settings import LogSettingValues

_LETTERS: Final = {logging.ERROR: "E", logging.WARNING: "W", logging.CRITICAL: "E"}
_ROOT: Final = "naiad"


class TritonFormatter(logging.Formatter):
    """Formats a record as one line, unless it is a block."""

    def __init__(self, log_format: str) -> None:
        super().__init__()
        self._is_iso = log_format == "ISO8601"

    def format(self, record: logging.LogRecord) -> str:
        """The whole line, without its end."""
        message = record.getMessage()
        if record.exc_info:
            message = f"{message}\n{self.formatException(record.exc_info)}"
        head = self._head(record)
        if getattr(record, IS_BLOCK, False):
            return f"{head}\n{message}"
        return f"{head}{json.dumps(message, ensure_ascii=False)}"

    def _head(self, record: logging.LogRecord) -> str:
        letter = _LETTERS.get(record.levelno, "I")
        when = datetime.fromtimestamp(record.created, UTC)
        place = f"{record.process} {record.filename}:{record.lineno}] "
        if self._is_iso:
            return f"{when:%Y-%m-%dT%H:%M:%SZ} {letter} {place}"
        return f"{letter}{when:%m%d %H:%M:%S.%f} {place}"


class ServerLog:
    """What Naiad logs, on stderr or in the log file, by settings that may change.

    Args:
        values: the settings of the start.

    Raises:
        OSError: the log file can't be written.
    """

    def __init__(self, values: LogSettingValues) -> None:
        self._values = values
        self._handler: logging.Handler = (
            logging.FileHandler(values.log_file, encoding="utf-8", errors="backslashreplace")
            if values.log_file
            else logging.StreamHandler(sys.stderr)
        )
        self._handler.addFilter(self._is_wanted)
        self._logger = logging.getLogger(_ROOT)
        self._logger.addHandler(self._handler)
        self._logger.propagate = False
        self.apply(values)

    def apply(self, values: LogSettingValues) -> None:
        """Log by other settings from now on; the file stays the one of the start."""
        self._values = values
        self._handler.setFormatter(TritonFormatter(values.log_format))
        # What is below the level costs nothing where it would be logged.
        self._logger.setLevel(logging.DEBUG if values.log_verbose_level else logging.INFO)

    def close(self) -> None:
        """Log nothing more here."""
        self._logger.removeHandler(self._handler)
        self._handler.close()

    def _is_wanted(self, record: logging.LogRecord) -> bool:
        """Each level is switched on its own, as Triton does it."""
        values = self._values
        if record.levelno >= logging.ERROR:
            return values.log_error
        if record.levelno >= logging.WARNING:
            return values.log_warning
        if record.levelno >= logging.INFO:
            return values.log_info
        return values.log_verbose_level > 0


def format_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table as Triton prints it; further lines of a cell go on in rows of empty cells."""
    lines = [tuple(headings), *(line for row in rows for line in _split_row(row))]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rule = "+".join(["", *("-" * (width + 2) for width in widths), ""])
    text = [
        "".join(f"| {cell:<{width}} " for cell, width in zip(line, widths, strict=True)) + "|"
        for line in lines
    ]
    return "\n".join([rule, text[0], rule, *text[1:], rule, ""])


def _split_row(row: Sequence[str]) -> list[tuple[str, ...]]:
    cells = [cell.splitlines() or [""] for cell in row]
    height = max(map(len, cells))
    return [
        tuple(cell[index] if index < len(cell) else "" for cell in cells) for index in range(height)
    ]
