"""One list of models out of several folders."""

import sys
from pathlib import Path

import pytest
from tests.support.repository_builder import RepositoryBuilder

from naiad.repository.layout import ModelFolder
from naiad.repository.model_id import ModelId
from naiad.repository.repositories import Repositories

DUPLICATE = "model appears in two or more repositories"


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    first, second = RepositoryBuilder(tmp_path / "a"), RepositoryBuilder(tmp_path / "b")
    first.add_model("m", "")
    second.add_model("m", "", versions=(7,))
    second.add_model("n", "")
    return first.path, second.path


def test_a_model_in_two_repositories_is_none(two: tuple[Path, Path]) -> None:
    both = Repositories(two)
    assert both.problems() == {ModelId("m"): DUPLICATE, ModelId("n"): ""}
    assert both.stamps().keys() == {ModelId("n")}
    assert both.ids("m") == (ModelId("m"),)
    found = both.find(ModelId("m"))
    assert found is not None
    assert found.problem == DUPLICATE


def test_namespaces_keep_models_of_one_name_apart(two: tuple[Path, Path]) -> None:
    both = Repositories(two, is_namespaced=True)
    models = ModelId("m", str(two[0])), ModelId("m", str(two[1]))
    assert both.ids("m") == models
    assert both.problems() == dict.fromkeys([*models, ModelId("n", str(two[1]))], "")
    assert [both.find(model) for model in models] == [
        ModelFolder("m", two[0] / "m", (1,)),
        ModelFolder("m", two[1] / "m", (7,)),
    ]
    assert both.find(ModelId("n", str(two[0]))) is None
    assert str(models[0]) == f"{two[0]}::m"


def test_one_folder_named_twice_is_one_repository(two: tuple[Path, Path]) -> None:
    assert Repositories([two[0], two[0]]).problems() == {ModelId("m"): ""}


def test_finding_one_model_looks_at_no_other(tmp_path: Path) -> None:
    builder = RepositoryBuilder(tmp_path)
    for name in ("m", "n"):
        builder.add_model(name, "")
    listed: list[str] = []

    def note(event: str, details: tuple[object, ...]) -> None:
        if event in {"os.listdir", "os.scandir"} and str(details[0]).startswith(str(tmp_path)):
            listed.append(str(details[0]))

    sys.addaudithook(note)
    repositories = Repositories([tmp_path])
    repositories.find(ModelId("n"))
    assert listed == [str(tmp_path / "n")]
    listed.clear()
    repositories.problems()
    assert str(tmp_path / "m") in listed
