"""``naiad verify --url`` with servers of other projects that serve what Naiad exported."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from tests.support.other_servers import (
    free_ports,
    require_environment,
    require_tritonserver,
    running,
)
from torch import nn

import naiad
from naiad.exporter.options import ExportOptions
from naiad.verify.report import ExitCode, Report
from naiad.verify.verification import VerifyOptions, verify_repository

pytestmark = [pytest.mark.slow, pytest.mark.full, pytest.mark.timeout(900)]

TRITON_MODEL = """
import os
import onnxruntime
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        path = os.path.join(args["model_repository"], args["model_version"], "model.onnx")
        self.session = onnxruntime.InferenceSession(path)

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        inputs = {
            wanted.name: pb_utils.get_input_tensor_by_name(request, wanted.name).as_numpy()
            for wanted in self.session.get_inputs()
        }
        names = [output.name for output in self.session.get_outputs()]
        arrays = self.session.run(names, inputs)
        tensors = [pb_utils.Tensor(name, array) for name, array in zip(names, arrays)]
        return pb_utils.InferenceResponse(tensors)
"""
MLSERVER_MODEL = """
import onnxruntime
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse
from mlserver.utils import get_model_uri


class OnnxModel(MLModel):
    async def load(self):
        self.session = onnxruntime.InferenceSession(await get_model_uri(self.settings))
        return True

    async def predict(self, payload):
        inputs = {tensor.name: NumpyCodec.decode_input(tensor) for tensor in payload.inputs}
        names = [output.name for output in self.session.get_outputs()]
        arrays = self.session.run(names, inputs)
        outputs = [NumpyCodec.encode_output(name, array) for name, array in zip(names, arrays)]
        return InferenceResponse(
            id=payload.id, model_name=self.name, model_version=self.version, outputs=outputs
        )
"""


class Pooled(nn.Module):
    """Tokens with weights of any number; scores and the best class."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.linear = nn.Embedding(50, 8), nn.Linear(8, 3)

    def forward(self, ids: torch.Tensor, weights: torch.Tensor) -> dict[str, torch.Tensor]:
        scores = self.linear((self.embedding(ids) * weights.unsqueeze(-1)).sum(1))
        return {"scores": scores, "best": scores.argmax(1)}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(3)
    repository = tmp_path_factory.mktemp("exported")
    axes = {0: "batch", 1: "tokens"}
    naiad.export(
        Pooled(),
        (torch.randint(0, 50, (2, 6)), torch.rand(2, 6)),
        name="pooled",
        repository=repository,
        options=ExportOptions(dynamic={"ids": axes, "weights": axes}),
    )
    return repository


def verified(repository: Path, http: int, grpc: int) -> Report:
    return verify_repository(
        VerifyOptions(repository, address=f"127.0.0.1:{http}", grpc_address=f"127.0.0.1:{grpc}")
    )


def verdicts(report: Report) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for row in report.models[0].rows:
        found.setdefault(row.hop, set()).add(row.verdict)
    return found


def test_nvidia_s_triton_answers_as_the_golden_cases_say(exported: Path, tmp_path: Path) -> None:
    server = require_tritonserver()
    # Its stub is built for the numpy before 2.
    environment = require_environment("triton-python", ["numpy<2", "onnxruntime"])
    served = tmp_path / "served"
    shutil.copytree(exported, served)
    config = served / "pooled" / "config.pbtxt"
    text = config.read_text()
    config.write_text(text.replace('backend: "onnxruntime"', 'backend: "python"'))
    (served / "pooled" / "1" / "model.py").write_text(TRITON_MODEL)
    http, grpc = free_ports(2)
    command: list[str | Path] = [
        server / "bin" / "tritonserver", f"--model-repository={served}",
        f"--backend-directory={server / 'backends'}", "--allow-metrics=false",
        "--http-address=127.0.0.1", f"--http-port={http}",
        "--grpc-address=127.0.0.1", f"--grpc-port={grpc}",
    ]  # fmt: skip
    libraries = server.parents[1] / "nvidia_pytriton.libs"
    settings = {
        "LD_LIBRARY_PATH": str(libraries),
        "PATH": f"{environment / 'bin'}:{os.environ['PATH']}",  # noqa: TID251
    }
    with running(command, http, tmp_path / "tritonserver.log", settings):
        report = verified(exported, http, grpc)
    assert report.exit_code() == ExitCode.EQUAL, report.to_json()
    assert verdicts(report) == {
        hop: {"equal"}
        for hop in (
            "exported file alone", "served, HTTP JSON", "served, HTTP binary", "served, gRPC",
            "served, gRPC stream", "served, 16 clients",
        )
    }  # fmt: skip


def test_mlserver_answers_as_the_golden_cases_say(exported: Path, tmp_path: Path) -> None:
    environment = require_environment("mlserver", ["mlserver==1.7.1", "onnxruntime"])
    folder = tmp_path / "mlserver"
    (folder / "pooled").mkdir(parents=True)
    shutil.copy(exported / "pooled" / "1" / "model.onnx", folder / "pooled")
    (folder / "served_onnx.py").write_text(MLSERVER_MODEL)
    settings = {
        "name": "pooled", "implementation": "served_onnx.OnnxModel",
        "parameters": {"uri": "./model.onnx", "version": "1"},
    }  # fmt: skip
    (folder / "pooled" / "model-settings.json").write_text(json.dumps(settings))
    http, grpc, metrics = free_ports(3)
    (folder / "settings.json").write_text(
        json.dumps(
            {
                "host": "127.0.0.1", "http_port": http, "grpc_port": grpc,
                "metrics_port": metrics, "parallel_workers": 0,
            }
        )
    )  # fmt: skip
    command: list[str | Path] = [environment / "bin" / "mlserver", "start", folder]
    with running(command, http, tmp_path / "mlserver.log", {"PYTHONPATH": str(folder)}):
        report = verified(exported, http, grpc)
    assert report.exit_code() == ExitCode.EQUAL, report.to_json()
    # It has neither of the two that are Triton's and not KServe's.
    assert verdicts(report) == {
        "exported file alone": {"equal"},
        "served, HTTP JSON": {"equal"},
        "served, HTTP binary": {"skipped"},
        "served, gRPC": {"equal"},
        "served, gRPC stream": {"skipped"},
        "served, 16 clients": {"equal"},
    }
