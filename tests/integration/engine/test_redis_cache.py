"""The response cache in Redis: servers that share it, and a Redis that goes away."""

import asyncio
import socketserver
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

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
from naiad.engine.redis_cache import RedisCache, RedisOptions, encode_response
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


class OddRedis:
    """Greets as Redis does, and answers every GET and SET with the same bytes.

    Args:
        greeting: to HELLO, which is the first that a client says.
        answer: to every GET and SET; empty for none at all.
    """

    def __init__(self, answer: bytes, greeting: bytes = b"%1\r\n$5\r\nproto\r\n:3\r\n") -> None:
        self.asked_count = 0
        odd = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                while command := self.request.recv(65536):
                    if b"\r\nGET\r\n" in command or b"\r\nSET\r\n" in command:
                        odd.asked_count += 1
                        self.request.sendall(answer)
                    elif b"HELLO" in command:
                        self.request.sendall(greeting)
                    elif b"PING" in command:
                        self.request.sendall(b"+PONG\r\n")
                    else:
                        self.request.sendall(b"+OK\r\n" * command.count(b"*"))

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def options(self) -> RedisOptions:
        return RedisOptions("127.0.0.1", int(self._server.server_address[1]))


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take longer to answer than a server waits for Redis."""
    monkeypatch.setattr("naiad.engine.redis_cache._TIMEOUT_S", 60.0)
    monkeypatch.setattr("naiad.engine.redis_cache._CONNECT_TIMEOUT_S", 60.0)


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
    response = await asyncio.wait_for(answer, 60)
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


@pytest.mark.parametrize(
    "answer",
    [
        b"$abc\r\n",
        b"$99999999999999999999\r\nxx",
        b":x\r\n",
        b"*1\r\n" * 3000,
        b"\xff" * 100 + b"\r\n",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"-\xff\xfe\r\n",
    ],
)
def test_what_is_no_answer_of_redis_counts_as_a_failure_of_it(answer: bytes) -> None:
    clock = FakeClock()
    with OddRedis(answer) as odd:
        cache = RedisCache(odd.options(), clock)
        assert cache.find(b"k") is None
        assert cache.find(b"k") is None
        assert odd.asked_count == 1
        clock.advance_us(1_000_000)
        cache.insert(b"k", CachedResponse([tensor("OUT", np.ones(2, np.float32))], None))
        assert odd.asked_count == 2


@pytest.mark.parametrize(
    "greeting", [b"$3\r\nabc\r\n", b"HTTP/1.1 400 Bad Request\r\n\r\n", b":x\r\n"]
)
def test_what_is_no_redis_ends_the_start(greeting: bytes) -> None:
    with OddRedis(b"", greeting) as odd, pytest.raises(InternalError, match="failed to connect"):
        RedisCache(odd.options(), SystemClock())


def test_an_answer_to_somebody_else_is_nobodys() -> None:
    """A proxy that answers twice once would give every request the answer of the one before."""
    kept = CachedResponse([tensor("OUT", np.ones(2, np.float32))], None)
    value = encode_response(b"a" * 32, kept)
    with OddRedis(b"$%d\r\n%b\r\n" % (len(value), value)) as odd:
        cache = RedisCache(odd.options(), SystemClock())
        assert cache.find(b"a" * 32) is not None
        assert cache.find(b"b" * 32) is None


@pytest.mark.slow
def test_one_request_asks_whether_a_silent_redis_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each that asks keeps a thread for a while, and there are few of them."""
    monkeypatch.setattr("naiad.engine.redis_cache._TIMEOUT_S", 3.0)
    clock = FakeClock()
    with OddRedis(b"") as odd:
        cache = RedisCache(odd.options(), clock)
        assert cache.find(b"k") is None
        clock.advance_us(1_000_000)
        with ThreadPoolExecutor(8) as threads:
            found = list(threads.map(cache.find, [b"k"] * 8))
        assert found == [None] * 8
        assert odd.asked_count == 2


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
