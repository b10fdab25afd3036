"""One export as it is asked for on a command line or in a recipe; nothing is loaded yet."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from naiad.exporter.options import ExportOptions
from naiad.source_model.description import SourceDescription

FORMAT_NAMES: Final = ("onnx", "torchscript", "pt2", "aoti")
ALL_FORMATS: Final = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    """One model to export.

    Attributes:
        name: of the model in the repository; with several formats, ``NAME_FORMAT`` for each.
        repository: folder of the model repository.
        source: where the model lies.
        formats: to write, or ``all`` alone: each one that can carry the model.
        options: everything else.
    """

    name: str
    repository: Path
    source: SourceDescription
    formats: Sequence[str] = ("onnx",)
    options: ExportOptions
