"""Timeouts behind a busy instance, on the machine's own clock and with whatever else runs on it.

How late the answers are, is what `benchmarks/queue_deadlines.py` measures.
"""

import asyncio
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.support.requests import make_request, tensor

from naiad.clock import SystemClock
from naiad.engine.executor import Executor
from naiad.inference.datatypes import FP32
from naiad.inference.response import InferResponse
from naiad.inference.tensor import Tensor
from naiad.model_config.signature import ModelSignature, TensorSpec
from naiad.scheduling.dynamic import BatcherRules, DynamicBatcher
from naiad.scheduling.queue import QueuePolicy, QueueRules

COUNT = 100
TIMEOUT_MS = 100


class BusyInstance:
    def __init__(self) -> None:
        self.gate = threading.Event()
        self.has_batch = threading.Event()

    def execute(
        self, inputs: Mapping[str, npt.NDArray[Any]], output_names: Sequence[str]
    ) -> Sequence[Tensor]:
        self.has_batch.set()
        assert self.gate.wait(300)
        return [Tensor(name, FP32, inputs["IN"].shape, inputs["IN"]) for name in output_names]

    def close(self) -> None:
        """Nothing is held."""


@pytest.mark.slow
async def test_all_that_wait_are_answered_after_their_timeout_whatever_runs() -> None:
    signature = ModelSignature(
        "m", 1, [TensorSpec("IN", FP32, (1,))], [TensorSpec("OUT", FP32, (1,))]
    )
    policy = QueueRules(default_policy=QueuePolicy(default_timeout_ns=TIMEOUT_MS * 1_000_000))
    instance, clock = BusyInstance(), SystemClock()
    executor = Executor(1, signature, DynamicBatcher(BatcherRules(1), policy), [instance], clock)
    waits_ms: list[float] = []
    texts: set[str] = set()
    are_answered = asyncio.Event()

    def send(sent_ns: int) -> None:
        def note(response: InferResponse) -> None:
            waits_ms.append((clock.now_ns() - sent_ns) / 1e6)
            texts.add("" if response.error is None else response.error.message)
            if len(waits_ms) == COUNT:
                are_answered.set()

        executor.submit(make_request(tensor("IN", np.zeros((1, 1), np.float32)), on_response=note))

    executor.submit(
        make_request(tensor("IN", np.zeros((1, 1), np.float32)), on_response=lambda _: None)
    )
    assert await asyncio.to_thread(instance.has_batch.wait, 60)
    for _ in range(COUNT):
        send(clock.now_ns())
        await asyncio.sleep(0)
    await asyncio.wait_for(are_answered.wait(), 60)
    assert texts == {"Request timeout expired"}
    # asyncio's timers have a resolution, by which they may be early.
    assert min(waits_ms) >= TIMEOUT_MS - 1
    instance.gate.set()
    await executor.drain()
    await executor.close()
