"""The trace extension: what it can set, and its bodies over HTTP.

Source: Triton's extension_trace.md. All values travel as text; `parse_trace_update` reads them for
every protocol.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

import orjson

from naiad.errors import InvalidArgumentError, UnsupportedError
from naiad.inference.trace import TraceLevel
from naiad.protocol.json_text import Buffer, MemberError, parse_json

_INTEGER: Final = re.compile(r"\s*[+-]?[0-9]+")
_INT32: Final = (-(1 << 31), (1 << 31) - 1)
_UINT32: Final = (0, (1 << 32) - 1)
# More digits than any number that is accepted; Python refuses to convert thousands of them.
_MAX_DIGITS: Final = 30


@dataclass(frozen=True, slots=True)
class TraceSettingValues:
    """What is traced, and where it is written.

    Attributes:
        level: OFF for no traces.
        rate: every how many requests one is traced.
        count: how many more traces are taken; -1 for no limit.
        log_frequency: traces per numbered file; 0 for one file that is complete at the end.
        trace_file: its path. Fixed when the server starts.
    """

    level: TraceLevel = TraceLevel.OFF
    rate: int = 1000
    count: int = -1
    log_frequency: int = 0
    trace_file: str = ""


class Clear(Enum):
    """In place of a value: go back to the global setting, or to that of the start."""

    CLEAR = auto()


@dataclass(frozen=True, slots=True)
class TraceSettingUpdate:
    """What to change; None leaves a setting as it is."""

    level: TraceLevel | Clear | None = None
    rate: int | Clear | None = None
    count: int | Clear | None = None
    log_frequency: int | Clear | None = None


def decode_trace_update(body: Buffer) -> TraceSettingUpdate:
    """Decode ``POST /v2/trace/setting`` or ``POST /v2/models/M/trace/setting``.

    Raises:
        InvalidArgumentError: not JSON, or a value is of the wrong type or out of range.
        UnsupportedError: the trace file is to be changed.
    """
    document = parse_json(body)
    if type(document) is not dict:
        return TraceSettingUpdate()
    settings: dict[str, Sequence[str]] = {}
    for name in ("trace_file", "trace_level", "trace_rate", "trace_count", "log_frequency"):
        if name in document:
            settings[name] = _texts(name, document[name])
    return parse_trace_update(settings, got="got:")


def parse_trace_update(
    settings: Mapping[str, Sequence[str]], *, got: str = "got: "
) -> TraceSettingUpdate:
    """Read the values of an update.

    Args:
        settings: the texts of each setting that is named; none of them clears it. Names that do
            not exist are ignored, as by Triton, and so are levels.
        got: how the text about a count ends before the value; Triton's HTTP side has no space.

    Raises:
        InvalidArgumentError: a value is no number, or out of range.
        UnsupportedError: the trace file is to be changed.
    """
    if settings.get("trace_file"):
        raise UnsupportedError("trace file location can not be updated through network protocol")
    count = _number(settings, "trace_count", _INT32)
    if isinstance(count, int) and count < -1:
        raise InvalidArgumentError(
            f"Unable to parse 'trace_count'. Expecting value >= -1, {got}{count}"
        )
    return TraceSettingUpdate(
        _level(settings.get("trace_level")),
        _unsigned(settings, "trace_rate"),
        count,
        _unsigned(settings, "log_frequency"),
    )


def format_trace_settings(values: TraceSettingValues) -> dict[str, list[str]]:
    """All settings as the texts that travel, in Triton's order."""
    return {
        "trace_level": [level.name or "" for level in values.level] or ["OFF"],
        "trace_rate": [str(values.rate)],
        "trace_count": [str(values.count)],
        "log_frequency": [str(values.log_frequency)],
        "trace_file": [values.trace_file],
        "trace_mode": ["triton"],
    }


def encode_trace_settings(values: TraceSettingValues) -> bytes:
    """The answer to every request of the extension."""
    return orjson.dumps(
        {
            name: texts if name == "trace_level" else texts[0]
            for name, texts in format_trace_settings(values).items()
        }
    )


def _texts(name: str, value: Any) -> Sequence[str]:
    if value is None:
        return ()
    if name == "trace_level" and type(value) is not list:
        raise MemberError(f"attempt to access JSON non-array as array: '{name}'")
    texts: list[Any] = value if name == "trace_level" else [value]
    for text in texts:
        if type(text) is not str:
            raise MemberError(f"attempt to access JSON non-string as string: '{name}'")
    return texts


def _level(names: Sequence[str] | None) -> TraceLevel | Clear | None:
    if names is None:
        return None
    if not names:
        return Clear.CLEAR
    if "OFF" in names and len(names) > 1:
        raise InvalidArgumentError("Expect only one trace level 'OFF' is specified")
    level = TraceLevel.OFF
    for name in names:
        level |= TraceLevel.__members__.get(name, TraceLevel.OFF)
    return level


def _unsigned(settings: Mapping[str, Sequence[str]], name: str) -> int | Clear | None:
    value = _number(settings, name, _UINT32)
    # Triton's integers wrap around: a rate of -1 reads 4294967295, which is as good as never.
    return value & _UINT32[1] if isinstance(value, int) else value


def _number(
    settings: Mapping[str, Sequence[str]], name: str, limits: tuple[int, int]
) -> int | Clear | None:
    texts = settings.get(name)
    if texts is None:
        return None
    if not texts:
        return Clear.CLEAR
    if len(texts) > 1:
        raise InvalidArgumentError(f"expect only 1 value for '{name}'")
    (text,) = texts
    if not _INTEGER.fullmatch(text):
        raise InvalidArgumentError(f"Unable to parse '{name}', got: {text}")
    value = int(text) if len(text) <= _MAX_DIGITS else limits[1] + 1
    if not _INT32[0] <= value <= limits[1]:
        raise InvalidArgumentError(
            f"Unable to parse '{name}', value is out of range [ {limits[0]}, {limits[1]} ], "
            f"got: {text}"
        )
    return value
