"""Triton's options that Naiad takes so that a command line written for Triton starts it.

They have no effect; whoever gives one is told so once. Their values are read all the same: a typing
error is one here, too. Source: server's command_line_parser.cc.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from naiad.server.option import Group, Option, integer, parse_boolean, parse_text

_COUNT: Final = integer(0)
_PORT: Final = integer(0, 65535)
_PLACEHOLDERS: Final[Mapping[Callable[[str], Any], str]] = MappingProxyType(
    {parse_boolean: "BOOL", parse_text: "VALUE", _COUNT: "N", _PORT: "PORT"}
)


def _parse_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"expected a number, got '{text}'") from None


_OPTIONS: Final[Mapping[Group, Mapping[str, Callable[[str], Any]]]] = MappingProxyType(
    {
        Group.REPOSITORY: {"enable-peer-access": parse_boolean},
        Group.HTTP: {"http-thread-count": _COUNT},
        Group.GRPC: {
            "grpc-infer-thread-count": integer(2, 128),
            "grpc-infer-allocation-pool-size": _COUNT,
            "grpc-max-response-pool-size": _COUNT,
        },
        Group.METRICS: {"allow-gpu-metrics": parse_boolean},
        Group.CLOUD: {
            "allow-sagemaker": parse_boolean,
            "sagemaker-port": _PORT,
            "sagemaker-safe-port-range": parse_text,
            "sagemaker-thread-count": _COUNT,
            "allow-vertex-ai": parse_boolean,
            "vertex-ai-port": _PORT,
            "vertex-ai-thread-count": _COUNT,
            "vertex-ai-default-model": parse_text,
        },
        Group.CACHE: {"repoagent-directory": parse_text, "cache-directory": parse_text},
        Group.MEMORY: {
            "pinned-memory-pool-byte-size": _COUNT,
            "cuda-memory-pool-byte-size": parse_text,
            "cuda-virtual-address-size": parse_text,
            "min-supported-compute-capability": _parse_number,
            "buffer-manager-thread-count": _COUNT,
            "model-load-gpu-limit": parse_text,
        },
    }
)

INERT_OPTIONS: Final = tuple(
    Option(
        name,
        parse,
        _PLACEHOLDERS.get(parse, "N"),
        "",
        group,
        is_repeatable=True,
        is_inert=True,
    )
    for group, options in _OPTIONS.items()
    for name, parse in options.items()
)
