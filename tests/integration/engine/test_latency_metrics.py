"""Summaries and the histogram of first responses, of every way that a request may take."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from tests.support.python_models import Asked, floats, write_model
from tests.support.repository_builder import RepositoryBuilder
from tests.support.requests import make_request, tensor

from naiad.backends.registry import BackendRegistry
from naiad.clock import SystemClock
from naiad.engine.engine import Engine, EngineOptions
from naiad.engine.latencies import LatencyOptions
from naiad.engine.lifecycle import LoadOptions
from naiad.engine.loader import Loader, LoaderOptions
from naiad.errors import UnavailableError
from naiad.inference.latency_summaries import LatencySummary, QuantileTarget
from naiad.inference.response import InferResponse
from naiad.inference.statistics import DurationStatistic, LatencyHistogram, ModelStatistics

EXTREMES = (QuantileTarget(0, 0.001), QuantileTarget(1, 0.001))
EVERYTHING = LatencyOptions(EXTREMES, has_histogram=True)
CACHED = "response_cache { enable: true }"
BOTH = """
name: "both" platform: "ensemble" max_batch_size: 8
input { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }
ensemble_scheduling {
  step { model_name: "one" model_version: -1
    input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "t" } }
  step { model_name: "two" model_version: -1
    input_map { key: "IN" value: "t" } output_map { key: "OUT" value: "OUT" } }
}
"""
BUCKETS = """
model_metrics { metric_control {
  metric_identifier { family: "nv_inference_first_response_histogram_ms" }
  histogram_options { buckets: [ -1, 0.0, 2.5, inf ] } } }
