"""The instances that a config's groups stand for, in the order of their numbers."""

from dataclasses import dataclass

from naiad.model_config.schema import ModelConfig, ModelInstanceGroup


@dataclass(frozen=True, slots=True)
class InstancePlace:
    """One instance and where it runs.

    Attributes:
        name: as Triton's log spells it.
        kind: of its group.
        gpu: that it runs on; None on the CPU.
    """

    name: str
    kind: ModelInstanceGroup.Kind
    gpu: int | None


def list_instances(config: ModelConfig) -> list[InstancePlace]:
    """Every instance of a normalized config; a group for GPUs has its count of them on each."""
    return [
        InstancePlace(
            f"{group.name}_{index}" if gpu is None else f"{group.name}_{index}_gpu{gpu}",
            group.kind,
            gpu,
        )
        for group in config.instance_group
        if not group.passive
        for gpu in (group.gpus if group.kind == ModelInstanceGroup.KIND_GPU else [None])
        for index in range(max(group.count, 1))
    ]
