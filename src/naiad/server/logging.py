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

from naiad.server.settings import LogFormat, Settings

# A record with this attribute set holds a table: its lines follow the line that the format begins.
IS_TABLE: Final = "is_table"

_LETTERS: Final = {logging.ERROR: "E", logging.WARNING: "W", logging.CRITICAL: "E"}
_ROOT: Final = "naiad"


class TritonFormatter(logging.Formatter):
    """Formats a record as one line, unless it is a table."""

    def __init__(self, log_format: LogFormat) -> None:
        super().__init__()
        self._log_format = log_format

    def format(self, record: logging.LogRecord) -> str:
        """The whole line, without its end."""
        message = record.getMessage()
        if record.exc_info:
            message = f"{message}\n{self.formatException(record.exc_info)}"
        head = self._head(record)
        if getattr(record, IS_TABLE, False):
            return f"{head}\n{message}"
        return f"{head}{json.dumps(message, ensure_ascii=False)}"

    def _head(self, record: logging.LogRecord) -> str:
        letter = _LETTERS.get(record.levelno, "I")
        when = datetime.fromtimestamp(record.created, UTC)
        place = f"{record.process} {record.filename}:{record.lineno}] "
        if self._log_format is LogFormat.ISO8601:
            return f"{when:%Y-%m-%dT%H:%M:%SZ} {letter} {place}"
        return f"{letter}{when:%m%d %H:%M:%S.%f} {place}"


class _LevelFilter(logging.Filter):
    """Each level is switched on its own, as Triton does it."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self._settings = settings

    def filter(self, record: logging.LogRecord) -> bool:
        settings = self._settings
        if record.levelno >= logging.ERROR:
            return settings.log_error
        if record.levelno >= logging.WARNING:
            return settings.log_warning
        if record.levelno >= logging.INFO:
            return settings.log_info
        return settings.log_verbose > 0


def configure_logging(settings: Settings) -> logging.Handler:
    """Send what Naiad logs to stderr or the log file.

    Returns:
        The handler, for who wants to take it away again.

    Raises:
        OSError: the log file can't be written.
    """
    handler: logging.Handler = (
        logging.FileHandler(settings.log_file, encoding="utf-8")
        if settings.log_file
        else logging.StreamHandler(sys.stderr)
    )
    handler.setFormatter(TritonFormatter(settings.log_format))
    handler.addFilter(_LevelFilter(settings))
    root = logging.getLogger(_ROOT)
    root.addHandler(handler)
    root.setLevel(logging.DEBUG if settings.log_verbose else logging.INFO)
    root.propagate = False
    return handler


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
