"""Each field of the schema, however deep: read, written, and named when it is misspelled."""

import re
from collections.abc import Iterator, Sequence
from typing import Any, cast

import orjson
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from naiad.errors import InvalidArgumentError
from naiad.model_config.json_format import config_to_json, format_fields_json, parse_config_json
from naiad.model_config.schema import ModelConfig
from naiad.model_config.text_format import ConfigSyntaxError, format_config, parse_config

Path = tuple[FieldDescriptor, ...]
SAMPLES: dict[int, Any] = {
    FieldDescriptor.TYPE_STRING: 'caf\u00e9 "x"\n',
    FieldDescriptor.TYPE_BOOL: True,
    FieldDescriptor.TYPE_FLOAT: 0.1,
    FieldDescriptor.TYPE_DOUBLE: 1e-300,
    FieldDescriptor.TYPE_BYTES: b"\x00\xff",
}


def fields(descriptor: Descriptor, above: Path = ()) -> Iterator[Path]:
    for field in descriptor.fields:
        path = (*above, field)
        yield path
        if field.message_type is not None:
            yield from fields(field.message_type, path)


PATHS = list(fields(cast("Descriptor", ModelConfig.DESCRIPTOR)))


def name_of(path: Path) -> str:
    return ".".join(field.name for field in path)


def sample(field: FieldDescriptor) -> Any:
    if field.enum_type is not None:
        return field.enum_type.values[-1].number
    # The largest, whose digits a reader that goes by way of floats would lose.
    large = {4: 2**64 - 1, 6: 2**64 - 1, 3: 2**63 - 1, 16: 2**63 - 1}.get(field.type, 7)
    return SAMPLES.get(field.type, large)


def is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def fill(message: Any, path: Sequence[FieldDescriptor]) -> None:
    """Set the field at the end of a path, and nothing that need not be."""
    field, *below = path
    if is_map(field):
        entry_type = cast("Descriptor", field.message_type)
        value, key = entry_type.fields_by_name["value"], sample(entry_type.fields_by_name["key"])
        if value.message_type is None:
            getattr(message, field.name)[key] = sample(value)
        else:
            entry = getattr(message, field.name)[key]
            if below and below[0].name == "value" and below[1:]:
                fill(entry, below[1:])
    elif field.message_type is not None:
        inner = getattr(message, field.name)
        inner = inner.add() if field.is_repeated else inner
        inner.SetInParent()
        if below:
            fill(inner, below)
    elif field.is_repeated:
        getattr(message, field.name).extend([sample(field)] * 2)
    else:
        setattr(message, field.name, sample(field))


@pytest.mark.parametrize("path", PATHS, ids=name_of)
def test_a_field_is_read_and_written_in_both_languages(path: Path) -> None:
    config = ModelConfig()
    fill(config, path)
    assert config.ListFields()
    text = format_config(config)
    assert parse_config(text, "config.pbtxt") == config
    assert format_config(parse_config(text, "config.pbtxt")) == text
    assert parse_config_json(orjson.dumps(config_to_json(config))) == config
    assert parse_config_json("{" + format_fields_json(config) + "}") == config


@pytest.mark.parametrize("path", [path for path in PATHS if len(path[-1].name) > 4], ids=name_of)
def test_a_misspelled_field_is_located_and_named(path: Path) -> None:
    name = path[-1].name
    if any(is_map(field) for field in path[:-1][-1:]):
        return  # key and value of a map are the language's, not the schema's
    config = ModelConfig()
    fill(config, path)
    wrong = f"{name[:2]}{name[3:]}"
    text, count = re.subn(rf"\b{name}\b(?=[:\s])", wrong, format_config(config))
    assert count
    with pytest.raises(ConfigSyntaxError) as caught:
        parse_config(text, "config.pbtxt")
    line, column = caught.value.line, caught.value.column
    assert text.splitlines()[line - 1][column - 1 :].startswith(wrong)
    assert f"Did you mean '{name}'?" in caught.value.message
    document = "{" + format_fields_json(config) + "}"
    with pytest.raises(InvalidArgumentError) as refused:
        parse_config_json(re.sub(rf'"{name}":', f'"{wrong}":', document))
    assert f"{wrong}: Cannot find field." in refused.value.message
    assert f"'{name}'" in refused.value.message
