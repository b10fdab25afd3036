"""What the instances of a model ask of the rate limiter."""

from naiad.model_config.schema import ModelConfig, ModelInstanceGroup
from naiad.scheduling.rate_limiter import CPU_DEVICE, InstanceClaim, ResourceClaim


def instance_claims(config: ModelConfig) -> list[InstanceClaim]:
    """One claim per instance, as long as `list_instances` and in its order."""
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
