"""What a model config says of batching that Triton has no field for.

It stands in ``parameters``, which Triton hands to backends and otherwise passes over, so the file
still loads there.
"""

import re
from typing import Final

from naiad.backends.parameters import read_boolean, read_text
from naiad.errors import InvalidArgumentError
from naiad.model_config.schema import ModelConfig

BATCHING_PARAMETER: Final = "naiad.batching"
RETRY_PARAMETER: Final = "naiad.retry_failed_batches"
_FORM: Final = re.compile(
    r"""\{ \s* (?P<quote>["']?) target_latency_ms (?P=quote) \s* :
        \s* (?P<ms>\d+(\.\d+)?) \s* \}""",
    re.VERBOSE,
)
_NS_PER_MS: Final = 1_000_000


def read_target_latency_ns(config: ModelConfig, default_ms: float = 0) -> int:
    """The latency that a model's batches are to be chosen for; 0 where the config chooses them.

    Args:
        config: complete.
        default_ms: of models that have a dynamic batcher and say nothing of how it batches; 0 for
            none.

    Raises:
        InvalidArgumentError: the parameter is something else, or the model batches no requests.
    """
    text = read_text(config, BATCHING_PARAMETER)
    if text is None:
        is_open = _has_batches(config) and not _says_how(config)
        return int(default_ms * _NS_PER_MS) if is_open else 0
    form = _FORM.fullmatch(text.strip())
    target_ns = int(float(form["ms"]) * _NS_PER_MS) if form is not None else 0
    if not target_ns:
        raise InvalidArgumentError(
            f"parameter '{BATCHING_PARAMETER}' of model '{config.name}' must be "
            f"'{{target_latency_ms: N}}' with N greater than 0, got '{text}'"
        )
    if not _has_batches(config):
        raise InvalidArgumentError(
            f"parameter '{BATCHING_PARAMETER}' of model '{config.name}' needs a model that batches "
            "requests: set max_batch_size to at least 1 and add dynamic_batching { }"
        )
    return target_ns


def retries_singly(config: ModelConfig) -> bool:
    """Whether the requests of a batch that failed are to run again, each by itself.

    Raises:
        InvalidArgumentError: the parameter is not a truth value, or the model keeps states, which
            a second execution would change a second time.
    """
    is_retried = read_boolean(config, RETRY_PARAMETER) is True
    if is_retried and config.HasField("sequence_batching"):
        raise InvalidArgumentError(
            f"parameter '{RETRY_PARAMETER}' of model '{config.name}' can't be combined with "
            "sequence_batching: a request that runs again would meet a state that it has changed"
        )
    return is_retried


def _has_batches(config: ModelConfig) -> bool:
    return config.max_batch_size > 0 and config.HasField("dynamic_batching")


def _says_how(config: ModelConfig) -> bool:
    batching = config.dynamic_batching
    # The largest batch is what normalization prefers where the file says nothing.
    prefers = set(batching.preferred_batch_size) - {config.max_batch_size}
    return bool(prefers or batching.max_queue_delay_microseconds)
