"""Whether the threads of an onnxruntime session should spin between executions.

    python benchmarks/spinning.py [--json FILE]

A 512-2048-2048-512 MLP with one instance that may use all cores, 8 rows a request: alone with one
client, and beside a second such model with two clients each. Every pair of figures is from one
server with spinning and one without, taken in turn; what counts is their ratio.
"""

import argparse
import json
import statistics
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from conditions import conditions
from load_generator import infer_request, measure
from make_models import mlp, write_model
from rich.console import Console
from rich.table import Table

from naiad.inference.datatypes import FP32
from naiad.inference.tensor import Tensor
from naiad.verify.server_process import ServerProcess

WIDTHS = (512, 2048, 2048, 512)
ROWS = 8
PARAMETER = """\
parameters {{ key: "session.intra_op.allow_spinning" value {{ string_value: "{value}" }} }}
"""


@dataclass(frozen=True, slots=True)
class Scene:
    """Who uses the machine: this many models, each asked over this many connections."""

    models: int
    connections: int


SCENES = (Scene(1, 1), Scene(2, 2))


@dataclass(frozen=True, slots=True)
class Result:
    """The middle of the rounds: requests/s of all models, and server CPU per request."""

    scene: Scene
    is_spinning: bool
    requests_per_s: float
    server_cpu_us: float


def run_round(scene: Scene, seconds: float, *, is_spinning: bool) -> tuple[float, float]:
    """Requests/s over all models and server CPU us per request, of a server of its own."""
    data = np.ones((ROWS, WIDTHS[0]), np.float32)
    row = Tensor("INPUT", FP32, data.shape, data)
    names = [f"mlp{index}" for index in range(scene.models)]
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            extra = PARAMETER.format(value=int(is_spinning))
            write_model(Path(folder), mlp(name, WIDTHS), ROWS, WIDTHS[:1], WIDTHS[-1], extra)
        with ServerProcess(Path(folder)) as server, ThreadPoolExecutor(scene.models) as pool:
            running = [
                pool.submit(
                    measure,
                    infer_request(f"http://{server.address}", name, [row]),
                    scene.connections,
                    seconds,
                    server_pid=server.pid,
                )
                for name in names
            ]
            figures = [future.result() for future in running]
    if any(figure.errors for figure in figures):
        raise RuntimeError(f"requests failed: {figures}")
    requests_per_s = sum(figure.requests_per_s for figure in figures)
    # Each generator has divided the CPU of the whole server by its own requests.
    cpu_us = sum(f.server_cpu_us or 0.0 for f in figures) / scene.models**2
    return requests_per_s, cpu_us


def run_scene(scene: Scene, seconds: float, rounds: int) -> list[Result]:
    found: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for _ in range(rounds):
        for is_spinning, figures in found.items():
            figures.append(run_round(scene, seconds, is_spinning=is_spinning))
    return [
        Result(
            scene,
            is_spinning,
            statistics.median(rate for rate, _ in figures),
            statistics.median(cpu_us for _, cpu_us in figures),
        )
        for is_spinning, figures in found.items()
    ]


def print_results(results: list[Result]) -> None:
    table = Table(title="onnxruntime's spinning, one instance a model")
    for heading in (
        "models",
        "connections each",
        "spinning",
        "requests/s",
        "server CPU us/request",
    ):
        table.add_column(heading, justify="right")
    for result in results:
        table.add_row(
            str(result.scene.models),
            str(result.scene.connections),
            "yes" if result.is_spinning else "no",
            f"{result.requests_per_s:,.0f}",
            f"{result.server_cpu_us:,.0f}",
        )
    Console().print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write figures and conditions to this file")
    options = parser.parse_args()
    results = [r for scene in SCENES for r in run_scene(scene, options.seconds, options.rounds)]
    print_results(results)
    if options.json:
        document: dict[str, Any] = {
            "benchmark": "spinning",
            **conditions(),
            "results": [asdict(result) for result in results],
        }
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
