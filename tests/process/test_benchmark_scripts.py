"""The benchmarks' load generators against a small HTTP server in a process of its own."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnxruntime
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

# Answers 200 to exactly the request that is expected and 400 to any other.

SERVER = textwrap.dedent(
    """
    import asyncio, json, sys

    async def answer(reader, writer):
        try:
            while True:
                start, *lines = (await reader.readuntil(b"\\r\\n\\r\\n")).decode().split("\\r\\n")
                headers = dict(line.lower().split(": ", 1) for line in lines if line)
                body = await reader.readexactly(int(headers["content-length"]))
                header_length = int(headers["inference-header-content-length"])
                entry = json.loads(body[:header_length])["inputs"][0]
                good = (
                    start == "POST /v2/models/echo/infer HTTP/1.1"
                    and headers["host"].startswith("127.0.0.1:")
                    and entry["name"] == "IN"
                    and entry["shape"] == [1, 64]
                    and len(body) == header_length + 256
                )
                status = "200 OK" if good else "400 Bad Request"
                writer.write(f"HTTP/1.1 {status}\\r\\nContent-Length: 2\\r\\n\\r\\n{{}}".encode())
        except asyncio.IncompleteReadError:
            writer.close()

    async def main():
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        print(port, flush=True)
        await server.serve_forever()

    asyncio.run(main())
    """
)


def load(name: str) -> ModuleType:
    """A script of the benchmarks, which are no package."""
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def server() -> Iterator[tuple[str, int]]:
    """URL and process id of a server that answers the one request."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}", process.pid
        finally:
            process.kill()


def require_generator(name: str) -> None:
    if name == "wrk" and shutil.which("wrk") is None:
        # .ci/run says that everything the tests need is installed.
        if os.environ.get("NAIAD_REQUIRE_TOOLS") == "1":  # noqa: TID251  a setting of the tests
            pytest.fail("wrk is not installed, and NAIAD_REQUIRE_TOOLS is 1")
        pytest.skip("wrk is not installed")


def generate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(sys.executable, str(BENCHMARKS / "load_generator.py"), *arguments),
            *("--seconds=1", "--warm-up-seconds=0"),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )


@pytest.mark.slow
@pytest.mark.parametrize("generator", ["python", "wrk"])
def test_every_request_is_answered_and_counted(
    generator: str, server: tuple[str, int], tmp_path: Path
) -> None:
    require_generator(generator)
    url, pid = server
    output = tmp_path / "figures.json"

    result = generate(
        *(url, "echo", "--input=IN:FP32:1,64", "--connections=1,4", f"--generator={generator}"),
        *(f"--server-pid={pid}", f"--json={output}"),
    )

    assert result.returncode == 0, result.stderr
    rows: list[dict[str, Any]] = json.loads(output.read_text())
    assert [row["connections"] for row in rows] == [1, 4]
    for row in rows:
        assert row["generator"] == generator
        assert row["errors"] == 0
        assert row["requests"] > row["connections"]
        assert 0 < row["p50_us"] <= row["p99_us"] < row["seconds"] * 1e6
        assert row["requests_per_s"] == pytest.approx(row["requests"] / row["seconds"])
        # The server has one thread, so it can't have used more CPU than the run took; twice
        # that allows for the clock ticks of 10 ms and for the end of the run.
        assert 0 < row["server_cpu_us"] * row["requests"] < 2 * row["seconds"] * 1e6


@pytest.mark.slow
@pytest.mark.parametrize("generator", ["python", "wrk"])
def test_refused_requests_are_errors_and_fail_the_command(
    generator: str, server: tuple[str, int], tmp_path: Path
) -> None:
    require_generator(generator)
    output = tmp_path / "figures.json"

    result = generate(
        *(server[0], "another", "--input=IN:FP32:1,64", "--connections=2"),
        *(f"--generator={generator}", f"--json={output}"),
    )

    assert result.returncode == 1
    (row,) = json.loads(output.read_text())
    assert row["errors"] == row["requests"] > 0
    assert row["server_cpu_us"] is None


@pytest.fixture
def process_cpu() -> ModuleType:
    return load("process_cpu")


def test_a_process_name_with_spaces_and_parentheses_is_skipped(process_cpu: ModuleType) -> None:
    stat = "42 (a ) (b) c) S 7 42 42 0 -1 4194560 1 2 3 4 10 20 300 4000 20 0 1 0 99"

    assert process_cpu.parse_stat(stat) == (7, 4330)


def test_children_count_while_they_run_and_after_they_ended(process_cpu: ModuleType) -> None:
    before_s = process_cpu.tree_cpu_s(os.getpid())
    burn = "import time\nwhile time.process_time() < 0.15: pass\nprint(flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        running_s = process_cpu.tree_cpu_s(os.getpid()) - before_s
        child.stdin.write("\n")
    ended_s = process_cpu.tree_cpu_s(os.getpid()) - before_s

    assert running_s >= 0.1
    assert ended_s >= running_s


def test_a_process_that_is_gone_is_an_error(process_cpu: ModuleType) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        pass
    with pytest.raises(ProcessLookupError):
        process_cpu.tree_cpu_s(child.pid)


@pytest.mark.slow
def test_the_models_of_the_benchmarks_run(tmp_path: Path) -> None:
    load("make_models").write_repository(tmp_path)

    for name, shape in (("mlp", (3, 64)), ("image", (2, 3, 224, 224))):
        model = tmp_path / name / "1" / "model.onnx"
        session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        (output,) = session.run(["OUTPUT"], {"INPUT": np.ones(shape, np.float32)})
        assert output.shape == (shape[0], 5)
        assert np.isfinite(output).all()
        assert (tmp_path / name / "config.pbtxt").is_file()


def run_benchmark(script: str, folder: Path, *arguments: str) -> dict[str, Any]:
    """What a benchmark writes with ``--json``."""
    output = folder / "results.json"
    result = subprocess.run(
        [sys.executable, str(BENCHMARKS / script), f"--json={output}", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert result.returncode == 0, result.stderr
    document: dict[str, Any] = json.loads(output.read_text())
    assert document["versions"]["naiad"]
    assert document["machine"]["cores"] >= 1
    return document


@pytest.mark.slow
def test_the_http_benchmark_measures_our_server(tmp_path: Path) -> None:
    results = run_benchmark(
        "http_small_requests.py", tmp_path,
        "--connections=1,2", "--seconds=1", "--generator=python",
    )  # fmt: skip
    assert [row["batch_size"] for row in results["direct"]] == [1, 32]
    assert [row["connections"] for row in results["served"]] == [1, 2]
    assert all(row["errors"] == 0 and row["server_cpu_us"] > 0 for row in results["served"])


@pytest.mark.slow
@pytest.mark.full
def test_the_spinning_benchmark_measures_both_ways(tmp_path: Path) -> None:
    rows = run_benchmark("spinning.py", tmp_path, "--seconds=0.3", "--rounds=1")["results"]
    assert [(row["scene"]["models"], row["is_spinning"]) for row in rows] == [
        (1, True), (1, False), (2, True), (2, False),
    ]  # fmt: skip
    assert all(row["requests_per_s"] > 0 and row["server_cpu_us"] > 0 for row in rows)
