"""The names that ``import naiad`` promises."""

import importlib
import subprocess
import sys

import pytest

import naiad


def test_the_promised_names() -> None:
    assert sorted(naiad.__all__) == [
        "ExportOptions",
        "ExportResult",
        "NaiadError",
        "asgi",
        "export",
        "model",
    ]
    assert dir(naiad) == sorted(naiad.__all__)


@pytest.mark.slow
def test_each_is_there_and_stays_itself() -> None:
    for name in naiad.__all__:
        assert getattr(naiad, name).__name__.removeprefix("naiad.") == name


@pytest.mark.slow
def test_export_is_a_function_after_any_import_of_the_folder() -> None:
    importlib.import_module("naiad.exporter.onnx")
    importlib.import_module("naiad.exporter.export")
    importlib.import_module("naiad.cli.export")
    assert callable(naiad.export)
    assert naiad.export.__module__ == "naiad.exporter.export"


@pytest.mark.slow
@pytest.mark.parametrize("statement", ["naiad.export", "from naiad import export"])
def test_without_torch_export_says_what_to_install(statement: str) -> None:
    script = f"import sys; sys.modules['torch'] = None; import naiad; {statement}"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: naiad.export: this needs torch, which is not installed: "
        "pip install 'naiad[torch]'"
    )


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'naiad' has no attribute 'serve_all'"):
        naiad.serve_all  # noqa: B018
