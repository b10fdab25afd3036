"""How many loads run at a time, and how often a failed one is tried again."""

import threading
from pathlib import Path

import pytest
from tests.support.repository_builder import RepositoryBuilder

from naiad.backends.base import Backend, ModelSource
from naiad.backends.identity.backend import IdentityBackend, IdentityModel
from naiad.backends.registry import BackendRegistry
from naiad.clock import SystemClock
from naiad.engine.engine import Engine, EngineOptions, ModelControlMode
from naiad.engine.lifecycle import LoadOptions
from naiad.engine.loader import Loader, LoaderOptions
from naiad.errors import InternalError, InvalidArgumentError

CONFIG = """backend: "identity" max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""


class ObservedBackend(IdentityBackend):
    """Counts loads, holds them until as many run as shall, and fails the first ones."""

    def __init__(self, failures: int = 0, together: int = 1) -> None:
        self._failures = failures
        self._barrier = threading.Barrier(together, timeout=300)
        self._lock = threading.Lock()
        self._running = 0
        self.most_running = 0
        self.load_count = 0

    def load(self, source: ModelSource) -> IdentityModel:
        with self._lock:
            self._running += 1
            self.load_count += 1
            self.most_running = max(self.most_running, self._running)
            fails = self.load_count <= self._failures
        self._barrier.wait()
        with self._lock:
            self._running -= 1
        if fails:
            raise InternalError("not this time")
        return super().load(source)


class OneBackend(BackendRegistry):
    """Every model runs on the same backend."""

    def __init__(self, backend: Backend) -> None:
        super().__init__()
        self._backend = backend

    def get(self, name: str) -> Backend:
        return self._backend


def make_engine(path: Path, backend: Backend, loads: LoadOptions, mode: ModelControlMode) -> Engine:
    loader = Loader(LoaderOptions((path,)), OneBackend(backend))
    return Engine(EngineOptions("naiad", "1", mode, loads=loads), loader, SystemClock())


async def test_no_more_loads_at_a_time_than_allowed(tmp_path: Path) -> None:
    builder = RepositoryBuilder(tmp_path)
    for index in range(6):
        builder.add_model(f"m{index}", CONFIG)
    # The barrier opens for three at a time: fewer would hang, more would be counted.
    backend = ObservedBackend(together=3)
    engine = make_engine(tmp_path, backend, LoadOptions(3), ModelControlMode.NONE)
    assert await engine.start() == {}
    assert (backend.load_count, backend.most_running) == (6, 3)
    await engine.stop()


async def test_a_failed_load_is_tried_again(tmp_path: Path) -> None:
    RepositoryBuilder(tmp_path).add_model("m", CONFIG)
    backend = ObservedBackend(failures=2)
    engine = make_engine(tmp_path, backend, LoadOptions(retry_count=2), ModelControlMode.NONE)
    assert await engine.start() == {}
    assert backend.load_count == 3
    await engine.stop()


async def test_retries_end(tmp_path: Path) -> None:
    RepositoryBuilder(tmp_path).add_model("m", CONFIG, versions=(1, 2))
    policy = "version_policy { all { } }"
    (tmp_path / "m" / "config.pbtxt").write_text(CONFIG + policy)
    backend = ObservedBackend(failures=5)
    engine = make_engine(tmp_path, backend, LoadOptions(retry_count=1), ModelControlMode.EXPLICIT)
    await engine.start()
    with pytest.raises(InvalidArgumentError, match=r"version 1 .*not this time;\nversion 2 "):
        await engine.load_model("m", None, {})
    assert backend.load_count == 4
    await engine.load_model("m", None, {})
    # The version that loaded at the first try is not loaded again.
    assert backend.load_count == 4 + 3
    await engine.stop()
