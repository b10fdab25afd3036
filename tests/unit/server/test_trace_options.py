import re

import pytest

from naiad.inference.trace import TraceLevel
from naiad.protocol.trace_setting import TraceSettingValues
from naiad.server.command_line import parse_arguments
from naiad.server.trace_options import parse_trace_config


def trace_values(*arguments: str) -> TraceSettingValues:
    return parse_arguments(["models", *arguments], {}).trace_values()


def test_nothing_is_traced_by_default() -> None:
    assert trace_values() == TraceSettingValues(TraceLevel.OFF, 1000, -1, 0, "")


def test_the_parts_of_a_config_add_up() -> None:
    assert trace_values(
        "--trace-config=level=TIMESTAMPS",
        "--trace-config=level=TENSORS",
        "--trace-config=rate=1",
        "--trace-config=count=5",
        "--trace-config=mode=triton",
        "--trace-config=triton,file=a=b.json",
        "--trace-config=triton,log-frequency=2",
    ) == TraceSettingValues(TraceLevel.TIMESTAMPS | TraceLevel.TENSORS, 1, 5, 2, "a=b.json")


def test_the_older_options() -> None:
    assert trace_values(
        "--trace-level=MAX",
        "--trace-rate=1",
        "--trace-count=5",
        "--trace-file=f",
        "--trace-log-frequency=2",
    ) == TraceSettingValues(TraceLevel.TIMESTAMPS, 1, 5, 2, "f")


def test_a_config_wins_over_the_older_options() -> None:
    values = trace_values(
        "--trace-level=TENSORS",
        "--trace-rate=7",
        "--trace-file=old",
        "--trace-config=level=TIMESTAMPS",
        "--trace-config=triton,file=new",
    )
    assert values == TraceSettingValues(TraceLevel.TIMESTAMPS, 7, -1, 0, "new")


@pytest.mark.parametrize(("text", "level"), [("off", "OFF"), ("tensors", "TENSORS")])
def test_levels_in_any_case(text: str, level: str) -> None:
    assert parse_trace_config(f"level={text}").value is TraceLevel[level]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("level", "--trace-config option format is '<mode>,<setting>=<value>'"),
        ("=5", "--trace-config option format is"),
        ("rate=", "--trace-config option format is"),
        ("level=NONE", "invalid value for trace level option: NONE; expected one of OFF, "),
        ("rate=0", "expected a number from 1 to 4294967295, got 0"),
        ("count=-2", "expected a number from -1 to 2147483647, got -2"),
        ("triton,log-frequency=x", "expected a whole number, got 'x'"),
        ("file=x", "unknown trace setting 'file'; known are: level rate count mode triton,file"),
        ("mode=off", "invalid value for trace mode option: off; expected triton"),
        ("mode=opentelemetry", "mode=opentelemetry is not there in this version"),
        ("opentelemetry,url=x", "mode=opentelemetry is not there in this version"),
    ],
)
def test_bad_settings(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        parse_trace_config(text)
