"""From a model config to OpenVINO's properties.

Source: openvino_backend's README, "Parameters". Names are Triton's; values are OpenVINO's. Its
COMPILATION_NUM_THREADS is ignored: the CPU engine of OpenVINO 2026 has no such property.
"""

from pathlib import Path
from typing import Final

from naiad.backends.base import ModelSource
from naiad.backends.parameters import read_integer, read_text
from naiad.errors import InvalidArgumentError

# How an instance is cut up, and how precise it is. The model's own answers are the default: on
# CPUs with BF16 units OpenVINO would round to BF16 unasked.
_PRECISION: Final = "INFERENCE_PRECISION_HINT"
_FULL_PRECISION: Final = "f32"
_SWITCHES: Final = {"YES": True, "NO": False}


def make_properties(source: ModelSource, *, is_kept: bool = False) -> dict[str, str | int]:
    """What the CPU engine compiles the model with.

    Args:
        source: the model.
        is_kept: to the cores of a host policy.

    Raises:
        InvalidArgumentError: a parameter has a value that it can't have.
    """
    config = source.config
    threads = read_integer(config, "INFERENCE_NUM_THREADS") or source.thread_count
    is_rounded = read_switch(source, "HINT_BF16")
    properties: dict[str, str | int] = {
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": read_text(config, "PERFORMANCE_HINT") or "LATENCY",
        _PRECISION: "bf16" if is_rounded else _FULL_PRECISION,
    }
    if is_kept:
        # Else it chooses cores itself, and gives the thread that asks it all of them.
        properties["ENABLE_CPU_PINNING"] = False
    streams = read_text(config, "NUM_STREAMS")
    if streams is not None:
        properties["NUM_STREAMS"] = streams
    return properties


def read_switch(source: ModelSource, key: str) -> bool:
    """A parameter that is YES or NO; off where the config does not give it.

    Raises:
        InvalidArgumentError: it is something else.
    """
    text = (read_text(source.config, key) or "NO").upper()
    if text not in _SWITCHES:
        raise InvalidArgumentError(
            f"parameter '{key}' of model '{source.name}' must be YES or NO, got '{text}'"
        )
    return _SWITCHES[text]


def find_extension(source: ModelSource) -> Path | None:
    """The library of custom operators that ``CPU_EXTENSION_PATH`` names, inside the model folder.

    Raises:
        InvalidArgumentError: there is none, or it lies elsewhere; it is code that runs in the
            server, so a config can't name one that came another way.
    """
    name = read_text(source.config, "CPU_EXTENSION_PATH")
    if name is None:
        return None
    root = source.version_directory.parent.resolve()
    path = (root / name).resolve()
    if not path.is_relative_to(root) or not path.is_file():
        raise InvalidArgumentError(
            f"model '{source.name}': there is no CPU_EXTENSION_PATH '{name}' in the model folder; "
            "copy the library into it"
        )
    return path
