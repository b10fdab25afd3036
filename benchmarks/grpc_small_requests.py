"""Small requests over gRPC: what the server costs, beside a grpcio asyncio server in the same run.

    python benchmarks/grpc_small_requests.py [--json FILE]

A 64-256-64-5 MLP, one row a request, by h2load (Debian's nghttp2-client). CPU is that of all
processes of a server. Figures of different machines don't compare; the ratios inside one run do.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from conditions import conditions
from make_models import MLP_WIDTHS, write_repository
from process_cpu import tree_cpu_s
from rich.console import Console
from rich.table import Table

from naiad.protocol.pb.grpc_service import ModelInferRequest
from naiad.verify.server_process import ServerProcess

# Connections, and calls of each at a time.
LOADS = ((8, 1), (32, 1), (4, 8))
METHOD = "/inference.GRPCInferenceService/ModelInfer"
# What a request may cost the whole server; the run fails beyond it.
MAX_CPU_US = 75.0


def infer_request() -> bytes:
    """One framed request."""
    data = np.ones((1, MLP_WIDTHS[0]), np.float32)
    message = ModelInferRequest(
        model_name="mlp",
        inputs=[
            ModelInferRequest.InferInputTensor(name="INPUT", datatype="FP32", shape=data.shape)
        ],
        raw_input_contents=[data.tobytes()],
    ).SerializeToString()
    return b"\0" + len(message).to_bytes(4, "big") + message


@contextmanager
def peer_server(model: Path) -> Iterator[tuple[str, int]]:
    """The grpcio server: its address and process."""
    script = Path(__file__).with_name("grpc_aio_peer.py")
    process = subprocess.Popen([sys.executable, script, model], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"127.0.0.1:{process.stdout.readline().strip()}", process.pid
    finally:
        process.terminate()
        process.wait()


def measure(
    address: str, pid: int, body: Path, load: tuple[int, int], seconds: int
) -> dict[str, Any]:
    """Requests/s and CPU microseconds a request."""
    connections, streams = load
    before_s = tree_cpu_s(pid)
    result = subprocess.run(
        ["h2load", "-D", str(seconds), "-c", str(connections), "-m", str(streams), "-t", "1",
         "-d", body, "-H", "content-type: application/grpc", "-H", "te: trailers",
         f"http://{address}{METHOD}"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    cpu_s = tree_cpu_s(pid) - before_s
    done = re.search(r"(\d+) succeeded, (\d+) failed, (\d+) errored", result.stdout)
    assert done is not None, result.stdout
    succeeded, failed, errored = map(int, done.groups())
    return {
        "connections": connections,
        "streams": streams,
        "requests_per_s": succeeded / seconds,
        "cpu_us_per_request": cpu_s * 1e6 / max(succeeded, 1),
        "errors": failed + errored,
    }


def print_results(rows: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    table = Table(title="small requests over gRPC")
    for heading in ("connections x calls", "requests/s", "CPU us/request", "grpcio requests/s",
                    "grpcio CPU us/request", "speedup"):  # fmt: skip
        table.add_column(heading, justify="right")
    for ours, theirs in rows:
        table.add_row(
            f"{ours['connections']} x {ours['streams']}",
            f"{ours['requests_per_s']:,.0f}",
            f"{ours['cpu_us_per_request']:.1f}",
            f"{theirs['requests_per_s']:,.0f}",
            f"{theirs['cpu_us_per_request']:.1f}",
            f"{ours['requests_per_s'] / theirs['requests_per_s']:.1f}",
        )
    Console().print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write figures and conditions to this file")
    options = parser.parse_args()
    if shutil.which("h2load") is None:
        print("h2load is missing; Debian has it in nghttp2-client", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder) / "models"
        write_repository(repository)
        body = Path(folder) / "body.bin"
        body.write_bytes(infer_request())
        model = repository / "mlp" / "1" / "model.onnx"
        with ServerProcess(repository) as server:
            ours = [
                measure(server.grpc_address, server.pid, body, load, options.seconds)
                for load in LOADS
            ]
        with peer_server(model) as (address, pid):
            theirs = [measure(address, pid, body, load, options.seconds) for load in LOADS]
    rows = list(zip(ours, theirs, strict=True))
    print_results(rows)
    if options.json:
        results = {"benchmark": "grpc_small_requests", **conditions(), "ours": ours,
                   "grpcio_aio": theirs}  # fmt: skip
        options.json.write_text(json.dumps(results, indent=2) + "\n")
    holds = all(row["cpu_us_per_request"] < MAX_CPU_US and not row["errors"] for row in ours)
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
