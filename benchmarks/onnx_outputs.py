"""Does binding outputs save a copy of what onnxruntime gives?

    python benchmarks/onnx_outputs.py [--seconds 2] [--rounds 3] [--megabytes 8] [--json FILE]

A model that adds its input to itself, one session, 1 to N threads that ask it. Three ways to its
output, which take turns:

* run: what the server does, ``session.run``; the array is a view of onnxruntime's own memory.
* new: IoBinding to an array that is made for each execution.
* kept: IoBinding to one array a thread, which a server can't do: the answer before is still being
  sent from it.

Shown is the median of the rounds, in executions a second of all threads, and as a ratio to run.
"""

import argparse
import json
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime
from conditions import conditions
from make_models import doubling

Array = npt.NDArray[np.float32]
WAYS = ("run", "new", "kept")


def make_call(session: onnxruntime.InferenceSession, way: str, rows: Array) -> Callable[[], object]:
    if way == "run":
        return lambda: session.run(["OUTPUT"], {"INPUT": rows})
    kept = np.empty_like(rows)

    def bound() -> Array:
        target = kept if way == "kept" else np.empty_like(rows)
        binding = session.io_binding()
        binding.bind_cpu_input("INPUT", rows)
        binding.bind_output("OUTPUT", "cpu", 0, np.float32, target.shape, target.ctypes.data)
        session.run_with_iobinding(binding)
        return target

    return bound


def measure(
    session: onnxruntime.InferenceSession, way: str, rows: Array, threads: int, seconds: float
) -> float:
    """Executions a second of all threads."""
    counts = [0] * threads
    start = threading.Barrier(threads + 1)
    end = [0.0]

    def work(index: int) -> None:
        call = make_call(session, way, rows)
        call()
        start.wait()
        while time.perf_counter() < end[0]:
            call()
            counts[index] += 1

    workers = [threading.Thread(target=work, args=(index,)) for index in range(threads)]
    for worker in workers:
        worker.start()
    end[0] = time.perf_counter() + seconds
    start.wait()
    for worker in workers:
        worker.join()
    return sum(counts) / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=float, default=8.0)
    parser.add_argument("--threads", type=int, default=2, help="the most of them")
    parser.add_argument("--json", type=Path, help="write figures and conditions to this file")
    given = parser.parse_args()
    width = int(given.megabytes * 250_000)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        doubling(width).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    rows = np.ones((1, width), np.float32)
    results = []
    print(f"{'threads':>7}{'way':>6}{'per s':>9}{'ratio':>7}")
    for threads in range(1, given.threads + 1):
        found: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(given.rounds):
            for way in WAYS:
                found[way].append(measure(session, way, rows, threads, given.seconds))
        usual = statistics.median(found["run"])
        for way in WAYS:
            rate = statistics.median(found[way])
            results.append({"threads": threads, "way": way, "per_s": rate, "ratio": rate / usual})
            print(f"{threads:7}{way:>6}{rate:9.0f}{rate / usual:7.2f}")
    if given.json:
        document = {"benchmark": "onnx_outputs", **conditions(), "results": results}
        given.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
