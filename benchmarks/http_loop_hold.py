"""Small requests while another client posts 64 MB of JSON: latency, and how long the loop is held.

    python benchmarks/http_loop_hold.py [--json FILE]

A small model is asked 200 times a second, first alone and then while a second client posts a tensor
of 64 MB as JSON to another model again and again. A probe on the server's event loop notes how late
it is called and how much CPU time the loop's thread has used since the last time: the first has the
machine's other work in it, the second is the loop's own. Figures of different machines don't
compare; those of one run do.
"""

import argparse
import asyncio
import gc
import http.client
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import onnx
import uvloop
from conditions import conditions
from load_generator import infer_request
from make_models import IR_VERSION, MLP_WIDTHS, OPSET, write_repository
from onnx import TensorProto, helper, numpy_helper
from rich.console import Console
from rich.table import Table

from naiad.clock import SystemClock
from naiad.inference.datatypes import FP32
from naiad.inference.tensor import Tensor
from naiad.server.build import build_server
from naiad.server.settings import Settings

LARGE = "large"
CONNECTIONS = 16
REQUESTS_PER_S = 200
TIMEOUT_MS = 300.0
PROBE_S = 0.001

CONFIG = """\
backend: "onnxruntime"
max_batch_size: 0
input [ { name: "INPUT" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_FP32 dims: [ 5 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
"""


def write_large_model(folder: Path) -> None:
    """FP32 ``[-1]`` -> its first five values: nothing to compute, anything to read."""
    bounds = [
        numpy_helper.from_array(np.array([value], np.int64), name)
        for name, value in (("start", 0), ("end", 5))
    ]
    graph = helper.make_graph(
        [helper.make_node("Slice", ["INPUT", "start", "end"], ["OUTPUT"])],
        LARGE,
        [helper.make_tensor_value_info("INPUT", TensorProto.FLOAT, ["n"])],
        [helper.make_tensor_value_info("OUTPUT", TensorProto.FLOAT, [5])],
        bounds,
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION
    )
    version = folder / LARGE / "1"
    version.mkdir(parents=True)
    onnx.save(model, version / "model.onnx")
    (folder / LARGE / "config.pbtxt").write_text(CONFIG)


