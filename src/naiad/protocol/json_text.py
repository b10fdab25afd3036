"""JSON text to values: orjson for what is plain, a tolerant second reading for what is not.

Triton reads JSON with rapidjson, which takes the literals NaN, Infinity and -Infinity and a byte
order mark; orjson refuses them. A body that orjson refuses is therefore read again by the standard
library's parser, which also says what is wrong in more useful words. Both stop at a nesting depth
far below the end of the stack.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, Never

import orjson

from naiad.errors import InvalidArgumentError

Buffer = bytes | bytearray | memoryview

MAX_DEPTH: Final = 100  # Triton's limit (http_server.cc), for the whole document here

LIMIT_ADVICE: Final = "Use --http-max-input-size to increase the limit."

_BOM: Final = b"\xef\xbb\xbf"
# A double ends at 1.8e308, so a literal that overflows has a long exponent or very many digits.
_MAY_OVERFLOW: Final = re.compile(rb"[eE]\+?[0-9]{3}|[0-9]{300}")
_SURROGATE_ESCAPE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
# Escaped backslashes and whole pairs are stepped over; what the group matches stands alone.
_LONE_SURROGATE: Final = re.compile(
    rb"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F])"
)
_LONG_NUMBER: Final = re.compile(rb"-?[0-9]{4300}")  # where Python stops to convert an integer

# rapidjson's words for the faults that the standard library names otherwise.
_WORDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "Expecting value": "Invalid value.",
        "Extra data": "The document root must not be followed by other values.",
        "Expecting property name enclosed in double quotes": "Missing a name for object member.",
        "Illegal trailing comma before end of object": "Missing a name for object member.",
        "Illegal trailing comma before end of array": "Invalid value.",
        "Expecting ':' delimiter": "Missing a colon after a name of object member.",
        "Unterminated string starting at": "Missing a closing quotation mark in string.",
        "Invalid \\escape": "Invalid escape character in string.",
        "Invalid \\uXXXX escape": "Incorrect hex digit after \\u escape in string.",
        "Invalid control character at": "Invalid encoding in string.",
    }
)


def parse_json(text: Buffer) -> Any:
    """Parse a document.

    Args:
        text: UTF-8; only read while the call lasts.

    Returns:
        Values of the standard library's kinds. Integers are exact up to 64 bits; beyond that they
        may be floats. Of a key that is given twice the last one counts; see
        ``find_repeated_keys``.

    Raises:
        InvalidArgumentError: not JSON, nested more than about a thousand levels, or a number that
            no double holds; the text begins as Triton's.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return _parse_tolerantly(bytes(text))


def find_repeated_keys(text: Buffer) -> Any:
    """Look for an object that has a key twice, in a document that ``parse_json`` took.

    Returns:
        The document as Triton's parser sees it, in which the first of them counts; None where no
        key is repeated.
    """
    is_repeated = False

    def keep_first(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal is_repeated
        members = dict(pairs)
        if len(members) != len(pairs):
            is_repeated = True
            members = dict(reversed(pairs))
        return members

    document = _parse_tolerantly(bytes(text), keep_first)
    return document if is_repeated else None


def _parse_tolerantly(
    data: bytes, make_object: Callable[[list[tuple[str, Any]]], Any] | None = None
) -> Any:
    if not data:
        _refuse("The document is empty.", 0)
    data = data.removeprefix(_BOM)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        _refuse("Invalid encoding in string.", error.start)
    try:
        parse_float = _parse_finite if _MAY_OVERFLOW.search(data) else None
        value = json.loads(text, parse_float=parse_float, object_pairs_hook=make_object)
        if _SURROGATE_ESCAPE.search(data):
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        _refuse(_reason(error), len(text[: _position(error)].encode()))
    except RecursionError:
        raise too_deep() from None
    except UnicodeEncodeError:
        starts = (match.start(1) for match in _LONE_SURROGATE.finditer(data))
        _refuse("The surrogate pair in string is invalid.", next(s for s in starts if s >= 0))
    except _TooLargeError as error:
        _refuse("Number too big to be stored in double.", data.find(error.literal))
    except ValueError:  # an integer of more digits than Python converts
        match = _LONG_NUMBER.search(data)
        _refuse("Number too big to be stored in double.", match.start() if match else 0)
    return value


class _TooLargeError(ValueError):
    """A number that no double holds."""

    def __init__(self, literal: str) -> None:
        super().__init__(literal)
        self.literal = literal.encode()


def _parse_finite(literal: str) -> float:
    value = float(literal)
    if math.isinf(value):
        raise _TooLargeError(literal)
    return value


def _reason(error: json.JSONDecodeError) -> str:
    if error.msg == "Expecting ',' delimiter":
        return (
            "Missing a comma or ] after an array element."
            if _is_in_array(error.doc, error.pos)
            else "Missing a comma or '}' after an object member."
        )
    return _WORDS.get(error.msg, f"{error.msg}.")


def _position(error: json.JSONDecodeError) -> int:
    """Where rapidjson says that it is."""
    if error.msg == "Unterminated string starting at":
        return len(error.doc)
    if "escape" in error.msg:
        return error.doc.rfind("\\", 0, error.pos + 1)
    return error.pos


def _is_in_array(text: str, end: int) -> bool:
    """Whether the innermost bracket that is open at ``end`` is an array's."""
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', "", text[:end])
    depth = 0
    for character in reversed(bare):
        if character in "]}":
            depth += 1
        elif character in "[{":
            if depth == 0:
                return character == "["
            depth -= 1
    return False


def _refuse(reason: str, position: int) -> Never:
    raise InvalidArgumentError(f"failed to parse the request JSON buffer: {reason} at {position}")


class TooDeepError(InvalidArgumentError):
    """A document is nested too deeply."""


def too_deep() -> TooDeepError:
    """The error for a document that is nested too deeply."""
    return TooDeepError(
        f"JSON nesting depth exceeds maximum allowed limit ({MAX_DEPTH}). Send 'data' as a flat "
        "list in row-major order."
    )


class MemberError(InvalidArgumentError):
    """A member of the document is missing or of the wrong type."""


def missing_member(name: str) -> MemberError:
    """The error for a member that is not there, in Triton's words."""
    return MemberError(
        f"Unable to parse '{name}': attempt to access non-existing object member '{name}'"
    )


def wrong_type(name: str, expected: str, *, verb: str = "parse") -> MemberError:
    """The error for a member of another JSON type, in Triton's words.

    Args:
        name: of the member.
        expected: ``string``, ``boolean``, ``array``, ``object``, ``unsigned-integer``,
            ``signed-integer``; or ``number as double``, whose two halves differ.
        verb: what Triton was about to do; ``set`` for classification.
    """
    kind, _, target = expected.partition(" as ")
    return MemberError(
        f"Unable to {verb} '{name}': attempt to access JSON non-{kind} as {target or kind}"
    )
