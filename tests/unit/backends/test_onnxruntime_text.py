import pytest

from naiad.backends.onnxruntime.text import to_bytes, to_text


@pytest.mark.parametrize("text", ["", "a\0b", "\N{SNOWMAN}", "\U0010ff7f"])
def test_utf8_is_the_text_that_it_is(text: str) -> None:
    assert to_text(text.encode()) == text
    assert to_bytes(text) == text.encode()


@pytest.mark.parametrize(
    "element",
    [
        b"\xff\xfe",
        b"a\x80b",
        "\N{SNOWMAN}".encode() + b"\xe2\x98",
        b"\xed\xa0\x80",
        "\U0010ff80".encode(),
        "a\U0010ffff".encode() + b"\xff",
        b"\xf4\x8f",
    ],
)
def test_other_bytes_come_back_as_they_were(element: bytes) -> None:
    text = to_text(element)
    assert text.encode()  # no surrogates, which onnxruntime would not take
    assert to_bytes(text) == element
