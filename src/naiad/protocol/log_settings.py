"""The logging extension: what it can set, and its bodies over HTTP.

Source: Triton's extension_logging.md. Another protocol decodes to the same `LogSettingsUpdate`.
"""

from dataclasses import dataclass
from typing import Any, Final, TypeVar

import orjson

from naiad.errors import UnavailableError, UnsupportedError
from naiad.protocol.json_text import Buffer, MemberError, parse_json

LOG_FORMATS: Final = ("default", "ISO8601")

_MAX_UINT32: Final = (1 << 32) - 1

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class LogSettingValues:
    """How the server logs.

    Attributes:
        log_file: path; empty for the standard streams. Fixed when the server starts.
        log_info, log_warning, log_error: whether messages of that severity are written.
        log_verbose_level: verbose messages up to this level are written; 0 for none.
        log_format: one of `LOG_FORMATS`.
    """

    log_file: str = ""
    log_info: bool = True
    log_warning: bool = True
    log_error: bool = True
    log_verbose_level: int = 0
    log_format: str = "default"


@dataclass(frozen=True, slots=True)
class LogSettingsUpdate:
    """What to change, checked; None leaves a setting as it is."""

    log_info: bool | None = None
    log_warning: bool | None = None
    log_error: bool | None = None
    log_verbose_level: int | None = None
    log_format: str | None = None


def decode_log_settings_update(body: Buffer) -> LogSettingsUpdate:
    """Decode ``POST /v2/logging``. Settings that do not exist are ignored, as by Triton.

    Raises:
        InvalidArgumentError: not JSON, or a value is of the wrong type.
        UnsupportedError: the log file is to be changed.
        UnavailableError: no such format; Triton's code for it over HTTP.
    """
    document = parse_json(body)
    if type(document) is not dict:
        return LogSettingsUpdate()
    if document.get("log_file") is not None:
        raise log_file_is_fixed()
    log_format = _typed(document, "log_format", str, "string")
    if log_format is not None and log_format not in LOG_FORMATS:
        raise UnavailableError(f"invalid argument for --log_format, got: {log_format}")
    verbose_level = _typed(document, "log_verbose_level", int, "unsigned-integer")
    if verbose_level is not None and not 0 <= verbose_level <= _MAX_UINT32:
        raise _wrong_type("log_verbose_level", "unsigned-integer")
    return LogSettingsUpdate(
        _typed(document, "log_info", bool, "boolean"),
        _typed(document, "log_warning", bool, "boolean"),
        _typed(document, "log_error", bool, "boolean"),
        verbose_level,
        log_format,
    )


def encode_log_settings(values: LogSettingValues) -> bytes:
    """The answer to ``GET`` and ``POST /v2/logging``."""
    return orjson.dumps(values)


def log_file_is_fixed() -> UnsupportedError:
    """The error for an update of the log file, which would let a client write anywhere."""
    return UnsupportedError("log file location can not be updated through network protocol")


def _typed(document: dict[str, Any], name: str, kind: type[_T], expected: str) -> _T | None:
    if name not in document:
        return None
    value = document[name]
    if type(value) is not kind:
        raise _wrong_type(name, expected)
    return value


def _wrong_type(name: str, expected: str) -> MemberError:
    return MemberError(f"attempt to access JSON non-{expected} as {expected}: '{name}'")
