"""What a Python model's own process costs, against the same model in the server's process.

    python benchmarks/python_backend.py [--triton COMMAND] [--json FILE]

An echo model. Small requests of one row: over HTTP at several numbers of connections, and by calls
into the engine without HTTP, where the difference is the hop and nothing else. Large tensors: 8 MB
in and 8 MB out, by calls into the engine and over HTTP. The figures of one run compare, those of
machines don't.

With ``--triton`` a Triton server takes its turn in each round over HTTP, and the ratio is printed.
The command starts it, with ``{repository}`` and ``{port}`` in their places, for example

    tritonserver --model-repository={repository} --http-port={port} --allow-grpc=false

in an environment whose Python has the numpy that Triton's stub was built for.
"""

import argparse
import asyncio
import contextlib
import json
import shlex
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from conditions import conditions
from load_generator import (
    RUNNERS,
    Figures,
    as_json,
    infer_request,
    measure,
    parse_numbers,
    print_table,
)
from rich.console import Console
from rich.table import Table

from naiad.backends.registry import BackendRegistry
from naiad.clock import SystemClock
from naiad.engine.engine import Engine, EngineOptions
from naiad.engine.loader import Loader, LoaderOptions
from naiad.inference.datatypes import FP32
from naiad.inference.request import InferRequest
from naiad.inference.tensor import Tensor
from naiad.verify.server_process import ServerProcess

if TYPE_CHECKING:
    from naiad.inference.response import InferResponse

TRITON = "triton"
TRITON_START_S = 120
MODELS = {"process": "", "in_process": "IN_PROCESS"}
LARGE_BYTES = 8 << 20
CONFIG = """
name: "{name}"
backend: "python"
max_batch_size: 64
input [ {{ name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }} ]
output [ {{ name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }} ]
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
dynamic_batching {{ }}
"""
PARAMETER = 'parameters {{ key: "{key}" value {{ string_value: "true" }} }}\n'
SOURCE = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            data = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", data)]))
        return responses
