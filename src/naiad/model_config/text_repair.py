"""A ``config.pbtxt`` that does not parse: what was probably meant, one mistake after the other."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from naiad.model_config.text_format import ConfigSyntaxError, parse_config

# Configs with more mistakes than this are no configs.
_MAX_REPAIRS: Final = 20
_VARIABLE: Final = re.compile(r"\$\{[^}\n]*\}|\$\w+")
_SUGGESTION: Final = re.compile(r"Did you mean '(?P<name>[\w.]+)'\?")
_WORD: Final = re.compile(r"-?[\w.]+")


@dataclass(frozen=True, slots=True)
class Repair:
    """One mistake in the text of a config.

    Attributes:
        line: from 1, in the text as it was given.
        column: from 1.
        problem: what protobuf says of it.
        variable: the template variable that was left in, such as ``${name}``; else "".
        before: the line as it is.
        after: the line as it was probably meant; "" where the line goes.
        is_repaired: a repair was found.
    """

    line: int
    column: int
    problem: str
    variable: str
    before: str
    after: str
    is_repaired: bool


def repair_text(text: str, source: str) -> tuple[str | None, list[Repair]]:
    """Make a text parse that doesn't.

    Returns:
        The text that parses, or None where no repair was found for the last of the mistakes; and
        the mistakes. Repairs never move a line, so positions hold in the text as given.
    """
    repairs: list[Repair] = []
    remaining = len(text) + 1
    for _ in range(_MAX_REPAIRS):
        try:
            parse_config(text, source)
        except ConfigSyntaxError as error:
            behind = len(text) - _offset(text, error)
            if behind >= remaining:
                # The last repair led no further, so it was none.
                repairs[-1] = replace(repairs[-1], after="", is_repaired=False)
                break
            remaining = behind
            changed = _repair(text, error)
            repairs.append(_describe(text, changed, error))
            if changed is None:
                break
            text = changed
        else:
            return text, repairs
    return None, repairs


def find_variables(text: str) -> list[tuple[int, str]]:
    """Offset and text of each template variable that was left in."""
    return [(match.start(), match[0]) for match in _VARIABLE.finditer(text)]


def _describe(text: str, changed: str | None, error: ConfigSyntaxError) -> Repair:
    line, column, after = error.line, error.column, ""
    variable = _VARIABLE.match(text, _offset(text, error))
    lines = text.split("\n")
    if changed is not None:
        # A bracket is missed where the next token stands; what must change may be a line above.
        pairs = zip(lines, changed.split("\n"), strict=False)
        number, (old, new) = next(
            (n, pair) for n, pair in enumerate(pairs, 1) if pair[0] != pair[1]
        )
        after = new.strip()
        if number != line:
            same = (old[: i + 1] == new[: i + 1] for i in range(len(old)))
            line, column = number, min(sum(same) + 1, len(old))
    before = lines[line - 1] if 0 < line <= len(lines) else ""
    detail = error.message.partition(f"{error.line}:{error.column}: ")[2]
    # protobuf repeats the whole line in front of its text.
    detail = re.sub(r"^'.*?': (?=[A-Z])", "", detail, flags=re.DOTALL)
    name = variable[0] if variable else ""
    return Repair(line, column, detail, name, before, after, is_repaired=changed is not None)


def _repair(text: str, error: ConfigSyntaxError) -> str | None:
    offset = _offset(text, error)
    for repair in _REPAIRS:
        changed = repair(text, offset, error.message)
        if changed is not None:
            return changed
    return None


def _offset(text: str, error: ConfigSyntaxError) -> int:
    lines = text.split("\n")
    before = sum(len(line) + 1 for line in lines[: max(error.line - 1, 0)])
    return min(before + max(error.column - 1, 0), len(text))


def _drop_variable(text: str, offset: int, message: str) -> str | None:
    """Take the field whose value is a variable; the server completes what is absent."""
    if not _VARIABLE.match(text, offset):
        return None
    start = text.rfind("\n", 0, offset) + 1
    end = text.find("\n", offset)
    end = len(text) if end == -1 else end
    field = re.search(r"\w+\s*:\s*\[?\s*$", text[start:offset])
    if field is None:
        return None
    closing = re.match(r"(?:\$\{[^}\n]*\}|\$\w+|[\s,\w-])*\]", text[offset:end])
    is_list = "[" in field[0]
    if is_list and closing is None:
        return None
    variable = _VARIABLE.match(text, offset)
    length = closing.end() if is_list and closing else (variable.end() - offset if variable else 0)
    return text[: start + field.start()] + text[offset + length :]


def _take_suggestion(text: str, offset: int, message: str) -> str | None:
    suggestion = _SUGGESTION.search(message)
    word = _WORD.match(text, offset)
    if suggestion is None or word is None:
        return None
    return text[:offset] + suggestion["name"] + text[word.end() :]


def _quote(text: str, offset: int, message: str) -> str | None:
    if "Expected string but found" not in message:
        return None
    word = re.compile(r"[^\s,;{}\[\]#\"']+").match(text, offset)
    return None if word is None else f'{text[:offset]}"{word[0]}"{text[word.end() :]}'


def _close_string(text: str, offset: int, message: str) -> str | None:
    if "missing ending quote" not in message:
        return None
    end = text.find("\n", offset)
    end = len(text) if end == -1 else end
    return text[:end].rstrip() + text[offset] + text[end:]


def _unquote_number(text: str, offset: int, message: str) -> str | None:
    if "Couldn't parse integer" not in message:
        return None
    quoted = re.compile(r"[\"'](-?\d+)[\"']").match(text, offset)
    return None if quoted is None else text[:offset] + quoted[1] + text[quoted.end() :]


def _drop_comma(text: str, offset: int, message: str) -> str | None:
    """A comma before the end of a list, which text format does not allow."""
    if text[offset : offset + 1] != "]":
        return None
    head = text[:offset].rstrip()
    return head[:-1] + text[len(head) :] if head.endswith(",") else None


def _add_colon(text: str, offset: int, message: str) -> str | None:
    if 'Expected ":"' not in message:
        return None
    if text[offset : offset + 1] == "=":
        return text[:offset].rstrip() + ":" + text[offset + 1 :]
    return text[:offset].rstrip() + ": " + text[offset:]


def _mend_list(text: str, offset: int, message: str) -> str | None:
    """A comma between two values; or the bracket that a list lacks at its end."""
    if 'Expected ","' not in message and 'Expected "]"' not in message:
        return None
    head = text[:offset].rstrip()
    following = text[offset : offset + 1]
    line_start = text.rfind("\n", 0, offset) + 1
    # A value that follows on the same line, or a message, is the list's next.
    is_next = following == "{" or re.match(r"[\w\"'-]", following)
    is_new_field = re.match(r"[A-Za-z_]\w*\s*[:{\[]", text[offset:])
    if is_next and not is_new_field and (following == "{" or head[line_start:]):
        return head + "," + text[len(head) :]
    return head + " ]" + text[len(head) :]


def _close_message(text: str, offset: int, message: str) -> str | None:
    is_at_end = not text[offset + 1 :].strip() and text[offset : offset + 1] not in {"]", "}"}
    return text.rstrip() + " }\n" if is_at_end and "Expected" in message else None


def _drop_bracket(text: str, offset: int, message: str) -> str | None:
    """A bracket or brace that closes nothing."""
    is_closing = text[offset : offset + 1] in {"]", "}"}
    return text[:offset] + text[offset + 1 :] if is_closing else None


_REPAIRS: Final[Sequence[Callable[[str, int, str], str | None]]] = (
    _drop_variable,
    _take_suggestion,
    _quote,
    _close_string,
    _unquote_number,
    _drop_comma,
    _add_colon,
    _mend_list,
    _close_message,
    _drop_bracket,
)
