"""What summaries and the histogram of `--metrics-config` cost a request, and a scrape.

    python benchmarks/latency_metrics.py [--json FILE]

The requests of `batcher_overhead.py`, with the dynamic batcher, measured with none of these metrics
and with each in turn, round after round, so that the ratios hold on a machine that does other work
too. Then a window full of latencies is read, as a scrape does.
"""

import argparse
import json
import statistics
import sys
import time
import tracemalloc
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import uvloop
from batcher_overhead import SCHEDULERS, SIZES, served_us
from conditions import conditions
from rich.console import Console
from rich.table import Table

from naiad.engine.latencies import LatencyOptions
from naiad.inference.latency_summaries import (
    DEFAULT_TARGETS,
    PART_COUNT,
    WINDOW_NS,
    LatencySummaries,
)

WAYS = {
    "off": LatencyOptions(),
    "summaries": LatencyOptions(DEFAULT_TARGETS),
    "histogram": LatencyOptions(has_histogram=True),
}


@dataclass(frozen=True, slots=True)
class Result:
    """CPU time per request, the median of the rounds.

    Attributes:
        metrics: what was measured of each request.
        rows: requests in a batch.
        served_us: from `submit` to its answer.
        ratio: to the same round without these metrics, median.
    """

    metrics: str
    rows: int
    served_us: float
    ratio: float


@dataclass(frozen=True, slots=True)
class Window:
    """A window of a minute that is full.

    Attributes:
        requests: that it has seen.
        kib: of memory, for all latencies of a model.
        read_ms: all quantiles of all latencies.
    """

    requests: int
    kib: float
    read_ms: float


class HandClock:
    """Stands still unless it is moved."""

    def __init__(self) -> None:
        self.time_ns = 0

    def now_ns(self) -> int:
        """Where it stands."""
        return self.time_ns

    def wall_ns(self) -> int:
        """The same."""
        return self.time_ns


def measure(rows: int, cycles: int, rounds: int) -> list[Result]:
    times: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(rounds):
        for name, options in WAYS.items():
            scheduler = SCHEDULERS["dynamic"](rows)
            times[name].append(uvloop.run(served_us(scheduler, rows, cycles, options)))
    return [
        Result(
            name,
            rows,
            statistics.median(taken),
            statistics.median(a / b for a, b in zip(taken, times["off"], strict=True)),
        )
        for name, taken in times.items()
    ]


def fill_window(requests: int) -> Window:
    clock = HandClock()
    random = np.random.default_rng(0)
    tracemalloc.start()
    summaries = LatencySummaries(DEFAULT_TARGETS, clock)
    for _ in range(PART_COUNT):
        for row in (random.lognormal(6, 1, (requests // PART_COUNT, 5)) * 1000).astype(int):
            request_ns, queue_ns, input_ns, infer_ns, output_ns = row.tolist()
            summaries.add_request(request_ns, queue_ns, clock.now_ns())
            summaries.add_compute(input_ns, infer_ns, output_ns, 1)
        clock.time_ns += WINDOW_NS // PART_COUNT
    clock.time_ns -= 1
    kib = tracemalloc.get_traced_memory()[0] / 1024
    tracemalloc.stop()
    started = time.process_time()
    for summary in (
        summaries.request,
        summaries.queue,
        summaries.compute_input,
        summaries.compute_infer,
        summaries.compute_output,
    ):
        summaries.read_us(summary)
    return Window(requests, kib, (time.process_time() - started) * 1000)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=64_000, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write figures and conditions to this file")
    options = parser.parse_args()
    results = [
        result
        for rows in SIZES
        for result in measure(rows, max(options.requests // rows, 10), options.rounds)
    ]
    window = fill_window(options.requests)
    table = Table(title="CPU per request")
    for heading in ("metrics", "batch", "us", "ratio to off"):
        table.add_column(heading, justify="right")
    for r in results:
        table.add_row(r.metrics, str(r.rows), f"{r.served_us:.2f}", f"{r.ratio:.3f}")
    console = Console()
    console.print(table)
    console.print(
        f"a window of {window.requests} requests: {window.kib:.0f} KiB, read in "
        f"{window.read_ms:.2f} ms"
    )
    if options.json:
        document = {
            "benchmark": "latency_metrics",
            **conditions(),
            "results": [asdict(result) for result in results],
            "window": asdict(window),
        }
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
