"""The model repositories of a server together, wherever they are."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

from naiad.errors import InternalError
from naiad.repository.layout import (
    FolderStamp,
    ModelFolder,
    find_model,
    scan_repository,
    stamp_folder,
)
from naiad.repository.model_id import ModelId
from naiad.repository.temporary_folder import TemporaryFolder

_DUPLICATE: Final = "model appears in two or more repositories"


class Storage(Protocol):
    """A repository whose models must be copied to this machine before they can be loaded."""

    @property
    def url(self) -> str:
        """What tells it from other repositories: its path or URL."""
        ...

    @property
    def root(self) -> Path:
        """The folder that the paths of its model folders begin with; no other storage has it."""
        ...

    def scan(self) -> list[ModelFolder]:
        """Every model, with its stamp."""
        ...

    def find(self, name: str) -> ModelFolder | None:
        """One model with its stamp, without a look at the others; None where it isn't there."""
        ...

    def localize(self, name: str) -> tuple[ModelFolder, TemporaryFolder]:
        """A model as a folder here, and what removes that."""
        ...


class _FolderRepository:
    """A repository that is a folder of this machine.

    Args:
        path: of the folder, resolved.

    Attributes:
        url: the same as text.
    """

    def __init__(self, path: Path) -> None:
        self.url = str(path)
        self._path = path

    def check(self) -> None:
        """Raise InternalError where it is no folder."""
        if not self._path.is_dir():
            raise InternalError(f"failed to stat file {self._path}")

    def scan(self) -> list[ModelFolder]:
        """Every model."""
        return scan_repository(self._path)

    def find(self, name: str) -> ModelFolder | None:
        """One model, without a look at the others; None where it isn't there."""
        self.check()
        return find_model(self._path, name)


class Repositories:
    """Folders and object storage as one list of models. Every method blocks.

    Args:
        paths: of the folders.
        storages: the others.
        is_namespaced: a name that several repositories have stands for as many models; else for
            none that can be loaded.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        storages: Sequence[Storage] = (),
        *,
        is_namespaced: bool = False,
    ) -> None:
        # A folder that is named twice is one repository, as for Triton.
        folders = dict.fromkeys(path.resolve() for path in paths)
        self._folders = [_FolderRepository(path) for path in folders]
        self._storages = storages
        self._is_namespaced = is_namespaced

    def check(self) -> None:
        """Look whether every repository is there.

        Raises:
            InternalError: one is no folder, or its storage can't be read.
        """
        for folder in self._folders:
            folder.check()
        for storage in self._storages:
            storage.scan()

    def problems(self) -> dict[ModelId, str]:
        """Every model, sorted, with what speaks against loading it; mostly nothing."""
        return {model: folder.problem for model, folder in self._scan().items()}

    def ids(self, name: str) -> tuple[ModelId, ...]:
        """The models that a name stands for; without namespacing one, be it there or not."""
        if not self._is_namespaced:
            return (ModelId(name),)
        return tuple(
            ModelId(name, repository.url)
            for repository in self._all()
            if repository.find(name) is not None
        ) or (ModelId(name),)

    def stamp(self, model: ModelId) -> FolderStamp | None:
        """How a model lies in its repository; None where it isn't there."""
        folder = self.find(model)
        return None if folder is None else stamp_folder(folder)

    def stamps(self) -> dict[ModelId, FolderStamp]:
        """How every model that can be loaded lies in its repository."""
        return {
            model: stamp_folder(folder)
            for model, folder in self._scan().items()
            if not folder.problem
        }

    def folders(self) -> dict[str, ModelFolder]:
        """Every model as it lies in its repository, by name; of several with one name, the last."""
        return {model.name: folder for model, folder in self._scan().items()}

    def find(self, model: ModelId) -> ModelFolder | None:
        """A model as it lies in its repository; None where it isn't there.

        No other model is looked at.
        """
        found = [
            folder
            for repository in self._all()
            if self._namespace(repository) == model.namespace
            and (folder := repository.find(model.name)) is not None
        ]
        return _merge(found) if found else None

    def localize(self, folder: ModelFolder) -> tuple[ModelFolder, TemporaryFolder | None]:
        """What `find` found, as a folder of this machine, and what removes that in the end."""
        for storage in self._storages:
            if storage.root == folder.path.parent:
                return storage.localize(folder.name)
        return folder, None

    def _scan(self) -> dict[ModelId, ModelFolder]:
        found: dict[ModelId, list[ModelFolder]] = {}
        for repository in self._all():
            for folder in repository.scan():
                model = ModelId(folder.name, self._namespace(repository))
                found.setdefault(model, []).append(folder)
        return {model: _merge(folders) for model, folders in sorted(found.items())}

    def _all(self) -> Iterator["_FolderRepository | Storage"]:
        yield from self._folders
        yield from self._storages

    def _namespace(self, repository: "_FolderRepository | Storage") -> str:
        return repository.url if self._is_namespaced else ""


def _merge(folders: Sequence[ModelFolder]) -> ModelFolder:
    """Folders that claim to be one model; only a single one can be it."""
    first = folders[0]
    return first if len(folders) == 1 else replace(first, problem=_DUPLICATE)
