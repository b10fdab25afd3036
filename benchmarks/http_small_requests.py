"""Small requests over HTTP: what the server costs on top of the model.

    python benchmarks/http_small_requests.py [--json FILE]

A 64-256-64-5 MLP, one row a request, binary tensors, at several numbers of connections; in the same
run the same model in a plain onnxruntime loop without any server. Figures of different machines
don't compare; the ratios inside one run do.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from conditions import conditions
from load_generator import (
    RUNNERS,
    as_json,
    infer_request,
    measure,
    parse_numbers,
    print_table,
)
from make_models import MLP_WIDTHS, write_repository
from rich.console import Console
from rich.table import Table

from naiad.inference.datatypes import FP32
from naiad.inference.tensor import Tensor
from naiad.verify.server_process import ServerProcess

DIRECT_BATCH_SIZES = (1, 32)


def measure_direct(model: Path, batch_size: int, seconds: float) -> dict[str, float]:
    """Rows/s of the model alone, one caller, in this process."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    feed = {"INPUT": np.ones((batch_size, MLP_WIDTHS[0]), np.float32)}
    for _ in range(100):
        session.run(None, feed)
    executions = 0
    start_cpu_s = time.process_time()
    start_s = time.perf_counter()
    while (elapsed_s := time.perf_counter() - start_s) < seconds:
        session.run(None, feed)
        executions += 1
    rows = executions * batch_size
    return {
        "batch_size": batch_size,
        "rows_per_s": rows / elapsed_s,
        "execution_us": elapsed_s * 1e6 / executions,
        "cpu_us_per_row": (time.process_time() - start_cpu_s) * 1e6 / rows,
    }


def print_direct(rows: list[dict[str, float]]) -> None:
    table = Table(title="the model alone (onnxruntime in a loop)")
    for heading in ("batch", "rows/s", "us per execution", "CPU us/row"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            f"{row['batch_size']:.0f}",
            f"{row['rows_per_s']:,.0f}",
            f"{row['execution_us']:.1f}",
            f"{row['cpu_us_per_row']:.1f}",
        )
    Console().print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--connections", type=parse_numbers, default=[1, 8, 32])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--generator", choices=("auto", *RUNNERS), default="auto")
    parser.add_argument(
        "--server-option", action="append", default=[], help="one more flag of naiad serve"
    )
    parser.add_argument("--json", type=Path, help="write figures and conditions to this file")
    options = parser.parse_args()

    data = np.ones((1, MLP_WIDTHS[0]), np.float32)
    row = Tensor("INPUT", FP32, data.shape, data)
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder)
        write_repository(repository)
        direct = [
            measure_direct(repository / "mlp" / "1" / "model.onnx", batch_size, 2.0)
            for batch_size in DIRECT_BATCH_SIZES
        ]
        with ServerProcess(repository, options=options.server_option) as server:
            request = infer_request(f"http://{server.address}", "mlp", [row])
            served = [
                measure(
                    request,
                    connections,
                    options.seconds,
                    server_pid=server.pid,
                    generator=options.generator,
                )
                for connections in options.connections
            ]
    print_direct(direct)
    print_table("through the server, one row a request", served)
    results: dict[str, Any] = {
        "benchmark": "http_small_requests",
        **conditions(),
        "direct": direct,
        "served": [as_json(figures) for figures in served],
    }
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")
    return 1 if any(figures.errors for figures in served) else 0


if __name__ == "__main__":
    sys.exit(main())
