"""Our descriptors are those of the clients that people have; the generated files are current."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from tritonclient.grpc import service_pb2

from naiad.protocol import pb
from naiad.protocol.pb import grpc_service, health, reflection
from naiad.protocol.pb.descriptors import POOL
from naiad.protocol.pb.generate import generate


def described(file: Any) -> descriptor_pb2.FileDescriptorProto:
    """What a file declares, without the options for other languages."""
    text = descriptor_pb2.FileDescriptorProto()
    file.CopyToProto(text)
    text.ClearField("options")
    text.ClearField("name")
    text.ClearField("dependency")
    for service in text.service:
        for method in service.method:
            method.ClearField("options")
    for message in text.message_type:
        clear_json_names(message)
    return text


def clear_json_names(message: descriptor_pb2.DescriptorProto) -> None:
    """They follow from the names, and protoc writes them at some times only."""
    for field in message.field:
        field.ClearField("json_name")
    for nested in message.nested_type:
        clear_json_names(nested)


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("grpc_service.proto", service_pb2.DESCRIPTOR),
        ("health.proto", health_pb2.DESCRIPTOR),
        ("reflection_v1alpha.proto", reflection_pb2.DESCRIPTOR),
    ],
)
def test_descriptors_are_those_of_the_clients(name: str, theirs: Any) -> None:
    assert described(POOL.FindFileByName(name)) == described(theirs)


def test_both_versions_of_reflection_are_the_same_on_the_wire() -> None:
    old = described(POOL.FindFileByName("reflection_v1alpha.proto"))
    new = described(reflection.DESCRIPTOR)
    assert str(old).replace("v1alpha", "v1") == str(new)


def test_the_default_pool_is_left_to_others() -> None:
    default = descriptor_pool.Default()
    assert default.FindMessageTypeByName("inference.ModelInferRequest") is (
        service_pb2.ModelInferRequest.DESCRIPTOR
    )
    assert grpc_service.ModelInferRequest.DESCRIPTOR.file.pool is not default
    assert health.HealthCheckRequest.DESCRIPTOR.file.pool is POOL


def test_all_messages_have_a_class() -> None:
    for module in (grpc_service, health, reflection):
        for name in module.DESCRIPTOR.message_types_by_name:
            assert getattr(module, name).DESCRIPTOR is module.DESCRIPTOR.message_types_by_name[name]


@pytest.mark.slow
def test_generated_files_are_current(tmp_path: Path) -> None:
    if subprocess.run([sys.executable, "-c", "import grpc_tools"], check=False).returncode:
        pytest.skip("grpcio-tools is not installed")
    generate(tmp_path)
    folder = Path(pb.__file__).parent
    for made in tmp_path.iterdir():
        assert made.read_bytes() == (folder / made.name).read_bytes(), made.name
