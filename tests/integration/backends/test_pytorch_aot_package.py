"""AOTInductor packages: compiled once here, with the machine's own compiler."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.integration.backends.pytorch_models import Tensors, check_cycles, make_source, row, run

from naiad.backends.base import ModelSource
from naiad.backends.pytorch.aot_package import is_aot_package
from naiad.backends.pytorch.backend import PyTorchBackend
from naiad.errors import InvalidArgumentError, UnsupportedError

pytestmark = pytest.mark.slow

INPUTS = ["ARGS[0]", "ARGS[1][x]", "ARGS[1][y]", "KWARGS[right]"]
OUTPUTS = ["RESULT[sum]", "RESULT[pair][0]", "RESULT[pair][1]"]

# In a process of its own: importing the compiler leaves 85 MiB and threads behind.
BUILD = """
import sys
import torch

class Nested(torch.nn.Module):
    def forward(self, left, more, *, right):
        return {"sum": left + more["x"], "pair": (left - more["y"], right.add_(1))}

rows = [torch.full((2, 3), float(value)) for value in range(4)]
batch = {0: torch.export.Dim("batch", min=1, max=8)}
program = torch.export.export(
    Nested(), (rows[0], {"x": rows[1], "y": rows[2]}), {"right": rows[3]},
    dynamic_shapes={"left": batch, "more": {"x": batch, "y": batch}, "right": batch},
)
torch._inductor.aoti_compile_and_package(program, package_path=sys.argv[1])
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("g++") is None and shutil.which("clang++") is None:
        reason = "AOTInductor needs a C++ compiler: install g++"
        if os.environ.get("NAIAD_REQUIRE_TOOLS") == "1":  # noqa: TID251  a setting of the tests
            pytest.fail(f"{reason}, and NAIAD_REQUIRE_TOOLS is 1")
        pytest.skip(reason)
    path = tmp_path_factory.mktemp("package") / "model.pt2"
    subprocess.run([sys.executable, "-W", "ignore", "-c", BUILD, str(path)], check=True)
    return path


def make_package_source(package: Path, inputs: Tensors, outputs: Tensors) -> ModelSource:
    source = make_source(package.parent, inputs, outputs)
    source.config.platform = "torch_aoti"
    source.config.default_model_filename = package.name
    return source


def rewrite_metadata(package: Path, target: Path, **changes: str) -> Path:
    """The package with other metadata, as one from another machine has."""
    path = target / "model.pt2"
    with zipfile.ZipFile(package) as source, zipfile.ZipFile(path, "w") as copy:
        for name in source.namelist():
            content = source.read(name)
            if name.endswith("_metadata.json"):
                content = json.dumps(json.loads(content) | changes).encode()
            copy.writestr(name, content)
    return path


def shaped(names: list[str], datatype: str = "TYPE_FP32") -> Tensors:
    return [(name, datatype, [3]) for name in names]


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ([f"INPUT__{index}" for index in range(4)], [f"OUTPUT__{index}" for index in range(3)]),
        (INPUTS, OUTPUTS),
    ],
    ids=["ordinal", "structure"],
)
def test_tensors_have_tritons_names(inputs: list[str], outputs: list[str], package: Path) -> None:
    assert is_aot_package(package)
    source = make_package_source(package, shaped(inputs[::-1]), shaped(outputs[::-1]))
    values = {
        name: np.full((4, 3), value, np.float32)
        for name, value in zip(inputs, (10, 1, 2, 3), strict=True)
    }
    results = run(source, *outputs, **values)
    for result, expected in zip(results, (11, 8, 4), strict=True):
        np.testing.assert_array_equal(result.data, np.full((4, 3), expected))
    # It computes in place on the last one.
    assert (values[inputs[3]] == 3).all()