"""
# Answers a request as often as its number says; with an error if that is negative.
REPEAT = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            count = int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0])
            if count < 0:
                error = pb_utils.TritonError("no")
                sender.send(pb_utils.InferenceResponse(error=error))
            for _ in range(count):
                out = pb_utils.Tensor("OUT", np.zeros(1, np.float32))
                sender.send(pb_utils.InferenceResponse([out]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


@asynccontextmanager
async def serving(path: Path, latencies: LatencyOptions = EVERYTHING) -> AsyncIterator[Engine]:
    options = EngineOptions(
        "naiad", "1", loads=LoadOptions(latencies=latencies), response_cache_bytes=1 << 20
    )
    loader = Loader(LoaderOptions((path,)), BackendRegistry())
    engine = Engine(options, loader, SystemClock())
    assert not await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


async def infer(engine: Engine, name: str, rows: int = 1) -> InferResponse:
    answer: asyncio.Future[InferResponse] = asyncio.get_running_loop().create_future()
    data = np.ones((rows, 1), np.float32)
    request = make_request(tensor("IN", data), on_response=answer.set_result)
    engine.infer(engine.find(name), request)
    return await answer


def repository(path: Path) -> Path:
    made = RepositoryBuilder(path)
    made.add_sum("one", 1, extra=CACHED)
    made.add_sum("two", 2, extra="dynamic_batching { }" + BUCKETS)
    made.add_model("both", BOTH)
    return path


def check_equal(
    statistics: ModelStatistics, summary: LatencySummary, counter: DurationStatistic
) -> None:
    """What is counted once is the least and the greatest of what is summarized."""
    assert statistics.summaries is not None
    assert counter.count == 1
    us = counter.ns // 1000
    assert statistics.summaries.read_us(summary) == [(0, us), (1, us)]


def total(histogram: LatencyHistogram | None) -> int:
    assert histogram is not None
    return sum(histogram.counts)


@pytest.mark.slow
async def test_a_summary_holds_what_its_counter_counts(tmp_path: Path) -> None:
    async with serving(repository(tmp_path)) as engine:
        assert (await infer(engine, "both")).error is None
        for name in ("one", "two", "both"):
            statistics = engine.find(name).statistics
            summaries = statistics.summaries
            assert summaries is not None
            check_equal(statistics, summaries.request, statistics.success)
            check_equal(statistics, summaries.queue, statistics.queue)
            check_equal(statistics, summaries.compute_input, statistics.compute_input)
            check_equal(statistics, summaries.compute_infer, statistics.compute_infer)
            check_equal(statistics, summaries.compute_output, statistics.compute_output)
            assert total(statistics.first_responses) == 1
        statistics = engine.find("one").statistics
        assert statistics.summaries is not None
        check_equal(statistics, statistics.summaries.cache_miss, statistics.cache_miss)
        assert (await infer(engine, "one")).error is None
        check_equal(statistics, statistics.summaries.cache_hit, statistics.cache_hit)
        assert total(statistics.first_responses) == 2


@pytest.mark.slow
async def test_every_request_of_a_batch_counts_and_the_buckets_are_the_configs(
    tmp_path: Path,
) -> None:
    async with serving(repository(tmp_path)) as engine:
        await asyncio.gather(*(infer(engine, "two", rows) for rows in (1, 2, 5)))
        statistics = engine.find("two").statistics
        assert statistics.summaries is not None
        assert statistics.execution_count == 1
        (_, least), (_, greatest) = statistics.summaries.read_us(statistics.summaries.compute_infer)
        assert least == greatest == statistics.compute_infer.ns // 3000
        (_, least), (_, greatest) = statistics.summaries.read_us(statistics.summaries.request)
        assert 0 < 3 * least <= statistics.success.ns / 1000 < 3 * greatest + 3
        histogram = statistics.first_responses
        assert histogram is not None
        assert histogram.bounds_ms == (-1, 0, 2.5)
        assert total(histogram) == 3
        assert histogram.counts[:2] == [0, 0]


@pytest.mark.slow
async def test_of_several_responses_the_first_counts_an_error_too_and_none_does_not(
    tmp_path: Path,
) -> None:
    write_model(tmp_path, "repeat", REPEAT, extra="model_transaction_policy { decoupled: true }")
    async with serving(tmp_path) as engine:
        counted = []
        for count in (3, 1, 0, -1):
            asked = Asked(engine, "repeat", floats(count)).send()
            await asked.all()
            counted.append(total(engine.find("repeat").statistics.first_responses))
        assert counted == [1, 2, 2, 3]
        statistics = engine.find("repeat").statistics
        assert statistics.summaries is not None
        (_, least), (_, greatest) = statistics.summaries.read_us(statistics.summaries.request)
        assert 0 < least <= greatest <= statistics.success.ns / 1000


@pytest.mark.slow
async def test_what_nobody_asked_for_is_not_there_and_not_in_the_way(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = RepositoryBuilder(tmp_path)
    made.add_sum("plain", 1, extra=BUCKETS.replace("nv_inference_first", "nv_inference_last"))
    async with serving(tmp_path, LatencyOptions()) as engine:
        model = engine.find("plain")
        await infer(engine, "plain")
        assert model.statistics.summaries is None
        assert model.statistics.first_responses is None
        assert type(model.executor).__name__ == "Executor"
    assert (
        "Metric family 'nv_inference_last_response_histogram_ms' in 'metric_identifier' is not a "
        "customizable metric in Triton core. The one that is: "
        "nv_inference_first_response_histogram_ms"
    ) in caplog.text


@pytest.mark.slow
async def test_a_refused_request_is_not_timed_and_keeps_its_callback(tmp_path: Path) -> None:
    async with serving(repository(tmp_path)) as engine:
        model = engine.find("two")
        await engine.stop()
        answers: list[InferResponse] = []
        request = make_request(
            tensor("IN", np.ones((1, 1), np.float32)), on_response=answers.append
        )
        on_response = request.on_response
        with pytest.raises(UnavailableError):
            model.executor.submit(request)
        assert request.on_response == on_response
        assert total(model.statistics.first_responses) == 0
