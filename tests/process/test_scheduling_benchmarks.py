"""The benchmarks of the schedulers run, and write what they measured."""

from pathlib import Path

import pytest
from tests.process.test_benchmark_scripts import run_benchmark

pytestmark = pytest.mark.slow


def test_what_the_batchers_cost_a_request_is_measured_at_each_batch(tmp_path: Path) -> None:
    arguments = ("--requests=6400", "--rounds=3")
    rows = run_benchmark("batcher_overhead.py", tmp_path, *arguments)["results"]
    overhead_us = {(row["scheduler"], row["rows"]): row["overhead_us"] for row in rows}
    assert {rows for _, rows in overhead_us} == {1, 4, 16, 64}
    # How many microseconds it is, is for a quiet machine to say.
    assert all(us > 0 for us in overhead_us.values())


def test_latency_metrics_are_measured_beside_a_server_without_them(tmp_path: Path) -> None:
    document = run_benchmark("latency_metrics.py", tmp_path, "--requests=1600", "--rounds=1")
    ratios = {(row["metrics"], row["rows"]): row["ratio"] for row in document["results"]}
    assert len(ratios) == 12
    assert all(ratio == 1 for (metrics, _), ratio in ratios.items() if metrics == "off")
    assert all(ratio > 0 for ratio in ratios.values())
    assert document["window"]["kib"] > 0


@pytest.mark.full
def test_the_adaptive_batcher_is_measured_beside_a_grid_at_each_load(tmp_path: Path) -> None:
    arguments = ("--seconds=0.2", "--rounds=1", "--models", "accelerator")
    results = run_benchmark("adaptive_batching.py", tmp_path, *arguments)["results"]
    assert set(results["accelerator"]) == {"closed", "open 30%", "open 60%", "open 90%"}
    closed = results["accelerator"]["closed"]["settings"]
    assert len(closed) == 10
    for load in results["accelerator"].values():
        assert load["settings"].keys() <= closed.keys()
        # What can't take the load has no part in it.
        assert all(
            closed[setting]["per_s"] > (load["offered_per_s"] or 0)
            for setting in load["settings"].keys() - {"adaptive"}
        )
        assert load["throughput_ratio"] > 0


@pytest.mark.full
def test_a_resnet_is_measured_served_and_directly(tmp_path: Path) -> None:
    document = run_benchmark("resnet_throughput.py", tmp_path, "--seconds=1.5", "--rounds=1")
    assert document["ratios"].keys() == {"served", "served, tuned"}
    assert all(ratio > 0 for ratio in document["ratios"].values())


def test_answers_at_a_timeout_are_measured_beside_bare_timers(tmp_path: Path) -> None:
    document = run_benchmark("queue_deadlines.py", tmp_path, "--rounds=3")
    answers, timers = document["answers_late"], document["timers_late"]
    assert document["requests"] == 300
    # None before its time. How late they are, is for a quiet machine to say.
    assert 0 <= answers["p0_ms"] <= answers["p90_ms"]
    assert timers["p0_ms"] <= timers["p90_ms"]
