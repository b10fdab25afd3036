"""The values of ``--cache-config``, as Triton spells them.

Source: server's ``docs/user_guide/response_cache.md``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from naiad.errors import InvalidArgumentError

_LOCAL: Final = "local"
_REDIS: Final = "redis"
# The older option, ``--response-cache-byte-size``, has no name in its value.
_PLAIN: Final = ""
_FORM: Final = "expected local,size=BYTES or redis,host=HOST and redis,port=PORT"
_REDIS_KEYS: Final = frozenset({"host", "port", "user", "username", "password"})
_MAX_PORT: Final = 65535


@dataclass(frozen=True, slots=True)
class CacheAssignment:
    """One setting of one cache."""

    cache: str
    key: str
    value: str


@dataclass(frozen=True, slots=True)
class CacheChoice:
    """Which cache there is.

    Attributes:
        local_bytes: of the cache of this process; 0 for none.
        redis: settings of the cache in Redis; empty for none.
    """

    local_bytes: int = 0
    redis: Mapping[str, str] | None = None


def parse_cache_config(text: str) -> CacheAssignment:
    """One ``CACHE,KEY=VALUE``.

    Raises:
        ValueError: the text names another setting, or no size.
        InvalidArgumentError: it names another cache.
    """
    if text.isdecimal():
        return CacheAssignment(_PLAIN, "size", text)
    name, comma, setting = text.partition(",")
    if comma and name not in (_LOCAL, _REDIS):
        # Triton takes the option, and finds out when it looks for the cache.
        raise InvalidArgumentError(
            f"unable to find 'libtritoncache_{name}.so' for cache. This server has the caches "
            "'local' and 'redis'"
        )
    key, _, value = setting.partition("=")
    if name == _REDIS and key:
        return CacheAssignment(name, key, value)
    if name != _LOCAL or key != "size":
        raise ValueError(f"{_FORM}, got '{text}'")
    if not value.isdecimal() or int(value) == 0:
        raise ValueError(f"expected local,size=BYTES with a size of at least 1, got '{text}'")
    return CacheAssignment(name, key, value)


def choose_cache(assignments: Sequence[CacheAssignment]) -> CacheChoice:
    """What several settings ask for together.

    Raises:
        ValueError: they name several caches, or too little of one.
    """
    names = {assignment.cache for assignment in assignments}
    if _PLAIN in names and len(names) > 1:
        raise ValueError(
            "Error: Incompatible flags --response-cache-byte-size and --cache-config both "
            "provided. Please provide one or the other."
        )
    if len(names) > 1:
        raise ValueError("Error: multiple cache configurations are not supported: take one cache")
    settings = {assignment.key: assignment.value for assignment in assignments}
    if names != {_REDIS}:
        return CacheChoice(local_bytes=int(settings.get("size", "0")))
    unknown = sorted(settings.keys() - _REDIS_KEYS)
    if unknown:
        keys = ", ".join(sorted(_REDIS_KEYS))
        raise ValueError(f"Error: Redis has no setting '{unknown[0]}'; it has {keys}")
    if not settings.get("host") or not settings.get("port"):
        raise ValueError(
            "Error: Must at a minimum specify host and port of Redis: --cache-config "
            "redis,host=HOST --cache-config redis,port=PORT"
        )
    if not settings["port"].isdecimal() or not 0 < int(settings["port"]) <= _MAX_PORT:
        raise ValueError(f"Error: the port of Redis must be a number, got '{settings['port']}'")
    return CacheChoice(redis=settings)
