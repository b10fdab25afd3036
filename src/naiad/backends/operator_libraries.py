"""Where the libraries of custom operators are that a config names."""

from pathlib import Path

from naiad.backends.base import ModelSource
from naiad.errors import InvalidArgumentError


def find_operator_libraries(source: ModelSource) -> list[Path]:
    """The files of ``model_operations.op_library_filename``, in order.

    Each lies in the version's folder or in that of the model. It is code that runs in the server,
    so a config can't name one that came another way.

    Raises:
        InvalidArgumentError: one is not there, or outside of the model's folder.
    """
    return [_find(source, name) for name in source.config.model_operations.op_library_filename]


def _find(source: ModelSource, name: str) -> Path:
    root = source.version_directory.parent.resolve()
    for folder in (source.version_directory, source.version_directory.parent):
        path = (folder / name).resolve()
        if not path.is_relative_to(root):
            raise InvalidArgumentError(
                f"model '{source.name}': op_library_filename '{name}' is outside of the model "
                "folder; copy the library into it"
            )
        if path.is_file():
            return path
    raise InvalidArgumentError(
        f"model '{source.name}': there is no op_library_filename '{name}' in the model folder; it "
        "is looked for in the version's folder, then in the model's"
    )
