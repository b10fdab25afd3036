from pathlib import Path

import pytest

from naiad.errors import InvalidArgumentError
from naiad.repository.paths import check_model_name, resolve_inside


@pytest.mark.parametrize("name", ["m", "ResNet-18 v2", "модель", "日本", "a.b", "..a", "x" * 300])
def test_a_name_of_one_folder_is_fine(name: str) -> None:
    check_model_name(name)


@pytest.mark.parametrize("name", ["", " ", "\t\n"])
def test_an_empty_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^Model name cannot be empty\. Please enter"):
        check_model_name(name)


@pytest.mark.parametrize("name", [".", "..", " .. ", "a/b", "/", "../m", "a\\b"])
def test_a_name_that_leads_elsewhere_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        check_model_name(name)

    assert caught.value.message == (
        f"invalid model name '{name}', model name must not contain path traversal characters"
    )


@pytest.mark.parametrize("name", ["a\0", "a\nb", "\x7fm", "\x1b[31m", "\ud800"])
def test_a_name_with_control_characters_is_refused_and_shown_escaped(name: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        check_model_name(name)

    assert "must not contain control characters" in caught.value.message
    assert name not in caught.value.message


def test_a_path_inside_is_resolved_whether_it_exists_or_not(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")

    assert resolve_inside(tmp_path, "link/file") == tmp_path.resolve() / "real" / "file"
    assert resolve_inside(tmp_path, "a/../b") == tmp_path.resolve() / "b"


@pytest.mark.parametrize(
    "relative", ["..", "a/../../b", "/etc/passwd", "outside/file", "loop", "\0"]
)
def test_a_path_that_leaves_the_folder_is_refused(tmp_path: Path, relative: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "outside").symlink_to(tmp_path)
    (root / "loop").symlink_to("loop")

    with pytest.raises(InvalidArgumentError):
        resolve_inside(root, relative)


def test_a_sibling_with_the_same_beginning_is_outside(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root2").mkdir()

    with pytest.raises(InvalidArgumentError, match="is outside of"):
        resolve_inside(tmp_path / "root", "../root2/file")


def test_the_root_itself_may_be_a_symbolic_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "root").symlink_to("real")

    assert resolve_inside(tmp_path / "root", "file") == tmp_path.resolve() / "real" / "file"
