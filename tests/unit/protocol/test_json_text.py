import math

import pytest

from naiad.errors import InvalidArgumentError
from naiad.protocol.json_text import parse_json

HEAD = "failed to parse the request JSON buffer: "


def test_plain_json_keeps_64_bit_integers_exact() -> None:
    assert parse_json(b"[18446744073709551615,-9223372036854775808]") == [2**64 - 1, -(2**63)]


def test_nan_and_infinity_literals_are_read() -> None:
    nan, infinity, minus = parse_json(b"[NaN,Infinity,-Infinity]")
    assert math.isnan(nan)
    assert (infinity, minus) == (math.inf, -math.inf)


def test_a_byte_order_mark_is_skipped() -> None:
    assert parse_json(b'\xef\xbb\xbf{"a":1}') == {"a": 1}


def test_any_buffer_is_read() -> None:
    assert parse_json(memoryview(b'x{"a":NaN}x')[1:-1]).keys() == {"a"}


def test_a_surrogate_pair_beside_nan_is_text() -> None:
    assert parse_json(b'[NaN,"\\ud83d\\ude00"]')[1] == "\U0001f600"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "The document is empty. at 0"),
        (b"hello", "Invalid value. at 0"),
        (b"{} x", "The document root must not be followed by other values. at 3"),
        (b'{"a":[1', "Missing a comma or ] after an array element. at 7"),
        (b'{"a":{"b":"]["', "Missing a comma or '}' after an object member. at 14"),
        (b"{'a':1}", "Missing a name for object member. at 1"),
        (b'{"a" 1}', "Missing a colon after a name of object member. at 5"),
        (b'{"a":"b', "Missing a closing quotation mark in string. at 7"),
        (b'["\\q"]', "Invalid escape character in string. at 2"),
        (b'["\\u12"]', "Incorrect hex digit after \\u escape in string. at 2"),
        (b'["\\u00z0"]', "Incorrect hex digit after \\u escape in string. at 2"),
        (b'["1e400", -1e400]', "Number too big to be stored in double. at 10"),
        (b'["a", 1.' + b"0" * 400 + b"e999]", "Number too big to be stored in double. at 6"),
        (b'["a", -' + b"9" * 4400 + b", NaN]", "Number too big to be stored in double. at 6"),
        (
            b'["\\\\uD83D", "\\uD83D\\uDE00", "\\uDE00"]',
            "The surrogate pair in string is invalid. at 29",
        ),
        (b'["\n"]', "Invalid encoding in string. at 2"),
        (b'["\xff"]', "Invalid encoding in string. at 2"),
        ('["ü" 1]'.encode(), "Missing a comma or ] after an array element. at 6"),
        (b"[1,]", "Invalid value."),
    ],
)
def test_what_is_not_json_is_refused_in_rapidjson_s_words(text: bytes, reason: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        parse_json(text)
    assert caught.value.message.startswith(HEAD + reason)


@pytest.mark.parametrize("text", [b"[1e400]", b"[-1E+999]", b"[NaN," + b"9" * 400 + b".0]"])
def test_a_number_that_no_double_holds_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidArgumentError, match="Number too big to be stored in double"):
        parse_json(text)


def test_an_integer_of_many_thousand_digits_is_refused_at_no_cost() -> None:
    with pytest.raises(InvalidArgumentError, match="Number too big"):
        parse_json(b"[NaN," + b"9" * 100_000 + b"]")


@pytest.mark.parametrize("literal", [b'"\\ud83d"', b'["\\uDE00x"]', b'{"\\ud83dx":NaN}'])
def test_half_a_surrogate_pair_is_refused(literal: bytes) -> None:
    with pytest.raises(InvalidArgumentError, match="The surrogate pair in string is invalid"):
        parse_json(literal)


@pytest.mark.parametrize("bracket", [b"[", b'{"a":'])
def test_deep_nesting_is_refused_and_does_not_end_the_process(bracket: bytes) -> None:
    with pytest.raises(InvalidArgumentError, match="JSON nesting depth exceeds"):
        parse_json(bracket * 300_000)
