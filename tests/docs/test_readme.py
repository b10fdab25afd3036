"""The README's own-model walk, run as it is written."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from naiad.verify.server_process import ServerProcess

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
SOURCE = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[0]
COMMANDS = [line for line in README.splitlines() if line.startswith("naiad ")]


def run(command: str, folder: Path, *extra: str) -> str:
    words = shlex.split(command)
    assert words[0] == "naiad"
    return subprocess.run(
        [sys.executable, "-m", "naiad", *words[1:], *extra],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
        timeout=500,
    ).stdout


@pytest.mark.slow
def test_the_walk_works(tmp_path: Path) -> None:
    (tmp_path / "mymodel.py").write_text(SOURCE)
    export, verify, serve = COMMANDS
    run(export, tmp_path)
    assert "equal" in run(verify, tmp_path)
    # The page's serve takes the default ports, which a test must not.
    assert serve == "naiad serve models"
    infer = next(iter(re.findall(r"`(naiad infer [^`]*)`", README)))
    with ServerProcess(tmp_path / "models") as server:
        answer = run(infer, tmp_path, "--url", server.address)
    assert "output" in answer
