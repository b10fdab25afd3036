"""From a trained PyTorch model to a production inference service, proven equal at every hop."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from naiad import asgi
    from naiad.app.definition import model
    from naiad.errors import NaiadError
    from naiad.exporter.export import export
    from naiad.exporter.options import ExportOptions
    from naiad.exporter.result import ExportResult

__all__ = ["ExportOptions", "ExportResult", "NaiadError", "asgi", "export", "model"]

# Loaded when first used: torch alone costs three seconds, and a server needs none of it.
_MODULES = {
    "ExportOptions": "naiad.exporter.options",
    "ExportResult": "naiad.exporter.result",
    "NaiadError": "naiad.errors",
    "asgi": "naiad.asgi",
    "export": "naiad.exporter.export",
    "model": "naiad.app.definition",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'naiad' has no attribute '{name}'")
    try:
        module = import_module(_MODULES[name])
    except ModuleNotFoundError as error:
        from naiad.missing_packages import explain_missing_package

        told = f"naiad.{name}: {explain_missing_package(error)}"
        raise ModuleNotFoundError(told, name=error.name) from error
    return module if module.__name__ == f"{__name__}.{name}" else getattr(module, name)


def __dir__() -> list[str]:
    return sorted(__all__)
