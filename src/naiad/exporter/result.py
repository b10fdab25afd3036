"""What an export has made."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from naiad.exporter.agreement import CaseDifference
from naiad.exporter.optimization import Optimization
from naiad.repository.golden import TensorRecord


@dataclass(frozen=True, slots=True)
class ExportResult:
    """A published model version, and how well it agrees with its source.

    Attributes:
        model_name: in the repository.
        version: number.
        path: the version's folder.
        format: of the model file.
        config_text: content of ``config.pbtxt``.
        max_batch_size: 0 where the model has no batch axis.
        inputs: as the file has them, with the batch axis.
        outputs: as the file has them, with the batch axis.
        files: bytes of each file of the version, by path inside it.
        differences: from eager PyTorch, for each output of each golden case.
        notes: what was decided and the user should know.
        run_ns: median time of the example in the file alone.
        optimization: what fp16 or int8 changed, or None.
    """

    model_name: str
    version: int
    path: Path
    format: str
    config_text: str
    max_batch_size: int
    inputs: tuple[TensorRecord, ...]
    outputs: tuple[TensorRecord, ...]
    files: Mapping[str, int]
    differences: tuple[CaseDifference, ...]
    notes: tuple[str, ...]
    run_ns: int
    optimization: Optimization | None = None

    @property
    def max_difference(self) -> float:
        """The largest absolute difference from eager PyTorch in any output of any case."""
        return max(difference.max_abs for difference in self.differences)

    def __str__(self) -> str:
        """One line; the fields hold the rest."""
        inputs, outputs = (", ".join(r.name for r in rs) for rs in (self.inputs, self.outputs))
        return (
            f"{self.model_name}, version {self.version} ({self.format}) in {self.path}: "
            f"{inputs} -> {outputs}, max_batch_size {self.max_batch_size}, largest difference "
            f"{self.max_difference:.3g}"
        )
