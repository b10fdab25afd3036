"""Text that others wrote, as a terminal, a file or an XML parser takes it.

Names of files and errors of models may hold any character: some clear a terminal or colour what
follows, XML has no way to write most of them, and lone surrogates, which stand for the bytes of a
file name that is no UTF-8, can't be encoded at all.
"""

import re
from typing import Final

_FOR_TERMINAL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_FOR_XML: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_INSTEAD: Final = "\N{REPLACEMENT CHARACTER}"


def terminal_text(text: str) -> str:
    """The text with what a terminal would obey written as escapes; lines and tabs stay."""
    return _FOR_TERMINAL.sub(lambda match: repr(match[0])[1:-1], text)


def file_text(text: str) -> str:
    """The text with a replacement for what UTF-8 can't encode."""
    return _SURROGATE.sub(_INSTEAD, text)


def xml_text(text: str) -> str:
    """The text with a replacement for each character that an XML document can't hold."""
    return _FOR_XML.sub(_INSTEAD, text)
