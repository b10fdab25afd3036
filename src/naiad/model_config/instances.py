"""The instances that a config's groups stand for, in the order of their numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from naiad.model_config.schema import ModelConfig, ModelInstanceGroup


@dataclass(frozen=True, slots=True)
class InstancePlace:
    """One instance and where it runs.

    Attributes:
        name: as Triton's log spells it.
        kind: of its group.
        gpu: that it runs on; None on the CPU.
        host_policy: that says which cores it runs on.
    """

    name: str
    kind: ModelInstanceGroup.Kind
    gpu: int | None
    host_policy: str = "cpu"


def list_instances(config: ModelConfig) -> list[InstancePlace]:
    """Every instance of a normalized config; a group for GPUs has its count of them on each."""
    return [
        InstancePlace(
            f"{group.name}_{index}" if gpu is None else f"{group.name}_{index}_gpu{gpu}",
            group.kind,
            gpu,
            group.host_policy or _default_policy(group.kind, gpu),
        )
        for group in config.instance_group
        if not group.passive
        for gpu in (group.gpus if group.kind == ModelInstanceGroup.KIND_GPU else [None])
        for index in range(max(group.count, 1))
    ]


def _default_policy(kind: ModelInstanceGroup.Kind, gpu: int | None) -> str:
    """The policy of a group that names none; source: Triton's ``TritonModel::PrepareInstances``."""
    if gpu is not None:
        return f"gpu_{gpu}"
    return "model" if kind == ModelInstanceGroup.KIND_MODEL else "cpu"


def list_traits(config: ModelConfig) -> list[bytes]:
    """What tells each instance from the others, beside its name; as long as `list_instances`.

    Source: Triton's ``ConfigChangeRequiresReload`` and ``InstanceConfigSignature``, which leave the
    name and the count of a group out.
    """
    traits = []
    for group in config.instance_group:
        if group.passive:
            continue
        own = ModelInstanceGroup()
        own.CopyFrom(group)
        own.ClearField("name")
        own.ClearField("count")
        text = own.SerializeToString(deterministic=True)
        gpus = group.gpus if group.kind == ModelInstanceGroup.KIND_GPU else [None]
        for gpu in gpus:
            traits += [b"%d " % (-1 if gpu is None else gpu) + text] * max(group.count, 1)
    return traits


@dataclass(frozen=True, slots=True)
class InstanceChange:
    """What it takes to get from the instances that there are to those that a config wants.

    Attributes:
        kept: by number, the traits of those that stay as they are.
        added: positions in `list_instances` of those that must be made.
        removed: numbers of those that are not wanted any more.
    """

    kept: dict[int, bytes]
    added: tuple[int, ...]
    removed: tuple[int, ...]


def compare_instances(present: Mapping[int, bytes], wanted: Sequence[bytes]) -> InstanceChange:
    """Keep as many instances as the config allows, the ones with the lowest numbers.

    Args:
        present: traits of the instances that there are, by number.
        wanted: those of the config, in the order of `list_traits`.
    """
    free: dict[bytes, list[int]] = {}
    for number in sorted(present, reverse=True):
        free.setdefault(present[number], []).append(number)
    kept: dict[int, bytes] = {}
    added = []
    for index, traits in enumerate(wanted):
        if free.get(traits):
            kept[free[traits].pop()] = traits
        else:
            added.append(index)
    removed = tuple(number for number in sorted(present) if number not in kept)
    return InstanceChange(kept, tuple(added), removed)
