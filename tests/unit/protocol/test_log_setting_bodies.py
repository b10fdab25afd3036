"""Bodies of the logging extension."""

import pytest

from naiad.errors import InvalidArgumentError, NaiadError, UnavailableError, UnsupportedError
from naiad.protocol.log_settings import (
    LogSettingsUpdate,
    LogSettingValues,
    decode_log_settings_update,
    encode_log_settings,
)


def test_settings_are_encoded_in_tritons_order() -> None:
    assert encode_log_settings(LogSettingValues()) == (
        b'{"log_file":"","log_info":true,"log_warning":true,"log_error":true,'
        b'"log_verbose_level":0,"log_format":"default"}'
    )


def test_an_update_is_decoded() -> None:
    body = (
        b'{"log_info": false, "log_warning": true, "log_error": false, "log_verbose_level": 2, '
        b'"log_format": "ISO8601", "zzz": 1, "log_file": null}'
    )
    assert decode_log_settings_update(body) == LogSettingsUpdate(
        log_info=False,
        log_warning=True,
        log_error=False,
        log_verbose_level=2,
        log_format="ISO8601",
    )


@pytest.mark.parametrize("body", [b"{}", b'{"zzz": 1}', b"[]"])
def test_nothing_known_changes_nothing(body: bytes) -> None:
    assert decode_log_settings_update(body) == LogSettingsUpdate()


@pytest.mark.parametrize(
    ("body", "error", "text"),
    [
        (
            b"",
            InvalidArgumentError,
            "failed to parse the request JSON buffer: The document is empty. at 0",
        ),
        (
            b'{"log_format": "nope"}',
            UnavailableError,
            "invalid argument for --log_format, got: nope",
        ),
        (
            b'{"log_file": "x.log"}',
            UnsupportedError,
            "log file location can not be updated through network protocol",
        ),
        (
            b'{"log_info": "true"}',
            InvalidArgumentError,
            "attempt to access JSON non-boolean as boolean: 'log_info'",
        ),
        (
            b'{"log_error": null}',
            InvalidArgumentError,
            "attempt to access JSON non-boolean as boolean: 'log_error'",
        ),
        (
            b'{"log_format": 1}',
            InvalidArgumentError,
            "attempt to access JSON non-string as string: 'log_format'",
        ),
        *(
            (
                b'{"log_verbose_level": ' + value + b"}",
                InvalidArgumentError,
                "attempt to access JSON non-unsigned-integer as unsigned-integer: "
                "'log_verbose_level'",
            )
            for value in (b'"1"', b"-1", b"1.5", b"true", b"4294967296")
        ),
    ],
)
def test_a_bad_update_is_refused(body: bytes, error: type[NaiadError], text: str) -> None:
    with pytest.raises(error) as caught:
        decode_log_settings_update(body)
    assert caught.value.message == text
