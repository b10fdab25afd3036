"""A reload touches the versions that changed, and no other."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.repository_builder import RepositoryBuilder

from naiad.backends.registry import BackendRegistry
from naiad.clock import SystemClock
from naiad.engine.engine import Engine, EngineOptions, ModelControlMode
from naiad.engine.loader import Loader, LoaderOptions
from naiad.engine.model import Model
from naiad.errors import NotFoundError, UnavailableError

POLICY = "version_policy {{ specific {{ versions: {} }} }}"


class Repository:
    """The model ``m`` with the versions 1 to 4, of which 1 and 2 are wanted."""

    def __init__(self, path: Path) -> None:
        self.builder = RepositoryBuilder(path)
        self.folder = self.builder.add_sum("m", 1, versions=(1, 2, 3, 4))
        self._ticks = 10**18
        self.want([1, 2])

    def want(self, versions: list[int], extra: str = "") -> None:
        self.builder.add_sum("other")
        text = (self.builder.path / "other" / "config.pbtxt").read_text()
        config = self.folder / "config.pbtxt"
        config.write_text(text.replace('"other"', '"m"') + POLICY.format(versions) + extra)
        self.touch("config.pbtxt")

    def touch(self, name: str) -> None:
        """Make it another file than it was."""
        path = self.folder / name
        path.touch()
        self._ticks += 10**9
        os.utime(path, ns=(self._ticks, self._ticks))


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


@pytest.fixture
async def engine(repository: Repository) -> AsyncIterator[Engine]:
    made = Engine(
        EngineOptions("naiad", "1", ModelControlMode.EXPLICIT),
        Loader(LoaderOptions((repository.builder.path,)), BackendRegistry()),
        SystemClock(),
    )
    await made.start()
    await made.load_model("m", None, {})
    yield made
    await made.stop()


def serving(engine: Engine) -> dict[int, Model]:
    return {model.version: model for model in engine.statistics("m")}


async def reload(engine: Engine) -> tuple[set[int], set[int]]:
    """Load again; returns the versions that were kept and those that are new."""
    before = serving(engine)
    await engine.load_model("m", None, {})
    after = serving(engine)
    kept = {version for version, model in after.items() if before.get(version) is model}
    return kept, after.keys() - kept


async def test_versions_come_and_go_by_themselves(engine: Engine, repository: Repository) -> None:
    assert serving(engine).keys() == {1, 2}
    repository.want([1, 2, 3])
    assert await reload(engine) == ({1, 2}, {3})
    assert list(engine.model_config("m", 1).version_policy.specific.versions) == [1, 2, 3]
    repository.want([1, 3])
    assert await reload(engine) == ({1, 3}, set())
    with pytest.raises((NotFoundError, UnavailableError)):
        engine.find("m", 2)


async def test_a_version_with_another_file_is_loaded(
    engine: Engine, repository: Repository
) -> None:
    repository.touch("2/model.onnx")
    # Nobody wants it.
    repository.touch("4/model.onnx")
    assert await reload(engine) == ({1}, {2})


async def test_a_file_beside_the_versions_is_everybodys(
    engine: Engine, repository: Repository
) -> None:
    repository.touch("dependency.py")
    assert await reload(engine) == (set(), {1, 2})


async def test_another_config_is_everybodys(engine: Engine, repository: Repository) -> None:
    repository.want([1, 2], "dynamic_batching { }")
    assert await reload(engine) == (set(), {1, 2})


async def test_another_text_of_the_same_config_is_nobodys(
    engine: Engine, repository: Repository
) -> None:
    repository.want([1, 2], "\n# a comment\n")
    assert await reload(engine) == ({1, 2}, set())


async def test_a_failed_version_leaves_the_kept_ones_serving(
    engine: Engine, repository: Repository
) -> None:
    (repository.folder / "3" / "model.onnx").write_bytes(b"no model")
    repository.want([1, 2, 3])
    before = serving(engine)
    with pytest.raises(Exception, match="version 3 is at UNAVAILABLE state"):
        await engine.load_model("m", None, {})
    assert serving(engine) == before
    repository.want([1, 2])
    assert await reload(engine) == ({1, 2}, set())
    assert engine.is_ready()
