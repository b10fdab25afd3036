"""The page for those who come from other servers: its examples are served and asked."""

import json
import re
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.support.served_repository import Server, running_server

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "migrating.md"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    path = tmp_path_factory.mktemp("migrated") / "app.py"
    path.write_text("\n\n".join(blocks))
    with running_server(path) as running:
        yield running


def test_the_class_from_litserve(server: Server) -> None:
    answer = json.loads(server.post("/v2/models/Scorer/generate", {"x": [3, 4]}))
    assert answer["score"] == 10


def test_the_function_from_pytriton(server: Server) -> None:
    tensor = {"name": "data", "datatype": "FP32", "shape": [2, 3], "data": list(range(6))}
    answer = json.loads(server.post("/v2/models/Linear/infer", {"inputs": [tensor]}))
    assert answer["outputs"][0]["data"] == [1, 3, 5, 7, 9, 11]


def test_the_handler_from_torchserve(server: Server) -> None:
    body = {"data": "Good good bad", "factor": 3}
    answer = json.loads(server.post("/v2/models/Handler/generate", body))
    assert json.loads(answer["prediction"]) == {"score": 3}


WORDS = """
from torch import nn

class Words(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))

    def forward(self, x):
        return super().forward(x)
"""
HANDLER = """
from ts.torch_handler.base_handler import BaseHandler

class Handler(BaseHandler):
    def preprocess(self, data):
        return super().preprocess(data)
"""


def test_the_archive_from_torchserve(tmp_path: Path) -> None:
    (command,) = re.findall(r"^ {4}(naiad export .*)$", PAGE.read_text("utf-8"), re.MULTILINE)
    made = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
    torch.save(made.state_dict(), tmp_path / "words.pt")
    manifest = {"serializedFile": "words.pt", "modelFile": "net.py", "handler": "handler.py"}
    with zipfile.ZipFile(tmp_path / "words.mar", "w") as archive:
        archive.writestr("MAR-INF/MANIFEST.json", json.dumps({"model": manifest}))
        archive.writestr("net.py", WORDS)
        archive.writestr("handler.py", HANDLER)
        archive.write(tmp_path / "words.pt", "words.pt")
    (tmp_path / "words.pt").unlink()

    done = subprocess.run(
        [sys.executable, "-m", "naiad", *shlex.split(command)[1:]],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=500,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "models/words/1/model.onnx").is_file()
    assert "preprocess() of the archive's handler" in done.stdout
