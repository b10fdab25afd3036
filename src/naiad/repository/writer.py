"""Put a model version into a repository so that nobody ever reads half of it."""

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from naiad.errors import AlreadyExistsError, InvalidArgumentError
from naiad.model_config.schema import ModelConfig
from naiad.model_config.text_format import format_config
from naiad.repository.layout import CONFIG_FILENAME, scan_model
from naiad.repository.paths import check_model_name, resolve_inside

_NO_LABELS: Final[Mapping[str, Sequence[str]]] = MappingProxyType({})
_STAGE_PREFIX: Final = ".naiad-publish-"
_TAKEN: Final = frozenset({errno.EEXIST, errno.ENOTEMPTY})


@dataclass(frozen=True, slots=True)
class _Target:
    """Where a version goes, and what may happen to one that is there."""

    model_path: Path
    version: int | None
    overwrite: bool


def publish_version(  # noqa: PLR0913  (what is published, where, and what with)
    repository: Path,
    model_name: str,
    version: int | None,
    config: ModelConfig,
    write_version: Callable[[Path], None],
    labels: Mapping[str, Sequence[str]] = _NO_LABELS,
    *,
    overwrite: bool = False,
) -> Path:
    """Write a model version beside the repository, then move it in with one rename.

    A new model appears whole. In a model that is there, label files and ``config.pbtxt`` are
    replaced first, each in one step and only where their content changes, and the version appears
    last. Whatever fails before that leaves the repository's versions as they were.

    Args:
        repository: made if it does not exist.
        model_name: of the folder, and of the config if that has no name.
        version: None takes the number after the highest.
        config: becomes ``config.pbtxt``; it holds for all versions of the model.
        write_version: called with an empty folder, which it fills with the version's files.
        labels: classes by output name. They go into the file that the config names for the output,
            or into ``<output>_labels.txt``, which the written config then names.
        overwrite: replace a version that is there; for a moment, the model is without it.

    Returns:
        The version's folder in the repository.

    Raises:
        AlreadyExistsError: the version is there and ``overwrite`` is false.
        InvalidArgumentError: a name or a version that no repository can have, or labels for an
            output that the config does not list.
        OSError: the disk is full or the folder can't be written.
    """
    check_model_name(model_name)
    if version is not None and version < 1:
        raise InvalidArgumentError(f"version {version} is not a number from 1 on")
    config, label_files = _prepare_config(config, model_name, labels)
    repository.mkdir(parents=True, exist_ok=True)
    target = _Target(repository / model_name, version, overwrite)
    if not overwrite:
        refuse_taken(repository, model_name, version)
    with _stage(repository) as stage:
        staged = stage / "version"
        staged.mkdir()
        write_version(staged)
        texts = label_files | {CONFIG_FILENAME: format_config(config)}
        return _move_in(staged, texts, target)


def _prepare_config(
    config: ModelConfig, model_name: str, labels: Mapping[str, Sequence[str]]
) -> tuple[ModelConfig, dict[str, str]]:
    """A copy of the config with the names filled in, and the label files by file name."""
    prepared = ModelConfig()
    prepared.CopyFrom(config)
    if prepared.name and prepared.name != model_name:
        raise InvalidArgumentError(
            f"unexpected directory name '{model_name}' for model '{prepared.name}', directory name "
            "must equal model name"
        )
    prepared.name = model_name
    outputs = {output.name: output for output in prepared.output}
    files = {}
    for name, classes in labels.items():
        if name not in outputs:
            raise InvalidArgumentError(
                f"labels for output '{name}', but the outputs of model '{model_name}' are: "
                f"{', '.join(outputs)}"
            )
        if any("\n" in label for label in classes):
            raise InvalidArgumentError(f"a label of output '{name}' contains a line end")
        output = outputs[name]
        if not output.label_filename:
            safe = "".join(letter if letter.isalnum() else "_" for letter in name)
            output.label_filename = f"{safe}_labels.txt"
        files[output.label_filename] = "".join(f"{label}\n" for label in classes)
    return prepared, files


