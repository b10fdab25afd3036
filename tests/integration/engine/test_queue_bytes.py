"""The bound on the memory of what waits, in a whole engine."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
from tests.support.repository_builder import RepositoryBuilder
from tests.support.requests import make_request, tensor

from naiad.backends.registry import BackendRegistry
from naiad.clock import SystemClock
from naiad.engine.engine import Engine, EngineOptions
from naiad.engine.lifecycle import LoadOptions
from naiad.engine.loader import Loader, LoaderOptions
from naiad.errors import UnavailableError
from naiad.inference.response import InferResponse


async def test_requests_of_all_models_wait_within_one_bound(tmp_path: Path) -> None:
    repository = RepositoryBuilder(tmp_path)
    for name in ("a", "b"):
        repository.add_identity(name, extra="dynamic_batching { }")
    loader = Loader(LoaderOptions((tmp_path,)), BackendRegistry())
    options = EngineOptions("naiad", "1", loads=LoadOptions(max_queue_bytes=100))
    engine = Engine(options, loader, SystemClock())
    await engine.start()
    answers: list[asyncio.Future[InferResponse]] = []

    def send(name: str, floats: int) -> None:
        answer: asyncio.Future[InferResponse] = asyncio.get_running_loop().create_future()
        data = np.ones((1, floats), np.float32)
        request = make_request(tensor("IN", data), on_response=answer.set_result)
        engine.infer(engine.find(name), request)
        answers.append(answer)

    # Nothing runs before this turn of the loop is over.
    for name in ("a", "b"):
        send(name, 1000)
    send("a", 20)
    with pytest.raises(UnavailableError, match="80 bytes wait in the server, and --max-queue-byte"):
        send("b", 6)
    send("b", 5)
    responses = await asyncio.gather(*answers)
    assert [response.error for response in responses] == [None] * 4
    for _ in range(2):
        send("a", 25)
    await asyncio.gather(*answers)
    await engine.stop()
