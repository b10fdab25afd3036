import json
from typing import Any

from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st

from naiad.model_config import schema
from naiad.model_config.json_format import config_to_json, parse_config_json
from naiad.model_config.text_format import ConfigSyntaxError, format_config, parse_config

_RANGES = {
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint32": (0, 2**32 - 1),
    "uint64": (0, 2**64 - 1),
}


def _scalars(field: Any) -> st.SearchStrategy[Any]:
    if field.enum_type is not None:
        return st.sampled_from([value.number for value in field.enum_type.values])
    kinds = {
        field.TYPE_STRING: st.text(st.characters(codec="utf-8"), max_size=8),
        field.TYPE_BOOL: st.booleans(),
        field.TYPE_FLOAT: st.floats(width=32, allow_nan=False),
        field.TYPE_DOUBLE: st.floats(allow_nan=False),
        field.TYPE_INT32: st.integers(*_RANGES["int32"]),
        field.TYPE_INT64: st.integers(*_RANGES["int64"]),
        field.TYPE_UINT32: st.integers(*_RANGES["uint32"]),
        field.TYPE_UINT64: st.integers(*_RANGES["uint64"]),
    }
    return kinds[field.type]


@st.composite
def _messages(draw: st.DrawFn, message_class: Any) -> Any:
    """A message with some of its fields set to anything that they can hold."""
    message = message_class()
    fields = list(message_class.DESCRIPTOR.fields)
    for field in draw(st.lists(st.sampled_from(fields), max_size=4)) if fields else []:
        _fill(draw, message, field)
    return message


def _fill(draw: st.DrawFn, message: Any, field: Any) -> None:
    target = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key = draw(_scalars(field.message_type.fields_by_name["key"]))
        value = field.message_type.fields_by_name["value"]
        if value.message_type is None:
            target[key] = draw(_scalars(value))
        else:
            target[key].CopyFrom(draw(_messages(GetMessageClass(value.message_type))))
    elif field.is_repeated and field.message_type is not None:
        target.append(draw(_messages(GetMessageClass(field.message_type))))
    elif field.is_repeated:
        target.extend(draw(st.lists(_scalars(field), max_size=3)))
    elif field.message_type is not None:
        target.CopyFrom(draw(_messages(GetMessageClass(field.message_type))))
        target.SetInParent()
    else:
        setattr(message, field.name, draw(_scalars(field)))


@given(_messages(schema.ModelConfig))
def test_text_of_a_config_parses_to_an_equal_config(config: schema.ModelConfig) -> None:
    text = format_config(config)

    again = parse_config(text, "text")

    assert again == config
    assert format_config(again) == text


@given(_messages(schema.ModelConfig))
def test_json_of_a_config_parses_to_an_equal_config(config: schema.ModelConfig) -> None:
    answer = config_to_json(config)

    assert parse_config_json(json.dumps(answer)) == config


@settings(max_examples=200)
@given(st.text(st.sampled_from("{}[]<>:;,\"'\\ \n#name input dims:-1 9.e"), max_size=60))
def test_any_text_is_a_config_or_a_located_mistake(text: str) -> None:
    mistake = None
    try:
        config = parse_config(text, "text")
    except ConfigSyntaxError as error:
        mistake = error

    if mistake is None:
        assert parse_config(format_config(config), "text") == config
    else:
        assert mistake.line >= 1
        assert mistake.column >= 1
