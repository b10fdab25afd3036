"""What ``--backend-config`` says to this backend."""

from typing import Final

from naiad.backends.base import ModelSource
from naiad.errors import InvalidArgumentError

_FLAGS: Final = {"1": True, "true": True, "0": False, "false": False}


def read_number(source: ModelSource, key: str, *, default: int) -> int:
    """A setting that is a number of at least 0.

    Raises:
        InvalidArgumentError: it is something else.
    """
    text = source.settings.get(key)
    if text is None:
        return default
    if not text.isdecimal():
        raise InvalidArgumentError(
            f"--backend-config=onnxruntime,{key} must be a number of at least 0, got '{text}'"
        )
    return int(text)


def read_flag(source: ModelSource, key: str) -> bool:
    """A setting that is on or off; off where it is not given.

    Raises:
        InvalidArgumentError: it is something else.
    """
    text = source.settings.get(key, "0")
    if text.lower() not in _FLAGS:
        raise InvalidArgumentError(
            f"--backend-config=onnxruntime,{key} must be 0 or 1, got '{text}'"
        )
    return _FLAGS[text.lower()]
