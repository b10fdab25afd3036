"""docs/reference/parameters.md lists what Naiad adds, all of it and nothing else."""

import re
from pathlib import Path

from tests.support.triton_options import TRITON_OPTIONS

from naiad.backends.output_shapes import STRICT_PARAMETER
from naiad.backends.parameters import IN_PROCESS
from naiad.backends.python.options import PROCESS_ONLY
from naiad.engine.batching_parameters import BATCHING_PARAMETER, RETRY_PARAMETER
from naiad.model_config.diagnose import IGNORE_PARAMETER
from naiad.server.settings import OPTIONS

PAGE = (Path(__file__).parents[2] / "docs/reference/parameters.md").read_text(encoding="utf-8")


def names_under(heading: str) -> list[str]:
    """What the first cells of the table under a heading name."""
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return [name for cell in cells for name in re.findall("`(?:--)?([^`]+)`", cell)]


def test_every_option_that_triton_does_not_have() -> None:
    added = {option.name for option in OPTIONS if option.name not in TRITON_OPTIONS}
    assert sorted(names_under("Options of the server")) == sorted(added)


def test_every_parameter_that_triton_does_not_have() -> None:
    # Triton has a way to name an interpreter; the other needs of a process are ours.
    own = {*PROCESS_ONLY} - {"EXECUTION_ENV_PATH"}
    assert set(names_under("Parameters of a model config")) == own | {
        BATCHING_PARAMETER,
        RETRY_PARAMETER,
        IGNORE_PARAMETER,
        IN_PROCESS,
        STRICT_PARAMETER,
        "RESTART_LIMIT",
    }
