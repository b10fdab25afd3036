"""What an import loads, measured in a fresh interpreter."""

import subprocess
import sys

import pytest

FRAMEWORKS = ("torch", "onnxruntime", "onnx", "onnxscript", "openvino", "transformers")
CLIENTS = ("grpc", "tritonclient", "redis", "obstore")
HEAVY = (*FRAMEWORKS, *CLIENTS)


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
    [
        "naiad.asgi",
        "naiad.server.run",
        "naiad.check.repository",
        "naiad.verify.verification",
        "naiad.cli.export",
        "naiad.repository.golden",
        "naiad.exporter.options",
    ],
)
def test_servers_commands_and_options_load_none_before_they_need_it(module: str) -> None:
    assert loaded_by(f"import {module}").isdisjoint(HEAVY)
