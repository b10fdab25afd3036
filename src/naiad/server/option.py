"""What a server option is: its flag, its environment name, and how its text becomes a value."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, TypeVar

ENVIRONMENT_PREFIX: Final = "NAIAD_"
# Several values of one option in one environment variable; a path or a value may hold a comma.
ENVIRONMENT_SEPARATOR: Final = ";"

_BOOLEANS: Final[Mapping[str, bool]] = MappingProxyType(
    {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}
)


class Group(StrEnum):
    """Where the help lists an option; the names are those of Triton's documentation."""

    GLOBAL = "Global"
    REPOSITORY = "Model repository"
    HTTP = "HTTP"
    GRPC = "gRPC"
    METRICS = "Metrics"
    LOGGING = "Logging"
    BACKEND = "Backend"
    MEMORY = "Memory and devices"
    TRACING = "Tracing"
    CACHE = "Cache and agents"
    RATE_LIMITER = "Rate limiter"
    CLOUD = "SageMaker and Vertex AI"


@dataclass(frozen=True, slots=True)
class Option:
    """One option of the server.

    Attributes:
        name: without the dashes.
        parse: from text to its value; raises ValueError with what was expected.
        placeholder: what the help shows for the value.
        help: one sentence.
        group: in the help.
        is_repeatable: given several times it collects its values.
        aliases: other names.
        deprecated_aliases: names that still work and earn a warning.
        is_inert: taken, because Triton takes it, and without effect here.
    """

    name: str
    parse: Callable[[str], Any]
    placeholder: str
    help: str
    group: Group
    is_repeatable: bool = False
    aliases: tuple[str, ...] = ()
    deprecated_aliases: tuple[str, ...] = ()
    is_inert: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that a command line may use."""
        return (self.name, *self.aliases, *self.deprecated_aliases)

    @property
    def field_name(self) -> str:
        """The attribute of the settings that holds it."""
        return self.name.replace("-", "_")

    @property
    def environment_name(self) -> str:
        """The variable that gives its value where the command line doesn't."""
        return ENVIRONMENT_PREFIX + self.field_name.upper()


ChoiceT = TypeVar("ChoiceT", bound=StrEnum)


def parse_text(text: str) -> str:
    """Any text."""
    return text


def parse_name(text: str) -> str:
    """Any text but none."""
    if not text:
        raise ValueError("expected a name, got nothing")
    return text


def parse_boolean(text: str) -> bool:
    """True or false, on or off, 1 or 0, in any case."""
    value = _BOOLEANS.get(text.lower())
    if value is None:
        raise ValueError(f"expected true or false, got '{text}'")
    return value


def parse_level(text: str) -> int:
    """A number of at least 0, or a boolean for 1 or 0, as ``--log-verbose`` takes it."""
    value = _BOOLEANS.get(text.lower())
    return integer(0)(text) if value is None else int(value)


def integer(minimum: int, maximum: int | None = None) -> Callable[[str], int]:
    """A parser of whole numbers in a range, both ends included."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError(f"expected a whole number, got '{text}'") from None
        if value < minimum or (maximum is not None and value > maximum):
            limit = f"of at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"
            raise ValueError(f"expected a number {limit}, got {value}")
        return value

    return parse


def choice(choices: type[ChoiceT]) -> Callable[[str], ChoiceT]:
    """A parser of one word out of some, in any case, as Triton takes them."""
    known = {word.lower(): word for word in choices}

    def parse(text: str) -> ChoiceT:
        found = known.get(text.lower())
        if found is None:
            raise ValueError(f"expected one of {', '.join(choices)}, got '{text}'")
        return found

    return parse
