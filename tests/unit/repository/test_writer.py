import errno
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from naiad.errors import AlreadyExistsError, InvalidArgumentError
from naiad.model_config.schema import ModelConfig
from naiad.model_config.text_format import parse_config
from naiad.repository.layout import read_config, read_labels, scan_model, scan_repository
from naiad.repository.writer import publish_version

_CONFIG = parse_config('backend: "onnxruntime" output { name: "OUT" }', "text")


def _write(text: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "model.onnx").write_text(text)
        (folder / "data").mkdir()
        (folder / "data" / "part").write_text(text)

    return write


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return tmp_path / "models"


def _leftovers(repository: Path) -> list[str]:
    return [entry.name for entry in repository.parent.iterdir() if entry != repository]


def test_a_new_model_appears_whole(repository: Path) -> None:
    path = publish_version(
        repository, "m", None, _CONFIG, _write("one"), {"OUT": ["cat", "two words"]}
    )

    assert path == repository / "m" / "1"
    assert (path / "data" / "part").read_text() == "one"
    folder = scan_model(repository / "m")
    config = read_config(folder)
    assert (config.name, folder.versions) == ("m", (1,))
    assert read_labels(folder, config) == {"OUT": ["cat", "two words"]}
    assert not _leftovers(repository)
    assert not _CONFIG.name


def test_the_next_version_is_the_one_after_the_highest(repository: Path) -> None:
    publish_version(repository, "m", 9, _CONFIG, _write("nine"))

    assert publish_version(repository, "m", None, _CONFIG, _write("ten")).name == "10"
    assert scan_model(repository / "m").versions == (9, 10)


def test_labels_go_into_the_file_that_the_config_names(repository: Path) -> None:
    config = parse_config('output { name: "OUT" label_filename: "sub/l.txt" }', "text")

    publish_version(repository, "m", None, config, _write(""), {"OUT": ["a"]})

    assert (repository / "m" / "sub" / "l.txt").read_text() == "a\n"


def test_an_output_name_that_is_no_file_name_gets_a_label_file_all_the_same(
    repository: Path,
) -> None:
    config = parse_config('output { name: "../out:0" }', "text")

    publish_version(repository, "m", None, config, _write(""), {"../out:0": ["a"]})

    folder = scan_model(repository / "m")
    assert read_labels(folder, read_config(folder)) == {"../out:0": ["a"]}


def test_a_version_that_is_there_stays(repository: Path) -> None:
    path = publish_version(repository, "m", 1, _CONFIG, _write("old"))

    with pytest.raises(AlreadyExistsError, match="or replace it"):
        publish_version(repository, "m", 1, _CONFIG, _write("new"))

    assert (path / "model.onnx").read_text() == "old"


def test_a_version_is_replaced_when_that_is_allowed(repository: Path) -> None:
    publish_version(repository, "m", 1, _CONFIG, _write("old"))

    path = publish_version(repository, "m", 1, _CONFIG, _write("new"), overwrite=True)

    assert (path / "model.onnx").read_text() == "new"
    assert not _leftovers(repository)


def test_the_config_is_replaced_only_where_it_differs(repository: Path) -> None:
    publish_version(repository, "m", None, _CONFIG, _write(""))
    path = repository / "m" / "config.pbtxt"
    os.utime(path, ns=(1, 1))

    publish_version(repository, "m", None, _CONFIG, _write(""))
    assert path.stat().st_mtime_ns == 1

    publish_version(repository, "m", None, ModelConfig(max_batch_size=3), _write(""))
    assert read_config(scan_model(repository / "m")).max_batch_size == 3


def test_a_failed_write_leaves_nothing(repository: Path) -> None:
    publish_version(repository, "m", 1, _CONFIG, _write("old"))

    def fail(folder: Path) -> None:
        (folder / "half").write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        publish_version(repository, "m", 1, ModelConfig(), fail, overwrite=True)
    with pytest.raises(OSError, match="disk full"):
        publish_version(repository, "n", None, _CONFIG, fail)

    assert [folder.name for folder in scan_repository(repository)] == ["m"]
    assert (repository / "m" / "1" / "model.onnx").read_text() == "old"
    assert read_config(scan_model(repository / "m")).backend == "onnxruntime"
    assert not _leftovers(repository)


