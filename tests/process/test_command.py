"""The installed command and the module are one."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", [["--version"], ["--help"], ["export", "--help"], ["no-such-verb"]]
)
def test_python_m_naiad_is_naiad(arguments: list[str]) -> None:
    installed, module = (
        subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
        for command in (
            [str(Path(sys.executable).with_name("naiad"))],
            [sys.executable, "-m", "naiad"],
        )
    )
    assert installed.stdout + installed.stderr
    assert (installed.returncode, installed.stdout, installed.stderr) == (
        module.returncode, module.stdout, module.stderr,
    )  # fmt: skip
