"""What an export format is; `export.FORMATS` lists them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from naiad.exporter.plan import ExportPlan
from naiad.inference.comparison import Array
from naiad.repository.golden import GoldenCase, TensorRecord

Runner = Callable[[Mapping[str, Array]], Sequence[Array]]
"""Inputs by name -> outputs in the order of the file."""


@dataclass(frozen=True, slots=True)
class Written:
    """What came out of writing a model file.

    Attributes:
        input_names: as the file has them, in its order.
        output_names: as the file has them, in its order.
        notes: what the user should know.
    """

    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Interface:
    """Inputs and outputs of a model file, with the batch axis."""

    inputs: tuple[TensorRecord, ...]
    outputs: tuple[TensorRecord, ...]


class Format(Protocol):
    """One kind of model file."""

    @property
    def name(self) -> str:
        """What the user asks for."""
        ...

    @property
    def file_name(self) -> str:
        """Of the model file in the version folder."""
        ...

    @property
    def backend(self) -> str:
        """Of the model config."""
        ...

    @property
    def platform(self) -> str:
        """Of the model config, where the backend alone leaves Triton in doubt; else ""."""
        ...

    @property
    def is_default_file(self) -> bool:
        """Whether the backend takes a file of that name without being told."""
        ...

    @property
    def libraries(self) -> Mapping[str, str]:
        """Names and versions of the libraries that write the file, for the manifest."""
        ...

    def write(self, plan: ExportPlan, path: Path) -> Written:
        """Write the model file.

        Raises:
            NaiadError: the model cannot become such a file.
        """
        ...

    def open(self, path: Path, datatypes: Mapping[str, str]) -> Runner:
        """Load the file by itself, as a server would, without the source model.

        Args:
            path: of the file.
            datatypes: v2 datatypes of the inputs, in the file's order.

        Raises:
            NaiadError: the file cannot be loaded.
        """
        ...

    def describe(self, path: Path, plan: ExportPlan, cases: Sequence[GoldenCase]) -> Interface:
        """Inputs and outputs as the file has them; as the cases show where it does not say.

        Args:
            path: of the file.
            plan: the export.
            cases: with the names that the file has.
        """
        ...
