"""BYTES elements as the text that onnxruntime's Python API takes for strings, and back.

A string of ONNX Runtime is bytes, which need not be UTF-8, but its Python API passes text only.
Bytes that are not UTF-8 go as the last characters of Unicode, which no text uses, and come back as
the bytes that they were: what a graph passes on it passes on whole. One request's odd element must
not fail the others of its batch, so nothing is refused here.
"""

import re
from typing import Final

_FIRST: Final = 0x10FF80  # to U+10FFFF: one for each byte from 0x80
_BYTES: Final = 128
_SURROGATES: Final = 0xDC80  # where Python's "surrogateescape" puts those bytes
_STAND_INS: Final = {_SURROGATES + i: _FIRST + i for i in range(_BYTES)}
_ORIGINALS: Final = {_FIRST + i: _SURROGATES + i for i in range(_BYTES)}
_STAND_IN: Final = re.compile("[\U0010ff80-\U0010ffff]")
_LEAD: Final = "\U0010ff80".encode()[:2]  # how each of them begins in UTF-8


def to_text(element: bytes) -> str:
    """Text that ``to_bytes`` turns into ``element`` again; the text it is, if it is UTF-8."""
    if _LEAD not in element:
        try:
            return element.decode()
        except UnicodeDecodeError:
            pass
    text = element.decode("utf-8", "surrogateescape")
    # A stand-in that a client sends as such counts as four bytes that are not UTF-8.
    text = _STAND_IN.sub(lambda found: found[0].encode().decode("ascii", "surrogateescape"), text)
    return text.translate(_STAND_INS)


def to_bytes(text: str) -> bytes:
    """The element that ``text`` stands for."""
    element = text.encode()
    if _LEAD not in element:
        return element
    return text.translate(_ORIGINALS).encode("utf-8", "surrogateescape")
