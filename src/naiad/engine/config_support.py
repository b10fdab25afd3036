"""What a model config may ask for that this release does not do yet."""

from naiad.model_config.schema import ModelConfig, ModelInstanceGroup


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
    if any(state.use_growable_memory for state in config.sequence_batching.state):
        found.append("sequence_batching.state.use_growable_memory")
    is_ensemble = config.HasField("ensemble_scheduling")
    # Rows are joined by the models of the steps, each as its own config says.
    if is_ensemble and any(tensor.allow_ragged_batch for tensor in config.input):
        found.append("allow_ragged_batch of an ensemble")
    return found
