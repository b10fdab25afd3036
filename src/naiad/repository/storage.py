"""Model repositories in object storage: S3, Google Cloud Storage, Azure.

A model's objects are copied to this machine before a backend sees them, into a folder of their own
for each load. What was fetched stays in a cache by its ETag, so that a reload fetches only what
changed. Listings and ETags, not times, tell what changed.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import obstore
from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, S3Store

from naiad.errors import InternalError, InvalidArgumentError
from naiad.repository.layout import (
    FolderStamp,
    ModelFolder,
    is_repository_entry,
    scan_model,
    split_versions,
)
from naiad.repository.paths import resolve_inside
from naiad.repository.storage_location import (
    AZURE,
    S3,
    StorageLocation,
    parse_storage_url,
    storage_config,
)
from naiad.repository.temporary_folder import TemporaryFolder

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_CHUNK_BYTES: Final = 8 << 20
_DEFAULT_REGION: Final = "us-east-1"


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One object of a model.

    Attributes:
        path: in the repository, for example ``m/1/model.onnx``.
        size: in bytes.
        tag: changes when the content does.
    """

    path: str
    size: int
    tag: str

    def stamp(self) -> tuple[str, int, int]:
        """The object as one entry of a folder's stamp."""
        digest = hashlib.sha256(self.tag.encode()).digest()
        return self.path, self.size, int.from_bytes(digest[:8], "little")


class RemoteRepository:
    """A model repository in object storage; every method blocks on the network.

    Args:
        url: as the user wrote it; for messages and the cache.
        store: of the repository's folder.
        cache: folder of what was fetched; any number of servers may share it.

    Attributes:
        url: the same.
        root: its part of the cache.
    """

    def __init__(self, url: str, store: "ObjectStore", cache: Path) -> None:
        self.url = url
        self.root = cache / hashlib.sha256(url.encode()).hexdigest()[:16]
        self._store = store

    def scan(self) -> list[ModelFolder]:
        """Every model, with the stamp of its objects.

        Raises:
            InternalError: the storage can't be read; with its own words.
        """
        models: dict[str, list[StoredObject]] = {}
        for stored in self._list(""):
            name, slash, _ = stored.path.partition("/")
            # An object beside the model folders is no model.
            if slash and is_repository_entry(name):
                models.setdefault(name, []).append(stored)
        return [self._describe(name, objects) for name, objects in sorted(models.items())]

    def find(self, name: str) -> ModelFolder | None:
        """One model, with the stamp of its objects; None where it isn't there.

        Raises:
            InternalError: the storage can't be read; with its own words.
        """
        if not is_repository_entry(name):
            return None
        objects = self._list(f"{name}/")
        return self._describe(name, objects) if objects else None

    def localize(self, name: str) -> tuple[ModelFolder, TemporaryFolder]:
        """Copy a model to this machine.

        Returns:
            The model as a folder, and what removes that folder when nothing needs it any more.

        Raises:
            InternalError: the storage can't be read, or the model changed meanwhile.
            InvalidArgumentError: an object's name leads out of the model.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        directory = TemporaryFolder("model-", self.root)
        try:
            root = directory.path / name
            root.mkdir()
            objects = self._list(f"{name}/")
            folders = _folder_paths(objects)
            for stored in objects:
                self._place(stored, root, is_folder=stored.path in folders)
            return scan_model(root), directory
        except BaseException:
            directory.remove()
            raise

    def _describe(self, name: str, objects: Sequence[StoredObject]) -> ModelFolder:
        folders = {stored.path.split("/")[1] for stored in objects if stored.path.count("/") > 1}
        # An empty version folder has no other trace than an empty object of its name.
        folders |= {
            stored.path.partition("/")[2]
            for stored in objects
            if not stored.size and stored.path.count("/") == 1
        }
        versions, ignored = split_versions(sorted(folders))
        stamp: FolderStamp = tuple(sorted(stored.stamp() for stored in objects))
        return ModelFolder(name, self.root / name, versions, ignored, stamp=stamp)

    def _list(self, prefix: str) -> list[StoredObject]:
        with self._explained():
            return [
                StoredObject(
                    entry["path"],
                    entry["size"],
                    entry["e_tag"] or f"{entry['last_modified'].isoformat()} {entry['size']}",
                )
                for chunk in obstore.list(self._store, prefix or None)
                for entry in chunk
                if entry["path"].startswith(prefix)
            ]

    def _place(self, stored: StoredObject, root: Path, *, is_folder: bool) -> None:
        relative = stored.path.partition("/")[2]
        if not relative:
            return
        target = resolve_inside(root, relative)
        try:
            if is_folder:
                target.mkdir(parents=True, exist_ok=True)
                return
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(self._fetch(stored), target)
        except OSError as error:
            raise InternalError(
                f"failed to copy '{stored.path}' of model repository {self.url}: {error}"
            ) from error

    def _fetch(self, stored: StoredObject) -> Path:
        """The cached file of an object, fetched now if it wasn't yet."""
        name = hashlib.sha256(stored.path.encode()).hexdigest()
        path = self.root / f"{name}.{hashlib.sha256(stored.tag.encode()).hexdigest()[:16]}"
        if path.is_file() and path.stat().st_size == stored.size:
            return path
        with TemporaryDirectory(prefix="fetch-", dir=self.root) as directory:
            partial = Path(directory) / "object"
            self._download(stored, partial)
            partial.replace(path)
        # Loaded models keep their files by links of their own.
        for old in self.root.glob(f"{name}.*"):
            if old != path:
                old.unlink(missing_ok=True)
        return path

    def _download(self, stored: StoredObject, path: Path) -> None:
        with self._explained(), path.open("wb") as file:
            answer = obstore.get(self._store, stored.path)
            tag = answer.meta["e_tag"]
            if tag and tag != stored.tag:
                raise InternalError(
                    f"'{stored.path}' of model repository {self.url} changed while it was read; "
                    "load the model again"
                )
            for chunk in answer.stream(min_chunk_size=_CHUNK_BYTES):
                file.write(chunk)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (BaseError, FileNotFoundError) as error:
            # What follows is a dump of the library's own structures.
            reason = str(error).partition("\n\nDebug source")[0]
            raise InternalError(f"failed to read model repository {self.url}: {reason}") from error


