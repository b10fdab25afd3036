"""Requests of 602 KB over HTTP: the CPU time that the front end adds to the model's own.

    python benchmarks/http_large_bodies.py [--json FILE]

FP32 [1,3,224,224] in a binary tail at 8 connections, to a model that takes five of its pixels. In
the same run: the same model in a plain onnxruntime loop, and a naive server that joins the chunks
of a body as they come and runs the same model, without batches, checks or a thread. Figures of
different machines don't compare; the ratios inside one run do.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnxruntime
import uvloop
from conditions import conditions
from load_generator import RUNNERS, Figures, as_json, infer_request, measure, print_table
from make_models import IMAGE_SHAPE, write_repository
from rich.console import Console

from naiad.inference.datatypes import FP32
from naiad.inference.tensor import Tensor
from naiad.verify.server_process import ServerProcess

AIM_US = 200.0


def open_session(model: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def measure_direct(model: Path, image: np.ndarray[Any, Any], seconds: float) -> float:
    """CPU microseconds of one execution, one image each, in this process."""
    session = open_session(model)
    for _ in range(100):
        session.run(None, {"INPUT": image})
    executions = 0
    start_cpu_s, end_s = time.process_time(), time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        session.run(None, {"INPUT": image})
        executions += 1
    return (time.process_time() - start_cpu_s) * 1e6 / executions


# --- the naive server, in a process of its own ---------------------------------------------------


class NaiveConnection(asyncio.Protocol):
    """Adds each chunk to what it has, as a first draft would."""

    def __init__(self, session: onnxruntime.InferenceSession) -> None:
        self._session = session
        self._buffer = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:  # noqa: D102
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:  # noqa: D102
        self._buffer += data
        head, found, body = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        headers = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        if len(body) < int(headers[b"content-length"]):
            return
        self._buffer = b""
        start = int(headers[b"inference-header-content-length"])
        entry = json.loads(body[:start])["inputs"][0]
        image = np.frombuffer(body[start:], np.float32).reshape(entry["shape"])
        (output,) = self._session.run(None, {"INPUT": image})
        text = json.dumps({"outputs": [{"name": "OUTPUT", "data": output.ravel().tolist()}]})
        assert self._transport is not None
        self._transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(text), text.encode())
        )


async def serve_naively(model: Path) -> None:
    session = open_session(model)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: NaiveConnection(session), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextmanager
def naive_server(model: Path) -> Iterator[tuple[str, int]]:
    """URL and process id."""
    with subprocess.Popen(
        [sys.executable, __file__, "--naive", str(model)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}", process.pid
        finally:
            process.kill()


def added_us(figures: Figures, direct_us: float) -> float:
    assert figures.server_cpu_us is not None
    return figures.server_cpu_us - direct_us


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--generator", choices=("auto", *RUNNERS), default="auto")
    parser.add_argument("--json", type=Path, help="write figures and conditions to this file")
    parser.add_argument("--naive", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.naive:
        uvloop.run(serve_naively(options.naive))
        return 0

    image = np.ones((1, *IMAGE_SHAPE), np.float32)
    inputs = [Tensor("INPUT", FP32, image.shape, image)]

    def load(url: str, pid: int) -> Figures:
        return measure(
            infer_request(url, "image", inputs),
            options.connections,
            options.seconds,
            server_pid=pid,
            generator=options.generator,
        )

    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder)
        write_repository(repository)
        model = repository / "image" / "1" / "model.onnx"
        direct_us = measure_direct(model, image, 2.0)
        with ServerProcess(repository) as server:
            naiad = load(f"http://{server.address}", server.pid)
        with naive_server(model) as (url, pid):
            naive = load(url, pid)
    print_table("602 KB a request: naiad, then the naive server", [naiad, naive])
    ours_us, theirs_us = added_us(naiad, direct_us), added_us(naive, direct_us)
    Console().print(
        f"the model alone: {direct_us:.0f} us CPU; naiad adds {ours_us:.0f} us (aim: below "
        f"{AIM_US:.0f}), the naive server {theirs_us:.0f} us, {theirs_us / ours_us:.1f} times that"
    )
    results: dict[str, Any] = {
        "benchmark": "http_large_bodies",
        **conditions(),
        "direct_us": direct_us,
        "naiad": {**as_json(naiad), "added_us": ours_us},
        "naive": {**as_json(naive), "added_us": theirs_us},
    }
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")
    return 1 if naiad.errors or naive.errors else 0


if __name__ == "__main__":
    sys.exit(main())
