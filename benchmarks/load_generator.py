"""Closed-loop load on one model over HTTP: requests/s, latency, server CPU per request.

    python benchmarks/load_generator.py http://127.0.0.1:8000 mlp --input INPUT:FP32:1,64 \
        --connections 1,8,32 --server-pid 4711

Each connection sends its next request when the last one is answered. wrk, where it is installed,
costs far less CPU than the generator in Python, which matters when server and load share the cores.
"""

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import numpy as np
import uvloop
from process_cpu import tree_cpu_s
from rich.console import Console
from rich.table import Table

from naiad.inference.datatypes import BY_NAME
from naiad.inference.tensor import Tensor
from naiad.protocol.v2_client import encode_infer_request

WRK_SCRIPT = Path(__file__).with_name("wrk_request.lua")


@dataclass(frozen=True, slots=True)
class Request:
    """The request that is sent over and over."""

    url: str
    path: str
    headers: dict[str, str]
    body: bytes

    def encode(self) -> bytes:
        """The whole request as it goes to the socket."""
        lines = [
            f"POST {self.path} HTTP/1.1",
            f"Host: {urlsplit(self.url).netloc}",
            *(f"{name}: {value}" for name, value in self.headers.items()),
            f"Content-Length: {len(self.body)}",
            "",
            "",
        ]
        return "\r\n".join(lines).encode() + self.body


@dataclass(frozen=True, slots=True)
class Figures:
    """What one run at one number of connections gave.

    Attributes:
        errors: requests that were not answered with 200.
        server_cpu_us: CPU of all of the server's processes per request; None where nobody said
            which process the server is.
    """

    generator: str
    connections: int
    requests: int
    errors: int
    seconds: float
    p50_us: float
    p99_us: float
    server_cpu_us: float | None = None

    @property
    def requests_per_s(self) -> float:
        """Answered requests, errors among them."""
        return self.requests / self.seconds


def infer_request(url: str, model: str, inputs: Sequence[Tensor]) -> Request:
    body, header_length = encode_infer_request(inputs)
    headers = {
        "Content-Type": "application/octet-stream",
        "Inference-Header-Content-Length": str(header_length),
    }
    return Request(url.rstrip("/"), f"/v2/models/{model}/infer", headers, body)


class _Connection(asyncio.Protocol):
    """One closed loop; reads no more of an answer than its status and length."""

    def __init__(self, run: "_PythonRun") -> None:
        self._run = run
        self._buffer = b""
        self._sent_ns = 0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are none by class, so there is nothing to check here.
        self._transport = cast("asyncio.Transport", transport)
        self._send(self._transport)

    def _send(self, transport: asyncio.Transport) -> None:
        self._sent_ns = time.perf_counter_ns()
        transport.write(self._run.request)

    def data_received(self, data: bytes) -> None:
        self._buffer = self._buffer + data if self._buffer else data
        head_end = self._buffer.find(b"\r\n\r\n")
        if head_end < 0:
            return
        head = self._buffer[:head_end].lower()
        _, found, rest = head.partition(b"\r\ncontent-length:")
        if not found:
            self._run.fail("an answer has no Content-Length, which this generator needs")
            return
        if len(self._buffer) < head_end + 4 + int(rest.partition(b"\r\n")[0]):
            return
        now_ns = time.perf_counter_ns()
        self._run.latencies_ns.append(now_ns - self._sent_ns)
        if not head.startswith(b"http/1.1 200 "):
            self._run.errors += 1
        self._buffer = b""
        if now_ns < self._run.end_ns and self._transport is not None:
            self._send(self._transport)
        else:
            self._run.connection_done()

    def connection_lost(self, exc: Exception | None) -> None:
        self._run.fail(f"the server closed a connection: {exc or 'end of stream'}")


class _PythonRun:
    """What the connections of one run share."""

    def __init__(self, request: bytes, connections: int, end_ns: int) -> None:
        self.request = request
        self.end_ns = end_ns
        self.latencies_ns: list[int] = []
        self.errors = 0
        self.done = asyncio.get_running_loop().create_future()
        self._open = connections

    def connection_done(self) -> None:
        self._open -= 1
        if self._open == 0 and not self.done.done():
            self.done.set_result(None)

    def fail(self, why: str) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError(why))