def large_body(megabytes: int) -> bytes:
    values = np.random.default_rng(0).standard_normal(megabytes * 1_000_000 // 9 - 100)
    data = ",".join(f"{abs(value):.6f}" for value in values)
    entry = f'{{"name":"INPUT","datatype":"FP32","shape":[{len(values)}],"data":[{data}]}}'
    return f'{{"inputs":[{entry}]}}'.encode()


# --- the server, in a process of its own ---------------------------------------------------------


class Probe:
    """Looks at the loop it runs on every millisecond."""

    def __init__(self) -> None:
        self.late_ms: list[float] = []
        self.cpu_ms: list[float] = []
        self._is_disturbed = False

    async def run(self) -> None:
        """Look until it is cancelled."""
        while True:
            due, cpu = time.perf_counter() + PROBE_S, time.thread_time()
            await asyncio.sleep(PROBE_S)
            if self._is_disturbed:
                self._is_disturbed = False
                continue
            self.late_ms.append((time.perf_counter() - due) * 1e3)
            self.cpu_ms.append((time.thread_time() - cpu) * 1e3)

    def take(self) -> dict[str, float]:
        """The figures since the last call, which itself takes some milliseconds."""
        self._is_disturbed = True
        late, cpu = np.array(self.late_ms), np.array(self.cpu_ms)
        self.late_ms.clear()
        self.cpu_ms.clear()
        return {
            "late_p99_ms": float(np.percentile(late, 99)),
            "late_max_ms": float(late.max()),
            "cpu_p99_ms": float(np.percentile(cpu, 99)),
            "cpu_max_ms": float(cpu.max()),
        }


async def serve(repository: Path) -> None:
    """Serve until stdin ends; every line there asks for the probe's figures."""
    settings = Settings(
        model_repository=(repository,), http_port=0, allow_grpc=False, allow_metrics=False
    )
    server = build_server(settings, SystemClock(), lambda values: None)
    assert server.http is not None
    await server.engine.start()
    gc.collect()
    gc.freeze()  # as naiad.server.run does
    await server.http.start()
    probe = Probe()
    probing = asyncio.ensure_future(probe.run())
    print(server.http.port, flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(probe.take()), flush=True)
    probing.cancel()
    await server.http.drain(1.0)
    server.http.close()
    await server.engine.stop()


class ServerWithProbe:
    """The other end of ``serve``."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin, self._stdout = process.stdin, process.stdout
        self.url = f"http://127.0.0.1:{int(self._stdout.readline())}"

    def figures(self) -> dict[str, float]:
        """What the probe saw since the last call."""
        self._stdin.write("\n")
        self._stdin.flush()
        figures: dict[str, float] = json.loads(self._stdout.readline())
        return figures


@contextmanager
def running(repository: Path) -> Iterator[ServerWithProbe]:
    with subprocess.Popen(
        [sys.executable, __file__, "--serve", str(repository)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield ServerWithProbe(process)
        assert process.stdin is not None
        process.stdin.close()
        process.wait(60)


# --- the clients ---------------------------------------------------------------------------------


async def ask_paced(url: str, data: bytes, seconds: float) -> list[float]:
    """Milliseconds from when each request was due to its answer, over several connections."""
    address = urlsplit(url)
    latencies_ms: list[float] = []
    interval_s = CONNECTIONS / REQUESTS_PER_S

    async def ask(index: int) -> None:
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        # uvloop's own time has whole milliseconds.
        due = time.perf_counter() + index / REQUESTS_PER_S
        end = due + seconds
        while due < end:
            await asyncio.sleep(due - time.perf_counter())
            writer.write(data)
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200 "):
                raise ConnectionError(head.decode())
            length = head.lower().partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0]
            await reader.readexactly(int(length))
            latencies_ms.append((time.perf_counter() - due) * 1e3)
            due = max(due + interval_s, time.perf_counter())
        writer.close()

    await asyncio.gather(*map(ask, range(CONNECTIONS)))
    return latencies_ms


class LargePoster:
    """Posts the same body again and again, in a thread."""

    def __init__(self, url: str, body: bytes) -> None:
        self.posted = 0
        self._url = urlsplit(url)
        self._body = body
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        connection = http.client.HTTPConnection(
            self._url.hostname or "", self._url.port, timeout=60
        )
        while not self._is_stopping.is_set():
            connection.request("POST", f"/v2/models/{LARGE}/infer", self._body)
            answer = connection.getresponse()
            text = answer.read()
            if answer.status != 200:
                raise ConnectionError(text.decode())
            self.posted += 1
        connection.close()

    def stop(self) -> None:
        """Wait for the last answer."""
        self._is_stopping.set()
        self._thread.join()


def measure(server: ServerWithProbe, body: bytes | None, seconds: float) -> dict[str, Any]:
    data = np.ones((1, MLP_WIDTHS[0]), np.float32)
    row = infer_request(server.url, "mlp", [Tensor("INPUT", FP32, data.shape, data)]).encode()
    uvloop.run(ask_paced(server.url, row, 0.5))
    poster = None if body is None else LargePoster(server.url, body)
    server.figures()
    latencies_ms = uvloop.run(ask_paced(server.url, row, seconds))
    if poster is not None:
        poster.stop()
    p50_ms, p99_ms = np.percentile(latencies_ms, [50, 99])
    return {
        "large_posted": 0 if poster is None else poster.posted,
        "requests": len(latencies_ms),
        "p50_ms": float(p50_ms),
        "p99_ms": float(p99_ms),
        "max_ms": max(latencies_ms),
        "over_timeout": sum(latency > TIMEOUT_MS for latency in latencies_ms),
        **server.figures(),
    }


def print_rows(rows: list[dict[str, Any]]) -> None:
    table = Table(title="small requests, alone and beside 64 MB of JSON; the event loop's steps")
    headings = (
        "large posted", "requests", "p50 ms", "p99 ms", "max ms", f"over {TIMEOUT_MS:.0f} ms",
        "loop late p99", "max", "loop CPU p99", "max",
    )  # fmt: skip
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            *(f"{value:.2f}" if isinstance(value, float) else str(value) for value in row.values())
        )
    Console(width=120).print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--json", type=Path, help="write figures and conditions to this file")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        uvloop.run(serve(options.serve))
        return 0
    body = large_body(options.megabytes)
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder)
        write_repository(repository)
        write_large_model(repository)
        with running(repository) as server:
            rows = [
                measure(server, None, options.seconds),
                measure(server, body, options.seconds),
            ]
    print_rows(rows)
    results = {
        "benchmark": "http_loop_hold",
        **conditions(),
        "large_bytes": len(body),
        "alone": rows[0],
        "beside_large": rows[1],
    }
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")
    return 1 if rows[1]["over_timeout"] else 0


if __name__ == "__main__":
    sys.exit(main())
