"""Where in a version directory the model file is."""

from pathlib import Path

from naiad.backends.base import ModelSource
from naiad.errors import InternalError


def find_model_file(source: ModelSource, default_name: str) -> Path:
    """The file that ``default_model_filename`` names, or ``default_name`` where it names none.

    A directory of that name stands for the file of the same name inside it, which is how Triton
    keeps an ONNX model together with its external data.

    Raises:
        InternalError: there is no such file (Triton answers so, with this text).
    """
    name = source.config.default_model_filename or default_name
    path = source.version_directory / name
    if path.is_dir():
        path = path / path.name
    if not path.is_file():
        raise InternalError(f"failed to stat file {path}")
    return path
