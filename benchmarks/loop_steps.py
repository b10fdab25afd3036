"""How long one pass of the server's event loop takes, whatever large thing a client does.

    python benchmarks/loop_steps.py [--megabytes N] [--rounds N] [--only NAME] [--json FILE]

The server runs in a process of its own, where a probe is called once in each pass of the event loop
and notes how long the pass took and how much CPU time the loop's thread used in it: the first has
the machine's other work in it and waits for Python's lock, the second is the loop's own. Each
situation is done a few times, one call at a time. Figures of different machines don't compare.
"""

import argparse
import asyncio
import base64
import gc
import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import uvloop
from conditions import conditions
from rich.console import Console
from rich.table import Table

from naiad.clock import SystemClock
from naiad.protocol.pb.grpc_service import (
    InferParameter,
    InferTensorContents,
    ModelInferRequest,
    ModelInferResponse,
    ModelRepositoryParameter,
    RepositoryModelLoadRequest,
    RepositoryModelLoadResponse,
)
from naiad.server.build import build_server
from naiad.server.settings import ModelControlMode, Settings

# What a pass may take of the loop's thread.
LIMIT_MS = 2.0
SERVICE = "/inference.GRPCInferenceService/"
UNLIMITED = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
MODELS = {"floats": "TYPE_FP32", "integers": "TYPE_INT32", "texts": "TYPE_STRING"}
CONFIG = """\
name: "{name}"
backend: "identity"
input [ {{ name: "INPUT0" data_type: {datatype} dims: [ -1 ] }} ]
output [ {{ name: "OUTPUT0" data_type: {datatype} dims: [ -1 ] }} ]
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
"""
# The config of a model whose files a client brings.
TENSOR = {"data_type": "TYPE_FP32", "dims": [-1]}
BROUGHT = json.dumps(
    {
        "backend": "identity",
        "input": [{"name": "INPUT0", **TENSOR}],
        "output": [{"name": "OUTPUT0", **TENSOR}],
    }
)


def write_models(repository: Path) -> None:
    """Models that answer with what they are asked."""
    for name, datatype in MODELS.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(CONFIG.format(name=name, datatype=datatype))


# --- the server, in a process of its own ---------------------------------------------------------


class Probe:
    """Called once in each pass of the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._passed: list[tuple[int, int]] = []
        self._last = (time.perf_counter_ns(), time.thread_time_ns())
        loop.call_soon(self._note)

    def _note(self) -> None:
        now = (time.perf_counter_ns(), time.thread_time_ns())
        self._passed.append((now[1] - self._last[1], now[0] - self._last[0]))
        self._loop.call_soon(self._note)
        self._last = (time.perf_counter_ns(), time.thread_time_ns())

    def take(self) -> dict[str, float]:
        """The figures since the last call."""
        passed = np.array(self._passed) / 1e6
        self._passed.clear()
        self._last = (time.perf_counter_ns(), time.thread_time_ns())
        return {
            "cpu_max_ms": float(passed[:, 0].max()),
            "wall_p999_ms": float(np.percentile(passed[:, 1], 99.9)),
            "wall_max_ms": float(passed[:, 1].max()),
        }


async def serve(repository: Path) -> None:
    """Serve until stdin ends; every line there asks for the probe's figures."""
    settings = Settings(
        model_repository=(repository,),
        http_port=0,
        grpc_address="127.0.0.1",
        grpc_port=0,
        allow_metrics=False,
        allow_client_shm=True,
        allow_file_override=True,
        model_control_mode=ModelControlMode.EXPLICIT,
        load_model=("*",),
        http_max_input_size=256 << 20,
    )
    server = build_server(settings, SystemClock(), lambda values: None)
    assert server.http is not None
    assert server.grpc is not None
    await server.engine.start()
    gc.collect()
    gc.freeze()  # as naiad.server.run does
    await server.http.start()
    await server.grpc.start()
    probe = Probe(asyncio.get_running_loop())
    print(server.http.port, server.grpc.port, flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(probe.take()), flush=True)
    await server.http.drain(1.0)
    server.http.close()
    server.grpc.close()
    await server.engine.stop()