def test_instances_share_one_package(package: Path) -> None:
    source = make_package_source(package, shaped(INPUTS), shaped(OUTPUTS))
    source.config.parameters["ENABLE_WEIGHT_SHARING"].string_value = "true"
    source.config.instance_group.add(name="g", count=2, kind="KIND_CPU")
    model = PyTorchBackend().load(source)
    for index in range(2):
        inputs = {name: row(index, 1, 2) for name in INPUTS}
        (total,) = model.create_instance(index).execute(inputs, ["RESULT[sum]"])
        np.testing.assert_array_equal(total.data, row(2 * index, 2, 4))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"datatype": "TYPE_INT32"}, "TYPE_INT32 for input 'ARGS[0]', model provides TYPE_FP32"),
        ({"dims": [-1]}, "compiled for 3 elements on axis 1, but the model configuration lets"),
        ({"dims": [2]}, "compiled for 3 elements on axis 1, but the model configuration lets"),
        ({"dims": []}, "compiled for 3 elements on axis 1, but the model configuration lets"),
        ({"max_batch_size": 16}, "compiled for at most 8 on axis 0, but the model configuration"),
    ],
)
def test_a_config_that_lets_it_read_outside_of_a_request_is_refused(
    change: dict[str, Any], text: str, package: Path
) -> None:
    """The compiled code takes any address and count for what it expects."""
    inputs = shaped(INPUTS, change.get("datatype", "TYPE_FP32"))
    inputs = [(name, datatype, change.get("dims", dims)) for name, datatype, dims in inputs]
    source = make_package_source(package, inputs, shaped(OUTPUTS))
    source.config.max_batch_size = change.get("max_batch_size", 8)
    with pytest.raises(InvalidArgumentError, match=re.escape(text)):
        PyTorchBackend().load(source)


def test_a_config_that_does_not_fit_is_refused(package: Path) -> None:
    source = make_package_source(package, shaped(INPUTS[:2]), shaped(OUTPUTS))
    with pytest.raises(InvalidArgumentError) as failure:
        PyTorchBackend().load(source)
    assert failure.value.message == (
        "unable to load model 'm', configuration expects 2 inputs, model provides 4"
    )
    source = make_package_source(package, shaped([*INPUTS[:3], "right"]), shaped(OUTPUTS))
    with pytest.raises(InvalidArgumentError, match=r"input 'right', allowed inputs are: INPUT__0"):
        PyTorchBackend().load(source)
    twice = shaped([*INPUTS[:3], "INPUT__0"])
    with pytest.raises(InvalidArgumentError, match=r"two inputs of the config mean 'INPUT__0 or"):
        PyTorchBackend().load(make_package_source(package, twice, shaped(OUTPUTS)))


def test_a_config_without_tensors_says_what_the_package_has(package: Path) -> None:
    source = make_package_source(package, [], [])
    with pytest.raises(InvalidArgumentError) as failure:
        PyTorchBackend().complete_config(source)
    assert failure.value.message.startswith(
        "model configuration must contain at least one input, none were specified. The package "
        "has the inputs INPUT__0 or ARGS[0], INPUT__1 or ARGS[1][x], "
    )


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"AOTI_MACHINE": "riscv64"}, "compiled for linux on riscv64"),
        ({"AOTI_DEVICE_KEY": "cuda"}, "compiled for the device 'cuda' and its instance group"),
    ],
)
def test_a_package_for_another_machine_is_refused(
    changes: dict[str, str], text: str, package: Path, tmp_path: Path
) -> None:
    path = rewrite_metadata(package, tmp_path, **changes)
    with pytest.raises(UnsupportedError, match=text):
        PyTorchBackend().load(make_package_source(path, shaped(INPUTS), shaped(OUTPUTS)))


def test_a_package_for_a_better_cpu_is_refused(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = rewrite_metadata(package, tmp_path, AOTI_CPU_ISA="AVX512 AMX_TILE")
    old = {"avx2": True, "avx512_f": True, "amx_tile": False}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: old)
    with pytest.raises(UnsupportedError) as failure:
        PyTorchBackend().load(make_package_source(path, shaped(INPUTS), shaped(OUTPUTS)))
    assert failure.value.message == (
        "model 'm' was compiled for a CPU with AVX512 AMX_TILE, and this one lacks AMX_TILE; "
        "compile the package on a machine like this, or serve an ONNX file or an exported program "
        "instead, which run on any"
    )


def test_loading_does_not_import_the_compiler(package: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from naiad.backends.pytorch.aot_package import load_aot_package
from naiad.backends.pytorch.placement import CPU
program = load_aot_package("m", Path({str(package)!r}), CPU, 1)
assert len(program.leaves.inputs) == 4
found = [name for name in ("torch._inductor", "torch._dynamo", "sympy") if name in sys.modules]
print(found)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_loading_and_unloading_leaves_little_memory_and_no_files(package: Path) -> None:
    """A third of a MiB a cycle stays: the C++ runtime keeps the code of a library mapped."""
    source = make_package_source(package, shaped(INPUTS), shaped(OUTPUTS))
    folder = Path(tempfile.gettempdir())
    files = set(folder.glob("aotinductor_*"))
    check_cycles(source, np.ones((2, 3), np.float32), cycles=20)
    assert set(folder.glob("aotinductor_*")) <= files
