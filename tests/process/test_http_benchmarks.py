"""The benchmarks of large bodies run, and what they write down is what they measured."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def run(script: str, figures: Path, *options: str) -> Any:
    ended = subprocess.run(
        [sys.executable, BENCHMARKS / script, "--json", figures, *options],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(figures.read_text())


def test_http_loop_hold(tmp_path: Path) -> None:
    figures = run("http_loop_hold.py", tmp_path / "f.json", "--seconds=1", "--megabytes=4")
    assert figures["alone"]["large_posted"] == 0
    assert figures["beside_large"]["large_posted"] >= 1
    assert 3_000_000 < figures["large_bytes"] < 4_500_000
    for row in (figures["alone"], figures["beside_large"]):
        assert row["requests"] > 0
        assert 0 < row["p50_ms"] <= row["p99_ms"] <= row["max_ms"]
        assert row["cpu_max_ms"] > 0


def test_loop_steps(tmp_path: Path) -> None:
    # One round of something small: whether a pass is short enough is for a quiet machine to say.
    figures = run("loop_steps.py", tmp_path / "f.json", "--megabytes=1", "--rounds=1", "--no-limit")
    assert len(figures["situations"]) >= 12
    for row in figures["situations"].values():
        assert 0 < row["cpu_max_ms"] <= row["cpu_worst_ms"]
        assert row["wall_p999_ms"] <= row["wall_max_ms"]


def test_http_large_bodies(tmp_path: Path) -> None:
    figures = run("http_large_bodies.py", tmp_path / "f.json", "--seconds=1", "--generator=python")
    assert figures["direct_us"] > 0
    for server in ("naiad", "naive"):
        assert figures[server]["errors"] == 0
        assert figures[server]["requests"] > 0
        assert figures[server]["added_us"] == pytest.approx(
            figures[server]["server_cpu_us"] - figures["direct_us"]
        )
