"""What the dynamic batcher costs a request: from `submit` to its answer, without wire and model.

    python benchmarks/batcher_overhead.py [--json FILE]

The model copies one number per row and costs next to nothing. In each cycle as many requests of
one row as make a full batch are queued in one turn of the event loop, joined, executed in the
instance's thread, split and answered. Given are the CPU time of loop and thread together per
request, and what is left of it without the batcher: joining, executing and splitting the same rows
in one thread. CPU time and not the clock, so that other work on the machine counts as little as
may be.
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import uvloop
from conditions import conditions
from rich.console import Console
from rich.table import Table

from naiad.clock import SystemClock
from naiad.engine.executor import Executor
from naiad.engine.latencies import LatencyOptions, measure_latencies
from naiad.inference.datatypes import FP32
from naiad.inference.request import InferRequest
from naiad.inference.response import InferResponse
from naiad.inference.tensor import Tensor
from naiad.model_config.schema import ModelConfig
from naiad.model_config.signature import ModelSignature, TensorSpec
from naiad.scheduling.adaptive import AdaptiveBatcher
from naiad.scheduling.batch import join_rows, split_rows
from naiad.scheduling.dynamic import BatcherRules, DynamicBatcher
from naiad.scheduling.scheduler import Scheduler

SIZES = (1, 4, 16, 64)
SIGNATURE = ModelSignature(
    "m", max(SIZES), [TensorSpec("INPUT", FP32, (1,))], [TensorSpec("OUTPUT", FP32, (1,))]
)
SCHEDULERS: dict[str, Callable[[int], Scheduler]] = {
    "dynamic": lambda rows: DynamicBatcher(BatcherRules(rows)),
    "adaptive": lambda rows: AdaptiveBatcher(BatcherRules(rows), 50_000_000),
}


class Copy:
    """Answers with its input."""

    def execute(
        self, inputs: Mapping[str, np.ndarray], output_names: Sequence[str]
    ) -> Sequence[Tensor]:
        """Copy the rows."""
        data = inputs["INPUT"]
        return [Tensor("OUTPUT", FP32, data.shape, data.copy())]

    def close(self) -> None:
        """Nothing is held."""


@dataclass(frozen=True, slots=True)
class Result:
    """Medians of the rounds, in microseconds per request."""

    scheduler: str
    rows: int
    served_us: float
    direct_us: float
    overhead_us: float


async def served_us(
    scheduler: Scheduler, rows: int, cycles: int, latencies: LatencyOptions | None = None
) -> float:
    clock = SystemClock()
    executor = measure_latencies(
        Executor(1, SIGNATURE, scheduler, [Copy()], clock),
        ModelConfig(),
        latencies or LatencyOptions(),
        clock,
    )
    tensor = Tensor("INPUT", FP32, (1, 1), np.ones((1, 1), np.float32))
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    left = answered = 0
    started = 0.0

    def take(_: InferResponse) -> None:
        nonlocal left, answered
        left -= 1
        answered += 1
        if not left:
            loop.call_soon(send)

    def send() -> None:
        nonlocal left, started, answered
        if answered >= rows * cycles and started:
            done.set_result((time.process_time() - started) / answered)
            return
        # A tenth first, to warm up and to let the adaptive batcher find its size.
        if not started and answered >= rows * cycles // 10:
            started, answered = time.process_time(), 0
        left = rows
        for _ in range(rows):
            executor.submit(InferRequest("", {"INPUT": tensor}, None, take))

    send()
    per_request_s = await done
    await executor.drain()
    await executor.close()
    return per_request_s * 1e6


def direct_us(rows: int, cycles: int) -> float:
    arrays = [np.ones((1, 1), np.float32) for _ in range(rows)]
    instance = Copy()
    started = time.process_time()
    for _ in range(cycles):
        outputs = instance.execute({"INPUT": join_rows(arrays)}, ("OUTPUT",))
        split_rows(outputs[0].data, [1] * rows)
    return (time.process_time() - started) / (cycles * rows) * 1e6


def measure(name: str, rows: int, cycles: int, rounds: int) -> Result:
    pairs = [
        (
            uvloop.run(served_us(SCHEDULERS[name](rows), rows, cycles)),
            direct_us(rows, cycles),
        )
        for _ in range(rounds)
    ]
    served, direct = (statistics.median(pair[way] for pair in pairs) for way in range(2))
    return Result(name, rows, served, direct, statistics.median(a - b for a, b in pairs))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=64_000, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write figures and conditions to this file")
    options = parser.parse_args()
    results = [
        measure(name, rows, max(options.requests // rows, 10), options.rounds)
        for rows in SIZES
        for name in SCHEDULERS
    ]
    table = Table(title="the batcher's CPU per request")
    for heading in ("batcher", "batch", "served us", "direct us", "overhead us"):
        table.add_column(heading, justify="right")
    for r in results:
        figures = (f"{r.served_us:.2f}", f"{r.direct_us:.2f}", f"{r.overhead_us:.2f}")
        table.add_row(r.scheduler, str(r.rows), *figures)
    Console().print(table)
    if options.json:
        document = {
            "benchmark": "batcher_overhead",
            **conditions(),
            "results": [asdict(result) for result in results],
        }
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
