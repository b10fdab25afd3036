"""A model repository on disk: which models and versions there are, and what lies beside them.

``<repository>/<model>/config.pbtxt`` and ``<repository>/<model>/<version>/<model file>``, as Triton
lays it out (model_repository.md).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from naiad.errors import InternalError, InvalidArgumentError, UnsupportedError
from naiad.model_config.schema import ModelConfig
from naiad.model_config.text_format import ConfigSyntaxError, parse_config
from naiad.repository.paths import check_model_name, resolve_inside

CONFIG_FILENAME: Final = "config.pbtxt"
CUSTOM_CONFIG_FOLDER: Final = "configs"
# Folders of a model that are no versions; Triton passes over them without a word, too.
_OTHER_FOLDERS: Final = frozenset({"warmup", "initial_state", CUSTOM_CONFIG_FOLDER})
# No leading zero: Triton ignores those. Nothing after the digits: Triton reads "2.tmp" as 2.
_VERSION = re.compile(r"[1-9][0-9]*", re.ASCII)
_MAX_VERSION: Final = 2**63 - 1
# A config of a model with thousands of tensors has a few hundred kilobytes.
_MAX_TEXT_BYTES: Final = 64 << 20


# Name, size in bytes and modification time in nanoseconds of every file of a model; in object
# storage a number made of its ETag instead of the time.
FolderStamp = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model as it lies in a repository.

    Attributes:
        name: of the folder.
        path: of the folder.
        versions: ascending.
        ignored: folders that look like versions to a person and are none, such as ``01``.
        problem: why the model can't be loaded at all, such as a second folder of its name; empty
            where nothing speaks against it.
        stamp: how the model lies there, if whoever found it knows; else ``stamp_folder`` tells.
    """

    name: str
    path: Path
    versions: tuple[int, ...]
    ignored: tuple[str, ...] = ()
    problem: str = ""
    stamp: FolderStamp | None = None

    def version_path(self, version: int) -> Path:
        """The folder of one version; it need not exist."""
        return self.path / str(version)


def scan_repository(path: Path) -> list[ModelFolder]:
    """Every model of a repository, sorted by name.

    Files beside the model folders and hidden folders are passed over.

    Raises:
        InternalError: the repository is no folder that can be read.
    """
    return [_scan_model_of(path, name) for name in _subfolders(path) if is_repository_entry(name)]


def find_model(repository: Path, name: str) -> ModelFolder | None:
    """One model of a repository, without a look at the others; None where it isn't there.

    Raises:
        InternalError: the model's folder can't be read.
    """
    if not is_repository_entry(name) or not (repository / name).is_dir():
        return None
    return _scan_model_of(repository, name)


def stamp_folder(folder: ModelFolder) -> FolderStamp:
    """How a model lies there; two stamps are equal when nothing changed in between."""
    if folder.stamp is not None:
        return folder.stamp
    entries = []
    for path in sorted(folder.path.rglob("*")):
        try:
            status = path.stat()
        except FileNotFoundError:  # removed since it was listed
            continue
        entries.append((str(path.relative_to(folder.path)), status.st_size, status.st_mtime_ns))
    return tuple(entries)


def doubt_repository(path: Path) -> str:
    """What speaks against a folder being a model repository, and what may be meant; mostly empty.

    Raises:
        InternalError: the folder can't be read.
    """
    names = _subfolders(path)
    versions, _ = split_versions(names)
    holds_versions = bool(versions) and not any(_subfolders(path / name) for name in names)
    if (path / CONFIG_FILENAME).is_file() or holds_versions:
        return (
            f"'{path}' is the folder of a model and no model repository, which is the folder "
            f"around it: '{path.absolute().parent}'"
        )
    if not any(is_repository_entry(name) for name in names):
        return (
            f"the model repository '{path}' holds no models; a model is a folder in it, such as "
            f"'{path / 'my_model' / '1' / 'model.onnx'}'"
        )
    return ""


def scan_model(path: Path) -> ModelFolder:
    """One model folder, whatever repository it is in.

    Raises:
        InternalError: the folder can't be read.
    """
    versions, ignored = split_versions(_subfolders(path))
    return ModelFolder(path.name, path, versions, ignored)


