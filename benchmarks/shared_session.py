"""Two instances of an ONNX model on one onnxruntime session, against a session for each.

    python benchmarks/shared_session.py [--json FILE]

The shared session may use all cores; of two sessions each has half of them. One or both instances
are busy, in turn with the other way; what counts is the ratio of a round. Executed by the backend,
without a server around it.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from conditions import conditions
from make_models import convolutions, mlp
from rich.console import Console
from rich.table import Table

from naiad.backends.base import Instance, ModelSource
from naiad.backends.registry import BackendRegistry
from naiad.model_config.schema import ModelConfig

INSTANCES = 2
PARAMETER = "share_session_between_instances"
SHAPES = {"mlp": (8, 512), "convolutions": (1, 64, 56, 56)}


@dataclass(frozen=True, slots=True)
class Result:
    """Executions/s of all busy instances: medians, and the median of the rounds' ratios."""

    model: str
    busy: int
    separate_per_s: float
    shared_per_s: float
    ratio: float


def open_instances(model: onnx.ModelProto, folder: Path, *, is_shared: bool) -> list[Instance]:
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    config = ModelConfig(name="m", backend="onnxruntime")
    config.parameters[PARAMETER].string_value = str(is_shared).lower()
    cores = len(os.sched_getaffinity(0))
    share = max(1, cores // INSTANCES)
    source = ModelSource("m", 1, config, folder, thread_count=share, core_count=cores)
    backend = BackendRegistry().get("onnxruntime")
    backend.complete_config(source)
    loaded = backend.load(source)
    return [loaded.create_instance(index) for index in range(INSTANCES)]


def executions_per_s(instances: Sequence[Instance], data: np.ndarray, seconds: float) -> float:
    counts = [0] * len(instances)
    started = time.perf_counter()

    def work(index: int) -> None:
        while time.perf_counter() - started < seconds:
            instances[index].execute({"INPUT": data}, ["OUTPUT"])
            counts[index] += 1

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(instances))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - started)


def run_model(name: str, model: onnx.ModelProto, seconds: float, rounds: int) -> list[Result]:
    data = np.ones(SHAPES[name], np.float32)
    with tempfile.TemporaryDirectory() as folder:
        separate = open_instances(model, Path(folder), is_shared=False)
        shared = open_instances(model, Path(folder), is_shared=True)
    results = []
    for busy in range(1, INSTANCES + 1):
        pairs = [
            (
                executions_per_s(separate[:busy], data, seconds),
                executions_per_s(shared[:busy], data, seconds),
            )
            for _ in range(rounds)
        ]
        medians = [statistics.median(pair[way] for pair in pairs) for way in range(2)]
        results.append(Result(name, busy, *medians, statistics.median(b / a for a, b in pairs)))
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write figures and conditions to this file")
    options = parser.parse_args()
    models = {"mlp": mlp("mlp", (512, 2048, 2048, 512)), "convolutions": convolutions()}
    results = [
        result
        for name, model in models.items()
        for result in run_model(name, model, options.seconds, options.rounds)
    ]
    table = Table(title="executions/s of two instances")
    for heading in ("model", "busy", "a session each", "one session", "one / each"):
        table.add_column(heading, justify="right")
    for r in results:
        figures = (f"{r.separate_per_s:,.0f}", f"{r.shared_per_s:,.0f}", f"{r.ratio:.2f}")
        table.add_row(r.model, str(r.busy), *figures)
    Console().print(table)
    if options.json:
        document: dict[str, Any] = {
            "benchmark": "shared_session",
            **conditions(),
            "results": [asdict(result) for result in results],
        }
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
