"""The message classes of ``reflection.proto``; the types are in the stub beside this file."""

from typing import Final

from naiad.protocol.pb.descriptors import POOL, message_class

DESCRIPTOR: Final = POOL.FindFileByName("reflection.proto")

ServerReflectionRequest = message_class(DESCRIPTOR, "ServerReflectionRequest")
ExtensionRequest = message_class(DESCRIPTOR, "ExtensionRequest")
ServerReflectionResponse = message_class(DESCRIPTOR, "ServerReflectionResponse")
FileDescriptorResponse = message_class(DESCRIPTOR, "FileDescriptorResponse")
ExtensionNumberResponse = message_class(DESCRIPTOR, "ExtensionNumberResponse")
ListServiceResponse = message_class(DESCRIPTOR, "ListServiceResponse")
ServiceResponse = message_class(DESCRIPTOR, "ServiceResponse")
ErrorResponse = message_class(DESCRIPTOR, "ErrorResponse")
