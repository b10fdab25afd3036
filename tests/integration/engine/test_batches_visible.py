"""What `/metrics` says of queue and batches while an executor is under load."""

import asyncio
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from prometheus_client.parser import text_string_to_metric_families
from tests.support.requests import make_request, tensor

from naiad.clock import SystemClock
from naiad.engine.executor import Executor
from naiad.inference.datatypes import FP32
from naiad.inference.request import InferRequest
from naiad.inference.response import InferResponse
from naiad.inference.statistics import ModelStatistics
from naiad.inference.tensor import Tensor
from naiad.metrics.exposition import MetricsRenderer
from naiad.model_config.signature import ModelSignature, TensorSpec
from naiad.scheduling.dynamic import BatcherRules, DynamicBatcher

SIGNATURE = ModelSignature("m", 4, [TensorSpec("IN", FP32, (1,))], [TensorSpec("OUT", FP32, (1,))])


class FakeInstance:
    """Answers with its input once the gate is open."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.started = threading.Semaphore(0)

    def execute(
        self, inputs: Mapping[str, npt.NDArray[Any]], output_names: Sequence[str]
    ) -> Sequence[Tensor]:
        self.started.release()
        assert self.gate.wait(60)
        return [Tensor("OUT", FP32, inputs["IN"].shape, inputs["IN"].copy())]

    def close(self) -> None:
        pass


@dataclass
class Measured:
    statistics: ModelStatistics
    name: str = "m"
    version: int = 1
    namespace: str = ""
    metric_tags: Mapping[str, str] = field(default_factory=dict)


def read(executor: Executor) -> dict[str, float]:
    """Values by the name of the series, or by its own label where it has one."""
    text = MetricsRenderer(lambda: [Measured(executor.statistics)]).render().decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            label = sample.labels.get("le") or sample.labels.get("reason") or ""
            found[f"{sample.name} {label}".strip()] = sample.value
    return found


async def test_queue_and_batches_under_load() -> None:
    instance = FakeInstance()
    executor = Executor(1, SIGNATURE, DynamicBatcher(BatcherRules(4)), [instance], SystemClock())

    def send(rows: int) -> tuple[InferRequest, asyncio.Future[InferResponse]]:
        answer: asyncio.Future[InferResponse] = asyncio.get_running_loop().create_future()
        request = make_request(
            tensor("IN", np.zeros((rows, 1), np.float32)), on_response=answer.set_result
        )
        request.batch_size = rows
        executor.submit(request)
        return request, answer

    _, first = send(1)
    await asyncio.to_thread(instance.started.acquire)
    assert read(executor)["nv_inference_pending_request_count"] == 0
    waiting = [send(rows) for rows in (2, 2, 1, 1)]
    assert read(executor)["nv_inference_pending_request_count"] == 4
    executor.cancel(waiting.pop()[0])
    assert read(executor)["nv_inference_pending_request_count"] == 3
    instance.gate.set()
    await asyncio.gather(first, *(answer for _, answer in waiting))

    values = read(executor)
    assert values["nv_inference_pending_request_count"] == 0
    assert values["naiad_batch_size_bucket 1"] == 2
    assert values["naiad_batch_size_bucket 2"] == 2
    assert values["naiad_batch_size_bucket 4"] == 3
    assert (values["naiad_batch_size_sum"], values["naiad_batch_size_count"]) == (6, 3)
    assert values["naiad_batch_closed_total full"] == 1
    assert values["naiad_batch_closed_total queue_empty"] == 2
    await executor.close()
