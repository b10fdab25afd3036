"""How the server logs, as clients see and change it while it runs."""

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Final

from naiad.protocol.log_settings import LogSettingsUpdate, LogSettingValues

# A record with this attribute set holds lines to be read as they are, such as a table: they follow
# the line that the format begins, unquoted.
IS_BLOCK: Final = "is_block"


class LogSettings:
    """The settings in force; belongs to the event loop.

    Args:
        values: those of the start, in force already.
        apply: puts other values in force; called on the loop, before they are shown to clients.
    """

    def __init__(self, values: LogSettingValues, apply: Callable[[LogSettingValues], None]) -> None:
        self._apply = apply
        self.values = values

    def update(self, update: LogSettingsUpdate) -> LogSettingValues:
        """Change some settings at once; returns all of them as they are then."""
        changes = {name: value for name, value in asdict(update).items() if value is not None}
        if changes:
            values = replace(self.values, **changes)
            self._apply(values)
            self.values = values
        return self.values