def open_repository(url: str, environment: Mapping[str, str], cache: Path) -> RemoteRepository:
    """The repository that a URL names; nothing is asked of it yet.

    Args:
        url: in one of the forms of `storage_location`.
        environment: where keys and regions are named.
        cache: folder of what is fetched.

    Raises:
        InvalidArgumentError: the URL or the credentials are none.
    """
    location = parse_storage_url(url)
    config = storage_config(location, environment)
    try:
        return RemoteRepository(url, _open_store(location, config), cache)
    except BaseError as error:
        raise InvalidArgumentError(f"model repository {url}: {error}") from error


def _open_store(location: StorageLocation, config: dict[str, str]) -> "ObjectStore":
    prefix = location.prefix or None
    store: type[S3Store | AzureStore | GCSStore]
    if location.scheme == S3:
        store = S3Store
        config.setdefault("aws_region", _DEFAULT_REGION)
    elif location.scheme == AZURE:
        store = AzureStore
    else:
        store = GCSStore
        emulator = config.get("google_base_url", "")
        if emulator:
            # An emulator knows no keys, and its address comes with or without the scheme.
            config["google_skip_signature"] = "true"
            config["google_base_url"] = emulator if "://" in emulator else f"http://{emulator}"
    is_plain = any(value.startswith("http://") for value in config.values())
    return store(
        location.bucket,
        prefix=prefix,
        config=config,  # type: ignore[arg-type]  # its keys are literals there
        client_options={"allow_http": is_plain},
    )


def _folder_paths(objects: Iterable[StoredObject]) -> set[str]:
    """The paths that are folders: others lie below them, or an empty object stands for them."""
    folders = {stored.path.rpartition("/")[0] for stored in objects if "/" in stored.path}
    empty = {
        stored.path
        for stored in objects
        if not stored.size
        and stored.path.count("/") == 1
        and stored.path.partition("/")[2].isdigit()
    }
    return folders | empty
