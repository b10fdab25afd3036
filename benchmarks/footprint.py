"""How much memory a server with one ONNX model takes, and how long until it is ready.

    python benchmarks/footprint.py [--json FILE]

The model is a 1024-2048-1024 MLP, 16.8 MB of weights, as the server completes its config: two
instances, a dynamic batcher. Each round starts the command anew, waits until /v2/health/ready is
200, sends requests, reads the memory of the process and its children, and looks what it does while
nobody asks.

Claims: under 150 MiB after the requests, ready in under 1 s on an idle machine, and no torch in the
process.
"""

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from conditions import conditions
from make_models import mlp
from rich.console import Console
from rich.table import Table

from naiad.client.http import HttpClient
from naiad.inference.datatypes import FP32
from naiad.inference.tensor import Tensor
from naiad.verify.server_process import ServerProcess

WIDTHS = (1024, 2048, 1024)
ROWS = 4
MIB = 1 << 20
MAX_RESIDENT_MIB = 150
MAX_READY_S = 1.0


@dataclass(frozen=True, slots=True)
class Round:
    """One server.

    Attributes:
        ready_s: from the start of the command to the first 200 of /v2/health/ready.
        cpu_s: of the processor that the server has taken by then, which a busy machine changes
            least.
        resident_mib: after the requests, of the server and its children.
        peak_mib: of the server, the most it ever had.
        idle_cpu_s: of the processor that it took afterwards, in a time without requests.
        has_torch: whether a library of torch is mapped.
    """

    ready_s: float
    cpu_s: float
    resident_mib: float
    peak_mib: float
    idle_cpu_s: float
    has_torch: bool


def process_ids(root: int) -> list[int]:
    """A process and its descendants."""
    found = [root]
    for pid in found:
        for task in Path(f"/proc/{pid}/task").iterdir():
            # A thread may end while they are read.
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                found += [int(child) for child in (task / "children").read_text().split()]
    return found


def status_mib(pid: int, key: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024 / MIB
    raise ValueError(f"/proc/{pid}/status has no {key}")


def cpu_s(pid: int) -> float:
    """Time of the processor that a process has taken, its own and the kernel's for it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def idle_cpu_s(pid: int, idle_s: float) -> float:
    """What of the processor a server takes that nobody asks."""
    before = cpu_s(pid)
    time.sleep(idle_s)
    return cpu_s(pid) - before


def run_round(repository: Path, requests: int, idle_s: float) -> Round:
    started = time.perf_counter()
    with ServerProcess(repository) as server, HttpClient(server.address) as client:
        while not client.is_ready():
            pass
        ready_s = time.perf_counter() - started
        used_s = cpu_s(server.pid)
        data = np.ones((ROWS, WIDTHS[0]), np.float32)
        row = Tensor("INPUT", FP32, data.shape, data)
        for _ in range(requests):
            client.infer("mlp", [row])
        pids = process_ids(server.pid)
        return Round(
            ready_s,
            used_s,
            sum(status_mib(pid, "VmRSS") for pid in pids),
            status_mib(server.pid, "VmHWM"),
            idle_cpu_s(server.pid, idle_s),
            any("libtorch" in Path(f"/proc/{pid}/maps").read_text() for pid in pids),
        )


def run(rounds: int, requests: int, idle_s: float) -> list[Round]:
    with tempfile.TemporaryDirectory() as folder:
        version = Path(folder) / "mlp" / "1"
        version.mkdir(parents=True)
        (version / "model.onnx").write_bytes(mlp("mlp", WIDTHS).SerializeToString())
        return [run_round(Path(folder), requests, idle_s) for _ in range(rounds)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--idle", type=float, default=5.0, help="seconds without requests")
    parser.add_argument("--json", type=Path, help="write figures and conditions to this file")
    options = parser.parse_args()
    found = run(options.rounds, options.requests, options.idle)
    table = Table(title="one ONNX model of 16.8 MB, two instances")
    for heading in ("", "median", "worst", "claim"):
        table.add_column(heading, justify="right")
    for label, values, claim in (
        ("ready after, s", [r.ready_s for r in found], f"< {MAX_READY_S}"),
        ("processor until then, s", [r.cpu_s for r in found], f"< {MAX_READY_S}"),
        ("resident, MiB", [r.resident_mib for r in found], f"< {MAX_RESIDENT_MIB}"),
        ("peak, MiB", [r.peak_mib for r in found], ""),
        (f"processor in {options.idle:g} idle s, s", [r.idle_cpu_s for r in found], ""),
    ):
        table.add_row(label, f"{statistics.median(values):.2f}", f"{max(values):.2f}", claim)
    Console().print(table)
    if options.json:
        document: dict[str, Any] = {
            "benchmark": "footprint",
            **conditions(),
            "rounds": [asdict(one) for one in found],
        }
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    # Time depends on what else the machine does, so it is shown and not judged.
    is_lean = all(r.resident_mib < MAX_RESIDENT_MIB and not r.has_torch for r in found)
    return 0 if is_lean else 1


if __name__ == "__main__":
    sys.exit(main())
