import importlib
import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

from naiad.model_config import generate, schema

# protobuf's own kinds of a message's parts, without what differs between its two halves.
Facts = dict[str, Any]


def _enum_facts(enum: Any) -> Facts:
    return {value.name: value.number for value in enum.values}


def _field_facts(field: Any) -> tuple[Any, ...]:
    return (
        field.number,
        field.type,
        field.is_repeated,
        field.message_type.full_name if field.message_type else None,
        field.enum_type.full_name if field.enum_type else None,
        field.containing_oneof.name if field.containing_oneof else None,
    )


def _message_facts(message: Any) -> Facts:
    return {
        "fields": {field.name: _field_facts(field) for field in message.fields},
        "order": [field.name for field in message.fields],
        "enums": {enum.name: _enum_facts(enum) for enum in message.enum_types},
        "messages": {inner.name: _message_facts(inner) for inner in message.nested_types},
        "is_map_entry": message.GetOptions().map_entry,
    }


def _file_facts(file: Any) -> Facts:
    return {
        "package": file.package,
        "enums": {name: _enum_facts(enum) for name, enum in file.enum_types_by_name.items()},
        "messages": {
            name: _message_facts(message) for name, message in file.message_types_by_name.items()
        },
    }


@pytest.fixture
def peer() -> Any:
    name = "tritonclient.grpc.model_config_pb2"
    if "NAIAD_REQUIRE_TOOLS" in os.environ:  # noqa: TID251  (set where skipping would hide a fault)
        return importlib.import_module(name)
    return pytest.importorskip(name)


def test_schema_equals_that_of_nvidias_client(peer: Any) -> None:
    assert _file_facts(schema.DESCRIPTOR) == _file_facts(peer.DESCRIPTOR)


def test_our_classes_live_beside_nvidias_in_one_process(peer: Any) -> None:
    ours = schema.ModelConfig(name="m", max_batch_size=3)

    theirs = peer.ModelConfig.FromString(ours.SerializeToString())

    assert (theirs.name, theirs.max_batch_size) == ("m", 3)
    assert schema.DESCRIPTOR.pool is not peer.DESCRIPTOR.pool


def test_every_message_of_the_proto_file_has_a_class() -> None:
    for name, descriptor in schema.DESCRIPTOR.message_types_by_name.items():
        assert getattr(schema, name).DESCRIPTOR is descriptor


def test_enum_values_are_reached_by_name() -> None:
    assert schema.DataType.TYPE_FP32 == 11
    assert schema.DataType.Name(14) == "TYPE_BF16"
    assert schema.ModelInstanceGroup.Kind.Value("KIND_CPU") == schema.ModelInstanceGroup.KIND_CPU


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("grpc_tools") is None, reason="grpcio-tools is not installed"
)
def test_generated_files_are_those_of_the_proto_file(tmp_path: Path) -> None:
    generate.generate(tmp_path)

    for name in ("schema.binpb", "schema.pyi"):
        shipped = (Path(generate.__file__).parent / name).read_bytes()
        assert (tmp_path / name).read_bytes() == shipped