class ServerWithProbe:
    """The other end of ``serve``, and the clients that ask it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin, self._stdout = process.stdin, process.stdout
        http_port, grpc_port = map(int, self._stdout.readline().split())
        self._http = http.client.HTTPConnection("127.0.0.1", http_port, timeout=60)
        self._channel = grpc.insecure_channel(f"127.0.0.1:{grpc_port}", UNLIMITED)

    def figures(self) -> dict[str, float]:
        """What the probe saw since the last call."""
        self._stdin.write("\n")
        self._stdin.flush()
        figures: dict[str, float] = json.loads(self._stdout.readline())
        return figures

    def post(self, path: str, body: bytes, headers: dict[str, str] | None = None) -> bytes:
        """The answer to a request that must succeed."""
        self._http.request("POST", path, body, headers or {})
        answer = self._http.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise ConnectionError(text[:500].decode())
        return text

    def infer(self, data: bytes) -> ModelInferResponse:
        """The same over gRPC."""
        ask = self._channel.unary_unary(f"{SERVICE}ModelInfer", None, ModelInferResponse.FromString)
        response: ModelInferResponse = ask(data)
        return response

    def load(self, data: bytes) -> None:
        """Load a model over gRPC."""
        ask = self._channel.unary_unary(
            f"{SERVICE}RepositoryModelLoad", None, RepositoryModelLoadResponse.FromString
        )
        ask(data)

    def close(self) -> None:
        """End the clients, and with its input the server."""
        self._http.close()
        self._channel.close()
        self._stdin.close()


@contextmanager
def running(repository: Path) -> Iterator[ServerWithProbe]:
    with subprocess.Popen(
        [sys.executable, __file__, "--serve", str(repository)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        server = ServerWithProbe(process)
        yield server
        server.close()
        process.wait(60)


# --- what clients do -----------------------------------------------------------------------------

Ask = Callable[[ServerWithProbe], object]


def http_infer(model: str, entry: dict[str, Any], raw: bytes = b"", **more: Any) -> Ask:
    """An inference over HTTP; the raw data follows its JSON."""
    head = json.dumps({"inputs": [{"name": "INPUT0", **entry}], **more}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))} if raw else {}
    body = head + raw
    return lambda server: server.post(f"/v2/models/{model}/infer", body, headers)


def grpc_request(model: str, datatype: str, count: int, **more: Any) -> ModelInferRequest:
    """The frame of an inference over gRPC."""
    entry = ModelInferRequest.InferInputTensor(
        name="INPUT0", datatype=datatype, shape=[count], **more
    )
    return ModelInferRequest(model_name=model, inputs=[entry])


def over_grpc(request: ModelInferRequest) -> Ask:
    """An inference over gRPC."""
    data = request.SerializeToString()
    return lambda server: server.infer(data)


def http_situations(size: int) -> dict[str, Ask]:
    """Large things over HTTP; ``size`` is what a client sends, in bytes."""
    count = size // 4
    raw = np.arange(count, dtype=np.int32).tobytes()
    floats = {"datatype": "FP32", "shape": [count], "parameters": {"binary_data_size": size}}
    numbers = list(range(size // 8))
    texts = [str(number) for number in range(size // 16)]
    files = {"config": BROUGHT, "file:1/model.bin": base64.b64encode(raw[: size * 3 // 4]).decode()}
    load = json.dumps({"parameters": files}).encode()
    generate = json.dumps({"INPUT0": numbers}).encode()
    return {
        "http_binary": http_infer("floats", floats, raw, parameters={"binary_data_output": True}),
        "http_json": http_infer(
            "integers", {"datatype": "INT32", "shape": [len(numbers)], "data": numbers}
        ),
        "http_json_texts": http_infer(
            "texts", {"datatype": "BYTES", "shape": [len(texts)], "data": texts}
        ),
        "http_generate": lambda server: server.post("/v2/models/integers/generate", generate),
        "http_load": lambda server: server.post("/v2/repository/models/brought/load", load),
    }


def grpc_situations(size: int) -> dict[str, Ask]:
    """The same over gRPC."""
    count = size // 4
    raw = np.arange(count, dtype=np.int32).tobytes()
    binary = grpc_request("floats", "FP32", count)
    binary.raw_input_contents.append(raw)
    numbers = InferTensorContents(int_contents=range(-(size // 16), size // 16))
    texts = InferTensorContents(bytes_contents=[b"text"] * (size // 16))
    floats = InferTensorContents(fp32_contents=np.zeros(count, np.float32))
    load = RepositoryModelLoadRequest(model_name="brought")
    load.parameters["config"].CopyFrom(ModelRepositoryParameter(string_param=BROUGHT))
    load.parameters["file:1/model.bin"].CopyFrom(ModelRepositoryParameter(bytes_param=raw))
    loaded = load.SerializeToString()
    return {
        "grpc_binary": over_grpc(binary),
        "grpc_integers": over_grpc(
            grpc_request("integers", "INT32", len(numbers.int_contents), contents=numbers)
        ),
        "grpc_texts": over_grpc(
            grpc_request("texts", "BYTES", len(texts.bytes_contents), contents=texts)
        ),
        "grpc_floats": over_grpc(grpc_request("floats", "FP32", count, contents=floats)),
        "grpc_load": lambda server: server.load(loaded),
    }


def shared_situations(size: int, region: SharedMemory) -> dict[str, Ask]:
    """Outputs that the server writes into shared memory."""
    count = size // 4
    view = {"shared_memory_region": "region", "shared_memory_byte_size": size}
    output = {"name": "OUTPUT0", "parameters": view}
    entry = {"datatype": "FP32", "shape": [count], "parameters": view}
    request = grpc_request("floats", "FP32", count)
    wanted = ModelInferRequest.InferRequestedOutputTensor(name="OUTPUT0")
    for place in (request.inputs[0], wanted):
        place.parameters["shared_memory_region"].CopyFrom(InferParameter(string_param="region"))
        place.parameters["shared_memory_byte_size"].CopyFrom(InferParameter(int64_param=size))
    request.outputs.append(wanted)
    ask = http_infer("floats", entry, outputs=[output])
    key = json.dumps({"key": region.name, "offset": 0, "byte_size": region.size}).encode()

    def register(server: ServerWithProbe) -> object:
        server.post("/v2/systemsharedmemory/unregister", b"")
        return server.post("/v2/systemsharedmemory/region/region/register", key)

    return {"register": register, "http_shared": ask, "grpc_shared": over_grpc(request)}


def measure(server: ServerWithProbe, ask: Ask, rounds: int) -> dict[str, float]:
    ask(server)  # what starts when it is first needed
    rows = []
    for _ in range(rounds):
        server.figures()
        ask(server)
        rows.append(server.figures())
    # Of the rounds the median: a machine's other work lengthens a pass now and then.
    return {key: statistics.median(row[key] for row in rows) for key in rows[0]} | {
        "cpu_worst_ms": max(row["cpu_max_ms"] for row in rows)
    }


def print_rows(rows: dict[str, dict[str, float]]) -> None:
    table = Table(title="the longest pass of the event loop, in ms")
    table.add_column("situation")
    for heading in ("CPU", "wall p99.9", "wall", "worst CPU"):
        table.add_column(heading, justify="right")
    for name, row in rows.items():
        table.add_row(name, *(f"{value:.2f}" for value in row.values()))
    Console(width=100).print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="situations whose name has this in it")
    parser.add_argument("--no-limit", action="store_true", help="succeed however long a pass is")
    parser.add_argument("--json", type=Path, help="write figures and conditions to this file")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        uvloop.run(serve(options.serve))
        return 0
    size = options.megabytes * 1_000_000
    with ExitStack() as stack:
        repository = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write_models(repository)
        region = SharedMemory(create=True, size=size)
        stack.callback(region.unlink)
        stack.callback(region.close)
        situations = {
            **http_situations(size),
            **grpc_situations(size),
            **shared_situations(size, region),
        }
        server = stack.enter_context(running(repository))
        server.figures()
        server.figures()
        rows = {
            name: measure(server, ask, options.rounds)
            for name, ask in situations.items()
            if options.only in name or name == "register"
        }
    print_rows(rows)
    if options.json:
        results = {"benchmark": "loop_steps", **conditions(), "bytes": size, "situations": rows}
        options.json.write_text(json.dumps(results, indent=2) + "\n")
    longest_ms = max(row["cpu_max_ms"] for row in rows.values())
    return 1 if longest_ms > LIMIT_MS and not options.no_limit else 0


if __name__ == "__main__":
    sys.exit(main())
