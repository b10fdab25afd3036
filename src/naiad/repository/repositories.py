"""The model repositories of a server together, wherever they are."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from naiad.repository.layout import (
    FolderStamp,
    ModelFolder,
    merge_folders,
    scan_repositories,
    stamp_folder,
)

if TYPE_CHECKING:
    from tempfile import TemporaryDirectory


class Storage(Protocol):
    """A repository whose models must be copied to this machine before they can be loaded."""

    @property
    def root(self) -> Path:
        """The folder that the paths of its model folders begin with; no other storage has it."""
        ...

    def scan(self) -> list[ModelFolder]:
        """Every model, with its stamp."""
        ...

    def localize(self, name: str) -> "tuple[ModelFolder, TemporaryDirectory[str]]":
        """A model as a folder here, and what removes that."""
        ...


class Repositories:
    """Folders and object storage as one list of models. Every method blocks.

    Args:
        paths: of the folders.
        storages: the others.
    """

    def __init__(self, paths: Sequence[Path], storages: Sequence[Storage] = ()) -> None:
        # A folder that is named twice is one repository, as for Triton.
        self._paths = tuple(dict.fromkeys(path.resolve() for path in paths))
        self._storages = storages

    def problems(self) -> dict[str, str]:
        """Every model by name, sorted, with what speaks against loading it; mostly nothing."""
        return {name: folder.problem for name, folder in self._scan().items()}

    def stamp(self, name: str) -> FolderStamp | None:
        """How a model lies in its repository; None where there is none of that name."""
        folder = self._scan().get(name)
        return None if folder is None else stamp_folder(folder)

    def stamps(self) -> dict[str, FolderStamp]:
        """How every model that can be loaded lies in its repository."""
        return {
            name: stamp_folder(folder)
            for name, folder in self._scan().items()
            if not folder.problem
        }

    def find(self, name: str) -> ModelFolder | None:
        """A model as it lies in its repository; None where there is none of that name."""
        return self._scan().get(name)

    def localize(self, folder: ModelFolder) -> "tuple[ModelFolder, TemporaryDirectory[str] | None]":
        """What `find` found, as a folder of this machine, and what removes that in the end."""
        for storage in self._storages:
            if storage.root == folder.path.parent:
                return storage.localize(folder.name)
        return folder, None

    def _scan(self) -> dict[str, ModelFolder]:
        found = list(scan_repositories(self._paths).values())
        for storage in self._storages:
            found += storage.scan()
        return merge_folders(found)
