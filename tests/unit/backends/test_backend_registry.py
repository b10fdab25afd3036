import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from naiad.backends.identity.backend import IdentityBackend
from naiad.backends.registry import BackendRegistry
from naiad.errors import InvalidArgumentError, UnsupportedError


def test_a_backend_is_made_once() -> None:
    registry = BackendRegistry()
    assert not registry.loaded_names
    backend = registry.get("identity")
    assert isinstance(backend, IdentityBackend)
    assert registry.get("identity") is backend
    assert registry.loaded_names == ("identity",)


def test_an_unknown_backend_says_which_there_are() -> None:
    registry = BackendRegistry()
    assert {"identity", "onnxruntime", "openvino", "pytorch"} <= set(registry.names)
    with pytest.raises(InvalidArgumentError) as failure:
        registry.get("nonesuch")
    assert failure.value.message == (
        "unable to find backend library for backend 'nonesuch', try specifying runtime on the "
        f"model configuration. Available backends: {', '.join(sorted(registry.names))}"
    )


def test_a_backend_that_could_be_had_is_not_imported_to_say_so() -> None:
    registry = BackendRegistry()
    for name in ("identity", "onnxruntime", "pytorch"):
        registry.check(name)
    with pytest.raises(InvalidArgumentError, match="backend 'nonesuch'"):
        registry.check("nonesuch")
    assert not registry.loaded_names


def test_tensorflow_models_are_told_how_to_become_onnx() -> None:
    with pytest.raises(InvalidArgumentError) as failure:
        BackendRegistry().get("tensorflow")
    assert failure.value.message.startswith("unable to find backend library for backend 'tensorf")
    assert "python -m tf2onnx.convert --saved-model model.savedmodel" in failure.value.message


def test_tensorrt_plans_are_told_what_is_served_instead() -> None:
    with pytest.raises(InvalidArgumentError) as failure:
        BackendRegistry().get("tensorrt")
    assert failure.value.message.startswith("unable to find backend library for backend 'tensorrt'")
    assert "Serve the ONNX file that it was built from" in failure.value.message


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Installs a package ``thirdparty`` with one backend, as far as Python can tell."""

    def install_one(entry_point: str, code: str) -> None:
        module = f"thirdparty_{tmp_path.name}"
        (tmp_path / f"{module}.py").write_text(code)
        metadata = tmp_path / "thirdparty-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: thirdparty\nVersion: 1.0\n"
        )
        (metadata / "entry_points.txt").write_text(
            f"[naiad.backends]\n{entry_point.replace('thirdparty', module)}\n"
        )
        monkeypatch.syspath_prepend(str(tmp_path))

    return install_one


GOOD = """
class Backend:
    def complete_config(self, source): pass
    def load(self, source): pass
"""


def test_another_package_may_bring_a_backend(install: Callable[[str, str], None]) -> None:
    install("abacus = thirdparty:Backend", GOOD)
    registry = BackendRegistry()
    assert "abacus" in registry.names
    assert registry.module_name("abacus").startswith("thirdparty_")
    backend = registry.get("abacus")
    assert type(backend).__name__ == "Backend"
    assert registry.get("abacus") is backend


def test_another_package_can_not_take_a_name_of_ours(install: Callable[[str, str], None]) -> None:
    install("identity = thirdparty:Backend", GOOD)
    assert isinstance(BackendRegistry().get("identity"), IdentityBackend)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("1 / 0", "of package 'thirdparty' .* can't be made: ZeroDivisionError: division by zero"),
        ("Other = 1", "can't be made: AttributeError: .* has no attribute 'Backend'"),
        ("class Backend: pass", "is no backend: it has no method 'complete_config'"),
    ],
)
def test_a_backend_of_another_package_that_can_not_be_made_is_named(
    code: str, text: str, install: Callable[[str, str], None]
) -> None:
    install("abacus = thirdparty:Backend", code)
    with pytest.raises(UnsupportedError, match=text):
        BackendRegistry().get("abacus")


SCRIPT = """
import sys
from pathlib import Path
from naiad.backends.base import ModelSource
from naiad.backends.registry import BackendRegistry
from naiad.model_config.schema import ModelConfig
from naiad.errors import UnsupportedError
assert not {"torch", "onnxruntime"} & set(sys.modules), "a framework was imported too early"
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
sys.meta_path.insert(0, Missing())
try:
    BackendRegistry().get("pytorch").load(ModelSource("m", 1, ModelConfig(), Path()))
except UnsupportedError as error:
    print(error.message)
"""


@pytest.mark.slow
def test_a_missing_framework_says_what_to_install() -> None:
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    assert result.stdout == (
        "backend 'pytorch' needs torch, which is not installed; run: pip install 'naiad[torch]'\n"
    )
