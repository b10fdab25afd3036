"""The benchmark of the Python backend runs, and compares what it says."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "python_backend.py"


def test_the_benchmark_of_python_models_runs(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    options = [
        "--seconds=1",
        "--rounds=1",
        "--connections=2",
        "--generator=python",
        f"--json={figures}",
    ]
    ended = subprocess.run(
        [sys.executable, SCRIPT, *options], capture_output=True, text=True, timeout=500, check=False
    )
    assert ended.returncode == 0, ended.stderr
    written = json.loads(figures.read_text())
    process, in_process = written["engine"]
    assert process["small_p50_us"] > 0
    assert in_process["small_p50_us"] > 0
    assert written["added_us"] == pytest.approx(
        process["small_p50_us"] - in_process["small_p50_us"]
    )
    assert process["large_gb_per_s"] > 0
    for rows in written["served"].values():
        assert [row["connections"] for row in rows] == [2]
        assert rows[0]["requests"] > 0
        assert rows[0]["errors"] == 0
