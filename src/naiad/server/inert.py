"""Triton's options that Naiad takes so that a command line written for Triton starts it.

They have no effect; whoever gives one is told so once. Source: server's command_line_parser.cc.
"""

from typing import Final

from naiad.server.option import Group, Option, parse_text

_NAMES: Final = {
    Group.REPOSITORY: ("enable-peer-access",),
    Group.HTTP: ("http-thread-count",),
    Group.GRPC: (
        "grpc-infer-thread-count",
        "grpc-infer-allocation-pool-size",
        "grpc-max-response-pool-size",
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
        "cache-directory",
    ),
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

INERT_OPTIONS: Final = tuple(
    Option(
        name,
        parse_text,
        "VALUE",
        "",
        group,
        is_repeatable=True,
        is_inert=True,
    )
    for group, names in _NAMES.items()
    for name in names
)
