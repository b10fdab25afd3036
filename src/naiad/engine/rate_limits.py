"""What the instances of a model ask of the rate limiter."""

from naiad.backends.base import Instance, LoadedModel, RequestInstance
from naiad.model_config.schema import ModelConfig, ModelInstanceGroup
from naiad.scheduling.limited import LimitedScheduler
from naiad.scheduling.rate_limiter import CPU_DEVICE, InstanceClaim, ResourceClaim


def instance_claims(config: ModelConfig) -> list[InstanceClaim]:
    """One claim per instance, in the order in which the loader makes them."""
    claims = []
    for group in config.instance_group:
        if group.passive:
            continue
        limiter = group.rate_limiter
        resources = tuple(
            ResourceClaim(resource.name, resource.count, is_global=getattr(resource, "global"))
            for resource in limiter.resources
        )
        is_gpu = group.kind == ModelInstanceGroup.KIND_GPU
        for device in group.gpus if is_gpu else [CPU_DEVICE]:
            claim = InstanceClaim(resources, max(limiter.priority, 1), device)
            claims.extend([claim] * max(group.count, 1))
    return claims


class LimitedModel:
    """A loaded model that leaves the rate limiter when it is closed.

    Args:
        loaded: the same without.
        scheduler: of the model.
    """

    def __init__(self, loaded: LoadedModel, scheduler: LimitedScheduler) -> None:
        self._loaded = loaded
        self._scheduler = scheduler

    def create_instance(self, index: int) -> Instance | RequestInstance:
        """That of the model."""
        return self._loaded.create_instance(index)

    def close(self) -> None:
        """Leave, and free what the instances share."""
        self._scheduler.end()
        self._loaded.close()
