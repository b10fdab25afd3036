from pathlib import Path

import pytest
from tests.support.repository_builder import RepositoryBuilder

from naiad.backends.registry import BackendRegistry
from naiad.engine.config_support import ignored_settings
from naiad.engine.loader import Loader, LoaderOptions, Override
from naiad.model_config.text_format import parse_config
from naiad.repository.model_id import ModelId

TENSORS = """
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 4 ] } ]
"""


def test_what_changes_nothing_is_listed() -> None:
    config = parse_config("sequence_batching { state { use_growable_memory: true } }", "text")
    assert ignored_settings(config) == ["sequence_batching.state.use_growable_memory"]
    ensemble = parse_config(
        'input { name: "X" allow_ragged_batch: true } ensemble_scheduling { }',
        "text",
    )
    assert ignored_settings(ensemble) == [
        "allow_ragged_batch of an ensemble",
    ]
    plain = (
        "dynamic_batching { priority_levels: 2 default_queue_policy { max_queue_size: 4 } "
        "priority_queue_policy { key: 1 value { } } preserve_ordering: true } "
        "response_cache { enable: true } instance_group { rate_limiter { priority: 1 } }"
    )
    assert ignored_settings(parse_config(plain, "text")) == []


def test_a_load_says_what_it_does_not_act_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    builder = RepositoryBuilder(tmp_path)
    builder.add_model(
        "m",
        'backend: "identity" sequence_batching { state { use_growable_memory: true } }' + TENSORS,
    )
    loader = Loader(LoaderOptions((tmp_path,)), BackendRegistry())
    loader.complete(loader.plan(ModelId("m"), Override()))
    assert caplog.messages == [
        "model 'm': this release does not act on sequence_batching.state.use_growable_memory yet"
    ]
