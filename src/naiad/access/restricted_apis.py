"""Restricted APIs: parts of the protocol that need a secret header.

Sources: Triton's restricted_features.h and command_line_parser.cc. HTTP and gRPC restrict the same
parts by the same rules; their texts differ in one word, and gRPC's keys have a prefix.
"""

import hmac
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

# RFC 9110 5.6.2, what a header's name is made of.
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class Api(StrEnum):
    """What can be restricted; every route and method belongs to one."""

    HEALTH = "health"
    METADATA = "metadata"
    INFERENCE = "inference"
    SHARED_MEMORY = "shared-memory"
    MODEL_CONFIG = "model-config"
    MODEL_REPOSITORY = "model-repository"
    STATISTICS = "statistics"
    TRACE = "trace"
    LOGGING = "logging"


@dataclass(frozen=True, slots=True)
class RestrictedGroup:
    """Parts that need the same header.

    Attributes:
        apis: as they were given; one may be there twice.
        key: of the header.
        value: of the header; the secret, so not shown.
    """

    apis: tuple[Api, ...]
    key: str
    value: str = field(repr=False)


def parse_restricted_group(text: str, option: str, kind: str) -> RestrictedGroup:
    """Read ``<api>,<api>:<key>=<value>``.

    Args:
        text: of one option.
        option: its name without the dashes, for the error.
        kind: what the option calls an API, for the error: ``api`` or ``protocol``.

    Raises:
        ValueError: it has another form, or names something that can not be restricted.
    """
    names, _, header = text.partition(":")
    key, _, value = header.partition("=")
    if not (names and key and value):
        # Without the text that was given: it may hold the secret.
        raise ValueError(f"--{option} option format is '<{kind}>,<{kind}>:<key>=<value>'")
    apis = []
    for name in names.split(","):
        if name not in set(Api):
            raise ValueError(f"unknown restricted {kind} '{name}'; known are: {', '.join(Api)}")
        apis.append(Api(name))
    if _HEADER_NAME.fullmatch(key) is None:
        raise ValueError(f"--{option}: '{key}' can not be the name of a header")
    return RestrictedGroup(tuple(apis), key, value)


class RestrictedApis:
    """Which parts are restricted, and by which header; the same for all requests.

    Args:
        groups: what the options say.
        kind: what the option calls an API, for the error.

    Attributes:
        headers: key and value of the header that each restricted part needs.

    Raises:
        ValueError: a part is in two groups, or twice in one.
    """

    __slots__ = ("headers",)

    def __init__(self, groups: Iterable[RestrictedGroup] = (), kind: str = "api") -> None:
        headers: dict[Api, tuple[str, str]] = {}
        for group in groups:
            for api in group.apis:
                if api in headers:
                    raise ValueError(
                        f"restricted {kind} '{api}' can not be specified in multiple config groups"
                    )
                headers[api] = (group.key, group.value)
        self.headers: Mapping[Api, tuple[str, str]] = MappingProxyType(headers)

    def missing_key(self, api: Api, headers: Mapping[bytes, bytes]) -> str | None:
        """The key that a request should have brought, in the operator's spelling.

        Args:
            api: what it asks for.
            headers: its own, with names in lower case.

        Returns:
            None where the request may go on.
        """
        needed = self.headers.get(api)
        if needed is None:
            return None
        key, value = needed
        return None if is_secret(headers.get(key.lower().encode()), value) else key


def is_secret(given: bytes | None, secret: str) -> bool:
    """Whether a client gave the secret, in a time that does not tell how much of it was right."""
    return given is not None and hmac.compare_digest(given, secret.encode())
