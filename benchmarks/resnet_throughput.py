"""A ResNet-18 behind the server, asked by 16 clients, against onnxruntime itself.

    python benchmarks/resnet_throughput.py [--json FILE]

The network has ResNet-18's layers and shapes and random weights, 3 x 224 x 224 in and 1,000 out.
Direct: `InferenceSession.run` in a loop, for each number of threads and each batch size; the best
of them counts. Served: the same file over HTTP, each of 16 connections asking again once it is
answered; once with `dynamic_batching { }` and nothing else set, and once tuned: a preferred size of
half the clients, so that as many wait as are being computed, and threads that spin, as those of the
direct sessions do. Each round measures all of them, one after another; what counts is the ratio of
the medians.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from conditions import conditions
from load_generator import infer_request, measure
from make_models import resnet18, write_model
from rich.console import Console
from rich.table import Table

from naiad.inference.datatypes import FP32
from naiad.inference.tensor import Tensor
from naiad.verify.server_process import ServerProcess

CLIENTS = 16
SHAPE = (3, 224, 224)
CLASSES = 1000
BATCHES = (1, 2, 4, 8, 16)
# What is in flight at the end, a batch at most, is not counted, and must not count.
SERVED_TIMES = 8
PREFERRED = "preferred_batch_size: [ 8 ] max_queue_delay_microseconds: 20000"
SPINNING = """\
parameters { key: "session.intra_op.allow_spinning" value { string_value: "1" } }
"""
CONFIGS = {
    "served": "dynamic_batching { }\n",
    "served, tuned": f"dynamic_batching {{ {PREFERRED} }}\n{SPINNING}",
}


def open_session(path: Path, threads: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def direct_per_s(session: onnxruntime.InferenceSession, batch: int, seconds: float) -> float:
    data = np.ones((batch, *SHAPE), np.float32)
    session.run(None, {"INPUT": data})
    count = 0
    started = time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        session.run(None, {"INPUT": data})
        count += batch
    return count / elapsed


def served_per_s(repository: Path, seconds: float) -> float:
    data = np.ones((1, *SHAPE), np.float32)
    with ServerProcess(repository) as server:
        request = infer_request(
            f"http://{server.address}", "resnet18", [Tensor("INPUT", FP32, data.shape, data)]
        )
        figures = measure(request, CLIENTS, seconds)
    if figures.errors:
        raise RuntimeError(f"requests failed: {figures}")
    return figures.requests_per_s


def run_round(repository: Path, seconds: float) -> dict[str, float]:
    """Images per second by how they were computed."""
    model = repository / "resnet18" / "1" / "model.onnx"
    cores = len(os.sched_getaffinity(0))
    found = {}
    for threads in sorted({1, cores}):
        session = open_session(model, threads)
        for batch in BATCHES:
            found[f"{threads} threads, batch {batch}"] = direct_per_s(session, batch, seconds)
        del session
    path = repository / "resnet18" / "config.pbtxt"
    usual = path.read_text()
    for way, lines in CONFIGS.items():
        path.write_text(usual.replace("dynamic_batching { }\n", lines))
        found[way] = served_per_s(repository, seconds * SERVED_TIMES)
    path.write_text(usual)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write figures and conditions to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), resnet18(), max(BATCHES), SHAPE, CLASSES)
        rounds = [run_round(Path(folder), options.seconds) for _ in range(options.rounds)]
    medians = {way: statistics.median(found[way] for found in rounds) for way in rounds[0]}
    best = max(rate for way, rate in medians.items() if way not in CONFIGS)
    ratios = {way: medians[way] / best for way in CONFIGS}
    table = Table(title=f"ResNet-18, images/s; onnx {onnx.__version__}")
    for heading in ("way", "images/s"):
        table.add_column(heading, justify="right")
    for way, rate in medians.items():
        table.add_row(way, f"{rate:.1f}")
    Console().print(table)
    for way, ratio in ratios.items():
        print(f"{way} / best direct: {ratio:.3f}")
    if options.json:
        document = {
            "benchmark": "resnet_throughput",
            **conditions(),
            "load_average": os.getloadavg()[0],
            "images_per_s": medians,
            "rounds": rounds,
            "ratios": ratios,
        }
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
