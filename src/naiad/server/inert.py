"""Triton's options that Naiad takes so that a command line written for Triton starts it.

They have no effect; whoever gives one is told so once. Source: server's command_line_parser.cc.
"""

from collections.abc import Callable
from typing import Final

from naiad.access.restricted_apis import parse_restricted_group
from naiad.server.option import Group, Option, parse_text

_NAMES: Final = {
    Group.REPOSITORY: (
        "repository-poll-secs",
        "model-load-thread-count",
        "model-load-retry-count",
        "model-namespacing",
        "enable-peer-access",
    ),
    Group.HTTP: ("http-thread-count",),
    Group.GRPC: (
        "allow-grpc",
        "grpc-address",
        "grpc-port",
        "reuse-grpc-port",
        "grpc-header-forward-pattern",
        "grpc-infer-thread-count",
        "grpc-infer-allocation-pool-size",
        "grpc-max-response-pool-size",
        "grpc-use-ssl",
        "grpc-use-ssl-mutual",
        "grpc-server-cert",
        "grpc-server-key",
        "grpc-root-cert",
        "grpc-infer-response-compression-level",
        "grpc-keepalive-time",
        "grpc-keepalive-timeout",
        "grpc-keepalive-permit-without-calls",
        "grpc-http2-max-pings-without-data",
        "grpc-http2-min-recv-ping-interval-without-data",
        "grpc-http2-max-ping-strikes",
        "grpc-max-connection-age",
        "grpc-max-connection-age-grace",
        "grpc-restricted-protocol",
    ),
    Group.METRICS: ("allow-gpu-metrics", "metrics-config"),
    Group.CLOUD: (
        "allow-sagemaker",
        "sagemaker-port",
        "sagemaker-safe-port-range",
        "sagemaker-thread-count",
        "allow-vertex-ai",
        "vertex-ai-port",
        "vertex-ai-thread-count",
        "vertex-ai-default-model",
    ),
    Group.BACKEND: ("backend-directory",),
    Group.CACHE: (
        "repoagent-directory",
        "cache-config",
        "cache-directory",
        "response-cache-byte-size",
    ),
    Group.RATE_LIMITER: ("rate-limit", "rate-limit-resource"),
    Group.MEMORY: (
        "pinned-memory-pool-byte-size",
        "cuda-memory-pool-byte-size",
        "cuda-virtual-address-size",
        "min-supported-compute-capability",
        "buffer-manager-thread-count",
        "host-policy",
        "model-load-gpu-limit",
    ),
}

# These guard what a client may do. Taking one without doing it would leave open what its user
# believes closed, so anything but "false" is an error.
_REFUSED: Final = {
    "grpc-use-ssl": "this version serves no gRPC; end TLS in a proxy in front of the HTTP port",
    "grpc-use-ssl-mutual": "this version serves no gRPC; end TLS in a proxy in front of it",
}


def _check_restriction(text: str) -> str:
    """Wrong groups are told at the start already; where no gRPC is served, nothing is open."""
    parse_restricted_group(text, "grpc-restricted-protocol", "protocol")
    return text


def _parser(name: str) -> Callable[[str], str]:
    if name == "grpc-restricted-protocol":
        return _check_restriction
    return _refuse(_REFUSED[name]) if name in _REFUSED else parse_text


def _refuse(reason: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in ("false", "off", "0"):
            raise ValueError(reason)
        return text

    return parse


INERT_OPTIONS: Final = tuple(
    Option(
        name,
        _parser(name),
        "VALUE",
        "",
        group,
        is_repeatable=True,
        is_inert=True,
    )
    for group, names in _NAMES.items()
    for name in names
)
