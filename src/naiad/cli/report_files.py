"""The options by which verbs write their reports to files."""

from pathlib import Path
from typing import Final

import click

junit_option: Final = click.option(
    "--junit",
    "junit_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write a JUnit XML report too.",
)
