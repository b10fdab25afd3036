"""The demo: its functions on the small model, and the whole of it where there is time."""

import importlib
import io
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from rich.console import Console

from naiad.verify.report import ExitCode
from naiad.verify.server_process import ServerProcess

ROOT = Path(__file__).parent.parent.parent
DEMO = ROOT / "examples" / "demo"

pytestmark = pytest.mark.slow


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(DEMO)
    return importlib.import_module("demo")


def test_the_small_model_goes_the_whole_way(demo: ModuleType, tmp_path: Path) -> None:
    out = io.StringIO()
    console = Console(file=out, width=160)
    repository = tmp_path / "models"
    repository.mkdir()
    demo.export_model(demo.SENTIMENT_ANALYSIS, repository)
    version = repository / "sentiment_analysis" / "1"
    assert (version / "model.pt").is_file()
    assert list((version / "golden").glob("*.safetensors"))
    with ServerProcess(repository) as server:
        tokens = np.array([[1, 2, 3]], dtype=np.int64)
        scores = demo.infer_both_ways(
            console, server.address, "sentiment_analysis", "tokens", tokens
        )
        report = demo.verify_model(
            demo.SENTIMENT_ANALYSIS, repository, server.address, lambda _: None
        )
    assert scores.shape == (1, 5)
    assert "the same bits" in out.getvalue()
    assert report.exit_code() is ExitCode.EQUAL
    hops = {row.hop for row in report.models[0].rows}
    assert "PyTorch eager again" in hops
    assert {row.batch for row in report.models[0].rows} == {"1", "2", "3", "8", "mixed"}


def test_the_commands_to_try_next_have_real_paths(demo: ModuleType, tmp_path: Path) -> None:
    out = io.StringIO()
    demo.show_commands(Console(file=out, width=200), tmp_path, tmp_path / "photo.npy")
    for verb in ("serve", "infer", "verify"):
        assert f"naiad {verb} " in out.getvalue()
    assert str(tmp_path) in out.getvalue()


def test_the_photograph_is_as_the_classifier_was_trained_to_see_it(demo: ModuleType) -> None:
    photo = demo.models.read_photo(demo.models.PHOTO)
    assert (photo.shape, photo.dtype) == ((1, 3, 224, 224), np.float32)
    # Pixels of 0 and 255 under (x / 255 - 0.498) / 0.502.
    assert photo.min() >= -0.498 / 0.502 - 1e-6
    assert photo.max() <= 1 + 1e-6
    pixels = (photo * 0.502 + 0.498) * 255
    np.testing.assert_allclose(pixels, pixels.round(), atol=1e-3)


def test_there_is_a_label_for_each_class_of_imagenet(demo: ModuleType) -> None:
    labels = demo.models.LABELS.read_text(encoding="utf-8").splitlines()
    assert len(labels) == 1000
    assert [labels[index] for index in (285, 282, 281)] == ["Egyptian cat", "tiger cat", "tabby"]


@pytest.mark.full
@pytest.mark.timeout(900)
def test_the_whole_demo_ends_with_status_0() -> None:
    done = subprocess.run(
        [sys.executable, str(DEMO / "demo.py")],
        capture_output=True,
        text=True,
        timeout=800,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Egyptian cat" in done.stdout
    assert "DIFFERENT" not in done.stdout
