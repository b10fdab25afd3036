"""Log settings that change while the server runs."""

import pytest

from naiad.engine.log_settings import LogSettings
from naiad.protocol.log_settings import LogSettingsUpdate, LogSettingValues


def test_an_update_is_applied_before_it_is_shown() -> None:
    applied: list[LogSettingValues] = []
    settings = LogSettings(LogSettingValues(log_file="server.log"), applied.append)
    result = settings.update(LogSettingsUpdate(log_info=False, log_verbose_level=1))
    expected = LogSettingValues(log_file="server.log", log_info=False, log_verbose_level=1)
    assert result == expected
    assert settings.values == expected
    assert applied == [expected]


def test_an_empty_update_applies_nothing() -> None:
    applied: list[LogSettingValues] = []
    settings = LogSettings(LogSettingValues(), applied.append)
    assert settings.update(LogSettingsUpdate()) == LogSettingValues()
    assert applied == []


def test_what_can_not_be_applied_is_not_shown() -> None:
    def refuse(values: LogSettingValues) -> None:
        raise OSError(28, "No space left on device")

    settings = LogSettings(LogSettingValues(), refuse)
    with pytest.raises(OSError, match="No space"):
        settings.update(LogSettingsUpdate(log_info=False))
    assert settings.values == LogSettingValues()
