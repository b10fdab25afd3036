"""The adaptive batcher against a grid of fixed sizes and delays, at four loads.

    python benchmarks/adaptive_batching.py [--json FILE]

Requests of one row go into an executor in this process: without a wire, so that batching is what is
measured. Closed loop: 64 clients that ask again at once. Open loop: arrivals at random (Poisson) at
30, 60 and 90 % of what the best fixed setting does in the closed loop, for the settings that could
do so much at all. All settings take turns in every round, and the medians of the rounds are
compared.

``accelerator`` stands for a device: an execution takes 4 ms and 0.2 ms a row, and no CPU. ``mlp``
is a 512-4096-4096-512 MLP in onnxruntime on all cores.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import uvloop
from conditions import conditions
from make_models import mlp
from rich.console import Console
from rich.table import Table

from naiad.backends.base import Instance, ModelSource
from naiad.backends.registry import BackendRegistry
from naiad.clock import SystemClock
from naiad.engine.executor import Executor
from naiad.inference.datatypes import FP32
from naiad.inference.request import InferRequest
from naiad.inference.response import InferResponse
from naiad.inference.tensor import Tensor
from naiad.model_config.schema import ModelConfig
from naiad.model_config.signature import ModelSignature, TensorSpec
from naiad.scheduling.adaptive import AdaptiveBatcher
from naiad.scheduling.dynamic import BatcherRules, DynamicBatcher

MAX_ROWS = 64
CLIENTS = 64
WARM_UP_S = 1.0
SIZES = (4, 16, 64)
DELAYS_MS = (0, 2, 10)
LOADS = (0.3, 0.6, 0.9)
ADAPTIVE = "adaptive"
SETTINGS = (ADAPTIVE, *(f"{rows}/{delay}" for rows in SIZES for delay in DELAYS_MS))
WIDTHS = (512, 4096, 4096, 512)


class Accelerator:
    """Takes its time and no CPU."""

    def __init__(self) -> None:
        self._never = threading.Event()

    def execute(
        self, inputs: Mapping[str, np.ndarray], output_names: Sequence[str]
    ) -> Sequence[Tensor]:
        """Answer with the input, later."""
        data = inputs["INPUT"]
        self._never.wait(0.004 + 0.0002 * len(data))
        return [Tensor("OUTPUT", FP32, data.shape, data.copy())]

    def close(self) -> None:
        """Nothing is held."""


def open_mlp() -> Instance:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "model.onnx").write_bytes(mlp("mlp", WIDTHS).SerializeToString())
        config = ModelConfig(name="mlp", backend="onnxruntime", max_batch_size=MAX_ROWS)
        cores = len(os.sched_getaffinity(0))
        source = ModelSource("mlp", 1, config, Path(folder), thread_count=cores, core_count=cores)
        backend = BackendRegistry().get("onnxruntime")
        backend.complete_config(source)
        return backend.load(source).create_instance(0)


MODELS: dict[str, tuple[Callable[[], Instance], int]] = {
    "accelerator": (Accelerator, 16),
    "mlp": (open_mlp, WIDTHS[0]),
}


@dataclass(frozen=True, slots=True)
class Figures:
    """What one setting did at one load: answers per second, and the 99th percentile."""

    per_s: float
    p99_ms: float


class Load:
    """Requests into one executor, and their latencies."""

    def __init__(self, executor: Executor, width: int, seconds: float) -> None:
        self._executor = executor
        data = np.ones((1, width), np.float32)
        self._inputs = {"INPUT": Tensor("INPUT", FP32, data.shape, data)}
        self._seconds = seconds
        self._start = self._end = 0.0
        self.latencies_s: list[float] = []

    def send(self, then: Callable[[], None], due: float | None = None) -> None:
        """Send one request, and call ``then`` once it is answered.

        Its latency counts from when it was due: now, by default.
        """
        begun = time.perf_counter() if due is None else due
        if begun >= self._end:
            return

        def take(_: InferResponse) -> None:
            now = time.perf_counter()
            if self._start <= now < self._end:
                self.latencies_s.append(now - begun)
            if now < self._end:
                then()

        self._executor.submit(InferRequest("", self._inputs, None, take))

    def begin(self) -> None:
        """Leave the first second to the queue, which fills, and the batcher, which learns."""
        self._start = time.perf_counter() + WARM_UP_S
        self._end = self._start + self._seconds

    async def closed(self) -> None:
        """Ask again after each answer."""
        self.begin()
        loop = asyncio.get_running_loop()

        def again() -> None:
            loop.call_soon(self.send, again)

        for _ in range(CLIENTS):
            self.send(again)
        # uvloop's timers are of whole milliseconds.
        await asyncio.sleep(self._end - time.perf_counter() + 0.005)

    async def open(self, per_s: float) -> None:
        """Ask whatever is answered."""
        self.begin()
        # The same arrivals for every setting, so that what they did compares.
        arrivals = random.Random(0)
        due = time.perf_counter()
        while due < self._end:
            while due <= time.perf_counter():
                self.send(_do_nothing, due)
                due += arrivals.expovariate(per_s)
            # uvloop's timers are of whole milliseconds, and a shorter one would be no rest at all:
            # it would take a core from what is measured.
            await asyncio.sleep(max(due - time.perf_counter(), 0.001))


def _do_nothing() -> None:
    """Whatever is answered, the next is due when it is due."""


async def run(
    instance: Instance, width: int, setting: str, per_s: float, options: argparse.Namespace
) -> Figures:
    if setting == ADAPTIVE:
        rules = BatcherRules(MAX_ROWS)
        scheduler = AdaptiveBatcher(rules, int(options.target_ms * 1e6))
    else:
        rows, delay_ms = map(int, setting.split("/"))
        scheduler = DynamicBatcher(BatcherRules(rows, (), delay_ms * 1_000_000))
    signature = ModelSignature(
        "m", MAX_ROWS, [TensorSpec("INPUT", FP32, (width,))], [TensorSpec("OUTPUT", FP32, (-1,))]
    )
    executor = Executor(1, signature, scheduler, [Shared(instance)], SystemClock())
    load = Load(executor, width, options.seconds)
    await (load.open(per_s) if per_s else load.closed())
    await executor.drain()
    await executor.close()
    return Figures(
        len(load.latencies_s) / options.seconds,
        float(np.percentile(load.latencies_s, 99)) * 1e3,
    )


class Shared:
    """An instance that outlives its executor."""

    def __init__(self, instance: Instance) -> None:
        self.execute = instance.execute

    def close(self) -> None:
        """The next executor uses it."""


def compare(
    instance: Instance,
    width: int,
    settings: Sequence[str],
    per_s: float,
    options: argparse.Namespace,
) -> Any:
    found: dict[str, list[Figures]] = {setting: [] for setting in settings}
    for _ in range(options.rounds):
        for setting in settings:
            figures = uvloop.run(run(instance, width, setting, per_s, options))
            found[setting].append(figures)
    medians = {
        setting: Figures(
            statistics.median(f.per_s for f in rounds), statistics.median(f.p99_ms for f in rounds)
        )
        for setting, rounds in found.items()
    }
    fixed = {setting: figures for setting, figures in medians.items() if setting != ADAPTIVE}
    best = max(fixed, key=lambda setting: fixed[setting].per_s)
    return {
        "offered_per_s": per_s or None,
        "best_fixed": best,
        "best_fixed_per_s": fixed[best].per_s,
        "throughput_ratio": medians[ADAPTIVE].per_s / fixed[best].per_s,
        "settings": {setting: asdict(figures) for setting, figures in medians.items()},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--target-ms", type=float, default=60.0)
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS), default=list(MODELS))
    parser.add_argument("--json", type=Path, help="write figures and conditions to this file")
    options = parser.parse_args()
    results = {}
    table = Table(title=f"adaptive batching, target {options.target_ms:g} ms")
    for heading in ("model", "load", "answers/s", "of the best fixed", "p99 ms", "its p99 ms"):
        table.add_column(heading, justify="right")
    for name in options.models:
        make, width = MODELS[name]
        instance = make()
        closed = compare(instance, width, SETTINGS, 0, options)
        results[name] = {"closed": closed}
        for share in LOADS:
            per_s = closed["best_fixed_per_s"] * share
            able = [
                setting
                for setting in SETTINGS
                if setting == ADAPTIVE or closed["settings"][setting]["per_s"] > per_s
            ]
            results[name][f"open {share:.0%}"] = compare(instance, width, able, per_s, options)
        for load, result in results[name].items():
            own = result["settings"][ADAPTIVE]
            fixed = result["settings"][result["best_fixed"]]
            table.add_row(
                name,
                load,
                f"{own['per_s']:,.0f}",
                f"{result['throughput_ratio']:.2f} ({result['best_fixed']})",
                f"{own['p99_ms']:.1f}",
                f"{fixed['p99_ms']:.1f}",
            )
    Console().print(table)
    if options.json:
        document = {
            "benchmark": "adaptive_batching",
            **conditions(),
            "target_ms": options.target_ms,
            "load_average": os.getloadavg()[0],
            "results": results,
        }
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
