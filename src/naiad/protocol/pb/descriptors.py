"""The descriptors of every proto file that the gRPC API needs.

They live in a descriptor pool of their own: clients in the same process register the same symbols
in the default pool, and protobuf refuses a second definition there. So a message of theirs is not
one of ours; serialize it to pass it on.
"""

from importlib import resources
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FileDescriptor

from naiad.model_config import schema

POOL: Final = descriptor_pool.DescriptorPool()
POOL.AddSerializedFile(schema.DESCRIPTOR.serialized_pb)
for _file in descriptor_pb2.FileDescriptorSet.FromString(
    resources.files(__package__).joinpath("services.binpb").read_bytes()
).file:
    POOL.Add(_file)


def message_class(file: FileDescriptor, name: str) -> Any:
    """The class of a top-level message of ``file``."""
    return message_factory.GetMessageClass(file.message_types_by_name[name])
