"""The names that ``import naiad`` promises."""

import importlib

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


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'naiad' has no attribute 'serve_all'"):
        naiad.serve_all  # noqa: B018
