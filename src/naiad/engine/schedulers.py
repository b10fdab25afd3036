"""The scheduler that a model config asks for."""

from naiad.engine.batching_parameters import read_target_latency_ns
from naiad.model_config.schema import ModelConfig, ModelDynamicBatching, ModelQueuePolicy
from naiad.scheduling.adaptive import AdaptiveBatcher
from naiad.scheduling.default import DefaultScheduler
from naiad.scheduling.dynamic import BatcherRules, DynamicBatcher
from naiad.scheduling.queue import QueuePolicy, QueueRules, TimeoutAction
from naiad.scheduling.scheduler import Scheduler
from naiad.scheduling.sequence import SequenceBatcher, SequenceRules


def make_scheduler(
    config: ModelConfig,
    *,
    instance_count: int,
    held_until_count: int = 0,
    held_until_backlog_count: int = 0,
    target_latency_ms: float = 0,
) -> Scheduler:
    """Make the scheduler of one model version.

    Args:
        config: complete and valid.
        instance_count: of the version.
        held_until_count: see `BatcherRules` and `SequenceRules`.
        held_until_backlog_count: see `SequenceRules`.
        target_latency_ms: of models whose config says nothing of how they batch; 0 for none.

    Raises:
        InvalidArgumentError: a parameter of the config makes no sense.
    """
    target_ns = read_target_latency_ns(config, target_latency_ms)
    if config.HasField("sequence_batching"):
        return SequenceBatcher(
            _sequence_rules(config, instance_count, held_until_count, held_until_backlog_count)
        )
    if not config.HasField("dynamic_batching"):
        return DefaultScheduler()
    batching = config.dynamic_batching
    rules = BatcherRules(
        # A model without a batch axis is queued by the same rules and never merged.
        max_rows=max(config.max_batch_size, 1),
        preferred_rows=tuple(batching.preferred_batch_size),
        max_delay_ns=batching.max_queue_delay_microseconds * 1000 if config.max_batch_size else 0,
        instance_count=instance_count,
        is_order_preserved=batching.preserve_ordering,
        held_until_count=held_until_count,
    )
    if target_ns:
        return AdaptiveBatcher(rules, target_ns, _queue_rules(batching))
    return DynamicBatcher(rules, _queue_rules(batching))


def _sequence_rules(
    config: ModelConfig, instance_count: int, held_until_count: int, held_until_backlog_count: int
) -> SequenceRules:
    batching = config.sequence_batching
    # A model without a batch axis runs one sequence at a time.
    max_rows = max(config.max_batch_size, 1)
    idle_ns = batching.max_sequence_idle_microseconds * 1000
    if not batching.HasField("oldest"):
        return SequenceRules(
            config.name,
            instance_count,
            slot_count=max_rows,
            idle_ns=idle_ns,
            max_delay_ns=batching.direct.max_queue_delay_microseconds * 1000,
            minimum_utilization=batching.direct.minimum_slot_utilization,
            is_iterative=batching.iterative_sequence,
            held_until_count=held_until_count,
            held_until_backlog_count=held_until_backlog_count,
        )
    oldest = batching.oldest
    return SequenceRules(
        config.name,
        instance_count,
        slot_count=oldest.max_candidate_sequences or max_rows,
        idle_ns=idle_ns,
        is_iterative=batching.iterative_sequence,
        oldest=BatcherRules(
            max_rows=max_rows,
            preferred_rows=tuple(oldest.preferred_batch_size),
            max_delay_ns=oldest.max_queue_delay_microseconds * 1000 if config.max_batch_size else 0,
            held_until_count=held_until_count,
        ),
    )


def _queue_rules(batching: ModelDynamicBatching) -> QueueRules:
    return QueueRules(
        level_count=batching.priority_levels,
        default_level=batching.default_priority_level,
        default_policy=_policy(batching.default_queue_policy),
        policies={
            level: _policy(policy) for level, policy in batching.priority_queue_policy.items()
        },
    )


def _policy(policy: ModelQueuePolicy) -> QueuePolicy:
    return QueuePolicy(
        timeout_action=TimeoutAction(policy.timeout_action),
        default_timeout_ns=policy.default_timeout_microseconds * 1000,
        is_override_allowed=policy.allow_timeout_override,
        max_size=policy.max_queue_size,
    )
