import subprocess
import sys

import pytest

from naiad.backends.identity.backend import IdentityBackend
from naiad.backends.registry import BackendRegistry
from naiad.errors import InvalidArgumentError


def test_a_backend_is_made_once() -> None:
    registry = BackendRegistry()
    assert not registry.loaded_names
    backend = registry.get("identity")
    assert isinstance(backend, IdentityBackend)
    assert registry.get("identity") is backend
    assert registry.loaded_names == ("identity",)


def test_an_unknown_backend_says_which_there_are() -> None:
    with pytest.raises(InvalidArgumentError) as failure:
        BackendRegistry().get("nonesuch")
    assert failure.value.message == (
        "unable to find backend library for backend 'nonesuch', try specifying runtime on the "
        "model configuration. Available backends: identity, onnxruntime, pytorch"
    )


SCRIPT = """
import sys
from naiad.backends.registry import BackendRegistry
from naiad.errors import UnsupportedError
assert not {"torch", "onnxruntime"} & set(sys.modules), "a framework was imported too early"
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
sys.meta_path.insert(0, Missing())
try:
    BackendRegistry().get("pytorch")
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
