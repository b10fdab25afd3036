"""The message classes of ``health.proto``; the types are in the stub beside this file."""

from typing import Final

from naiad.protocol.pb.descriptors import POOL, message_class

DESCRIPTOR: Final = POOL.FindFileByName("health.proto")

HealthCheckRequest = message_class(DESCRIPTOR, "HealthCheckRequest")
HealthCheckResponse = message_class(DESCRIPTOR, "HealthCheckResponse")
