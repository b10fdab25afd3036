"""The example backend, installed as its users would, in a server of its own."""

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from naiad.client.http import HttpClient
from naiad.errors import InvalidArgumentError
from naiad.inference.datatypes import FP32
from naiad.inference.tensor import Tensor
from naiad.verify.server_process import ServerProcess

sklearn = pytest.importorskip("sklearn", reason="scikit-learn is not installed")
from sklearn.datasets import load_digits  # noqa: E402

EXAMPLE = Path(__file__).parents[2] / "examples" / "sklearn_backend"

pytestmark = pytest.mark.slow


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package in a folder of its own, which the server finds on its path."""
    # A build leaves files beside the source.
    source = shutil.copytree(EXAMPLE, tmp_path / "source")
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
            *("--no-deps", "--no-build-isolation", f"--target={tmp_path / 'site'}", str(source)),
        ],
        check=True,
        capture_output=True,
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))


def ask(address: str, rows: np.ndarray) -> dict[str, np.ndarray]:
    with HttpClient(address) as client:
        result = client.infer("digits", [Tensor("features", FP32, rows.shape, rows)])
    return {name: tensor.data for name, tensor in result.outputs.items()}


@pytest.mark.usefixtures("installed")
def test_the_example_trains_and_serves(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    trained = subprocess.run(
        [sys.executable, str(EXAMPLE / "train.py"), str(repository)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert float(trained.stdout.split()[2].rstrip("%")) > 95
    images, digits = load_digits(return_X_y=True)
    images = images.astype(np.float32)

    with ServerProcess(repository) as server, ThreadPoolExecutor(4) as clients:
        with HttpClient(server.address) as client:
            config = client.model_config("digits")
        answers = list(
            clients.map(lambda start: ask(server.address, images[start : start + 4]), range(40))
        )
        with pytest.raises(InvalidArgumentError, match=r"Expected \[-1,64\], got \[1,63\]"):
            ask(server.address, images[:1, :63])

    assert config["max_batch_size"] == 4
    assert [(t["name"], t["dims"]) for t in config["input"]] == [("features", [64])]
    labels = np.array([answer["label"][0, 0] for answer in answers])
    assert (labels == digits[:40]).mean() > 0.9
    for answer in answers:
        assert answer["scores"].shape == (4, 10)
        np.testing.assert_allclose(answer["scores"].sum(axis=1), 1, atol=1e-6)


def test_the_backend_is_as_short_as_it_is_said_to_be() -> None:
    assert len((EXAMPLE / "sklearn_backend.py").read_text().splitlines()) < 100
