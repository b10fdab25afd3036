import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from naiad.server.logging import IS_TABLE, TritonFormatter, configure_logging, format_table
from naiad.server.settings import LogFormat, Settings

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
    line = TritonFormatter(LogFormat.DEFAULT).format(make_record(level, "loading: %s:%d", "add", 1))
    assert line == f'{letter}1130 15:49:56.164807 981 lifecycle.py:47] "loading: add:1"'


def test_the_other_format() -> None:
    line = TritonFormatter(LogFormat.ISO8601).format(make_record(logging.INFO, "message"))
    assert line == '2026-11-30T15:49:56Z I 981 lifecycle.py:47] "message"'


def test_a_message_stays_on_its_line() -> None:
    line = TritonFormatter(LogFormat.DEFAULT).format(
        make_record(logging.INFO, 'two\nlines, "quoted" \N{SNOWMAN}')
    )
    assert line.endswith('] "two\\nlines, \\"quoted\\" \N{SNOWMAN}"')


def test_a_table_follows_its_line() -> None:
    record = make_record(logging.INFO, "+--+\n|  |\n+--+")
    setattr(record, IS_TABLE, True)
    line = TritonFormatter(LogFormat.DEFAULT).format(record)
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
    handlers, level, propagate = root.handlers[:], root.level, root.propagate
    yield
    for handler in root.handlers[:]:
        if handler not in handlers:
            handler.close()
            root.removeHandler(handler)
    root.setLevel(level)
    root.propagate = propagate


def log_through(settings: Settings) -> list[str]:
    configure_logging(settings)
    LOGGER.debug("detail")
    LOGGER.info("information")
    LOGGER.warning("warning")
    LOGGER.error("error")
    return [line.rpartition('"')[0].rpartition('"')[2] for line in read(settings)]


def read(settings: Settings) -> list[str]:
    return Path(settings.log_file).read_text().splitlines()


@pytest.mark.usefixtures("untouched_logging")
@pytest.mark.parametrize(
    ("switches", "expected"),
    [
        ({}, ["information", "warning", "error"]),
        ({"log_verbose": 1}, ["detail", "information", "warning", "error"]),
        ({"log_info": False}, ["warning", "error"]),
        ({"log_warning": False, "log_error": False}, ["information"]),
    ],
)
def test_each_level_has_its_switch(
    switches: dict[str, bool | int], expected: list[str], tmp_path: Path
) -> None:
    log_file = str(tmp_path / "log")
    settings = Settings(model_repository=(tmp_path,), log_file=log_file, **switches)  # type: ignore[arg-type]
    assert log_through(settings) == expected


@pytest.mark.usefixtures("untouched_logging")
def test_a_log_file_grows(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("before\n")
    settings = Settings(model_repository=(tmp_path,), log_file=str(tmp_path / "log"))
    log_through(settings)
    assert read(settings)[0] == "before"
    assert len(read(settings)) == 4
