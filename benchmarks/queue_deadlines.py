"""How late requests are answered whose time in the queue is over, while the instance is busy.

    python benchmarks/queue_deadlines.py [--rounds N] [--json FILE]

In each round 100 requests with a timeout of 100 ms wait behind a batch that does not end. Given is
by how much each answer came after its timeout, and, since that depends on what else the machine
does, by how much bare timers of the same event loop came late in the same rounds: what the batcher
adds is the difference. The promise is 5 ms on a machine that has time.
"""

import argparse
import asyncio
import json
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import uvloop
from conditions import conditions
from rich.console import Console
from rich.table import Table

from naiad.clock import SystemClock
from naiad.engine.executor import Executor
from naiad.inference.datatypes import FP32
from naiad.inference.request import InferRequest
from naiad.inference.response import InferResponse
from naiad.inference.tensor import Tensor
from naiad.model_config.signature import ModelSignature, TensorSpec
from naiad.scheduling.dynamic import BatcherRules, DynamicBatcher
from naiad.scheduling.queue import QueuePolicy, QueueRules

REQUESTS = 100
TIMEOUT_NS = 100_000_000
SIGNATURE = ModelSignature("m", 1, [TensorSpec("IN", FP32, (1,))], [TensorSpec("OUT", FP32, (1,))])
PERCENTILES = (0, 50, 90, 99, 100)


class Busy:
    """Has its batch until it is let go."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.has_batch = threading.Event()

    def execute(
        self, inputs: Mapping[str, np.ndarray], output_names: Sequence[str]
    ) -> Sequence[Tensor]:
        """Wait, then copy."""
        self.has_batch.set()
        self.gate.wait()
        data = inputs["IN"]
        return [Tensor(name, FP32, data.shape, data.copy()) for name in output_names]

    def close(self) -> None:
        """Nothing is held."""


async def measure_round(clock: SystemClock) -> tuple[list[float], list[float]]:
    """By how many milliseconds answers and bare timers were late."""
    rules = QueueRules(default_policy=QueuePolicy(default_timeout_ns=TIMEOUT_NS))
    instance = Busy()
    executor = Executor(1, SIGNATURE, DynamicBatcher(BatcherRules(1), rules), [instance], clock)
    answers: list[float] = []
    timers: list[float] = []
    are_over = asyncio.Event()
    loop = asyncio.get_running_loop()

    def note(late_ms: list[float], due_ns: int) -> None:
        late_ms.append((clock.now_ns() - due_ns) / 1e6)
        if len(answers) >= REQUESTS and len(timers) == REQUESTS:
            are_over.set()

    def submit(late_ms: list[float]) -> None:
        due_ns = clock.now_ns() + TIMEOUT_NS

        def answer(_: InferResponse) -> None:
            note(late_ms, due_ns)

        data = np.zeros((1, 1), np.float32)
        executor.submit(InferRequest("", {"IN": Tensor("IN", FP32, (1, 1), data)}, None, answer))

    submit([])
    await asyncio.to_thread(instance.has_batch.wait)
    for _ in range(REQUESTS):
        submit(answers)
        loop.call_later(TIMEOUT_NS / 1e9, note, timers, clock.now_ns() + TIMEOUT_NS)
        await asyncio.sleep(0.0005)
    await are_over.wait()
    instance.gate.set()
    await executor.drain()
    await executor.close()
    return answers, timers


async def measure(rounds: int) -> tuple[list[float], list[float]]:
    """All rounds together."""
    clock = SystemClock()
    answers: list[float] = []
    timers: list[float] = []
    for _ in range(rounds):
        more_answers, more_timers = await measure_round(clock)
        answers += more_answers
        timers += more_timers
    return answers, timers


def summarize(late_ms: list[float]) -> dict[str, float]:
    """Percentiles, and the share within the promise."""
    found = {f"p{p}_ms": round(float(np.percentile(late_ms, p)), 3) for p in PERCENTILES}
    found["within_5_ms"] = round(sum(ms <= 5 for ms in late_ms) / len(late_ms), 4)
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    answers, timers = uvloop.run(measure(arguments.rounds))
    result = {
        "benchmark": "queue_deadlines",
        **conditions(),
        "load_average": round(load, 1),
        "requests": len(answers),
        "answers_late": summarize(answers),
        "timers_late": summarize(timers),
    }
    table = Table("", *[f"p{p} ms" for p in PERCENTILES], "within 5 ms")
    for name in ("answers_late", "timers_late"):
        table.add_row(name, *[f"{value:g}" for value in result[name].values()])
    Console().print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
