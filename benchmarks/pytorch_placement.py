"""Where should torch run: in the server's process, or in a child of it?

Three questions, each answered in processes of their own and as a ratio inside one run:

1. Does torch slow down onnxruntime in the same process? The same ONNX model runs alone, beside an
   imported torch, beside one that has run, beside one that is busy, and beside one that is busy in
   another process.
2. What memory does each arrangement take?
3. What does a request cost with the parameter IN_PROCESS as "false", through the channel to a
   process and back, against a hand-over to a thread?

Run: python benchmarks/pytorch_placement.py [--seconds 3] [--rounds 3] [--threads 1]
"""

import argparse
import json
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from naiad.backends.base import ModelSource
from naiad.backends.registry import BackendRegistry
from naiad.model_config.schema import ModelConfig, ModelInput, ModelOutput

WIDTH, ROWS = 512, 8
ARRANGEMENTS = ("alone", "imported", "ran", "busy thread", "busy child")
WAYS = ("thread", "child")
SIZES = {"256 B": 64, "600 kB": 3 * 224 * 224}


def main() -> None:
    """Measure, or be one of the measured processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="of each framework")
    parser.add_argument("--measure", nargs=2, metavar=("WHAT", "HOW"))
    parser.add_argument("--model", type=Path)
    given = parser.parse_args()
    if given.measure:
        what, how = given.measure
        if what == "beside":
            figures = measure_onnxruntime(how, given.model, given.seconds, given.threads)
        else:
            figures = measure_way(how, given.seconds)
        print(json.dumps(figures))
        return
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model.onnx"
        write_onnx(model)
        options = [f"--model={model}", f"--seconds={given.seconds}", f"--threads={given.threads}"]
        compare_neighbours(options, given.rounds, given.threads)
        compare_ways(options, given.rounds)


def compare_neighbours(options: list[str], rounds: int, threads: int) -> None:
    """Questions 1 and 2."""
    found = repeat("beside", ARRANGEMENTS, options, rounds)
    alone = found["alone"]["median_us"]
    print(
        f"onnxruntime, 3 layers of {WIDTH}, {ROWS} rows; torch the same; {threads} thread(s) each"
    )
    print(f"{'torch is':14}{'median us':>11}{'ratio':>8}{'p99 us':>9}{'torch/s':>10}{'RSS MiB':>9}")
    for how in ARRANGEMENTS:
        row = found[how]
        print(
            f"{how:14}{row['median_us']:11.0f}{row['median_us'] / alone:8.2f}{row['p99_us']:9.0f}"
            f"{row['torch_per_s']:10.0f}{row['rss_mib']:9.0f}"
        )


def compare_ways(options: list[str], rounds: int) -> None:
    """Question 3."""
    hows = [f"{way} {size}" for size in SIZES for way in WAYS]
    found = repeat("way", hows, options, rounds)
    print("\none request to a torch identity and back, one at a time")
    print(f"{'way':16}{'median us':>11}{'p99 us':>9}")
    for how in hows:
        print(f"{how:16}{found[how]['median_us']:11.1f}{found[how]['p99_us']:9.1f}")


def repeat(
    what: str, hows: Sequence[str], options: list[str], rounds: int
) -> dict[str, dict[str, float]]:
    """The median of each figure over the rounds; the arrangements take turns."""
    results: dict[str, list[dict[str, float]]] = {how: [] for how in hows}
    for _ in range(rounds):
        for how in hows:
            command = [sys.executable, __file__, "--measure", what, how, *options]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            results[how].append(json.loads(done.stdout.strip().splitlines()[-1]))
    return {
        how: {key: statistics.median(row[key] for row in rows) for key in rows[0]}
        for how, rows in results.items()
    }


def measure_onnxruntime(how: str, model: Path, seconds: float, threads: int) -> dict[str, float]:
    """Latency of an ONNX model while torch is somewhere."""
    import onnxruntime  # noqa: PLC0415 - each process imports what it measures

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    rows = np.ones((ROWS, WIDTH), np.float32)
    stop: Any = threading.Event()
    calls: Any = [0]
    neighbour: Any = None
    if how == "imported":
        import torch  # noqa: F401, PLC0415
    elif how == "ran":
        run_torch(stop, calls, threads, limit=100)
    elif how == "busy thread":
        neighbour = threading.Thread(target=run_torch, args=(stop, calls, threads))
    elif how == "busy child":
        context = multiprocessing.get_context("spawn")
        stop, calls = context.Event(), context.Array("q", 1, lock=False)
        neighbour = context.Process(target=run_torch, args=(stop, calls, threads))
    if neighbour is not None:
        neighbour.start()
        while not calls[0]:
            time.sleep(0.05)
    before = calls[0]
    durations = time_calls(lambda: session.run(None, {"x": rows}), seconds)
    done = calls[0] - before
    rss = rss_mib("self") + (rss_mib(neighbour.pid) if how == "busy child" else 0)
    stop.set()
    if neighbour is not None:
        neighbour.join()
    return {**summary(durations), "torch_per_s": done / seconds, "rss_mib": rss}


def run_torch(stop: Any, calls: Any, threads: int, limit: int | None = None) -> None:
    """A TorchScript model of the same shape, again and again."""
    import torch  # noqa: PLC0415

    torch.set_num_threads(threads)
    layers = [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU()) for _ in range(3)]
    module = torch.jit.trace(torch.nn.Sequential(*layers).eval(), torch.ones(ROWS, WIDTH))
    rows = torch.ones(ROWS, WIDTH)
    with torch.inference_mode():
        while not stop.is_set() and (limit is None or calls[0] < limit):
            module(rows)
            calls[0] += 1


def measure_way(how: str, seconds: float) -> dict[str, float]:
    """One request at a time to a thread of an instance, in this process or in one of its own."""
    way, _, size = how.partition(" ")
    rows = {"x": np.ones((1, SIZES[size]), np.float32)}
    with tempfile.TemporaryDirectory() as folder:
        source = write_identity(Path(folder), is_child=way == "child")
        instance: Any = BackendRegistry().get("pytorch").load(source).create_instance(0)
        inbox: SimpleQueue[Any] = SimpleQueue()
        outbox: SimpleQueue[Any] = SimpleQueue()

        def work() -> None:
            while (given := inbox.get()) is not None:
                outbox.put(instance.execute(given, ["y"]))
            instance.close()

        thread = threading.Thread(target=work)
        thread.start()

        def call() -> None:
            inbox.put(rows)
            outbox.get()

        durations = time_calls(call, seconds)
        inbox.put(None)
        thread.join()
    return summary(durations)


def write_identity(folder: Path, *, is_child: bool) -> ModelSource:
    """A model that gives its input back."""
    code = "import torch\nclass Same(torch.nn.Identity):\n    pass\n"
    (folder / "model.py").write_text(code)
    config = ModelConfig(
        name="same",
        backend="pytorch",
        runtime="model.py",
        input=[ModelInput(name="x", data_type="TYPE_FP32", dims=[1, -1])],
        output=[ModelOutput(name="y", data_type="TYPE_FP32", dims=[1, -1])],
    )
    config.parameters["IN_PROCESS"].string_value = str(not is_child)
    return ModelSource("same", 1, config, folder)


def time_calls(call: Any, seconds: float) -> list[float]:
    """Microseconds of each call, after a tenth of the time to warm up."""
    end = time.perf_counter() + seconds / 10
    while time.perf_counter() < end:
        call()
    durations = []
    end = time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        call()
        durations.append((time.perf_counter() - start) * 1e6)
    return durations


def summary(durations: list[float]) -> dict[str, float]:
    """Median and 99th percentile."""
    ordered = sorted(durations)
    return {
        "median_us": statistics.median(ordered),
        "p99_us": ordered[int(len(ordered) * 0.99)],
    }


def rss_mib(process: object) -> float:
    """Memory that a process holds."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def write_onnx(path: Path) -> None:
    """Three layers with ReLU."""
    import onnx  # noqa: PLC0415
    from onnx import TensorProto, helper, numpy_helper  # noqa: PLC0415

    random = np.random.default_rng(0)
    nodes, weights, name = [], [], "x"
    for layer in range(3):
        values = random.standard_normal((WIDTH, WIDTH)).astype(np.float32) / WIDTH
        weights.append(numpy_helper.from_array(values, f"w{layer}"))
        nodes.append(helper.make_node("MatMul", [name, f"w{layer}"], [f"m{layer}"]))
        nodes.append(helper.make_node("Relu", [f"m{layer}"], [name := f"r{layer}"]))
    tensors = [
        helper.make_tensor_value_info(which, TensorProto.FLOAT, [ROWS, WIDTH])
        for which in ("x", name)
    ]
    graph = helper.make_graph(nodes, "layers", tensors[:1], tensors[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.save(model, path)


if __name__ == "__main__":
    main()
