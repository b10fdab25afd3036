"""The ``parameters`` of a model config: strings to those who wrote them, values to a backend."""

from typing import Final

from naiad.errors import InvalidArgumentError
from naiad.model_config.schema import ModelConfig

# Whether a model runs in the server's process, where its backend leaves the choice.
IN_PROCESS: Final = "IN_PROCESS"

_TRUE = frozenset({"true", "1", "on", "yes"})
_FALSE = frozenset({"false", "0", "off", "no"})


def read_text(config: ModelConfig, key: str) -> str | None:
    """The value of parameter ``key``, or None where the config has none of that name."""
    if key not in config.parameters:
        return None
    return config.parameters[key].string_value


def read_integer(config: ModelConfig, key: str) -> int | None:
    """The value of parameter ``key`` as a number that is not negative.

    Raises:
        InvalidArgumentError: it is something else.
    """
    text = read_text(config, key)
    if text is None:
        return None
    if not text.strip().isdecimal():
        raise InvalidArgumentError(
            f"parameter '{key}' of model '{config.name}' must be a number of at least 0, "
            f"got '{text}'"
        )
    return int(text)


def read_boolean(config: ModelConfig, key: str) -> bool | None:
    """The value of parameter ``key`` as true or false, in any case, or 1 or 0.

    Raises:
        InvalidArgumentError: it is something else.
    """
    text = read_text(config, key)
    if text is None:
        return None
    value = parse_boolean(text)
    if value is None:
        raise InvalidArgumentError(
            f"parameter '{key}' of model '{config.name}' must be true or false, got '{text}'"
        )
    return value


def parse_boolean(text: str) -> bool | None:
    """True or false, on or off, yes or no, 1 or 0, in any case; None for anything else."""
    word = text.strip().lower()
    if word in _TRUE:
        return True
    return False if word in _FALSE else None