def refuse_taken(repository: Path, model_name: str, version: int | None) -> None:
    """Say that a version is there before any work is done for it.

    Args:
        repository: of the model; need not exist.
        model_name: of the folder.
        version: None takes a free number, so it is never taken.

    Raises:
        AlreadyExistsError: the version is there.
    """
    model_path = repository / model_name
    if version is not None and (model_path / str(version)).exists():
        raise _taken(model_path, version)


def _taken(model_path: Path, version: int) -> AlreadyExistsError:
    return AlreadyExistsError(
        f"version {version} of model '{model_path.name}' exists in '{model_path.parent}'. Choose "
        "another version, leave the version out to take the next one, or replace it (--overwrite, "
        "or overwrite=True)."
    )


@contextlib.contextmanager
def _stage(repository: Path) -> Iterator[Path]:
    """A folder for half-written things on the file system of the repository, gone afterwards.

    Beside the repository where possible: inside of it, a server that polls would take the folder
    for a model, and inside of a model, Triton takes ``2.tmp`` for version 2.
    """
    root = repository.resolve()
    stage = _stage_beside(root) or Path(tempfile.mkdtemp(prefix=_STAGE_PREFIX, dir=root))
    try:
        yield stage
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _stage_beside(root: Path) -> Path | None:
    """A folder that can be moved into ``root``; None where its parent has no place for one."""
    try:
        stage = Path(tempfile.mkdtemp(prefix=_STAGE_PREFIX, dir=root.parent))
    except OSError:
        return None
    # Only a move shows it: a mount of one file system in another place has the same device number.
    # A file is moved because no server takes a file beside the models for a model.
    probe = root / stage.name
    try:
        (stage / "probe").touch()
        (stage / "probe").rename(probe)
        probe.unlink()
    except OSError:
        shutil.rmtree(stage, ignore_errors=True)
        return None
    return stage


def _move_in(staged: Path, texts: Mapping[str, str], target: _Target) -> Path:
    _sync_tree(staged)
    while True:
        version = target.version or _next_version(target.model_path)
        try:
            if target.model_path.exists():
                _add_version(staged, texts, target, version)
            else:
                _add_model(staged, texts, target, version)
        except OSError as error:
            if error.errno not in _TAKEN:
                raise
            # Another publisher was faster. A chosen number is lost; otherwise take the next one.
            if not target.overwrite:
                refuse_taken(target.model_path.parent, target.model_path.name, target.version)
            continue
        return target.model_path / str(version)


def _next_version(model_path: Path) -> int:
    versions = scan_model(model_path).versions if model_path.exists() else ()
    return versions[-1] + 1 if versions else 1


def _add_model(staged: Path, texts: Mapping[str, str], target: _Target, version: int) -> None:
    model = staged.parent / "model"
    model.mkdir()
    for name, text in texts.items():
        _write_text(resolve_inside(model, name), text)
    staged.rename(model / str(version))
    try:
        _sync_tree(model)
        model.rename(target.model_path)
    except OSError:
        (model / str(version)).rename(staged)
        shutil.rmtree(model)
        raise
    _sync_folder(target.model_path.parent)


def _add_version(staged: Path, texts: Mapping[str, str], target: _Target, version: int) -> None:
    for name, text in texts.items():
        _replace_text(resolve_inside(target.model_path, name), text, staged.parent)
    final = target.model_path / str(version)
    replaced = Path(tempfile.mkdtemp(dir=staged.parent)) / "version"
    if target.overwrite and final.exists():
        final.rename(replaced)
    try:
        staged.rename(final)
    except OSError:
        if replaced.exists() and not final.exists():
            replaced.rename(final)
        raise
    _sync_folder(target.model_path)


def _replace_text(path: Path, text: str, stage: Path) -> None:
    content = text.encode()
    # An unchanged file keeps its time stamp, which servers that poll look at.
    if path.exists() and path.read_bytes() == content:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = stage / "text"
    _write_text(staged, text)
    staged.replace(path)
    _sync_folder(path.parent)


def _write_text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())


def _sync_tree(root: Path) -> None:
    for folder, _, names in os.walk(root):
        for name in names:
            _sync(Path(folder, name))
        _sync_folder(Path(folder))


def _sync_folder(path: Path) -> None:
    if os.name == "posix":  # Windows can't open a folder
        _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
