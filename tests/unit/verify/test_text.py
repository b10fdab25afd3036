import numpy as np

from naiad.verify.text import text_as_bytes


def test_text_becomes_bytes_in_its_shape() -> None:
    mixed = np.array([["caf\u00e9", b"\xff"], ["", b"x"]], dtype=object)
    assert text_as_bytes(mixed).tolist() == [[b"caf\xc3\xa9", b"\xff"], [b"", b"x"]]
    assert text_as_bytes(np.empty((0, 2), dtype=object)).shape == (0, 2)


def test_numbers_stay_what_they_are() -> None:
    numbers = np.arange(3)
    assert text_as_bytes(numbers) is numbers
