"""A TorchScript model with an operator that torch does not have, from a library in its folder."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.integration.backends.pytorch_models import fp32, make_source, row

from naiad.backends.pytorch.backend import PyTorchBackend
from naiad.errors import InternalError, InvalidArgumentError

pytestmark = pytest.mark.slow

LIBRARY = """
#include <ATen/ATen.h>
#include <torch/library.h>

at::Tensor left_over(const at::Tensor& left, const at::Tensor& right) {
  return at::fmod(left, right);
}

TORCH_LIBRARY(naiad_test, library) {
  library.def("left_over(Tensor left, Tensor right) -> Tensor", &left_over);
}
"""


def test_a_library_that_is_none_is_refused(tmp_path: Path) -> None:
    source = make_source(tmp_path / "1", fp32("a"), fp32("y"))
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.pt").touch()
    (tmp_path / "operators.so").write_text("no library")
    source.config.model_operations.op_library_filename.append("operators.so")
    with pytest.raises(InternalError, match="library of custom operators can't be loaded"):
        PyTorchBackend().load(source)
    source.config.model_operations.op_library_filename[0] = "nonesuch.so"
    with pytest.raises(InvalidArgumentError, match="there is no op_library_filename"):
        PyTorchBackend().load(source)


# g++ reads torch's headers for 8 s, and for a minute on a busy machine.
@pytest.mark.full
def test_a_library_in_the_model_folder_brings_its_operators(tmp_path: Path) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        if os.environ.get("NAIAD_REQUIRE_TOOLS") == "1":  # noqa: TID251  a setting of the tests
            pytest.fail("g++ is not installed, and NAIAD_REQUIRE_TOOLS is 1")
        pytest.skip("needs g++")
    root = Path(torch.__file__).parent
    (tmp_path / "1").mkdir()
    (tmp_path / "operators.cpp").write_text(LIBRARY)
    library = tmp_path / "operators.so"
    include = root / "include"
    command = [
        compiler, "-shared", "-fPIC", "-std=c++20", f"-I{include}",
        f"-I{include / 'torch/csrc/api/include'}", str(tmp_path / "operators.cpp"),
        f"-L{root / 'lib'}", "-lc10", "-ltorch_cpu", "-o", str(library),
    ]  # fmt: skip
    subprocess.run(command, check=True)
    # Made in another process: this one must learn of the operator from the backend.
    code = (
        "import torch\n"
        f"torch.ops.load_library({str(library)!r})\n"
        "class Net(torch.nn.Module):\n"
        "    def forward(self, a, b):\n"
        "        return torch.ops.naiad_test.left_over(a, b)\n"
        "given = (torch.ones(1, 2), torch.ones(1, 2))\n"
        f"torch.jit.trace(Net(), given).save({str(tmp_path / '1' / 'model.pt')!r})\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    source = make_source(tmp_path / "1", fp32("a", "b"), fp32("y"))
    with pytest.raises(InternalError, match="naiad_test::left_over"):
        PyTorchBackend().load(source)
    source.config.model_operations.op_library_filename.append("operators.so")
    instance = PyTorchBackend().load(source).create_instance(0)
    (output,) = instance.execute({"a": row(5, 7), "b": row(3, 4)}, ["y"])
    np.testing.assert_array_equal(output.data, [[2, 3]])
