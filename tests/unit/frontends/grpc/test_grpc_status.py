from urllib.parse import unquote_to_bytes

import pytest

from naiad.frontends.grpc.status import encode_message


def test_a_message_is_readable_where_it_can_be() -> None:
    assert encode_message("100% \n\u00e9\x00\x1b") == b"100%25 %0A%C3%A9%00%1B"


@pytest.mark.parametrize("character", ["x", "\u00e9", "\u20ac", "\U0001f600", "\n", "\udcff"])
def test_a_message_of_any_length_fits_into_the_headers_that_clients_take(character: str) -> None:
    encoded = encode_message("m" + character * 100_000)
    assert 6000 < len(encoded) <= 6144
    # No half character at the end.
    text = unquote_to_bytes(encoded).decode("utf-8")
    assert set(text) == {"m", character if character.isprintable() or character == "\n" else "?"}
