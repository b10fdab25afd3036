"""A PyTorch model in a process of its own: the server stays lean, and lives when the model dies."""

import json
import urllib.error
from pathlib import Path

import pytest
from tests.support.processes import is_running
from tests.support.repository_builder import RepositoryBuilder
from tests.support.served_repository import Server, running_server

pytestmark = pytest.mark.slow

MODEL = """
import os, signal
import torch

class Fragile(torch.nn.Module):
    def forward(self, x):
        if x.min() < 0:
            os.kill(os.getpid(), signal.SIGSEGV)
        return x * 2 + torch.tensor([float(os.getpid()), 0])
"""
CONFIG = """
backend: "pytorch"
runtime: "model.py"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 2 ] } ]
parameters { key: "IN_PROCESS" value { string_value: "false" } }
"""


def ask(server: Server, *values: float) -> list[float]:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": values}
    answer = json.loads(server.post("/v2/models/fragile/infer", {"inputs": [tensor]}))
    data: list[float] = answer["outputs"][0]["data"]
    return data


def test_a_crash_takes_the_process_of_the_model_and_not_the_server(tmp_path: Path) -> None:
    RepositoryBuilder(tmp_path).add_model("fragile", CONFIG, {"{version}/model.py": MODEL})
    with running_server(tmp_path) as server:
        first, three = ask(server, 0, 1.5)
        assert three == 3
        assert "libtorch" not in Path(f"/proc/{server.pid}/maps").read_text()
        with pytest.raises(urllib.error.HTTPError) as failure:
            ask(server, -1, 0)
        assert "ended by signal 11 (SIGSEGV)" in failure.value.read().decode()
        # Requests wait while the process is started again.
        second, three = ask(server, 0, 1.5)
        assert (three, server.is_running()) == (3, True)
        assert int(second) not in {int(first), server.pid}
        assert server.stop() == 0
        assert not is_running(int(second))
