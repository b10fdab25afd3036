"""What a model config may ask for that this release does not do yet."""

from naiad.errors import UnsupportedError
from naiad.model_config.schema import ModelConfig, ModelDynamicBatching, ModelInstanceGroup


def require_supported(config: ModelConfig) -> None:
    """Refuse a config whose model would answer wrongly, or not at all.

    Raises:
        UnsupportedError: with what to do instead.
    """
    if config.HasField("ensemble_scheduling"):
        raise UnsupportedError(
            "this release does not run ensembles yet; call the models one after the other"
        )
    if config.HasField("sequence_batching"):
        raise UnsupportedError(
            "this release does not run the sequence batcher yet; remove sequence_batching "
            "and keep the state in the client, or serve the model elsewhere"
        )
    if config.batch_input or config.batch_output:
        raise UnsupportedError(
            "this release does not fill batch_input or batch_output yet; let the model take its "
            "tensors from the requests, or serve it elsewhere"
        )


def move_to_cpu(config: ModelConfig) -> bool:
    """Let the CPU run the instances that are meant for GPUs; whether there were any."""
    groups = [g for g in config.instance_group if g.kind == ModelInstanceGroup.KIND_GPU]
    for group in groups:
        group.kind = ModelInstanceGroup.KIND_CPU
        group.ClearField("gpus")
        group.ClearField("secondary_devices")
    return bool(groups)


def ignored_settings(config: ModelConfig) -> list[str]:
    """The fields that are set and change nothing, though answers are right without them."""
    found = []
    if config.HasField("dynamic_batching"):
        found += [
            f"dynamic_batching.{name}" for name in _ignored_in_batcher(config.dynamic_batching)
        ]
    if config.response_cache.enable:
        found.append("response_cache")
    if any(group.HasField("rate_limiter") for group in config.instance_group):
        found.append("instance_group.rate_limiter")
    return found


def _ignored_in_batcher(batching: ModelDynamicBatching) -> list[str]:
    found = []
    if batching.priority_levels:
        found.append("priority_levels")
    if batching.HasField("default_queue_policy"):
        found.append("default_queue_policy")
    if batching.priority_queue_policy:
        found.append("priority_queue_policy")
    if batching.preserve_ordering:
        found.append("preserve_ordering")
    return found
