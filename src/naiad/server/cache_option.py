"""The value of ``--cache-config``, as Triton spells it.

Source: server's ``docs/user_guide/response_cache.md``.
"""

from typing import Final

_FORM: Final = "expected local,size=BYTES"


def parse_cache_config(text: str) -> int:
    """Bytes of the local cache; 0 for none.

    A number alone is the size, as ``--response-cache-byte-size`` had it.

    Raises:
        ValueError: the text names another cache, another setting, or no size.
    """
    if text.isdecimal():
        return int(text)
    name, comma, setting = text.partition(",")
    if comma and name != "local":
        raise ValueError(f"unable to find cache '{name}'; this server has 'local'")
    key, _, value = setting.partition("=")
    if name != "local" or key != "size":
        raise ValueError(f"{_FORM}, got '{text}'")
    if not value.isdecimal() or int(value) == 0:
        raise ValueError(f"{_FORM} with a size of at least 1, got '{text}'")
    return int(value)
