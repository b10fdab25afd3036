"""Functions of an application answer several requests at once, where they say so."""

import json
import urllib.error
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.support.served_repository import Server, running_server

pytestmark = pytest.mark.slow

# Each waits for another of its kind in the middle: one after the other they would not get on.
APPLICATION = """
import asyncio
import threading

import numpy as np

import naiad

both = threading.Barrier(2, timeout=500)
served = naiad.model(inputs=["x:FP32:1"], outputs=["y:FP32:1"], concurrency=2)


@served
def stream(x):
    yield x
    both.wait()
    yield x + 1


@served
def once(x):
    both.wait()
    return x + 1


@served
class AsyncStream:
    def __init__(self):
        self.waiting = asyncio.Barrier(2)

    async def __call__(self, x):
        yield x
        async with asyncio.timeout(500):
            await self.waiting.wait()
        yield x + 1


@served
class AsyncOnce:
    def __init__(self):
        self.waiting = asyncio.Barrier(2)

    async def __call__(self, x):
        if x[0] < 0:
            raise ValueError("negative")
        async with asyncio.timeout(500):
            await self.waiting.wait()
        return x + 1


@naiad.model(inputs=["x:FP32:1"], outputs=["y:FP32:1"], max_batch_size=4)
async def rows(x):
    await asyncio.sleep(0)
    return x * 2


@naiad.model(inputs=["x:FP32:1"], outputs=["y:FP32:1"])
def failing(x):
    yield x
    raise ValueError("in the middle")
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = tmp_path_factory.mktemp("application") / "app.py"
    path.write_text(APPLICATION)
    with running_server(path) as running:
        yield running


def ask(server: Server, model: str, x: float) -> list[Any]:
    """The answers of one client."""
    text = server.post(f"/v2/models/{model}/generate_stream", {"x": x})
    events = [json.loads(event.removeprefix("data: ")) for event in text.split("\n\n") if event]
    return [event.get("y", event.get("error")) for event in events]


@pytest.mark.parametrize(
    ("model", "answers"),
    [
        ("stream", [[1, 2], [5, 6]]),
        ("AsyncStream", [[1, 2], [5, 6]]),
        ("once", [[2], [6]]),
        ("AsyncOnce", [[2], [6]]),
    ],
)
def test_two_clients_are_served_at_once(
    server: Server, model: str, answers: list[list[float]]
) -> None:
    with ThreadPoolExecutor(2) as clients:
        assert list(clients.map(lambda x: ask(server, model, x), (1, 5))) == answers


def test_an_async_function_may_batch(server: Server) -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": [2, 1], "data": [1, 2]}
    answer = json.loads(server.post("/v2/models/rows/infer", {"inputs": [tensor]}))
    assert answer["outputs"][0]["data"] == [2, 4]


def test_an_exception_reaches_the_client(server: Server) -> None:
    first, error = ask(server, "failing", 1)
    assert first == 1
    assert error == "ValueError: in the middle"
    tensor = {"name": "x", "datatype": "FP32", "shape": [1], "data": [-1]}
    with pytest.raises(urllib.error.HTTPError) as refused:
        server.post("/v2/models/AsyncOnce/infer", {"inputs": [tensor]})
    assert "ValueError: negative" in refused.value.read().decode()
    refused.value.close()
