"""Where a model lies, in a person's words; nothing is loaded yet, so torch is not needed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

SAFETENSORS_SUFFIX: Final = ".safetensors"
ARCHIVE_SUFFIX: Final = ".mar"
_FILE_SUFFIXES: Final = frozenset(
    {".pt", ".pth", ".pt2", ".bin", ".ckpt", ".onnx", SAFETENSORS_SUFFIX, ARCHIVE_SUFFIX}
)


def _empty() -> Mapping[str, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceDescription:
    """What a person says about a model.

    Attributes:
        source: ``MODULE:CALLABLE``, the path of a file (TorchScript, a state dict, safetensors, a
            ``.mar`` of TorchServe) or of a model directory of transformers.
        model_class: ``MODULE:CLASS`` (or a function) that makes the module of a state dict.
        examples: ``MODULE:CALLABLE`` that returns example inputs.
        inputs: example inputs as ``NAME:DATATYPE:SHAPE`` instead.
        ranges: values of those inputs.
    """

    source: str
    model_class: str | None = None
    examples: str | None = None
    inputs: Sequence[str] = ()
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=_empty)


def is_path(source: str) -> bool:
    """Whether a source is a file or folder, there or not, and no ``MODULE:CALLABLE``."""
    path = Path(source)
    return path.suffix in _FILE_SUFFIXES or path.is_dir() or (path.is_file() and ":" not in source)
