"""What is said where a package of an extra is missing."""

import pytest

from naiad.missing_packages import explain_missing_package


@pytest.mark.parametrize("name", ["torch", "torch.nn", "onnx"])
def test_a_package_of_an_extra_comes_with_its_command(name: str) -> None:
    told = explain_missing_package(ModuleNotFoundError(f"No module named '{name}'", name=name))
    assert f"{name.partition('.')[0]}, which is not installed" in told
    assert "pip install 'naiad[torch]'" in told


@pytest.mark.parametrize("name", ["torchless", None])
def test_any_other_module_keeps_its_traceback(name: str | None) -> None:
    missing = ModuleNotFoundError("No module named ...", name=name)
    with pytest.raises(ModuleNotFoundError) as raised:
        explain_missing_package(missing)
    assert raised.value is missing