"""


def write_repository(folder: Path, names: tuple[str, ...] = tuple(MODELS)) -> None:
    for name in names:
        key = MODELS[name]
        version = folder / name / "1"
        version.mkdir(parents=True)
        (version / "model.py").write_text(SOURCE)
        config = CONFIG.format(name=name) + (PARAMETER.format(key=key) if key else "")
        (folder / name / "config.pbtxt").write_text(config)


class Caller:
    """Asks the engine, and measures until the answer is there."""

    def __init__(self, engine: Engine, name: str, data: np.ndarray[Any, Any]) -> None:
        self._engine = engine
        self._model = engine.find(name)
        self._tensor = Tensor("IN", FP32, data.shape, data)
        self._loop = asyncio.get_running_loop()

    async def ask(self) -> float:
        """Seconds of one request."""
        answer: asyncio.Future[InferResponse] = self._loop.create_future()
        request = InferRequest("", {"IN": self._tensor}, None, answer.set_result)
        start_s = time.perf_counter()
        self._engine.infer(self._model, request)
        response = await answer
        elapsed_s = time.perf_counter() - start_s
        if response.error is not None:
            raise response.error
        return elapsed_s


async def measure_engine(folder: Path, seconds: float) -> list[dict[str, Any]]:
    """Latency of small requests and throughput of large ones, for both models."""
    loader = Loader(LoaderOptions((folder,)), BackendRegistry())
    engine = Engine(EngineOptions("bench", "0"), loader, SystemClock())
    await engine.start()
    rows = []
    # In turns, so that what else the machine does hits both alike.
    small: dict[str, list[float]] = {name: [] for name in MODELS}
    large: dict[str, list[float]] = {name: [] for name in MODELS}
    row = np.ones((1, 16), np.float32)
    bulk = np.ones((1, LARGE_BYTES // 4), np.float32)
    callers = {name: (Caller(engine, name, row), Caller(engine, name, bulk)) for name in MODELS}
    end_s = time.perf_counter() + 2 * seconds
    while time.perf_counter() < end_s:
        for name, (of_small, of_large) in callers.items():
            small[name] += [await of_small.ask() for _ in range(50)]
            large[name] += [await of_large.ask() for _ in range(3)]
    await engine.stop()
    for name in MODELS:
        # The first ones find the model's memory cold.
        large_s = statistics.median(large[name][3:])
        rows.append(
            {
                "model": name,
                "small_p50_us": statistics.median(small[name][50:]) * 1e6,
                "large_ms": large_s * 1e3,
                "large_gb_per_s": 2 * LARGE_BYTES / large_s / 1e9,
            }
        )
    return rows


def print_engine(rows: list[dict[str, Any]]) -> None:
    table = Table(title="by calls into the engine, one caller")
    for heading in ("model", "1 row: p50 us", "8 MB in and out: ms", "GB/s both ways"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            row["model"],
            f"{row['small_p50_us']:.0f}",
            f"{row['large_ms']:.2f}",
            f"{row['large_gb_per_s']:.1f}",
        )
    Console().print(table)


@contextlib.contextmanager
def running_triton(command: str, folder: Path) -> Iterator[tuple[str, int]]:
    """Triton with the same model; its address and process."""
    write_repository(folder, ("process",))
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    words = shlex.split(command.format(repository=folder, port=port))
    with tempfile.TemporaryFile() as log, subprocess.Popen(words, stdout=log, stderr=log) as server:
        try:
            wait_until_ready(f"http://127.0.0.1:{port}/v2/health/ready", server)
            yield f"127.0.0.1:{port}", server.pid
        finally:
            server.terminate()


def wait_until_ready(url: str, server: subprocess.Popen[bytes]) -> None:
    end_s = time.monotonic() + TRITON_START_S
    while time.monotonic() < end_s and server.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=1):
            return
        time.sleep(0.2)
    raise SystemExit("Triton did not become ready")


class Target:
    """One model of one server."""

    def __init__(self, name: str, address: str, pid: int) -> None:
        self.name = name
        self._url = f"http://{address}"
        self._model = "process" if name == TRITON else name
        self._pid = pid

    def measure(
        self, shape: tuple[int, int], connections: int, options: argparse.Namespace
    ) -> Figures:
        """Load it with tensors of a shape."""
        tensor = Tensor("IN", FP32, shape, np.ones(shape, np.float32))
        request = infer_request(self._url, self._model, [tensor])
        return measure(
            request,
            connections,
            options.seconds,
            server_pid=self._pid,
            generator=options.generator,
        )


Served = dict[str, list[Figures]]


def measure_served(targets: list[Target], options: argparse.Namespace) -> tuple[Served, Served]:
    """The median of the rounds of small requests and of large ones, for each model.

    In turns, so that what else the machine does hits all alike.
    """
    cases = [((1, 16), connections) for connections in options.connections]
    cases.append(((1, LARGE_BYTES // 4), 1))
    found: Served = {target.name: [] for target in targets}
    for shape, connections in cases:
        rounds: Served = {target.name: [] for target in targets}
        for _ in range(options.rounds):
            for target in targets:
                rounds[target.name].append(target.measure(shape, connections, options))
        for name, figures in rounds.items():
            figures.sort(key=lambda row: row.requests_per_s)
            found[name].append(figures[len(figures) // 2])
    small = {name: rows[:-1] for name, rows in found.items()}
    large = {name: rows[-1:] for name, rows in found.items()}
    return small, large


def compare(small: Served, large: Served) -> dict[str, dict[str, float]]:
    """Our process beside Triton's: requests/s, and the server's CPU time for a request.

    On a machine that does something else, too, the CPU time says more.
    """
    if TRITON not in small:
        return {}
    pairs = {
        f"small_{ours.connections}": (ours, theirs)
        for ours, theirs in zip(small["process"], small[TRITON], strict=True)
    }
    pairs["large"] = (large["process"][0], large[TRITON][0])
    ratios = {}
    for case, (ours, theirs) in pairs.items():
        ratios[case] = {
            "requests_per_s": ours.requests_per_s / theirs.requests_per_s,
            "server_cpu": (ours.server_cpu_us or 0) / (theirs.server_cpu_us or 1),
        }
        print(
            f"{case}: {ratios[case]['requests_per_s']:.2f} times Triton's requests/s with "
            f"{ratios[case]['server_cpu']:.2f} times its CPU for each"
        )
    return ratios


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--connections", type=parse_numbers, default=[1, 32])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument(
        "--rounds", type=int, default=3, help="over HTTP, of which the median counts"
    )
    parser.add_argument("--generator", choices=("auto", *RUNNERS), default="auto")
    parser.add_argument("--triton", help="command that starts a Triton server; see above")
    parser.add_argument("--json", type=Path, help="write figures and conditions to this file")
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as text, contextlib.ExitStack() as servers:
        folder = Path(text, "naiad")
        write_repository(folder)
        engine = asyncio.run(measure_engine(folder, options.seconds))
        server = servers.enter_context(ServerProcess(folder))
        targets = [Target(name, server.address, server.pid) for name in MODELS]
        if options.triton:
            triton = running_triton(options.triton, Path(text, TRITON))
            targets.append(Target(TRITON, *servers.enter_context(triton)))
        small, large = measure_served(targets, options)
    print_engine(engine)
    for name in small:
        print_table(f"over HTTP, one row a request, model '{name}'", small[name])
        print_table(f"over HTTP, 8 MB in and out, model '{name}'", large[name])
    added_us = engine[0]["small_p50_us"] - engine[1]["small_p50_us"]
    print(f"the process adds {added_us:.0f} us to a request of one caller")
    results = {
        "benchmark": "python_backend",
        **conditions(),
        "engine": engine,
        "added_us": added_us,
        "served": {name: [as_json(row) for row in rows] for name, rows in small.items()},
        "served_large": {name: [as_json(row) for row in rows] for name, rows in large.items()},
        "times_triton": compare(small, large),
    }
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")
    rows = [row for served in (small, large) for found in served.values() for row in found]
    return 1 if any(row.errors for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
