"""The guide's walk from weights to a verified service, each command run as it is written."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from naiad.inference.comparison import default_tolerance
from naiad.verify.server_process import ServerProcess

GUIDE = (Path(__file__).parents[2] / "docs/guide/verified_service.md").read_text(encoding="utf-8")
SOURCE = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)[0]
PLAIN = re.sub(r"```python\n.*?```", "", GUIDE, flags=re.DOTALL)
COMMANDS = [
    line
    for block in re.findall(r"^```\n(.*?)^```$", PLAIN, re.DOTALL | re.MULTILINE)
    for line in block.splitlines()
]


def run(command: str, folder: Path) -> str:
    program, *words = shlex.split(command)
    start = {"naiad": [sys.executable, "-m", "naiad"], "python": [sys.executable]}[program]
    done = subprocess.run(
        [*start, *words], cwd=folder, capture_output=True, text=True, check=False, timeout=500
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_guide_works_as_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "digits.py").write_text(SOURCE)
    train, doctor, export, verify, serve, infer, verify_url = COMMANDS
    run(train, tmp_path)
    assert "Python" in run(doctor, tmp_path)
    run(export, tmp_path)
    assert "PyTorch eager again" in run(verify, tmp_path)
    assert "Every hop holds" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert (tmp_path / "report.xml").exists()
    # The page's serve takes the default ports, which a test must not.
    assert serve == "naiad serve models"
    with ServerProcess(tmp_path / "models") as server:
        assert "output" in run(f"{infer} --url {server.address}", tmp_path)
        own = verify_url.replace("localhost:8000", server.address)
        own = own.replace("localhost:8001", server.grpc_address)
        assert server.address in own
        assert server.grpc_address in own
        assert "served, gRPC stream" in run(own, tmp_path)


def test_the_guide_s_tolerances_are_those_of_the_code() -> None:
    for datatype in ("FP32", "FP16", "BF16", "FP64"):
        tolerance = default_tolerance(datatype)
        words = f"{_short(tolerance.atol)} and {_short(tolerance.rtol)} for {datatype}"
        assert words in " ".join(GUIDE.split())


def _short(number: float) -> str:
    return f"{number:.0e}".replace("e-0", "e-")
