"""What an import loads, measured in a fresh interpreter."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "onnxruntime", "onnx", "onnxscript", "grpc", "tritonclient")


def loaded_by(statement: str) -> set[str]:
    script = f"import sys; {statement}; print(*sys.modules)"
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return {name.partition(".")[0] for name in found.stdout.split()}


def test_naiad_itself_loads_no_framework() -> None:
    assert loaded_by("import naiad; naiad.__all__").isdisjoint({*HEAVY, "numpy", "google"})


@pytest.mark.slow
@pytest.mark.parametrize(
    "module",
    ["naiad.asgi", "naiad.cli.export", "naiad.repository.golden", "naiad.exporter.options"],
)
def test_what_reads_options_and_golden_cases_loads_none_either(module: str) -> None:
    assert loaded_by(f"import {module}").isdisjoint(HEAVY)
