"""Clients that break off, queues that refuse and time out: every request is counted once."""

import asyncio
import random
import socket
import struct
from collections import Counter
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from tests.support.repository_builder import RepositoryBuilder

from naiad.clock import SystemClock
from naiad.engine.engine import ModelControlMode
from naiad.inference.datatypes import INT32
from naiad.inference.tensor import Tensor
from naiad.protocol.v2_client import encode_infer_request
from naiad.server.build import build_server
from naiad.server.cache_option import parse_cache_config
from naiad.server.settings import Settings

Numbers = npt.NDArray[np.int32]

IDENTITY = """
backend: "identity" max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
"""
SLOW = """parameters { key: "execute_delay_ms" value { string_value: "2" } }
dynamic_batching { default_queue_policy {
  default_timeout_microseconds: 15000 allow_timeout_override: true max_queue_size: 12 } }
"""
MODELS = {
    "delayed": "dynamic_batching { max_queue_delay_microseconds: 1500 }",
    "cached": "dynamic_batching { } response_cache { enable: true }",
    "slow": SLOW,
}
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close with RST, not with FIN


class Client:
    """Sends requests whose values tell them apart, and leaves some of them alone."""

    def __init__(self, port: int, number: int) -> None:
        self._port = port
        self._choice = random.Random(number)
        self._number = number
        self.sent: Counter[str] = Counter()
        self.answered: Counter[tuple[str, bool]] = Counter()

    async def send(self, count: int) -> None:
        choice = self._choice
        for _ in range(count):
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            is_lost = False
            while not is_lost:
                name = choice.choice(list(MODELS))
                # Some values come again, which the cache knows.
                value = choice.randrange(9) if choice.random() < 0.3 else self._next_value()
                data = np.full((1, choice.choice([1, 50, 5000])), value, np.int32)
                self.sent[name] += 1
                writer.write(encode(name, data))
                if is_lost := choice.random() < 0.2:
                    await asyncio.sleep(choice.random() / 200)
                    writer.get_extra_info("socket").setsockopt(
                        socket.SOL_SOCKET, socket.SO_LINGER, RESET
                    )
                    writer.transport.abort()
                else:
                    await self._receive(reader, name, data)

    def _next_value(self) -> int:
        return self._number << 20 | self.sent.total()

    async def _receive(self, reader: asyncio.StreamReader, name: str, data: Numbers) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        size = int(head.partition(b"\r\ncontent-length: ")[2].partition(b"\r\n")[0])
        body = await reader.readexactly(size)
        is_good = head.startswith(b"http/1.1 200 ")
        self.answered[name, is_good] += 1
        if is_good:
            start = head.partition(b"inference-header-content-length: ")[2].partition(b"\r\n")[0]
            assert np.array_equal(np.frombuffer(body[int(start) :], np.int32)[None], data)


def encode(model: str, data: Numbers) -> bytes:
    body, length = encode_infer_request([Tensor("INPUT0", INT32, data.shape, data)])
    head = (
        f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: x\r\n"
        f"Inference-Header-Content-Length: {length}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [10, pytest.param(60, marks=pytest.mark.full)])
async def test_every_request_is_counted_once_and_answered_with_its_own_values(
    tmp_path: Path, rounds: int
) -> None:
    for name, more in MODELS.items():
        RepositoryBuilder(tmp_path).add_model(name, IDENTITY + more)
    settings = Settings(
        model_repository=(tmp_path,),
        http_address="127.0.0.1",
        http_port=0,
        allow_grpc=False,
        allow_metrics=False,
        model_control_mode=ModelControlMode.NONE,
        cache_config=(parse_cache_config("local,size=100000"),),
        max_queue_bytes=200_000,
    )
    server = build_server(settings, SystemClock(), lambda _values: None)
    assert await server.engine.start() == {}
    assert server.http is not None
    await server.http.start()
    clients = [Client(server.http.port, number) for number in range(1, 21)]
    await asyncio.gather(*(client.send(rounds) for client in clients))
    assert await server.http.drain(60)
    for name in MODELS:
        statistics = server.engine.find(name).statistics
        sent = sum(client.sent[name] for client in clients)
        good = sum(client.answered[name, True] for client in clients)
        bad = sum(client.answered[name, False] for client in clients)
        fails = statistics.fail.count
        assert statistics.pending_count == 0
        assert sum(statistics.failures.values()) == fails
        assert good <= statistics.success.count <= sent - bad
        # One that was refused at once, or reset before it was read, was never the model's.
        assert statistics.success.count + fails <= sent
    server.http.close()
    await asyncio.wait_for(server.engine.stop(), 60)
