"""OpenVINO against onnxruntime on the same ONNX files, each with all cores.

    python benchmarks/openvino_engine.py [--json FILE]

An MLP (512-2048-2048-512, 8 rows) and a convolutional network (8 layers of 64 channels on 56 x 56,
one image), executed by the backends without a server around them, in turn; what counts is the
ratio of a round. Both compute in FP32.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
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

BACKENDS = ("onnxruntime", "openvino")
SHAPES = {"mlp": (8, 512), "convolutions": (1, 64, 56, 56)}


@dataclass(frozen=True, slots=True)
class Result:
    """Executions/s of one model: medians of the rounds, and the median of the rounds' ratios."""

    model: str
    onnxruntime_per_s: float
    openvino_per_s: float
    ratio: float


def open_instance(backend_name: str, model: onnx.ModelProto, folder: Path) -> Instance:
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    config = ModelConfig(name="m", backend=backend_name, default_model_filename="model.onnx")
    cores = len(os.sched_getaffinity(0))
    source = ModelSource("m", 1, config, folder, thread_count=cores, core_count=cores)
    backend = BackendRegistry().get(backend_name)
    backend.complete_config(source)
    return backend.load(source).create_instance(0)


def executions_per_s(instance: Instance, data: np.ndarray, seconds: float) -> float:
    count = 0
    started = time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        instance.execute({"INPUT": data}, ["OUTPUT"])
        count += 1
    return count / elapsed


def run_model(name: str, model: onnx.ModelProto, seconds: float, rounds: int) -> Result:
    data = np.random.default_rng(0).standard_normal(SHAPES[name], np.float32)
    with tempfile.TemporaryDirectory() as folder:
        instances = {b: open_instance(b, model, Path(folder)) for b in BACKENDS}
    answers = [i.execute({"INPUT": data}, ["OUTPUT"])[0].data for i in instances.values()]
    np.testing.assert_allclose(answers[0], answers[1], rtol=1e-3, atol=1e-3)
    found: dict[str, list[float]] = {backend: [] for backend in BACKENDS}
    for _ in range(rounds):
        for backend, instance in instances.items():
            found[backend].append(executions_per_s(instance, data, seconds))
    ours, theirs = found["onnxruntime"], found["openvino"]
    return Result(
        name,
        statistics.median(ours),
        statistics.median(theirs),
        statistics.median(b / a for a, b in zip(ours, theirs, strict=True)),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write figures and conditions to this file")
    options = parser.parse_args()
    models = {"mlp": mlp("mlp", (512, 2048, 2048, 512)), "convolutions": convolutions()}
    results = [
        run_model(name, model, options.seconds, options.rounds) for name, model in models.items()
    ]
    table = Table(title="executions/s, all cores, FP32")
    for heading in ("model", *BACKENDS, "openvino / onnxruntime"):
        table.add_column(heading, justify="right")
    for r in results:
        figures = (f"{r.onnxruntime_per_s:,.0f}", f"{r.openvino_per_s:,.0f}", f"{r.ratio:.2f}")
        table.add_row(r.model, *figures)
    Console().print(table)
    if options.json:
        document: dict[str, Any] = {
            "benchmark": "openvino_engine",
            **conditions(),
            "results": [asdict(result) for result in results],
        }
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
