"""The model config as JSON: the answer of the model configuration extension and the load override.

It is protobuf's JSON mapping with field names as in the proto file, defaults written out, and most
64-bit integers as numbers (Triton, ``model_config_utils.cc``, ``ModelConfigToJson``).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, cast

import numpy as np
import orjson
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from naiad.errors import InvalidArgumentError
from naiad.model_config import schema
from naiad.model_config.text_format import describe_unknown_field, suggest

# protobuf writes 64-bit integers as strings; Triton turns all of them into numbers but these.
_STRING_FIELDS: Final = frozenset(
    {
        "inference.ModelInstanceGroup.SecondaryDevice.device_id",
        "inference.ModelOptimizationPolicy.Cuda.GraphSpec.Shape.dim",
        "inference.ModelSequenceBatching.InitialState.dims",
    }
)
# Texts are passed over; what is left is a name before its colon.
_BARE_NAME: Final = re.compile(r'"(?:[^"\\]|\\.)*"|\b([A-Za-z_]\w*)\b(?=\s*:)')
# Younger than Triton 2.51, whose answers clients know: written only where they are set.
_YOUNG_FIELDS: Final = frozenset({"inference.ModelEnsembling.max_inflight_requests"})


def config_to_json(config: schema.ModelConfig) -> dict[str, Any]:
    """The config as Triton's ``/config`` endpoint answers it.

    Fields come in the order of the proto file and map entries sorted by key. Messages and members
    of a oneof appear only where they are set: clients decide by the presence of, say,
    ``dynamic_batching``.
    """
    return _message_to_json(config)


def format_fields_json(message: Message) -> str:
    """The fields that a message of the schema has, as members of a JSON object without its braces.

    Those at their default are left out, as a person would who writes the config of a load request.
    """
    text = orjson.dumps(_message_to_json(message, is_sparse=True), option=orjson.OPT_INDENT_2)
    lines = text.decode().splitlines()[1:-1]
    return "\n".join(line.removeprefix("  ") for line in lines)


def parse_config_json(text: str | bytes) -> schema.ModelConfig:
    """Read the ``config`` parameter of a load request.

    Field names may be in either of protobuf's spellings, and without quotes as protobuf's own
    parser takes them; enum names in any case.

    Raises:
        InvalidArgumentError: not JSON, a field or enum value that does not exist, or a value of
            the wrong kind.
    """
    document = _load_json(text)
    if not isinstance(document, dict):
        raise _invalid("expected a JSON object with the fields of a model configuration")
    descriptor = cast("Descriptor", schema.ModelConfig.DESCRIPTOR)
    config = schema.ModelConfig()
    try:
        json_format.ParseDict(_checked_message(document, descriptor, ""), config)
    except json_format.ParseError as error:
        raise _invalid(str(error)) from error
    return config


def _load_json(text: str | bytes) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        try:
            plain = text if isinstance(text, str) else text.decode()
            return orjson.loads(_BARE_NAME.sub(_quote, plain))
        except ValueError:
            raise _invalid(str(error)) from error


def _quote(match: re.Match[str]) -> str:
    return match[0] if match[1] is None else f'"{match[1]}"'


def _invalid(detail: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"Invalid config override: {detail}")


def _message_to_json(message: Message, *, is_sparse: bool = False) -> dict[str, Any]:
    members: dict[str, Any] = {}
    present = {field.number for field, _ in message.ListFields()}
    for field in cast("Descriptor", message.DESCRIPTOR).fields:
        if is_sparse and field.number not in present:
            continue
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            write = _writer(field.message_type.fields_by_name["value"], is_sparse=is_sparse)
            members[field.name] = {str(key): write(value[key]) for key in sorted(value)}
        elif field.is_repeated:
            write = _writer(field, is_sparse=is_sparse)
            members[field.name] = [write(item) for item in value]
        elif _is_printed(message, field, value):
            members[field.name] = _writer(field, is_sparse=is_sparse)(value)
    return members


def _is_printed(message: Message, field: FieldDescriptor, value: Any) -> bool:
    if field.has_presence:
        return message.HasField(field.name)
    return field.full_name not in _YOUNG_FIELDS or value != field.default_value


def _writer(field: FieldDescriptor, *, is_sparse: bool) -> Callable[[Any], Any]:
    """What turns one value of the field into JSON."""
    if field.message_type is not None:
        return partial(_message_to_json, is_sparse=is_sparse)
    if field.enum_type is not None:
        names = {value.number: value.name for value in field.enum_type.values}
        return lambda number: names.get(number, number)
    if field.type == FieldDescriptor.TYPE_FLOAT:
        # The shortest decimal of the 32-bit number, not its 17 digits as a 64-bit one.
        return lambda number: _float_to_json(float(str(np.float32(number))))
    if field.type == FieldDescriptor.TYPE_DOUBLE:
        return _float_to_json
    if field.full_name in _STRING_FIELDS:
        return str
    return lambda value: value


def _float_to_json(number: float) -> float | int | str:
    if number != number:  # noqa: PLR0124  (NaN, which JSON has no number for)
        return "NaN"
    if number in {float("inf"), float("-inf")}:
        return "Infinity" if number > 0 else "-Infinity"
    # Whole numbers are written without a fraction, as C++ writes them; -0.0 has no integer.
    is_whole = number.is_integer() and abs(number) < 2**53 and str(number) != "-0.0"
    return int(number) if is_whole else number


def _checked_message(
    document: Mapping[str, Any], descriptor: Descriptor, path: str
) -> dict[str, Any]:
    """A copy of the document with known field names only, and enum names as declared.

    protobuf's Python parser takes enum names in their declared case alone, and its texts for
    unknown names help nobody.
    """
    by_name = {field.name: field for field in descriptor.fields} | {
        field.json_name: field for field in descriptor.fields
    }
    checked = {}
    for name, value in document.items():
        field = by_name.get(name)
        if field is None:
            where = f"({path}) " if path else ""
            raise _invalid(
                f"{where}{name}: Cannot find field.{describe_unknown_field(name, descriptor)}"
            )
        checked[name] = _checked_value(value, field, f"{path}.{name}" if path else name)
    return checked


def _checked_value(value: Any, field: FieldDescriptor, path: str) -> Any:
    entry = field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        if not isinstance(value, dict):
            return value
        inner = entry.fields_by_name["value"]
        return {key: _checked_item(item, inner, f"{path}.{key}") for key, item in value.items()}
    if field.is_repeated and value is not None:
        if not isinstance(value, list):
            # As C++'s parser has it, and so Triton: one that stands alone.
            return [_checked_item(value, field, path)]
        return [_checked_item(item, field, f"{path}[{i}]") for i, item in enumerate(value)]
    return _checked_item(value, field, path)


def _checked_item(value: Any, field: FieldDescriptor, path: str) -> Any:
    if field.message_type is not None and isinstance(value, dict):
        return _checked_message(value, field.message_type, path)
    if field.enum_type is not None and isinstance(value, str):
        return _enum_name(value, field.enum_type, path)
    return value


def _enum_name(text: str, enum: EnumDescriptor, path: str) -> str:
    names: Sequence[str] = [value.name for value in enum.values]
    found = {name.upper(): name for name in names}.get(text.upper())
    if found is None:
        raise _invalid(
            f'({path}): invalid value "{text}" for type {enum.full_name}.{suggest(text, names)}'
        )
    return found
