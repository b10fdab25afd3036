"""Headers of a request that become parameters, by a pattern that the operator gives.

Source: Triton's extension_parameters.md, "Header Forwarding". The same for HTTP headers and gRPC
metadata.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from naiad.errors import InvalidArgumentError
from naiad.inference.request import InferRequest

_RESERVED: Final = frozenset(
    {
        "sequence_id",
        "sequence_start",
        "sequence_end",
        "priority",
        "timeout",
        "headers",
        "binary_data_output",
    }
)
_RESERVED_PREFIX: Final = "triton_"
_CASE_MATTERS: Final = "(?-i)"


def compile_forward_pattern(text: str) -> re.Pattern[str]:
    """The pattern of ``--http-header-forward-pattern`` and ``--grpc-header-forward-pattern``.

    It is searched anywhere in a header's name, in any case unless it begins with ``(?-i)``. It is
    Python's syntax, which holds nearly all of RE2's, and unlike RE2 some patterns take a time that
    grows exponentially with the name (``(a+)+$``); a name is at most as long as a whole head.

    Raises:
        ValueError: not a regular expression.
    """
    flags = re.RegexFlag(0) if text.startswith(_CASE_MATTERS) else re.IGNORECASE
    try:
        return re.compile(text.removeprefix(_CASE_MATTERS), flags)
    except re.error as error:
        raise ValueError(f"'{text}' is not a regular expression: {error}") from error


def select_headers(
    headers: Iterable[tuple[bytes, bytes]], pattern: re.Pattern[str]
) -> dict[str, str]:
    """The headers whose name the pattern is found in, by name as the client spelled it."""
    selected = {}
    for name, value in headers:
        text = name.decode("latin-1")
        if pattern.search(text):
            selected[text] = _decode(value)
    return selected


def forward_headers(request: InferRequest, headers: Mapping[str, str]) -> None:
    """Make selected headers parameters of a request; they win over those of its body.

    Raises:
        InvalidArgumentError: one of them has a name that means something else.
    """
    for name in headers:
        # In any case, since proxies change the case of names.
        lowered = name.lower()
        if lowered in _RESERVED or lowered.startswith(_RESERVED_PREFIX):
            raise InvalidArgumentError(
                f"Header '{name}' is reserved for Triton usage and cannot be forwarded."
            )
    if request.parameters is None:
        request.parameters = {}
    request.parameters.update(headers)


def _decode(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")  # what HTTP's own grammar says of such bytes
