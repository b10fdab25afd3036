"""The message classes of ``model_config.proto``.

They live in a descriptor pool of their own: NVIDIA's client registers the same symbols in the
default pool, and protobuf refuses a second definition there. So a message of theirs is not one of
ours; serialize it to pass it on. The types are in ``schema.pyi``.
"""

from importlib import resources
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

# What generated code wraps an enum with; protobuf has no public name for it.
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

_FILES = descriptor_pb2.FileDescriptorSet.FromString(
    resources.files(__package__).joinpath("schema.binpb").read_bytes()
)
_POOL = descriptor_pool.DescriptorPool()
for _file in _FILES.file:
    _POOL.Add(_file)

DESCRIPTOR = _POOL.FindFileByName("model_config.proto")


def _message(name: str) -> Any:
    return message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name[name])


DataType = EnumTypeWrapper(DESCRIPTOR.enum_types_by_name["DataType"])

ModelRateLimiter = _message("ModelRateLimiter")
ModelInstanceGroup = _message("ModelInstanceGroup")
ModelTensorReshape = _message("ModelTensorReshape")
ModelInput = _message("ModelInput")
ModelOutput = _message("ModelOutput")
BatchInput = _message("BatchInput")
BatchOutput = _message("BatchOutput")
ModelVersionPolicy = _message("ModelVersionPolicy")
ModelOptimizationPolicy = _message("ModelOptimizationPolicy")
ModelQueuePolicy = _message("ModelQueuePolicy")
ModelDynamicBatching = _message("ModelDynamicBatching")
ModelSequenceBatching = _message("ModelSequenceBatching")
ModelEnsembling = _message("ModelEnsembling")
ModelParameter = _message("ModelParameter")
ModelWarmup = _message("ModelWarmup")
ModelOperations = _message("ModelOperations")
ModelTransactionPolicy = _message("ModelTransactionPolicy")
ModelRepositoryAgents = _message("ModelRepositoryAgents")
ModelResponseCache = _message("ModelResponseCache")
ModelMetrics = _message("ModelMetrics")
ModelConfig = _message("ModelConfig")
