"""PyTorch model files and their configs, for the tests of the PyTorch backend."""

import gc
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from naiad.backends.base import ModelSource
from naiad.backends.pytorch.backend import PyTorchBackend
from naiad.inference.tensor import Tensor
from naiad.model_config.schema import ModelConfig, ModelInput, ModelOutput, ModelParameter

Tensors = Sequence[tuple[str, str, Sequence[int]]]


def save_script(directory: Path, module: torch.nn.Module) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(torch.jit.script(module), directory / "model.pt")


def make_source(
    directory: Path, inputs: Tensors, outputs: Tensors, **parameters: str
) -> ModelSource:
    config = ModelConfig(
        name="m",
        backend="pytorch",
        max_batch_size=8,
        input=[ModelInput(name=n, data_type=t, dims=d) for n, t, d in inputs],
        output=[ModelOutput(name=n, data_type=t, dims=d) for n, t, d in outputs],
        parameters={key: ModelParameter(string_value=value) for key, value in parameters.items()},
    )
    return ModelSource("m", 1, config, directory)


def fp32(*names: str) -> Tensors:
    return [(name, "TYPE_FP32", [-1]) for name in names]


def run(source: ModelSource, *wanted: str, **inputs: npt.NDArray[Any]) -> list[Tensor]:
    instance = PyTorchBackend().load(source).create_instance(0)
    return list(instance.execute(inputs, wanted))


def row(*values: float) -> npt.NDArray[np.float32]:
    return np.array([values], np.float32)


def check_cycles(source: ModelSource, rows: npt.NDArray[Any], cycles: int) -> None:
    """Load, run and unload a model so many times; memory and threads stay as they are."""
    backend = PyTorchBackend()
    given = dict.fromkeys((tensor.name for tensor in source.config.input), rows)
    wanted = [tensor.name for tensor in source.config.output]

    def cycle() -> None:
        model = backend.load(source)
        instance = model.create_instance(0)
        instance.execute(given, wanted)
        instance.close()
        model.close()

    for _ in range(10):
        cycle()
    before, threads = resident_bytes(), len(os.listdir("/proc/self/task"))
    for _ in range(cycles):
        cycle()
    assert resident_bytes() - before < 16 << 20
    assert len(os.listdir("/proc/self/task")) <= threads


def resident_bytes() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
