"""The installed command and the module are one."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from naiad.inference.comparison import Tolerance
from naiad.repository.golden import (
    GoldenCase,
    Manifest,
    TensorRecord,
    digest_files,
    write_cases,
    write_manifest,
)

# As after `pip install naiad` alone: Python takes None for a module that isn't there.
WITHOUT_TORCH = (
    "import sys; sys.modules['torch'] = None; from naiad.cli.main import main; main(sys.argv[1:])"
)


def write_version(folder: Path) -> None:
    """A version with a golden case, for the verbs that look for one before they need torch."""
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(b"never looked at")
    x = np.ones((1, 2), np.float32)
    records = write_cases(folder, [GoldenCase("example", 1, "example", {"x": x}, {"y": x})])
    tensor = TensorRecord("x", "FP32", (-1, 2), {0: "batch"})
    manifest = Manifest(
        format="onnx", model_file="model.onnx", max_batch_size=8, source={}, versions={},
        files=digest_files(folder), inputs=(tensor,), outputs=(replace(tensor, name="y"),),
        tolerances={"y": Tolerance(0.0, 0.5)}, cases=records, notes=(),
    )  # fmt: skip
    write_manifest(folder, manifest)


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ["export", "nets:build", "--name", "m", "--repository", "models"],
        ["verify", "models", "--source", "nets:build"],
    ],
)
def test_what_needs_torch_says_how_to_get_it(arguments: list[str], tmp_path: Path) -> None:
    write_version(tmp_path / "models" / "other" / "1")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *arguments],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=500,
    )  # fmt: skip
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "torch, which is not installed: pip install 'naiad[torch]'" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", [["--version"], ["--help"], ["export", "--help"], ["no-such-verb"]]
)
def test_python_m_naiad_is_naiad(arguments: list[str]) -> None:
    installed, module = (
        subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
        for command in (
            [str(Path(sys.executable).with_name("naiad"))],
            [sys.executable, "-m", "naiad"],
        )
    )
    assert installed.stdout + installed.stderr
    assert (installed.returncode, installed.stdout, installed.stderr) == (
        module.returncode, module.stdout, module.stderr,
    )  # fmt: skip
