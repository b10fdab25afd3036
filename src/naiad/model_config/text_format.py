"""``config.pbtxt``: protobuf text format in, and out in the layout that people write."""

import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any, Final, cast

import numpy as np
from google.protobuf import text_format
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from naiad.errors import InvalidArgumentError
from naiad.model_config import schema

# The order in which a person reads a config; fields that are not named here follow in the order
# of the proto file.
_FIELD_ORDER: Final = (
    "name",
    "platform",
    "backend",
    "runtime",
    "default_model_filename",
    "max_batch_size",
    "version_policy",
    "input",
    "output",
    "batch_input",
    "batch_output",
    "dynamic_batching",
    "sequence_batching",
    "ensemble_scheduling",
    "instance_group",
    "optimization",
    "model_transaction_policy",
    "response_cache",
    "model_warmup",
)
_LAST_FIELDS: Final = ("metric_tags", "parameters")
_INDENT: Final = "  "
_INLINE_WIDTH: Final = 72
_ESCAPES: Final = {code: f"\\{code:03o}" for code in (*range(32), 127)} | {
    ord("\n"): "\\n",
    ord("\r"): "\\r",
    ord("\t"): "\\t",
    ord('"'): '\\"',
    ord("\\"): "\\\\",
}

# protobuf's texts; where another version words them differently, only the advice is lost.
_UNKNOWN_FIELD = re.compile(r'Message type "(?P<type>[\w.]+)" has no field named "(?P<name>\w+)"')
_UNKNOWN_ENUM = re.compile(r'Enum type "(?P<type>[\w.]+)" has no value named ["\']?(?P<name>\w+)')
_POSITION = re.compile(r"^\d+:\d+ : ")


class ConfigSyntaxError(InvalidArgumentError):
    """A model config that does not parse.

    Attributes:
        source: what was read, such as a path.
        line: from 1; 0 where it is not known.
        column: from 1; 0 where it is not known.
    """

    def __init__(self, source: str, line: int, column: int, detail: str) -> None:
        super().__init__(f"failed to read text proto from {source}: {line}:{column}: {detail}")
        self.source = source
        self.line = line
        self.column = column


def parse_config(text: str, source: str) -> schema.ModelConfig:
    """Read protobuf text format with everything that it allows.

    Args:
        text: the content of a ``config.pbtxt``.
        source: named in errors, such as the path that the text came from.

    Raises:
        ConfigSyntaxError: with the position and, for an unknown field or enum value, the name
            that was probably meant.
    """
    config = schema.ModelConfig()
    try:
        text_format.Parse(text, config)
    except text_format.ParseError as error:
        detail = _POSITION.sub("", str(error))
        raise ConfigSyntaxError(
            source, error.GetLine() or 0, error.GetColumn() or 0, detail + _advice(detail)
        ) from error
    return config


def format_config(config: schema.ModelConfig) -> str:
    """The config as text: ``parse_config`` of it gives an equal message.

    The same message always gives the same text. Fields at their default are left out.
    """
    return "".join(f"{line}\n" for line in _format_fields(config))


def suggest(name: str, candidates: Sequence[str]) -> str:
    """Advice to append to an error about an unknown name; empty where nothing is near it."""
    upper = {candidate.upper(): candidate for candidate in candidates}
    near = [candidate for candidate in upper if name.upper() in candidate]
    if len(near) != 1:
        near = get_close_matches(name.upper(), upper, n=1, cutoff=0.6)
    return f" Did you mean '{upper[near[0]]}'?" if near else ""


def describe_unknown_field(name: str, message: Descriptor) -> str:
    """Advice about a field that a message does not have: a near name, or where it belongs."""
    near = suggest(name, [field.name for field in message.fields])
    if near:
        return near
    owners = [
        owner.name for owner in schema.DESCRIPTOR.message_types_by_name.values()
        if name in owner.fields_by_name
    ]  # fmt: skip
    return f" '{name}' is a field of {' and of '.join(owners)}." if owners else ""


def _advice(detail: str) -> str:
    pool = schema.DESCRIPTOR.pool
    if match := _UNKNOWN_FIELD.search(detail):
        return describe_unknown_field(match["name"], pool.FindMessageTypeByName(match["type"]))
    if match := _UNKNOWN_ENUM.search(detail):
        enum: EnumDescriptor = pool.FindEnumTypeByName(match["type"])
        names = [value.name for value in enum.values]
        if match["name"] in names:
            return f" Write {match['name']} without quotes."
        return suggest(match["name"], names) or f" It is one of {', '.join(names)}."
    return ""


def _ordered(descriptor: Descriptor) -> list[FieldDescriptor]:
    fields = list(descriptor.fields)
    if descriptor is not schema.ModelConfig.DESCRIPTOR:
        return fields
    first = [descriptor.fields_by_name[name] for name in _FIELD_ORDER]
    last = [descriptor.fields_by_name[name] for name in _LAST_FIELDS]
    return first + [field for field in fields if field not in first and field not in last] + last


def _format_fields(message: Message) -> list[str]:
    """The lines of a message's fields, without the braces around them."""
    lines: list[str] = []
    present = {field.number for field, _ in message.ListFields()}
    for field in _ordered(cast("Descriptor", message.DESCRIPTOR)):
        if field.number not in present:
            continue
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            for key in sorted(value):
                lines += _format_map_entry(field.name, field.message_type, key, value[key])
        elif field.is_repeated:
            lines += _format_list(field, value)
        else:
            lines += _format_single(field, value)
    return lines


def _format_map_entry(name: str, entry: Descriptor, key: Any, value: Any) -> list[str]:
    content = _format_single(entry.fields_by_name["key"], key)
    content += _format_single(entry.fields_by_name["value"], value)
    return _block(f"{name} ", content)


def _format_single(field: FieldDescriptor, value: Any) -> list[str]:
    if field.message_type is not None:
        return _block(f"{field.name} ", _format_fields(value))
    return [f"{field.name}: {_scalar(field, value)}"]


def _format_list(field: FieldDescriptor, values: Sequence[Any]) -> list[str]:
    if field.message_type is None:
        return [f"{field.name}: [ {', '.join(_scalar(field, value) for value in values)} ]"]
    return [f"{field.name} [", *_indented(_comma_separated(values)), "]"]


def _comma_separated(messages: Sequence[Message]) -> Iterator[str]:
    for index, message in enumerate(messages):
        lines = _block("", _format_fields(message))
        if index < len(messages) - 1:
            lines[-1] += ","
        yield from lines


def _block(prefix: str, content: list[str]) -> list[str]:
    """Braces around lines, on one line where there is little to say."""
    inline = f"{prefix}{{ {' '.join([*content, '}'])}"
    if len(content) <= 2 and len(inline) <= _INLINE_WIDTH:
        return [inline]
    return [f"{prefix}{{", *_indented(content), "}"]


def _indented(lines: Iterator[str] | list[str]) -> Iterator[str]:
    return (_INDENT + line for line in lines)


def _scalar(field: FieldDescriptor, value: Any) -> str:
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return str(value) if known is None else known.name
    if field.type == FieldDescriptor.TYPE_STRING:
        return f'"{value.translate(_ESCAPES)}"'
    if field.type == FieldDescriptor.TYPE_BOOL:
        return "true" if value else "false"
    if field.type == FieldDescriptor.TYPE_FLOAT:
        # The shortest text that is still the same 32-bit number: 0.1, not 0.10000000149011612.
        return str(np.float32(value))
    return repr(value)
