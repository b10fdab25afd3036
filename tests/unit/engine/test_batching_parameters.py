import pytest

from naiad.engine.batching_parameters import read_target_latency_ns, retries_singly
from naiad.engine.schedulers import make_scheduler
from naiad.errors import InvalidArgumentError
from naiad.model_config.schema import ModelConfig
from naiad.model_config.text_format import parse_config
from naiad.scheduling.adaptive import AdaptiveBatcher
from naiad.scheduling.dynamic import DynamicBatcher

BATCHED = "max_batch_size: 8 dynamic_batching { }"
DELAYED = "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 5 }"


def config(text: str, value: str | None = None) -> ModelConfig:
    parsed = parse_config(text, "text")
    if value is not None:
        parsed.parameters["naiad.batching"].string_value = value
    return parsed


@pytest.mark.parametrize(
    ("text", "value", "default_ms", "target_ns"),
    [
        (BATCHED, None, 0, 0),
        (BATCHED, "{target_latency_ms: 50}", 0, 50_000_000),
        (BATCHED, ' { "target_latency_ms" : 2.5 } ', 20, 2_500_000),
        (DELAYED, "{target_latency_ms: 50}", 0, 50_000_000),
        (BATCHED, None, 20, 20_000_000),
        (DELAYED, None, 20, 0),
        ("max_batch_size: 8 dynamic_batching { preferred_batch_size: 4 }", None, 20, 0),
        ("max_batch_size: 8", None, 20, 0),
        ("dynamic_batching { }", None, 20, 0),
    ],
)
def test_the_config_goes_before_the_default(
    text: str, value: str | None, default_ms: float, target_ns: int
) -> None:
    made = config(text, value)
    assert read_target_latency_ns(made, default_ms) == target_ns
    scheduler = make_scheduler(made, instance_count=1, target_latency_ms=default_ms)
    assert isinstance(scheduler, AdaptiveBatcher) == bool(target_ns)


@pytest.mark.parametrize(
    "value", ["", "50", "{target_latency_ms: 0}", "{target_latency_ms: x}", "{max_delay: 5}"]
)
def test_another_value_is_refused_with_the_form(value: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"must be '\{target_latency_ms: N\}'"):
        read_target_latency_ns(config(BATCHED, value))


@pytest.mark.parametrize("text", ["max_batch_size: 8", "dynamic_batching { }"])
def test_a_model_without_batches_is_told_what_it_lacks(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="add dynamic_batching"):
        make_scheduler(config(text, "{target_latency_ms: 5}"), instance_count=1)


def test_without_a_target_the_config_rules() -> None:
    assert isinstance(make_scheduler(config(DELAYED), instance_count=1), DynamicBatcher)


@pytest.mark.parametrize(("value", "is_retried"), [(None, False), ("true", True), ("0", False)])
def test_failed_batches_are_retried_where_the_model_says_so(
    value: str | None, is_retried: bool
) -> None:
    made = config(BATCHED)
    if value is not None:
        made.parameters["naiad.retry_failed_batches"].string_value = value
    assert retries_singly(made) is is_retried


def test_states_forbid_a_retry() -> None:
    made = config("max_batch_size: 8 sequence_batching { }")
    made.parameters["naiad.retry_failed_batches"].string_value = "true"
    with pytest.raises(InvalidArgumentError, match="meet a state"):
        retries_singly(made)
