"""Whether all that a model consists of lies in its repository.

A repository is a boundary: what a config, a link or a model file says must not make the server read
elsewhere. ``paths.resolve_inside`` decides; here is what it is asked about.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from naiad.errors import InternalError, InvalidArgumentError
from naiad.model_config.schema import ModelConfig
from naiad.repository.layout import ModelFolder
from naiad.repository.onnx_external_data import external_locations
from naiad.repository.paths import resolve_inside

_ENVIRONMENT: Final = "EXECUTION_ENV_PATH"
# What stands for the model's folder in it.
_MODEL_DIRECTORY: Final = "$$TRITON_MODEL_DIRECTORY"
_ONNX_BACKEND: Final = "onnxruntime"
_ONNX_SUFFIX: Final = ".onnx"


def check_containment(folder: ModelFolder, config: ModelConfig, versions: Iterable[int]) -> None:
    """Refuse a model that would have something outside of its repository read.

    Args:
        folder: of the model.
        config: normalized.
        versions: that will be loaded.

    Raises:
        InvalidArgumentError: naming the path that leads out.
        InternalError: a file of the model can't be read.
    """
    repository = folder.path.parent
    for library in config.model_operations.op_library_filename:
        resolve_inside(folder.path, library, repository)
    for version in versions:
        root = folder.version_path(version)
        _check_links([root], repository)
        files = list(_files(root))
        _check_links(files, repository)
        for name in (config.default_model_filename, *config.cc_model_filenames.values()):
            resolve_inside(root, name, repository)
        for file in _onnx_files(files, root, config):
            _check_external_data(file, root, repository)


def check_environment(folder: ModelFolder, config: ModelConfig, allowed: Path | None) -> None:
    """Refuse a model whose interpreter would be one from outside of its repository.

    Args:
        folder: of the model.
        config: whose parameter ``EXECUTION_ENV_PATH`` names a folder or an archive.
        allowed: a folder that the operator keeps environments in; None where there is none.

    Raises:
        InvalidArgumentError: naming the path, and the setting that would allow it.
    """
    if _ENVIRONMENT not in config.parameters:
        return
    text = config.parameters[_ENVIRONMENT].string_value
    path = text.replace(_MODEL_DIRECTORY, str(folder.path))
    repository = folder.path.parent
    roots = [repository] if allowed is None else [repository, allowed]
    if not text or any(_is_inside(root, path) for root in roots):
        return
    advice = (
        f"put it under '{allowed}', the execution-env-directory of this server"
        if allowed is not None
        else "start the server with --backend-config=python,execution-env-directory=DIR to allow "
        "those in DIR"
    )
    raise InvalidArgumentError(
        f"parameter '{_ENVIRONMENT}' of model '{config.name}': '{path}' is outside of the "
        f"model repository '{repository}'; put the environment there, or {advice}"
    )


def _is_inside(root: Path, path: str) -> bool:
    try:
        # What isn't absolute is seen from where the server was started.
        resolve_inside(root, str(Path(path).absolute()))
    except (InvalidArgumentError, ValueError):
        return False
    return True


def _files(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            yield Path(folder, name)


def _check_links(paths: Iterable[Path], repository: Path) -> None:
    for path in paths:
        if not path.is_symlink():
            continue
        try:
            resolve_inside(path.parent, path.name, repository)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(
                f"'{path}' is a link that leads out of the model repository '{repository}'; put "
                "what it points to there"
            ) from error


def _onnx_files(files: Iterable[Path], root: Path, config: ModelConfig) -> list[Path]:
    """The files that onnxruntime may be given, whatever they are called."""
    found = {file for file in files if file.suffix == _ONNX_SUFFIX and file.is_file()}
    if config.backend == _ONNX_BACKEND and config.default_model_filename:
        named = root / config.default_model_filename
        found.update(path for path in (named, named / named.name) if path.is_file())
    return sorted(found)


def _check_external_data(file: Path, root: Path, repository: Path) -> None:
    try:
        locations = external_locations(file)
    except OSError as error:
        raise InternalError(f"failed to open {file}: {error.strerror}") from error
    for location in sorted(locations):
        try:
            # Seen from the real file, which is where onnxruntime looks from.
            resolve_inside(file.resolve().parent, location, repository)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(
                f"the external data '{location}' of '{file}' is outside of '{root}'; put the data "
                "beside the model file and name it without a path"
            ) from error
