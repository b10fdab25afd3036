"""Model repositories in object storage, on a store in memory."""

from pathlib import Path

import obstore
import pytest
from obstore.store import MemoryStore

from naiad.errors import InternalError
from naiad.repository.layout import ModelFolder
from naiad.repository.model_id import ModelId
from naiad.repository.repositories import Repositories
from naiad.repository.storage import RemoteRepository, open_repository


@pytest.fixture
def store() -> MemoryStore:
    made = MemoryStore()
    for path, content in {
        "m/config.pbtxt": b"config",
        "m/1/model.onnx": b"first",
        "m/2/model.onnx/model.onnx": b"second",
        "m/02/model.onnx": b"ignored",
        "m/configs/a.pbtxt": b"a",
        "m/labels": b"",
        "m/3": b"",
        ".hidden/1/x": b"x",
        "README": b"text",
    }.items():
        obstore.put(made, path, content)
    return made


@pytest.fixture
def repository(store: MemoryStore, tmp_path: Path) -> RemoteRepository:
    return RemoteRepository("s3://bucket/models", store, tmp_path / "cache")


def scan(repository: RemoteRepository) -> ModelFolder:
    [folder] = repository.scan()
    return folder


def test_a_listing_is_read_as_folders(repository: RemoteRepository) -> None:
    folder = scan(repository)
    assert folder.name == "m"
    assert folder.versions == (1, 2, 3)
    assert folder.ignored == ("02", "labels")
    assert folder.stamp is not None
    assert len(folder.stamp) == 7


def test_a_stamp_changes_with_the_content(store: MemoryStore, repository: RemoteRepository) -> None:
    stamps = {scan(repository).stamp, scan(repository).stamp}
    assert len(stamps) == 1
    obstore.put(store, "m/1/model.onnx", b"First")
    stamps.add(scan(repository).stamp)
    obstore.put(store, "m/1/other", b"")
    stamps.add(scan(repository).stamp)
    assert len(stamps) == 3


def test_a_model_is_copied_whole(repository: RemoteRepository) -> None:
    folder, directory = repository.localize("m")
    assert folder.versions == (1, 2, 3)
    assert (folder.path / "config.pbtxt").read_bytes() == b"config"
    assert (folder.path / "2" / "model.onnx" / "model.onnx").read_bytes() == b"second"
    assert list((folder.path / "3").iterdir()) == []
    assert (folder.path / "labels").read_bytes() == b""
    directory.remove()
    assert not folder.path.exists()


class CountingRepository(RemoteRepository):
    """Notes what is fetched over the network."""

    fetched: list[str]

    def _download(self, stored: object, path: Path) -> None:
        self.fetched.append(getattr(stored, "path"))  # noqa: B009
        super()._download(stored, path)  # type: ignore[arg-type]


def test_only_what_changed_is_fetched_again(store: MemoryStore, tmp_path: Path) -> None:
    repository = CountingRepository("s3://b", store, tmp_path)
    repository.fetched = []
    first, kept = repository.localize("m")
    assert len(repository.fetched) == 6
    repository.fetched.clear()
    obstore.put(store, "m/1/model.onnx", b"changed")
    second, other = repository.localize("m")
    assert repository.fetched == ["m/1/model.onnx"]
    # A model that is loaded keeps its files.
    assert (first.path / "1" / "model.onnx").read_bytes() == b"first"
    assert (second.path / "1" / "model.onnx").read_bytes() == b"changed"
    kept.remove()
    other.remove()
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert b"changed" in files
    assert b"first" not in files
    # The next server that uses the same cache fetches nothing.
    again = CountingRepository("s3://b", store, tmp_path)
    again.fetched = []
    _, directory = again.localize("m")
    assert again.fetched == []
    directory.remove()


class MovingRepository(RemoteRepository):
    """An object changes between the listing and its download."""

    def _download(self, stored: object, path: Path) -> None:
        obstore.put(self._store, "m/1/model.onnx", b"changed meanwhile")
        super()._download(stored, path)  # type: ignore[arg-type]


def test_a_model_that_changes_while_it_is_read_is_not_loaded(
    store: MemoryStore, tmp_path: Path
) -> None:
    repository = MovingRepository("s3://b", store, tmp_path)
    with pytest.raises(InternalError, match=r"'m/1/model.onnx' .* changed while it was read"):
        repository.localize("m")
    assert not list(tmp_path.rglob("model-*"))


def test_one_model_is_found_as_the_listing_has_it(
    store: MemoryStore, repository: RemoteRepository
) -> None:
    obstore.put(store, "m", b"")  # some tools write such an object for each folder
    assert repository.find("m") == scan(repository)
    for name in ("nope", "README", ".hidden", "m/1", ""):
        assert repository.find(name) is None


def test_folders_and_storage_are_one_list(
    store: MemoryStore, repository: RemoteRepository, tmp_path: Path
) -> None:
    local = tmp_path / "local"
    (local / "other" / "1").mkdir(parents=True)
    both = Repositories([local], [repository])
    assert both.problems() == {ModelId("m"): "", ModelId("other"): ""}
    found = both.find(ModelId("m"))
    assert found is not None
    assert both.stamp(ModelId("m")) == found.stamp
    copy, directory = both.localize(found)
    assert directory is not None
    assert (copy.path / "1" / "model.onnx").read_bytes() == b"first"
    directory.remove()
    own = both.find(ModelId("other"))
    assert own is not None
    assert both.localize(own) == (own, None)
    (local / "m" / "1").mkdir(parents=True)
    assert both.problems()[ModelId("m")] == "model appears in two or more repositories"
    assert both.stamps().keys() == {ModelId("other")}
    assert both.stamp(ModelId("nope")) is None


def test_a_namespace_may_be_in_storage(repository: RemoteRepository, tmp_path: Path) -> None:
    (tmp_path / "local" / "m" / "1").mkdir(parents=True)
    both = Repositories([tmp_path / "local"], [repository], is_namespaced=True)
    here, there = ModelId("m", str(tmp_path / "local")), ModelId("m", "s3://bucket/models")
    assert both.ids("m") == (here, there)
    assert both.problems() == {here: "", there: ""}
    assert [folder.versions for m in (here, there) if (folder := both.find(m))] == [(1,), (1, 2, 3)]
    assert both.find(ModelId("m")) is None
    assert both.ids("nope") == (ModelId("nope"),)


@pytest.mark.parametrize("url", ["gs://bucket/models", "as://account/container/models"])
def test_the_other_clouds_open(url: str, tmp_path: Path) -> None:
    environment = {"AZURE_STORAGE_KEY": "a2V5"}
    assert open_repository(url, environment, tmp_path).url == url
