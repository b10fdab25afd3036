import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from naiad.engine.log_settings import IS_BLOCK
from naiad.protocol.log_settings import LogSettingValues
from naiad.server.logging import ServerLog, TritonFormatter, format_table

LOGGER = logging.getLogger("naiad.test")


def make_record(level: int, message: str, *arguments: object) -> logging.LogRecord:
    record = logging.LogRecord("naiad.x", level, "/a/lifecycle.py", 47, message, arguments, None)
    record.created = 1_796_053_796.164807
    record.process = 981
    return record


@pytest.mark.parametrize(
    ("level", "letter"),
    [(logging.DEBUG, "I"), (logging.INFO, "I"), (logging.WARNING, "W"), (logging.ERROR, "E")],
)
def test_a_line_is_tritons(level: int, letter: str) -> None:
    line = TritonFormatter("default").format(make_record(level, "loading: %s:%d", "add", 1))
    assert line == f'{letter}1130 15:49:56.164807 981 lifecycle.py:47] "loading: add:1"'


def test_the_other_format() -> None:
    line = TritonFormatter("ISO8601").format(make_record(logging.INFO, "message"))
    assert line == '2026-11-30T15:49:56Z I 981 lifecycle.py:47] "message"'


def test_a_message_stays_on_its_line() -> None:
    line = TritonFormatter("default").format(
        make_record(logging.INFO, 'two\nlines, "quoted" \N{SNOWMAN}')
    )
    assert line.endswith('] "two\\nlines, \\"quoted\\" \N{SNOWMAN}"')


def test_a_table_follows_its_line() -> None:
    record = make_record(logging.INFO, "+--+\n|  |\n+--+")
    setattr(record, IS_BLOCK, True)
    line = TritonFormatter("default").format(record)
    assert line == "I1130 15:49:56.164807 981 lifecycle.py:47] \n+--+\n|  |\n+--+"


def test_tables_are_tritons() -> None:
    rows = [("good", "1", "READY"), ("bad", "-", "UNAVAILABLE: first\nsecond")]
    assert format_table(("Model", "Version", "Status"), rows) == (
        "+-------+---------+--------------------+\n"
        "| Model | Version | Status             |\n"
        "+-------+---------+--------------------+\n"
        "| good  | 1       | READY              |\n"
        "| bad   | -       | UNAVAILABLE: first |\n"
        "|       |         | second             |\n"
        "+-------+---------+--------------------+\n"
    )
    assert format_table(("Model",), []) == "+-------+\n| Model |\n+-------+\n+-------+\n"


@pytest.fixture
def untouched_logging() -> Iterator[None]:
    root = logging.getLogger("naiad")
    level, propagate = root.level, root.propagate
    yield
    root.setLevel(level)
    root.propagate = propagate


def log_all_levels() -> None:
    LOGGER.debug("detail")
    LOGGER.info("information")
    LOGGER.warning("warning")
    LOGGER.error("error")


def read(file: Path) -> list[str]:
    """The messages of a log file."""
    lines = file.read_text().splitlines()
    return [line.rpartition('"')[0].rpartition('"')[2] for line in lines]


SWITCHES = [
    ({}, ["information", "warning", "error"]),
    ({"log_verbose_level": 1}, ["detail", "information", "warning", "error"]),
    ({"log_info": False}, ["warning", "error"]),
    ({"log_warning": False, "log_error": False}, ["information"]),
]


@pytest.mark.usefixtures("untouched_logging")
@pytest.mark.parametrize("is_changed_later", [False, True])
@pytest.mark.parametrize(("switches", "expected"), SWITCHES)
def test_each_level_has_its_switch(
    switches: dict[str, Any], expected: list[str], tmp_path: Path, *, is_changed_later: bool
) -> None:
    file = tmp_path / "log"
    values = LogSettingValues(str(file), **switches)
    log = ServerLog(LogSettingValues(str(file)) if is_changed_later else values)
    log.apply(values)
    log_all_levels()
    log.close()
    assert read(file) == expected


@pytest.mark.usefixtures("untouched_logging")
def test_the_format_changes_while_it_logs(tmp_path: Path) -> None:
    file = tmp_path / "log"
    log = ServerLog(LogSettingValues(str(file)))
    LOGGER.info("one")
    log.apply(LogSettingValues(str(file), log_format="ISO8601"))
    LOGGER.info("two")
    log.close()
    first, second = file.read_text().splitlines()
    assert re.match(r"I\d{4} ", first)
    assert re.match(r"\d{4}-\d\d-\d\dT[\d:]{8}Z I ", second)


@pytest.mark.usefixtures("untouched_logging")
def test_a_log_file_grows_until_the_log_is_closed(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text('"before"\n')
    log = ServerLog(LogSettingValues(str(file)))
    LOGGER.info("after")
    log.close()
    LOGGER.error("lost")
    assert read(file) == ["before", "after"]


@pytest.mark.usefixtures("untouched_logging")
def test_the_name_of_a_file_that_is_no_utf8_is_logged(tmp_path: Path) -> None:
    file = tmp_path / "log"
    log = ServerLog(LogSettingValues(str(file)))
    LOGGER.error("no file %s", b"a\xff".decode("utf-8", "surrogateescape"))
    log.close()
    assert "no file a\\udcff" in file.read_text("utf-8")
