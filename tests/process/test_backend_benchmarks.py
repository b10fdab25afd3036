"""The benchmarks of the backends run, and write what they measured."""

from pathlib import Path

import pytest
from tests.process.test_benchmark_scripts import run_benchmark

pytestmark = pytest.mark.slow


def test_the_footprint_is_that_of_a_ready_server_without_torch(tmp_path: Path) -> None:
    arguments = ("--rounds=1", "--requests=20", "--idle=0.1")
    # The command fails if the server takes more than the 150 MiB that are claimed.
    (found,) = run_benchmark("footprint.py", tmp_path, *arguments)["rounds"]
    assert found["ready_s"] > 0
    assert 50 < found["resident_mib"] < 150
    assert not found["has_torch"]


@pytest.mark.full
def test_openvino_is_measured_beside_onnxruntime(tmp_path: Path) -> None:
    pytest.importorskip("openvino", reason="the extra openvino is not installed")
    arguments = ("--seconds=0.2", "--rounds=1")
    rows = run_benchmark("openvino_engine.py", tmp_path, *arguments)["results"]
    assert [row["model"] for row in rows] == ["mlp", "convolutions"]
    assert all(row["onnxruntime_per_s"] > 0 and row["openvino_per_s"] > 0 for row in rows)


@pytest.mark.full
def test_shared_sessions_are_measured_both_ways(tmp_path: Path) -> None:
    arguments = ("--seconds=0.2", "--rounds=1")
    rows = run_benchmark("shared_session.py", tmp_path, *arguments)["results"]
    assert [(row["model"], row["busy"]) for row in rows] == [
        ("mlp", 1), ("mlp", 2), ("convolutions", 1), ("convolutions", 2),
    ]  # fmt: skip
    assert all(row["separate_per_s"] > 0 and row["shared_per_s"] > 0 for row in rows)


@pytest.mark.full
def test_every_way_to_an_output_is_measured(tmp_path: Path) -> None:
    arguments = ("--seconds=0.1", "--rounds=1", "--threads=1", "--megabytes=1")
    rows = run_benchmark("onnx_outputs.py", tmp_path, *arguments)["results"]
    assert [row["way"] for row in rows] == ["run", "new", "kept"]
    assert all(row["per_s"] > 0 for row in rows)
