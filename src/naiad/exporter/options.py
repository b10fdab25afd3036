"""What a caller may decide about an export, and what is decided otherwise."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

from naiad.errors import InvalidArgumentError
from naiad.inference.comparison import Tolerance, default_tolerance

DEFAULT_MAX_BATCH_SIZE: Final = 8
LOWEST_OPSET: Final = 7


def _empty() -> Mapping[str, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """Settings of one export; the defaults suit most models.

    Attributes:
        dynamic: for each input the axes whose size varies and their names, such as
            ``{"input_ids": {0: "batch", 1: "tokens"}}``. Axes of one name have one size. Axis 0
            of an input that is not described this way is taken for the batch where the model
            allows it.
        max_batch_size: of the config. None: 8 where axis 0 of every input and output is a batch,
            else 0. 0: no batch axis.
        version: to write; None for one more than the highest that the model has.
        overwrite: replace the version if there is one.
        labels: of a classifier, in the order of its classes, or the file that holds one a line.
        input_names: other names than forward's, in forward's order.
        output_names: other names than the keys and fields of the model's result, in its order.
        opset: of ONNX; None for the one that torch prefers, or the target runs.
        target: ``triton:<release>``, such as ``triton:24.10``: the release that is to serve the
            version. It decides the opset and IR version of ONNX, and what cannot run there is
            refused.
        optimize: ``fp16`` or ``int8`` makes an ONNX file smaller, at the price of some precision
            that is measured, and that the golden tolerances then allow; "" leaves it exact.
        translations: ONNX forms of operators that torch.onnx does not know: the operator, such as
            ``torch.ops.mine.double.default``, and an onnxscript function.
        tolerances: by v2 datatype, where the defaults do not suit.
        ranges: for an input, the lowest and highest value that golden cases may hold; the
            example's own range where nothing is said.
        golden_batch_sizes: those up to ``max_batch_size`` are tried and kept.
        seed: of the golden inputs.
        dynamic_batching: let the server join requests where the model batches.
        instance_count: of the config's instance group; None leaves the choice to the server.
        torchscript: how TorchScript is made; ``auto`` scripts what can be scripted.
        source: ``MODULE:CALLABLE`` or the file that the module is from, for the record.
        source_notes: what was decided when it was loaded, likewise.
        command: that asked for the export, likewise.
    """

    dynamic: Mapping[str, Mapping[int, str]] = field(default_factory=_empty)
    max_batch_size: int | None = None
    version: int | None = None
    overwrite: bool = False
    labels: Sequence[str] | Path = ()
    input_names: Sequence[str] = ()
    output_names: Sequence[str] = ()
    opset: int | None = None
    target: str = ""
    optimize: Literal["", "fp16", "int8"] = ""
    translations: Mapping[Any, Any] = field(default_factory=_empty)
    tolerances: Mapping[str, Tolerance] = field(default_factory=_empty)
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=_empty)
    golden_batch_sizes: Sequence[int] = (1, 2, 3, 8)
    seed: int = 0
    dynamic_batching: bool = True
    instance_count: int | None = None
    torchscript: Literal["auto", "script", "trace"] = "auto"
    source: str = ""
    source_notes: Sequence[str] = ()
    command: str = ""

    def __post_init__(self) -> None:
        _require(self.max_batch_size, "max_batch_size", lowest=0)
        _require(self.version, "version", lowest=1)
        _require(self.instance_count, "instance_count", lowest=1)
        if self.opset is not None and self.opset < LOWEST_OPSET:
            raise InvalidArgumentError(
                f"opset is {self.opset}; torch writes ONNX from opset {LOWEST_OPSET} on, and 18 "
                "and higher reliably"
            )
        for size in self.golden_batch_sizes:
            _require(size, "a golden batch size", lowest=1)
        for name, (lowest, highest) in self.ranges.items():
            if lowest > highest:
                raise InvalidArgumentError(
                    f"the range of input '{name}' ends at {highest}, below its start {lowest}"
                )
        if self.optimize not in {"", "fp16", "int8"}:
            raise InvalidArgumentError(f"optimize is '{self.optimize}'; it must be fp16 or int8")
        if self.torchscript not in {"auto", "script", "trace"}:
            raise InvalidArgumentError(
                f"torchscript is '{self.torchscript}'; it must be auto, script or trace"
            )

    def tolerance(self, datatype: str) -> Tolerance:
        """The tolerance for outputs of a v2 datatype; integers must be exact."""
        chosen = self.tolerances.get(datatype)
        return default_tolerance(datatype) if chosen is None else chosen


def _require(value: int | None, name: str, *, lowest: int) -> None:
    if value is not None and value < lowest:
        raise InvalidArgumentError(f"{name} is {value}; it must be {lowest} or more")
