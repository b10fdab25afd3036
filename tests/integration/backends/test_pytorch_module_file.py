"""Classes of a ``model.py``: ``runtime: "model.py"``."""

import json
import logging
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.integration.backends.pytorch_models import fp32, make_source, row, run, save_script

from naiad.backends.base import ModelSource
from naiad.backends.pytorch.backend import PyTorchBackend
from naiad.errors import InternalError, InvalidArgumentError

pytestmark = pytest.mark.slow

SCALE = """
import torch
from torch.nn import Identity

class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = torch.nn.Parameter(torch.tensor(2.0))
        self.same = Identity()

    def forward(self, left, right):
        left.add_(1)
        return [self.same(left) * self.factor, right - left]
"""


class Opens:
    """Unpickled, it would make a file."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[object, tuple[str, int]]:
        return (os.open, (self.path, os.O_CREAT))


def make_module_source(directory: Path, code: str = SCALE, **parameters: str) -> ModelSource:
    (directory / "model.py").write_text(code)
    source = make_source(directory, fp32("b", "a"), fp32("y", "x"), **parameters)
    source.config.runtime = "model.py"
    return source


def test_the_class_runs_with_inputs_and_outputs_in_the_configs_order(tmp_path: Path) -> None:
    source = make_module_source(tmp_path)
    left = row(1, 2)
    x, y = run(source, "x", "y", b=left, a=row(5, 5))
    assert (y.data.tolist(), x.data.tolist()) == ([[4, 6]], [[3, 2]])
    assert left.tolist() == [[1, 2]]


def test_weights_come_from_the_state_dict_beside_it(tmp_path: Path) -> None:
    source = make_module_source(tmp_path)
    torch.save({"factor": torch.tensor(10.0)}, tmp_path / "model.pt")
    (y,) = run(source, "y", b=row(1), a=row(1))
    assert y.data.item() == 20


def test_weights_that_run_code_are_refused_unread(tmp_path: Path) -> None:
    source = make_module_source(tmp_path)
    torch.save({"factor": Opens(tmp_path / "made")}, tmp_path / "model.pt")
    with pytest.raises(InternalError, match=r"must hold the state dict of the class in model\.py"):
        PyTorchBackend().load(source)
    assert not (tmp_path / "made").exists()
    # Otherwise this test would prove nothing.
    pickle.loads(pickle.dumps(Opens(tmp_path / "made")))
    assert (tmp_path / "made").exists()


def test_weights_of_another_class_are_refused(tmp_path: Path) -> None:
    source = make_module_source(tmp_path)
    torch.save({"other": torch.tensor(10.0)}, tmp_path / "model.pt")
    with pytest.raises(InternalError, match=r'Unexpected key.*"other"'):
        PyTorchBackend().load(source)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("import torch", "Cannot find a subclass of torch.nn.Module"),
        ("from torch.nn import Identity", "Cannot find a subclass of torch.nn.Module"),
        ("import no_such_module", "model.py: ModuleNotFoundError: No module named"),
        ("1 +", "model.py: SyntaxError"),
        (
            "import torch\nclass M(torch.nn.Module):\n    def __init__(self, n): ...",
            r"M\(\) failed: TypeError",
        ),
    ],
)
def test_a_file_without_a_class_that_can_be_made_is_refused(
    code: str, text: str, tmp_path: Path
) -> None:
    with pytest.raises(InternalError, match=f"^failed to load model 'm': {text}"):
        PyTorchBackend().load(make_module_source(tmp_path, code))


def test_of_several_classes_the_first_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    code = SCALE + "\nclass Zero(torch.nn.Module):\n    pass\n"
    run(make_module_source(tmp_path, code), "y", b=row(1), a=row(1))
    assert "several module classes (Scale, Zero); 'Scale' is served" in caplog.text


def test_a_module_beside_the_file_is_not_found_and_the_error_says_why(tmp_path: Path) -> None:
    (tmp_path / "layers.py").write_text("factor = 3")
    source = make_module_source(tmp_path, "from layers import factor\n" + SCALE)
    with pytest.raises(InternalError, match=r"No module named 'layers'. The version's folder is"):
        PyTorchBackend().load(source)


def test_a_class_of_a_package_is_served_if_the_file_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site"
    package.mkdir()
    (package / "naiad_test_scale.py").write_text(SCALE)
    monkeypatch.syspath_prepend(package)
    code = "from torch.nn import Linear\nfrom naiad_test_scale import Scale\n"
    (y,) = run(make_module_source(tmp_path, code), "y", b=row(1, 2), a=row(5, 5))
    assert y.data.tolist() == [[4, 6]]


def test_a_torchscript_file_alone_is_served_under_this_runtime(tmp_path: Path) -> None:
    save_script(tmp_path, torch.nn.ReLU())
    source = make_source(tmp_path, fp32("x"), fp32("y"))
    source.config.runtime = "model.py"
    (output,) = run(source, "y", x=row(-1, 1))
    np.testing.assert_array_equal(output.data, [[0, 1]])


def test_a_failure_in_the_class_reaches_the_client(tmp_path: Path) -> None:
    code = "import torch\nclass M(torch.nn.Module):\n    def forward(self, a, b):\n        1 / 0"
    with pytest.raises(InternalError, match=r"^PyTorch execute failure: division by zero"):
        run(make_module_source(tmp_path, code), "y", b=row(1), a=row(1))


def test_the_number_of_threads_is_set(tmp_path: Path) -> None:
    run(make_module_source(tmp_path, NUM_THREADS="1"), "y", b=row(1), a=row(1))
    assert torch.get_num_threads() == 1


def test_another_number_of_interop_threads_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # The first to ask may still have got its wish, unless another test was the first.
    first = str(torch.get_num_interop_threads() + 1)
    PyTorchBackend().load(make_module_source(tmp_path, NUM_INTEROP_THREADS=first))
    count = torch.get_num_interop_threads() + 1
    with caplog.at_level(logging.WARNING):
        PyTorchBackend().load(make_module_source(tmp_path, NUM_INTEROP_THREADS=str(count)))
    assert f"asks for INTER_OP_THREAD_COUNT {count}" in caplog.text


def test_the_class_is_compiled_if_the_config_says_so(tmp_path: Path) -> None:
    code = SCALE.replace("left.add_(1)", "left = left + 1")
    given = json.dumps({"backend": "eager", "fullgraph": True})
    source = make_module_source(tmp_path, code, TORCH_COMPILE_OPTIONAL_PARAMETERS=given)
    (y,) = run(source, "y", b=row(1, 2), a=row(5, 5))
    assert y.data.tolist() == [[4, 6]]
    breaks = code.replace("return", "print(left)\n        return")
    source = make_module_source(tmp_path, breaks, TORCH_COMPILE_OPTIONAL_PARAMETERS=given)
    with pytest.raises(InternalError, match="PyTorch execute failure"):
        run(source, "y", b=row(1, 2), a=row(5, 5))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ('{"model": 1}', "'model' is not an optional parameter for 'torch.compile'"),
        ('{"speed": 1}', "'speed' is not an optional parameter for 'torch.compile'"),
        ("[1]", "must be a JSON object"),
        ("{", "must be a JSON object"),
    ],
)
def test_what_torch_compile_does_not_take_is_refused(given: str, text: str, tmp_path: Path) -> None:
    source = make_module_source(tmp_path, TORCH_COMPILE_OPTIONAL_PARAMETERS=given)
    with pytest.raises(InvalidArgumentError, match=text):
        PyTorchBackend().load(source)


def test_compiling_can_be_disabled(tmp_path: Path) -> None:
    given = json.dumps({"disable": True, "backend": "no_such_backend"})
    source = make_module_source(tmp_path, TORCH_COMPILE_OPTIONAL_PARAMETERS=given)
    (y,) = run(source, "y", b=row(1), a=row(1))
    assert y.data.item() == 4
