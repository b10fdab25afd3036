"""Where in the text of a ``config.pbtxt`` each field stands.

protobuf's parser forgets positions, and advice without them leaves a person searching. This reads
the same grammar (text format: https://protobuf.dev/reference/protobuf/textformat-spec/) into a tree
of spans. It is lenient: whether the text is right, `text_format.parse_config` says.
"""

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from naiad.errors import InvalidArgumentError

# ("input", 0, "dims"): a field's name, then which of its values where it has several.
FieldPath = tuple[str | int, ...]

_SPACE: Final = re.compile(r"(?:[\s]|#[^\n]*)*")
_NAME: Final = re.compile(r"[A-Za-z_]\w*|\[[\w./]+\]")
_STRING: Final = re.compile(r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'')
_WORD: Final = re.compile(r"-?\s*[\w.+-]+")
_CLOSING: Final = {"{": "}", "<": ">"}


@dataclass(frozen=True, slots=True)
class TextValue:
    """One value: a scalar, or a message with its fields.

    Attributes:
        start: offset of its first character, the brace of a message.
        end: offset behind its last character.
        fields: of a message; None for a scalar.
    """

    start: int
    end: int
    fields: "tuple[TextField, ...] | None" = None


@dataclass(frozen=True, slots=True)
class TextField:
    """One ``name: value`` or ``name: [ value, ... ]``.

    Attributes:
        name: as written.
        start: offset of the name.
        end: offset behind the value and behind a separator after it.
        values: one, or those of the list.
        is_list: written with brackets.
    """

    name: str
    start: int
    end: int
    values: tuple[TextValue, ...]
    is_list: bool


class ConfigText:
    """The text of a model config and the tree of its fields.

    Attributes:
        text: as read.
        fields: of the config itself, in the order of the text; empty where it does not parse.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.fields: tuple[TextField, ...] = ()
        # What is wrong with a text that does not parse, and where, protobuf says.
        with contextlib.suppress(InvalidArgumentError):
            self.fields, _ = _Reader(text).read_fields(0, "")

    def find(self, path: FieldPath) -> tuple[int, int]:
        """Line and column, from 1, of the field or value that a path leads to.

        A path that leads past the text ends at the nearest thing around: a config that lacks a
        field is wrong where the message stands that should have it. The start of the text for a
        path that leads nowhere.
        """
        return self.position(self._offset(path))

    def position(self, offset: int) -> tuple[int, int]:
        """Line and column, from 1, of an offset into the text."""
        line = self.text.count("\n", 0, offset) + 1
        return line, offset - self.text.rfind("\n", 0, offset)

    def has(self, name: str) -> bool:
        """Whether the config has a field of that name at its top level."""
        return any(field.name == name for field in self.fields)

    def _offset(self, path: FieldPath) -> int:
        fields: Sequence[TextField] = self.fields
        offset = 0
        for index, step in enumerate(path):
            if isinstance(step, int):
                continue
            named = fields_named(fields, step)
            if not named:
                return offset
            offset = named[0].start
            chosen = path[index + 1] if index + 1 < len(path) else None
            values = [(field, value) for field in named for value in field.values]
            number = chosen if isinstance(chosen, int) else 0
            if number >= len(values):
                return offset
            field, value = values[number]
            if isinstance(chosen, int):
                offset = value.start if field.is_list else field.start
            fields = value.fields or ()
        return offset


def fields_named(fields: Sequence[TextField], name: str) -> list[TextField]:
    """All fields of one name, in the order of the text."""
    return [field for field in fields if field.name == name]


class _Reader:
    """A recursive reader over one text; positions are offsets into it."""

    def __init__(self, text: str) -> None:
        self._text = text

    def read_fields(self, position: int, closing: str) -> tuple[tuple[TextField, ...], int]:
        """Fields up to the closing brace, or to the end of the text for ""."""
        fields: list[TextField] = []
        while True:
            position = self._skip(position)
            if position >= len(self._text) or self._text[position] == closing:
                if closing and position >= len(self._text):
                    raise InvalidArgumentError("a message is not closed")
                return tuple(fields), position + len(closing)
            field = self._read_field(position)
            fields.append(field)
            position = field.end

    def _read_field(self, start: int) -> TextField:
        name = _NAME.match(self._text, start)
        if name is None:
            raise InvalidArgumentError(f"no field name at offset {start}")
        position = self._skip(name.end())
        if self._peek(position) == ":":
            position = self._skip(position + 1)
        is_list = self._peek(position) == "["
        if is_list:
            values, end = self._read_list(position + 1)
        else:
            value = self._read_value(position)
            values, end = (value,), value.end
        behind = self._skip(end)
        if self._peek(behind) in {",", ";"}:
            end = behind + 1
        return TextField(name[0], start, end, values, is_list)

    def _read_list(self, position: int) -> tuple[tuple[TextValue, ...], int]:
        values = list(self._read_items(position))
        end = self._skip(values[-1].end if values else position)
        if self._peek(end) != "]":
            raise InvalidArgumentError(f"a list is not closed at offset {end}")
        return tuple(values), end + 1

    def _read_items(self, position: int) -> Iterator[TextValue]:
        position = self._skip(position)
        while self._peek(position) not in {"]", ""}:
            value = self._read_value(position)
            yield value
            position = self._skip(value.end)
            if self._peek(position) != ",":
                return
            position = self._skip(position + 1)

    def _read_value(self, position: int) -> TextValue:
        opening = self._peek(position)
        if opening in _CLOSING:
            fields, end = self.read_fields(position + 1, _CLOSING[opening])
            return TextValue(position, end, fields)
        string = _STRING.match(self._text, position)
        if string is None:
            word = _WORD.match(self._text, position)
            if word is None:
                raise InvalidArgumentError(f"no value at offset {position}")
            return TextValue(position, word.end())
        end = string.end()
        # Strings side by side are one value.
        while following := _STRING.match(self._text, self._skip(end)):
            end = following.end()
        return TextValue(position, end)

    def _skip(self, position: int) -> int:
        match = _SPACE.match(self._text, position)
        return match.end() if match else position

    def _peek(self, position: int) -> str:
        return self._text[position : position + 1]
