"""``--trace-config`` and the older ``--trace-*`` options: from their texts to a trace setting.

Source: Triton's command_line_parser.cc. What ``--trace-config`` says wins over the older options.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from naiad.inference.trace import TraceLevel
from naiad.protocol.trace_setting import TraceSettingValues
from naiad.server.option import integer, parse_text

_MAX_UINT32: Final = (1 << 32) - 1
_MAX_INT32: Final = (1 << 31) - 1

# Older names of a level.
_OLD_LEVELS: Final[Mapping[str, TraceLevel]] = MappingProxyType(
    {"MIN": TraceLevel.TIMESTAMPS, "MAX": TraceLevel.TIMESTAMPS}
)


@dataclass(frozen=True, slots=True)
class TraceAssignment:
    """One setting that was given, by the name that `TraceSettingValues` has for it."""

    name: str
    value: Any


def parse_trace_level(text: str) -> TraceLevel:
    """OFF, TIMESTAMPS or TENSORS; in any case, as Triton takes it."""
    name = text.upper()
    level = TraceLevel.__members__.get(name, _OLD_LEVELS.get(name))
    if level is None:
        names = ", ".join(TraceLevel.__members__)
        raise ValueError(f"invalid value for trace level option: {text}; expected one of {names}")
    return level


def _parse_mode(text: str) -> str:
    if text == "triton":
        return text
    if text == "opentelemetry":
        raise ValueError(
            "mode=opentelemetry is not there in this version, which writes traces to a file: use "
            "mode=triton and triton,file=FILE"
        )
    raise ValueError(f"invalid value for trace mode option: {text}; expected triton")


parse_trace_rate: Final = integer(1, _MAX_UINT32)
parse_trace_count: Final = integer(-1, _MAX_INT32)
parse_log_frequency: Final = integer(0, _MAX_UINT32)

# Keys of --trace-config: the setting, and how its text is read.
_KEYS: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = MappingProxyType(
    {
        "level": ("level", parse_trace_level),
        "rate": ("rate", parse_trace_rate),
        "count": ("count", parse_trace_count),
        "mode": ("mode", _parse_mode),
        "triton,file": ("trace_file", parse_text),
        "triton,log-frequency": ("log_frequency", parse_log_frequency),
    }
)


def parse_trace_config(text: str) -> TraceAssignment:
    """Read ``<setting>=<value>`` or ``<mode>,<setting>=<value>``.

    Raises:
        ValueError: another form, an unknown setting, or no value of it.
    """
    key, equals, value = text.partition("=")
    if not (equals and key and value):
        raise ValueError(
            "--trace-config option format is '<mode>,<setting>=<value>' or '<setting>=<value>'. "
            f"Got {text}"
        )
    if key.startswith("opentelemetry,"):
        _parse_mode("opentelemetry")
    known = _KEYS.get(key)
    if known is None:
        raise ValueError(f"unknown trace setting '{key}'; known are: {' '.join(_KEYS)}")
    name, parse = known
    return TraceAssignment(name, parse(value))


def merge_trace_options(
    old: Mapping[str, Any], assignments: Sequence[TraceAssignment]
) -> TraceSettingValues:
    """The trace setting that the options amount to.

    Args:
        old: what the older options say, by the name of the setting; None where one was not given.
        assignments: what ``--trace-config`` says, in order; levels add up.

    Raises:
        ValueError: traces are asked for and there is no file for them.
    """
    values = {name: value for name, value in old.items() if value is not None}
    levels = [assignment.value for assignment in assignments if assignment.name == "level"]
    if levels:
        values["level"] = TraceLevel.OFF
        for level in levels:
            values["level"] |= level
    for assignment in assignments:
        if assignment.name not in ("level", "mode"):
            values[assignment.name] = assignment.value
    merged = TraceSettingValues(**values)
    if merged.level is not TraceLevel.OFF and not merged.trace_file:
        raise ValueError(
            "trace file name is not given; name the file with --trace-config=triton,file=FILE"
        )
    return merged