async def _run_python(request: Request, connections: int, seconds: float) -> Figures:
    address = urlsplit(request.url)
    host, port = address.hostname or "127.0.0.1", address.port or 80
    start_ns = time.perf_counter_ns()
    run = _PythonRun(request.encode(), connections, start_ns + int(seconds * 1e9))
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: run.fail(str(context.get("exception"))))
    transports = [
        (await loop.create_connection(lambda: _Connection(run), host, port))[0]
        for _ in range(connections)
    ]
    await run.done
    elapsed_s = (time.perf_counter_ns() - start_ns) / 1e9
    for transport in transports:
        transport.close()
    p50_ns, p99_ns = np.percentile(np.array(run.latencies_ns), [50, 99])
    return Figures(
        generator="python",
        connections=connections,
        requests=len(run.latencies_ns),
        errors=run.errors,
        seconds=elapsed_s,
        p50_us=float(p50_ns) / 1e3,
        p99_us=float(p99_ns) / 1e3,
    )


def run_python(request: Request, connections: int, seconds: float) -> Figures:
    return uvloop.run(_run_python(request, connections, seconds))


def run_wrk(request: Request, connections: int, seconds: float) -> Figures:
    with tempfile.NamedTemporaryFile() as body:
        body.write(request.body)
        body.flush()
        command = [
            "wrk",
            "--threads=1",
            f"--connections={connections}",
            # Whole seconds are all that wrk takes.
            f"--duration={max(1, round(seconds))}s",
            f"--script={WRK_SCRIPT}",
            request.url + request.path,
            "--",
            body.name,
            *(f"{name}: {value}" for name, value in request.headers.items()),
        ]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    figures = json.loads(output.rpartition("FIGURES ")[2])
    return Figures(generator="wrk", connections=connections, **figures)


RUNNERS = {"wrk": run_wrk, "python": run_python}


def choose_generator(name: str) -> str:
    if name == "auto":
        return "wrk" if shutil.which("wrk") else "python"
    return name


def measure(
    request: Request,
    connections: int,
    seconds: float,
    *,
    server_pid: int | None = None,
    generator: str = "auto",
    warm_up_s: float = 1.0,
) -> Figures:
    """Warm up, then run the load and read the server's CPU time around it."""
    run = RUNNERS[choose_generator(generator)]
    if warm_up_s:
        run(request, connections, warm_up_s)
    before_s = tree_cpu_s(server_pid) if server_pid else 0.0
    figures = run(request, connections, seconds)
    if not server_pid or not figures.requests:
        return figures
    cpu_us = (tree_cpu_s(server_pid) - before_s) * 1e6 / figures.requests
    return Figures(**{**asdict(figures), "server_cpu_us": cpu_us})


def print_table(title: str, rows: Sequence[Figures]) -> None:
    table = Table(title=title)
    for heading in ("connections", "requests/s", "p50 us", "p99 us", "server CPU us/request"):
        table.add_column(heading, justify="right")
    table.add_column("errors", justify="right")
    table.add_column("generator")
    for row in rows:
        cpu = "" if row.server_cpu_us is None else f"{row.server_cpu_us:.0f}"
        table.add_row(
            str(row.connections),
            f"{row.requests_per_s:,.0f}",
            f"{row.p50_us:.0f}",
            f"{row.p99_us:.0f}",
            cpu,
            str(row.errors),
            row.generator,
        )
    Console().print(table)


def as_json(figures: Figures) -> dict[str, Any]:
    return {**asdict(figures), "requests_per_s": figures.requests_per_s}


def parse_input(text: str) -> Tensor:
    """``NAME:DATATYPE:DIMS`` as a tensor of ones, for argparse."""
    name, datatype_name, dims = text.rsplit(":", 2)
    datatype = BY_NAME[datatype_name]
    shape = tuple(int(dim) for dim in dims.split(","))
    data = np.ones(shape, datatype.dtype)
    if datatype.byte_size == 0:
        data.fill(b"1")
    return Tensor(name, datatype, shape, data)


def parse_numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("url", help="http://host:port")
    parser.add_argument("model")
    parser.add_argument("--input", type=parse_input, action="append", required=True)
    parser.add_argument("--connections", type=parse_numbers, default=[1, 8, 32])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--warm-up-seconds", type=float, default=1.0)
    parser.add_argument("--generator", choices=("auto", *RUNNERS), default="auto")
    parser.add_argument("--server-pid", type=int)
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    options = parser.parse_args()
    request = infer_request(options.url, options.model, options.input)
    rows = [
        measure(
            request,
            connections,
            options.seconds,
            server_pid=options.server_pid,
            generator=options.generator,
            warm_up_s=options.warm_up_seconds,
        )
        for connections in options.connections
    ]
    print_table(f"{options.model} at {options.url}", rows)
    if options.json:
        options.json.write_text(json.dumps([as_json(row) for row in rows], indent=2) + "\n")
    return 1 if any(row.errors for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
