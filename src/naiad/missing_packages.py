"""What to install where a verb, or a public name, needs more than a server does."""

from collections.abc import Mapping
from typing import Final

# Serving ONNX needs none of these, so they are no dependencies of the package itself.
_EXTRAS: Final[Mapping[str, str]] = {
    "torch": "torch",
    "onnx": "torch",
    "onnxscript": "torch",
    "onnx_ir": "torch",
}


def explain_missing_package(error: ModuleNotFoundError) -> str:
    """What is missing, and the command that installs it.

    Raises:
        ModuleNotFoundError: ``error``, where it is about a module that belongs to no extra; that
            is a fault in somebody's code, and its traceback shows where.
    """
    package = (error.name or "").partition(".")[0]
    if package not in _EXTRAS:
        raise error
    return f"this needs {package}, which is not installed: pip install 'naiad[{_EXTRAS[package]}]'"