def test_nothing_is_seen_while_a_version_is_written(repository: Path) -> None:
    publish_version(repository, "m", 1, _CONFIG, _write("old"))
    seen = []

    def look(folder: Path) -> None:
        (folder / "model.onnx").write_text("half")
        seen.extend([sorted(os.listdir(repository)), sorted(os.listdir(repository / "m"))])

    publish_version(repository, "m", None, _CONFIG, look)

    assert seen == [["m"], ["1", "config.pbtxt"]]


def test_a_faster_publisher_takes_the_number_and_the_slower_takes_the_next(
    repository: Path,
) -> None:
    def write_slowly(folder: Path) -> None:
        publish_version(repository, "m", None, _CONFIG, _write("fast"))
        (folder / "model.onnx").write_text("slow")

    path = publish_version(repository, "m", None, _CONFIG, write_slowly)

    assert path.name == "2"
    assert (repository / "m" / "1" / "model.onnx").read_text() == "fast"
    assert (path / "model.onnx").read_text() == "slow"


def test_a_faster_publisher_of_the_same_number_wins(repository: Path) -> None:
    def write_slowly(folder: Path) -> None:
        publish_version(repository, "m", 1, _CONFIG, _write("fast"))
        (folder / "model.onnx").write_text("slow")

    with pytest.raises(AlreadyExistsError):
        publish_version(repository, "m", 1, _CONFIG, write_slowly)

    assert (repository / "m" / "1" / "model.onnx").read_text() == "fast"


def _lock_parent(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a /models of one's own, beside which only root may write."""
    make = tempfile.mkdtemp

    def make_inside(*, prefix: str, dir: Path) -> str:  # noqa: A002 - tempfile's own name
        if dir == repository.resolve().parent:
            raise PermissionError(errno.EACCES, "Permission denied", str(dir))
        return make(prefix=prefix, dir=dir)

    monkeypatch.setattr(tempfile, "mkdtemp", make_inside)


def _mount(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a folder of the same file system that is mounted there: the device is the same."""
    rename = os.rename

    def rename_within(source: Path, target: Path) -> None:
        root = repository.resolve()
        if source.is_relative_to(root) != target.is_relative_to(root):
            raise OSError(errno.EXDEV, "Invalid cross-device link", str(source), 0, str(target))
        rename(source, target)

    monkeypatch.setattr(os, "rename", rename_within)


@pytest.mark.parametrize("forbid", [_lock_parent, _mount])
def test_without_a_place_beside_the_repository_the_stage_is_hidden_inside(
    repository: Path,
    monkeypatch: pytest.MonkeyPatch,
    forbid: Callable[[Path, pytest.MonkeyPatch], None],
) -> None:
    repository.mkdir(parents=True, exist_ok=True)
    repository = repository.resolve()
    forbid(repository, monkeypatch)
    seen = []

    def look(folder: Path) -> None:
        seen.append([folder.name for folder in scan_repository(repository)])
        assert folder.is_relative_to(repository)
        (folder / "model.onnx").write_text("")

    publish_version(repository, "m", None, _CONFIG, look)

    assert seen == [[]]
    assert os.listdir(repository) == ["m"]
    assert not _leftovers(repository)


@pytest.mark.parametrize(
    ("name", "version", "config", "labels", "message"),
    [
        ("../m", None, _CONFIG, {}, "must not contain path traversal"),
        ("m", 0, _CONFIG, {}, "version 0 is not a number from 1 on"),
        ("m", None, ModelConfig(name="n"), {}, "unexpected directory name 'm' for model 'n'"),
        ("m", None, _CONFIG, {"X": ["a"]}, "labels for output 'X', but the outputs of model 'm'"),
        ("m", None, _CONFIG, {"OUT": ["a\nb"]}, "contains a line end"),
        (
            "m",
            None,
            parse_config('output { name: "OUT" label_filename: "../l.txt" }', "text"),
            {"OUT": ["a"]},
            "is outside of",
        ),
    ],
)
def test_what_no_repository_can_have_is_refused(
    repository: Path,
    name: str,
    version: int | None,
    config: ModelConfig,
    labels: dict[str, list[str]],
    message: str,
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        publish_version(repository, name, version, config, _write(""), labels)

    assert not repository.exists() or not os.listdir(repository)
