"""Loads and failing loads, again and again, in a process whose memory must not grow."""

import json
import subprocess
import sys
from pathlib import Path
from statistics import median

import numpy as np
import pytest
import torch
from tests.support.python_models import write_model
from tests.support.repository_builder import RepositoryBuilder, mlp_model

pytestmark = [
    pytest.mark.slow,
    # TorchScript is what is measured, whatever torch would have instead.
    pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning"),
]

# The first cycles fill pools that stay: threads, allocators, imports.
SCRIPT = """
import asyncio, ctypes, gc, json, sys
from pathlib import Path

import numpy as np

from naiad.backends.registry import BackendRegistry
from naiad.clock import SystemClock
from naiad.engine.engine import Engine, EngineOptions, ModelControlMode
from naiad.engine.loader import Loader, LoaderOptions
from naiad.errors import NaiadError
from naiad.inference.datatypes import FP32
from naiad.inference.request import InferRequest
from naiad.inference.tensor import Tensor

repository, name, cycles, settled = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])


def resident_bytes():
    gc.collect()
    # What the allocator keeps for later is no growth.
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


async def infer(engine, model):
    answer = asyncio.get_running_loop().create_future()
    data = np.ones((4, 256), np.float32)
    inputs = {"IN": Tensor("IN", FP32, data.shape, data)}
    request = InferRequest("", inputs, None, answer.set_result)
    engine.infer(model, request)
    response = await answer
    assert response.error is None


async def cycle(engine):
    try:
        await engine.load_model(name, None, {})
    except NaiadError:
        assert name.startswith("bad")
        return
    assert not name.startswith("bad")
    await infer(engine, engine.find(name))
    await engine.unload_model(name, unload_dependents=True)
    while (await engine.index(ready_only=False))[-1].state == "UNLOADING":
        await asyncio.sleep(0)


async def main():
    options = EngineOptions("naiad", "1", ModelControlMode.EXPLICIT)
    loader = Loader(LoaderOptions((Path(repository),)), BackendRegistry())
    engine = Engine(options, loader, SystemClock())
    await engine.start()
    sizes = []
    for count in range(cycles):
        await cycle(engine)
        if count >= settled:
            sizes.append(resident_bytes())
    print(json.dumps(sizes))
    await engine.stop()


asyncio.run(main())
"""
CONFIG = """backend: "onnxruntime" max_batch_size: 64
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 256 ] } ]
output [ { name: "%s" data_type: TYPE_FP32 dims: [ 256 ] } ]
instance_group [ { count: 2 kind: KIND_CPU } ]
"""


# A copy of the request that stays, or a process that does, would show.
PYTHON = """
class TritonPythonModel:
    def initialize(self, args):
        self.weights = np.full((256, 1024), 0.01, np.float32)

    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor(
                "OUT", pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            )])
            for request in requests
        ]
"""


class Perceptron(torch.nn.Module):
    """A megabyte of weights."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = torch.nn.Linear(256, 1024)
        self.output = torch.nn.Linear(1024, 256)

    def forward(self, IN: torch.Tensor) -> torch.Tensor:  # noqa: N803 - the config's name
        return self.output(torch.relu(self.hidden(IN)))  # type: ignore[no-any-return]


def add_torchscript(builder: RepositoryBuilder, name: str) -> None:
    folder = builder.add_model(name, (CONFIG % "OUT__0").replace("onnxruntime", "pytorch"))
    torch.jit.save(torch.jit.script(Perceptron()), folder / "1" / "model.pt")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Models with a megabyte of weights: good ones, and some that fail early and late."""
    builder = RepositoryBuilder(tmp_path)
    # So large that one lost copy per cycle is more than the bound.
    model = mlp_model([np.full((256, 1024), 0.01), np.full((1024, 256), 0.01)])
    builder.add_onnx("good", model, CONFIG % "OUT")
    builder.add_onnx("bad_output", model, CONFIG % "OTHER")
    builder.add_onnx("bad_config", model, "max_batch_sise: 64")
    write_model(tmp_path, "good_python", PYTHON, max_batch_size=64)
    write_model(tmp_path, "bad_python", PYTHON.replace("0.01", "broken"), max_batch_size=64)
    add_torchscript(builder, "good_torchscript")
    return tmp_path


NAMES = ("good", "bad_output", "bad_config", "good_torchscript", "good_python", "bad_python")
# The others import torch, or start a process of Python in each cycle.
QUICK_NAMES = NAMES[:3]


@pytest.mark.parametrize(
    ("name", "cycles", "settled"),
    [
        *((name, 20, 8) for name in QUICK_NAMES),
        *(pytest.param(name, 200, 20, marks=pytest.mark.full) for name in NAMES),
    ],
)
@pytest.mark.timeout(900)
def test_memory_is_flat(repository: Path, name: str, cycles: int, settled: int) -> None:
    result = subprocess.run(
        # One pool for all threads, or which thread allocates decides over some percent.
        [
            *("env", "MALLOC_ARENA_MAX=1", sys.executable, "-c", SCRIPT),
            *(str(repository), name, str(cycles), str(settled)),
        ],
        capture_output=True,
        text=True,
        timeout=880,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    sizes = json.loads(result.stdout.splitlines()[-1])
    # One measurement jumps by some percent with where threads happened to allocate; halves don't.
    half = len(sizes) // 2
    before, after = median(sizes[:half]), median(sizes[half:])
    assert after <= before * 1.05
