"""Change a ``config.pbtxt`` in place: comments and the layout of everything else stay.

Given the config as it was read and as it shall be, only the values that differ are written anew.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from naiad.errors import InvalidArgumentError
from naiad.model_config.config_text import ConfigText, TextField, TextValue, fields_named
from naiad.model_config.schema import ModelConfig
from naiad.model_config.text_format import format_config, parse_config

_INDENT: Final = "  "
# A new field of the config goes behind the last of these that the text has.
_HEAD_FIELDS: Final = (
    "name",
    "platform",
    "backend",
    "runtime",
    "default_model_filename",
    "max_batch_size",
)


def rewrite_config(
    text: str, wanted: ModelConfig, removed: Collection[tuple[str, int]] = ()
) -> str:
    """The text of a config, changed so that it says what ``wanted`` says.

    Args:
        text: that parses.
        wanted: the text's config with other values; values of repeated fields may be added at the
            end, and none may be missing.
        removed: which values of the config's own repeated fields go: name and index in ``wanted``.

    Returns:
        The changed text; where the text can't be changed piece by piece, all of it anew.
    """
    result = without(wanted, removed)
    editor = _Editor(ConfigText(text), {field.name for field, _ in result.ListFields()})
    editor.change(parse_config(text, "config"), wanted, editor.source.fields, None)
    for name, index in removed:
        editor.remove_value(name, index)
    try:
        changed = editor.apply()
        if parse_config(changed, "config") == result:
            return changed
    except InvalidArgumentError:
        pass
    return format_config(result)


def without(config: ModelConfig, removed: Collection[tuple[str, int]]) -> ModelConfig:
    """A copy of the config that lacks values of its repeated fields, by name and index."""
    result = ModelConfig()
    result.CopyFrom(config)
    for name, index in sorted(removed, key=lambda item: item[1], reverse=True):
        del getattr(result, name)[index]
    return result


def format_fields(message: Message) -> str:
    """Any message of the schema as text, without braces around it."""
    # The writer works on any message; its public signature names the usual one.
    return format_config(cast("ModelConfig", message)).rstrip("\n")


@dataclass(frozen=True, slots=True)
class _Edit:
    start: int
    end: int
    text: str


class _Editor:
    """Collects replacements of spans and makes them all at once."""

    def __init__(self, source: ConfigText, kept: Collection[str]) -> None:
        self.source = source
        # Names of the config's own fields that will be there.
        self._kept = {*kept, "max_batch_size"}
        self._edits: list[_Edit] = []

    def apply(self) -> str:
        text = self.source.text
        taken = len(text)
        for edit in sorted(self._edits, key=lambda edit: (edit.start, edit.end), reverse=True):
            if edit.end > taken:
                raise InvalidArgumentError("two changes of a config overlap")
            text = text[: edit.start] + edit.text + text[edit.end :]
            taken = edit.start
        return text

    def change(
        self,
        before: Message,
        after: Message,
        fields: Sequence[TextField],
        owner: TextValue | None,
    ) -> None:
        """Edit one message, whose fields stand in ``fields`` of ``owner`` (None: the config)."""
        for field in cast("Descriptor", after.DESCRIPTOR).fields:
            named = fields_named(fields, field.name)
            if _subset(before, field) == _subset(after, field):
                continue
            is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
            if field.message_type is None or is_map:
                self._replace(named, _subset(after, field), fields, owner)
            elif field.is_repeated:
                self._change_list(before, after, field, fields, owner)
            else:
                self._change_message(before, after, field, fields, owner)

    def remove_value(self, name: str, index: int) -> None:
        """Take one value of a repeated field of the config out."""
        values = _values(fields_named(self.source.fields, name))
        if index >= len(values):
            return
        field, value = values[index]
        if not field.is_list or len(field.values) == 1:
            self._edits.append(self._whole_line(field.start, field.end))
            return
        position = field.values.index(value)
        if position:
            self._edits.append(_Edit(field.values[position - 1].end, value.end, ""))
        else:
            self._edits.append(_Edit(value.start, field.values[1].start, ""))

    def _change_message(
        self,
        before: Message,
        after: Message,
        field: FieldDescriptor,
        fields: Sequence[TextField],
        owner: TextValue | None,
    ) -> None:
        named = fields_named(fields, field.name)
        has_both = before.HasField(field.name) and after.HasField(field.name)
        if has_both and len(named) == 1 and named[0].values[0].fields is not None:
            value = named[0].values[0]
            inner = value.fields or ()
            self.change(getattr(before, field.name), getattr(after, field.name), inner, value)
        else:
            self._replace(named, _subset(after, field), fields, owner)

    def _change_list(
        self,
        before: Message,
        after: Message,
        field: FieldDescriptor,
        fields: Sequence[TextField],
        owner: TextValue | None,
    ) -> None:
        named = fields_named(fields, field.name)
        old, new = getattr(before, field.name), getattr(after, field.name)
        values = _values(named)
        if not values or len(new) < len(old) or len(values) != len(old):
            self._replace(named, _subset(after, field), fields, owner)
            return
        for index, (_, value) in enumerate(values):
            self.change(old[index], new[index], value.fields or (), value)
        for message in new[len(old) :]:
            self._append(values[-1], message)

    def _append(self, last: tuple[TextField, TextValue], message: Message) -> None:
        field, value = last
        indent = self._indent(value.start)
        block = _braces(message, indent)
        if field.is_list:
            self._edits.append(_Edit(value.end, value.end, f",\n{indent}{block}"))
        else:
            self._edits.append(_Edit(field.end, field.end, f"\n{indent}{field.name} {block}"))

    def _replace(
        self,
        named: Sequence[TextField],
        content: Message,
        fields: Sequence[TextField],
        owner: TextValue | None,
    ) -> None:
        """Write the only field that ``content`` has, in place of all its occurrences."""
        lines = format_fields(content)
        if not named:
            if lines:
                self._insert(lines, fields, owner)
            return
        first, *others = named
        if not lines and first.name == "max_batch_size":
            # Said, and not left to be known.
            lines = "max_batch_size: 0"
        if lines:
            indent = self._indent(first.start)
            behind = self.source.text[first.end - 1]
            separator = behind if behind in ",;" else ""
            replacement = lines.replace("\n", f"\n{indent}") + separator
            self._edits.append(_Edit(first.start, first.end, replacement))
        else:
            self._edits.append(self._whole_line(first.start, first.end))
        self._edits.extend(self._whole_line(field.start, field.end) for field in others)

    def _insert(self, lines: str, fields: Sequence[TextField], owner: TextValue | None) -> None:
        text = self.source.text
        if owner is None:
            names = self._kept.intersection(_HEAD_FIELDS)
            heads = [field for field in fields if field.name in names]
            is_short = "\n" not in lines
            if is_short and heads:
                end = self._line_end(heads[-1].end)
                self._edits.append(_Edit(end, end, f"\n{lines}"))
            elif is_short:
                self._edits.append(_Edit(0, 0, f"{lines}\n"))
            else:
                gap = "" if not text or text.endswith("\n") else "\n"
                self._edits.append(_Edit(len(text), len(text), f"{gap}{lines}\n"))
            return
        place = fields[-1].end if fields else owner.start + 1
        is_one_line = "\n" not in text[owner.start : owner.end]
        if is_one_line and "\n" not in lines:
            self._edits.append(_Edit(place, place, f" {lines}"))
            return
        indent = self._indent(fields[-1].start if fields else owner.start)
        if not fields:
            indent += _INDENT
        block = lines.replace("\n", f"\n{indent}")
        if is_one_line:
            # What stood on the line stays there, and the closing brace gets one of its own.
            outer = self._indent(owner.start)
            self._edits.append(_Edit(place, owner.end - 1, f"\n{outer}{_INDENT}{block}\n{outer}"))
            return
        place = self._line_end(place) if fields else place
        self._edits.append(_Edit(place, place, f"\n{indent}{block}"))

    def _indent(self, offset: int) -> str:
        start = self.source.text.rfind("\n", 0, offset) + 1
        match = re.match(r"[ \t]*", self.source.text[start:offset])
        return match[0] if match else ""

    def _line_end(self, offset: int) -> int:
        """Behind a comment that follows on the same line; else the offset itself."""
        match = re.compile(r"[ \t]*(?:#[^\n]*)?\r?(?=\n|\Z)").match(self.source.text, offset)
        return match.end() if match else offset

    def _whole_line(self, start: int, end: int) -> _Edit:
        """The removal of a span, and of its line where nothing else stands on it."""
        text = self.source.text
        line_start = text.rfind("\n", 0, start) + 1
        line_end = self._line_end(end)
        if text[line_start:start].strip() or (line_end == end and text[end : end + 1] not in "\n"):
            return _Edit(start, end, "")
        return _Edit(line_start, min(line_end + 1, len(text)), "")


def _values(named: Sequence[TextField]) -> list[tuple[TextField, TextValue]]:
    return [(field, value) for field in named for value in field.values]


def _subset(message: Message, field: FieldDescriptor) -> Message:
    """A message of the same type that has only this field."""
    subset = type(message)()
    value: Any = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        if field.message_type.fields_by_name["value"].message_type is None:
            getattr(subset, field.name).update(value)
        else:
            for key in value:
                getattr(subset, field.name)[key].CopyFrom(value[key])
    elif field.is_repeated:
        getattr(subset, field.name).extend(value)
    elif field.message_type is not None:
        if message.HasField(field.name):
            getattr(subset, field.name).CopyFrom(value)
    elif not field.has_presence or message.HasField(field.name):
        setattr(subset, field.name, value)
    return subset


def _braces(message: Message, indent: str) -> str:
    inner = format_fields(message).replace("\n", f"\n{indent}{_INDENT}")
    return f"{{\n{indent}{_INDENT}{inner}\n{indent}}}"
