"""The response cache in Redis: servers that share it, and a Redis that goes away."""

import asyncio
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import redis
from fakeredis import TcpFakeServer
from tests.support.fake_clock import FakeClock
from tests.support.repository_builder import RepositoryBuilder
from tests.support.requests import make_request, tensor

from naiad.backends.registry import BackendRegistry
from naiad.clock import SystemClock
from naiad.engine.engine import Engine, EngineOptions, ModelControlMode
from naiad.engine.loader import Loader, LoaderOptions
from naiad.engine.redis_cache import RedisCache, RedisOptions
from naiad.engine.response_cache import CachedResponse, ResponseStore
from naiad.errors import InternalError
from naiad.inference.response import InferResponse

ENABLED = "response_cache { enable: true }"


class RunningRedis:
    """A Redis server in threads of this process."""

    def __init__(self) -> None:
        self._server = TcpFakeServer(("127.0.0.1", 0))
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def client(self) -> redis.Redis:
        return redis.Redis("127.0.0.1", self.port)

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class RefusingRedis:
    """Listens, and lets nobody in."""

    def __init__(self, reason: str) -> None:
        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                code = "NOAUTH" if "required" in reason else "WRONGPASS"
                while self.request.recv(4096):
                    self.request.sendall(f"-{code} {reason}\r\n".encode())

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> int:
        self._thread.start()
        return int(self._server.server_address[1])

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def running() -> Iterator[RunningRedis]:
    server = RunningRedis()
    yield server
    server.stop()


def open_cache(running: RunningRedis) -> RedisCache:
    return RedisCache(RedisOptions("127.0.0.1", running.port), SystemClock())


async def start(path: Path, store: ResponseStore) -> Engine:
    options = EngineOptions("naiad", "1", ModelControlMode.NONE, response_store=store)
    loader = Loader(LoaderOptions((path,), is_cache_shared=True), BackendRegistry())
    engine = Engine(options, loader, SystemClock())
    assert await engine.start() == {}
    return engine


async def infer(engine: Engine, name: str, *values: float) -> list[float]:
    answer: asyncio.Future[InferResponse] = asyncio.get_running_loop().create_future()
    request = make_request(
        tensor("IN", np.array([values], np.float32)), on_response=answer.set_result
    )
    engine.infer(engine.find(name), request)
    response = await asyncio.wait_for(answer, 10)
    assert response.error is None, response.error
    found: list[float] = response.outputs[0].data.ravel().tolist()
    return found


def hits_and_misses(engine: Engine, name: str) -> tuple[int, int]:
    statistics = engine.find(name).statistics
    return statistics.cache_hit.count, statistics.cache_miss.count


async def test_servers_with_the_same_model_share_its_answers(
    tmp_path: Path, running: RunningRedis
) -> None:
    for name in ("one", "two"):
        RepositoryBuilder(tmp_path / name).add_sum("m", extra=ENABLED)
    RepositoryBuilder(tmp_path / "other").add_sum("m", 2.0, extra=ENABLED)
    first = await start(tmp_path / "one", open_cache(running))
    assert await infer(first, "m", 1, 2) == [2, 3]
    assert hits_and_misses(first, "m") == (0, 1)
    # The answer is given first and kept afterwards; a stop waits for that.
    await first.stop()
    second = await start(tmp_path / "two", open_cache(running))
    assert await infer(second, "m", 1, 2) == [2, 3]
    assert await infer(second, "m", 1, 3) == [2, 4]
    assert hits_and_misses(second, "m") == (1, 1)
    assert second.find("m").statistics.execution_count == 1
    await second.stop()
    # Another file of the same name gives other answers.
    third = await start(tmp_path / "other", open_cache(running))
    assert await infer(third, "m", 1, 2) == [3, 4]
    assert hits_and_misses(third, "m") == (0, 1)
    statistics = third.cache_statistics
    assert statistics is not None
    assert (statistics.hit_count, statistics.miss_count) == (0, 1)
    await third.stop()


async def test_a_redis_that_goes_away_costs_nobody_an_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    running = RunningRedis()
    RepositoryBuilder(tmp_path).add_sum("m", extra=ENABLED)
    engine = await start(tmp_path, open_cache(running))
    assert await infer(engine, "m", 1) == [2]
    running.stop()
    assert await asyncio.gather(*(infer(engine, "m", value) for value in range(20))) == [
        [value + 1] for value in range(20)
    ]
    assert "passed over for a second" in caplog.text
    await engine.stop()


def test_a_redis_that_is_not_there_ends_the_start() -> None:
    running = RunningRedis()
    running.stop()
    text = rf"failed to connect to Redis \(127.0.0.1:{running.port}\): .*[Cc]onnection refused"
    with pytest.raises(InternalError, match=text):
        open_cache(running)


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("Authentication required.", "NOAUTH Authentication required."),
        ("invalid username-password pair", "WRONGPASS invalid username-password pair"),
    ],
)
def test_a_refused_login_ends_the_start_with_the_code_of_redis(reason: str, code: str) -> None:
    with RefusingRedis(reason) as port, pytest.raises(InternalError, match=code):
        RedisCache(RedisOptions("127.0.0.1", port, "u", "p"), SystemClock())


def test_after_a_failure_redis_is_left_alone_for_a_second(running: RunningRedis) -> None:
    clock = FakeClock()
    cache = RedisCache(RedisOptions("127.0.0.1", running.port), clock)
    response = CachedResponse([tensor("OUT", np.ones(2, np.float32))], None)
    cache.insert(b"k", response)
    assert cache.find(b"k") is not None
    client = running.client()
    client.delete(b"naiad:response:k")
    # Redis refuses the command for a value of another kind.
    client.rpush(b"naiad:response:k", b"x")
    assert cache.find(b"k") is None
    client.delete(b"naiad:response:k")
    cache.insert(b"k", response)
    assert not client.exists(b"naiad:response:k")
    clock.advance_us(1_000_000)
    cache.insert(b"k", response)
    assert cache.find(b"k") is not None
    client.close()


def test_what_somebody_else_wrote_is_passed_over(running: RunningRedis) -> None:
    client = running.client()
    client.set(b"naiad:response:k", b"\x04\0\0\0nope")
    assert open_cache(running).find(b"k") is None
    client.close()


def test_loads_that_are_not_known_by_their_files_share_nothing(running: RunningRedis) -> None:
    cache = open_cache(running)
    assert cache.generation("f") == "f"
    assert cache.generation("") != cache.generation("")
    assert cache.takes(1 << 20)
    assert not cache.takes(1 << 30)
