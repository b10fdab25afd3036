"""A model's warm-up on a real backend: before READY, on every instance, in the statistics."""

import logging
from pathlib import Path

import pytest
from tests.support.repository_builder import RepositoryBuilder

from naiad.backends.registry import BackendRegistry
from naiad.clock import SystemClock
from naiad.engine.engine import Engine, EngineOptions, ModelControlMode
from naiad.engine.loader import Loader, LoaderOptions
from naiad.errors import InvalidArgumentError, NotFoundError

ZEROS = 'inputs { key: "IN" value { data_type: TYPE_FP32 dims: [ 3 ] zero_data: true } }'


async def start(path: Path) -> Engine:
    options = EngineOptions("naiad", "1", ModelControlMode.EXPLICIT)
    engine = Engine(options, Loader(LoaderOptions((path,)), BackendRegistry()), SystemClock())
    await engine.start()
    return engine


@pytest.mark.parametrize("instances", [1, 2])
async def test_each_instance_runs_each_sample(
    tmp_path: Path, instances: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "naiad")
    extra = f'model_warmup [ {{ name: "a" batch_size: 1 count: 2 {ZEROS} }}, '
    extra += f'{{ name: "b" batch_size: 4 {ZEROS} }} ]'
    folder = RepositoryBuilder(tmp_path).add_sum("m", extra=extra)
    config = (folder / "config.pbtxt").read_text()
    (folder / "config.pbtxt").write_text(
        config.replace("count: 1 kind", f"count: {instances} kind")
    )
    engine = await start(tmp_path)
    await engine.load_model("m", None, {})
    statistics = engine.find("m").statistics
    assert statistics.inference_count == 6 * instances
    assert statistics.execution_count == 3 * instances
    assert statistics.success.count == 6 * instances
    assert {rows: b.compute_infer.count for rows, b in statistics.batches.items()} == {
        1: 2 * instances,
        4: instances,
    }
    said = [text for text in caplog.messages if "is running warmup sample" in text]
    assert said == [
        f"model 'm' instance m_{index} is running warmup sample {sample}"
        for index in range(instances)
        for sample in ("'a' for iteration 1", "'a' for iteration 2", "'b' for iteration 1")
    ]
    await engine.stop()


async def test_requests_of_a_model_without_a_batch_axis_run_one_by_one(tmp_path: Path) -> None:
    extra = f'model_warmup [ {{ name: "a" batch_size: 3 {ZEROS} }} ]'
    RepositoryBuilder(tmp_path).add_identity("m", dims=(-1,), max_batch_size=0, extra=extra)
    engine = await start(tmp_path)
    await engine.load_model("m", None, {})
    assert engine.find("m").statistics.execution_count == 3
    await engine.stop()


async def test_a_model_that_fails_its_warmup_does_not_load(tmp_path: Path) -> None:
    # A request may leave the input out, and then there is nothing to copy.
    config = """name: "m" backend: "identity" max_batch_size: 8
    input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 1 ] optional: true } ]
    output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 1 ] } ]
    model_warmup [ { name: "a" batch_size: 1 } ]
    """
    RepositoryBuilder(tmp_path).add_model("m", config)
    engine = await start(tmp_path)
    with pytest.raises(
        InvalidArgumentError,
        match=r"failed to run warmup sample 'a': model 'm' copies its inputs and was given none; ;",
    ):
        await engine.load_model("m", None, {})
    with pytest.raises(NotFoundError):
        engine.find("m")
    assert not engine.is_ready()
    await engine.stop()