def split_versions(names: Iterable[str]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The versions among the folders of a model, ascending, and those that are ignored."""
    versions: list[int] = []
    ignored: list[str] = []
    for name in names:
        if name in _OTHER_FOLDERS or name.startswith("."):
            continue
        if _VERSION.fullmatch(name) and int(name) <= _MAX_VERSION:
            versions.append(int(name))
        else:
            ignored.append(name)
    return tuple(sorted(versions)), tuple(ignored)


def read_config(
    folder: ModelFolder, config_name: str = "", *, is_required: bool = False
) -> ModelConfig:
    """The model's own config, as written: neither normalized nor checked.

    Args:
        folder: of the model.
        config_name: of the file ``configs/<name>.pbtxt`` to read where the model has one.
        is_required: a model without a config is an error, not an empty config.

    Raises:
        ConfigSyntaxError: the file does not parse.
        InvalidArgumentError: there is no config and there must be one, or the path leaves the
            model folder.
        InternalError: the file can't be read.
    """
    path = find_config(folder, config_name)
    if path is None:
        if is_required:
            raise InvalidArgumentError(
                f"failed to open text file for read {folder.path / CONFIG_FILENAME}: No such file "
                f"or directory; model configuration is not provided for model '{folder.name}'. "
                f"Write a {CONFIG_FILENAME} into its folder, or allow auto-completion."
            )
        return ModelConfig()
    content = _read_bytes(path)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        column = error.start - content.rfind(b"\n", 0, error.start)
        raise ConfigSyntaxError(str(path), line, column, "not UTF-8 text") from error
    return parse_config(text, str(path))


def find_config(folder: ModelFolder, config_name: str = "") -> Path | None:
    """The config file of a model; None where it has none.

    Args:
        folder: of the model.
        config_name: of the file ``configs/<name>.pbtxt`` to take where the model has one.

    Raises:
        InvalidArgumentError: the path leaves the model folder.
    """
    names = [CONFIG_FILENAME]
    if config_name:
        names.insert(0, f"{CUSTOM_CONFIG_FOLDER}/{config_name}.pbtxt")
    for name in names:
        path = folder.path / name
        if path.exists():
            resolve_inside(folder.path, name)
            return path
    return None


def list_artifacts(folder: ModelFolder) -> list[str]:
    """Names in the folder of the lowest version, which tell the backend; empty without versions.

    Raises:
        InternalError: the folder can't be read.
    """
    if not folder.versions:
        return []
    path = folder.version_path(folder.versions[0])
    try:
        return sorted(entry.name for entry in path.iterdir())
    except OSError as error:
        raise InternalError(f"failed to read directory {path}: {error.strerror}") from error


def read_labels(folder: ModelFolder, config: ModelConfig) -> dict[str, list[str]]:
    """Class labels by output name, for the outputs that have a label file.

    Label ``i`` is line ``i``, so an empty line is an empty label.

    Raises:
        UnsupportedError: a label file outside of the model folder.
        InternalError: a label file that can't be read.
    """
    labels = {}
    for output in config.output:
        if output.label_filename:
            named = folder.path / output.label_filename
            try:
                path = resolve_inside(folder.path, output.label_filename)
            except InvalidArgumentError as error:
                raise UnsupportedError(
                    f"label file path '{named}' for output '{output.name}' in model "
                    f"'{config.name}' is outside model directory"
                ) from error
            labels[output.name] = _read_lines(path)
    return labels


def _scan_model_of(repository: Path, name: str) -> ModelFolder:
    try:
        resolve_inside(repository, name)
    except InvalidArgumentError:
        problem = f"its folder is a link that leads out of the model repository {repository}"
        return ModelFolder(name, repository / name, (), problem=problem)
    return scan_model(repository / name)


def is_repository_entry(name: str) -> bool:
    """Whether a folder of a repository is a model; hidden ones and impossible names aren't."""
    if name.startswith("."):
        return False
    try:
        check_model_name(name)
    except InvalidArgumentError:
        return False
    return True


def _subfolders(path: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in path.iterdir() if entry.is_dir())
    except OSError as error:
        raise InternalError(f"failed to stat file {path}: {error.strerror}") from error


def _read_bytes(path: Path) -> bytes:
    try:
        if path.stat().st_size > _MAX_TEXT_BYTES:
            raise InternalError(
                f"failed to open text file for read {path}: larger than {_MAX_TEXT_BYTES} bytes"
            )
        return path.read_bytes()
    except OSError as error:
        raise InternalError(
            f"failed to open text file for read {path}: {error.strerror}"
        ) from error


def _read_lines(path: Path) -> list[str]:
    # A byte that is not UTF-8 must not keep a model from loading: only its label looks odd.
    lines = _read_bytes(path).decode("utf-8", "replace").split("\n")
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix("\r") for line in lines]
