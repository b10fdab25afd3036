"""The index of the documents: complete, and its line for the shell works."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
INDEX = (DOCS / "README.md").read_text(encoding="utf-8")


def test_every_page_is_in_the_index() -> None:
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")} - {"README.md"}
    listed = {link for link in re.findall(r"\]\(([^)]+)\)", INDEX) if not link.startswith("..")}
    assert listed == pages


@pytest.mark.slow
def test_the_line_for_the_shell_completes_verbs() -> None:
    line = next(line for line in INDEX.splitlines() if line.startswith("eval "))
    command = str(Path(sys.executable).parent)
    script = f"""
    export PATH={command!r}:$PATH
    {line}
    COMP_WORDS=(naiad ver) COMP_CWORD=1
    _naiad_completion naiad
    echo "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=True, timeout=500
    )
    assert done.stdout.split() == ["verify"]
