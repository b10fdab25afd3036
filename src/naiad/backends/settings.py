"""What ``--backend-config`` says to a backend: strings to those who wrote them, values to it."""

from naiad.backends.base import ModelSource
from naiad.backends.parameters import parse_boolean
from naiad.errors import InvalidArgumentError


def read_integer_setting(source: ModelSource, key: str, *, default: int, minimum: int = 0) -> int:
    """A setting of the model's backend that is a number.

    Args:
        source: the model.
        key: of the setting.
        default: where the setting is not given.
        minimum: what it must be at least.

    Raises:
        InvalidArgumentError: it is something else.
    """
    text = source.settings.get(key)
    if text is None:
        return default
    if not text.isdecimal() or int(text) < minimum:
        raise _wrong(source, key, f"a number of at least {minimum}", text)
    return int(text)


def read_boolean_setting(source: ModelSource, key: str, *, default: bool) -> bool:
    """A setting of the model's backend that is true or false, in any case, or 1 or 0.

    Args:
        source: the model.
        key: of the setting.
        default: where the setting is not given.

    Raises:
        InvalidArgumentError: it is something else.
    """
    text = source.settings.get(key)
    if text is None:
        return default
    value = parse_boolean(text)
    if value is None:
        raise _wrong(source, key, "true or false", text)
    return value


def _wrong(source: ModelSource, key: str, expected: str, text: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"--backend-config={source.config.backend},{key} must be {expected}, got '{text}'"
    )
