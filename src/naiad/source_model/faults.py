"""The user's module with one export fault put into it on purpose, to see what it would answer.

``verify`` compares such answers with those of a file that differs: where they agree, the fault is
shown and not guessed.
"""

import copy
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from naiad.source_model.model import FlatModel

Answering = Callable[..., tuple[torch.Tensor, ...]]
"""From a flat model's inputs to its outputs, by position."""


class SourceFault(StrEnum):
    """What can be wrong with the module itself when it is exported."""

    BATCH_NORM = "batch norm in train mode"
    DROPOUT = "dropout in train mode"
    TRACED = "traced with the example"
    HALF_WEIGHTS = "weights rounded to FP16"
    HALF_STATE = "weights and buffers rounded to FP16"
    HALF = "computed in FP16"
    BFLOAT16 = "computed in BF16"
    INT8_WEIGHTS = "weights quantised to INT8"
    INT8_CHANNEL_WEIGHTS = "weights quantised to INT8, each output channel by itself"
    INT8_TABLES = "weights and tables of embeddings quantised to INT8"
    UINT8_WEIGHTS = "weights quantised to UINT8 with a zero point"
    INT8 = "weights and activations quantised to INT8"
    UINT8 = "weights with a zero point and activations quantised to UINT8"
    INT8_CHANNEL = "weights, each output channel by itself, and activations quantised to INT8"
    OTHER_WEIGHTS = "other weights"


_FAR: Final = 0.02
_HAS_BATCH_STATISTICS: Final = (
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.SyncBatchNorm,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
)
_QUANTISED: Final = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Embedding)
_PER_CHANNEL: Final = frozenset({SourceFault.INT8_CHANNEL, SourceFault.INT8_CHANNEL_WEIGHTS})
_WITH_ACTIVATIONS: Final = frozenset(
    {SourceFault.INT8, SourceFault.INT8_CHANNEL, SourceFault.UINT8}
)
_WITH_ZERO_POINT: Final = frozenset({SourceFault.UINT8, SourceFault.UINT8_WEIGHTS})
_WITH_TABLES: Final = _WITH_ZERO_POINT | {SourceFault.INT8_TABLES}
_INT8: Final = _PER_CHANNEL | _WITH_ACTIVATIONS | _WITH_TABLES | {SourceFault.INT8_WEIGHTS}


Weights = Mapping[str, torch.Tensor]
"""Name of a parameter or buffer of the module -> what a file has in its place."""


def other_weights(flat: FlatModel, found: Mapping[str, npt.NDArray[Any]]) -> Weights:
    """Those weights of a file that the module has too, and with other values.

    Args:
        flat: the module.
        found: the file's, by its own names: those of the module, or with a path before them.
    """
    state = flat.state_dict()
    differing = {}
    for name, own in state.items():
        same = [
            array
            for other, array in found.items()
            if f".{name}".endswith(f".{other}") or f".{other}".endswith(f".{name}")
        ]
        # A counter of batches changes no answer.
        if len(same) != 1 or same[0].shape != own.shape or not own.is_floating_point():
            continue
        tensor = torch.from_numpy(np.array(same[0])).to(own.dtype)
        if not torch.equal(tensor, own):
            differing[name] = tensor
    return differing


def are_far(flat: FlatModel, weights: Weights) -> bool:
    """Whether weights are too far from the module's own to be a rounding of them.

    INT8 moves a weight by at most 0.4 % of the largest. The running statistics of a batch norm are
    moved by every run in train mode, and show nothing by themselves.
    """
    return any(
        name in weights
        and bool((weights[name] - own).abs().max() > _FAR * own.detach().abs().max())
        for name, own in flat.named_parameters()
    )


def possible_faults(flat: FlatModel) -> list[SourceFault]:
    """Those that would change this module at all, as far as its parts show.

    ``OTHER_WEIGHTS`` is not among them: the module doesn't know what a file has.
    """
    parts = list(flat.modules())
    has_norm = any(isinstance(part, _HAS_BATCH_STATISTICS) for part in parts)
    has_weights = any(True for _ in flat.parameters())
    is_quantised = any(isinstance(part, _QUANTISED) for part in parts)
    impossible = {SourceFault.OTHER_WEIGHTS}
    if not has_norm:
        impossible.add(SourceFault.BATCH_NORM)
    if not has_weights:
        impossible |= {SourceFault.HALF_WEIGHTS, SourceFault.HALF_STATE}
    if not is_quantised:
        impossible |= _INT8
    return [fault for fault in SourceFault if fault not in impossible]


def put_faults(
    flat: FlatModel,
    faults: Iterable[SourceFault],
    example: Sequence[torch.Tensor],
    weights: Weights = MappingProxyType({}),
) -> Answering:
    """A copy of the module that has the faults; the module itself is left alone.

    Args:
        flat: the module in eval mode.
        faults: any number, at most one of them in FP16, BF16 or INT8.
        example: inputs of the flat model to trace it with; only ``TRACED`` uses them.
        weights: that ``OTHER_WEIGHTS`` puts in.

    Raises:
        Exception: what torch raises where the module can't be copied or traced.
    """
    chosen = frozenset(faults)
    model = copy.deepcopy(flat).eval()
    _set_train_mode(model, chosen)
    if SourceFault.OTHER_WEIGHTS in chosen:
        model.load_state_dict(dict(weights), strict=False)
    for fault in chosen & _INT8:
        _quantise(model, fault)
    if SourceFault.HALF_WEIGHTS in chosen:
        _round(model.parameters())
    if SourceFault.HALF_STATE in chosen:
        _round((*model.parameters(), *model.buffers()))
    answering: Answering = model
    if SourceFault.TRACED in chosen:
        answering = _trace(model, example)
    for fault, dtype in ((SourceFault.HALF, torch.float16), (SourceFault.BFLOAT16, torch.bfloat16)):
        if fault in chosen:
            answering = _compute_in(model, dtype)
    return answering


def in_float64(flat: FlatModel) -> Answering:
    """A copy of the module that computes in FP64 and answers in it: the reference of references."""
    model = copy.deepcopy(flat).eval().double()

    def answer(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(model(*(_floats_to(tensor, torch.float64) for tensor in tensors)))

    return answer


def count_layers(flat: FlatModel) -> int:
    """Layers with weights of their own: the depth that rounding errors may add up over."""
    return sum(any(True for _ in part.parameters(recurse=False)) for part in flat.modules())


@dataclass(frozen=True, slots=True)
class Choice:
    """One call in the module that chose elements by their values: argmax, topk, sort.

    Attributes:
        values: that it chose from.
        indices: of its choice.
        axis: that it chose along; None where it took all values as one row.
    """

    values: torch.Tensor
    indices: torch.Tensor
    axis: int | None


def record_choices(flat: FlatModel, tensors: Sequence[torch.Tensor]) -> list[Choice]:
    """Every choice by value that the module makes on the way to its answer, in eval mode."""
    model = copy.deepcopy(flat).eval()
    recorder = _ChoiceRecorder()
    with torch.no_grad(), recorder:
        model(*tensors)
    return recorder.choices


class _ChoiceRecorder(TorchFunctionMode):
    """Notes the arguments and the results of the functions that choose by value."""

    # Name -> where the axis is among the arguments after the tensor, and what it is by default.
    _CHOOSING: Final = {
        "argmax": (1, None),
        "argmin": (1, None),
        "max": (1, None),
        "min": (1, None),
        "topk": (2, -1),
        "sort": (1, -1),
        "argsort": (1, -1),
    }

    def __init__(self) -> None:
        super().__init__()
        self.choices: list[Choice] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        result = func(*args, **named)
        name = getattr(func, "__name__", "")
        if name in self._CHOOSING and args:
            position, default = self._CHOOSING[name]
            axis = named.get("dim", args[position] if len(args) > position else default)
            # A tensor has an attribute of that name as well.
            is_plain = isinstance(result, torch.Tensor)
            indices = result if is_plain else getattr(result, "indices", None)
            if isinstance(indices, torch.Tensor) and not indices.is_floating_point():
                self.choices.append(Choice(args[0], indices, axis))
        return result


def _set_train_mode(model: nn.Module, faults: frozenset[SourceFault]) -> None:
    for part in model.modules():
        fault = (
            SourceFault.BATCH_NORM
            if isinstance(part, _HAS_BATCH_STATISTICS)
            else SourceFault.DROPOUT
        )
        part.training = fault in faults


def _quantise(model: nn.Module, fault: SourceFault) -> None:
    """Weights and activations to 255 or 256 levels, as onnxruntime does it dynamically."""
    with torch.no_grad():
        for part in model.modules():
            if not isinstance(part, _QUANTISED):
                continue
            is_table = isinstance(part, nn.Embedding)
            if is_table and fault not in _WITH_TABLES:
                continue
            if is_table or fault in _WITH_ZERO_POINT:
                # onnxruntime takes the table of an embedding for activations.
                part.weight.copy_(_to_range(part.weight))
            else:
                part.weight.copy_(_to_levels(part.weight, by_channel=fault in _PER_CHANNEL))
            if fault in _WITH_ACTIVATIONS and not is_table:
                part.register_forward_pre_hook(_quantise_activations)


def _to_levels(weight: torch.Tensor, *, by_channel: bool) -> torch.Tensor:
    rows = weight.reshape(weight.shape[0], -1) if by_channel else weight.reshape(1, -1)
    step = (rows.abs().amax(dim=1, keepdim=True) / 127).clamp_min(1e-30)
    return (torch.round(rows / step).clamp(-127, 127) * step).reshape(weight.shape)


def _quantise_activations(_part: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return (_to_range(inputs[0]), *inputs[1:])


def _to_range(values: torch.Tensor) -> torch.Tensor:
    """To 256 levels between the lowest and the highest value, with zero among them."""
    lowest, highest = values.amin().clamp_max(0.0), values.amax().clamp_min(0.0)
    step = ((highest - lowest) / 255).clamp_min(1e-30)
    zero = torch.round(-lowest / step)
    levels = (torch.round(values / step) + zero).clamp(0, 255)
    return (levels - zero) * step


def _round(tensors: Iterable[torch.Tensor]) -> None:
    with torch.no_grad():
        for tensor in tensors:
            if tensor.is_floating_point():
                tensor.copy_(tensor.half().to(tensor.dtype))


def _trace(model: nn.Module, example: Sequence[torch.Tensor]) -> Answering:
    with warnings.catch_warnings():
        # torch warns of every Python decision that it freezes, which is the point here.
        warnings.simplefilter("ignore")
        trace: Any = torch.jit.trace
        traced: Answering = trace(model, tuple(example), check_trace=False)
        return traced


def _compute_in(model: nn.Module, dtype: torch.dtype) -> Answering:
    rounded = model.to(dtype)

    def answer(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        widths = {tensor.dtype for tensor in tensors if tensor.is_floating_point()}
        width = widths.pop() if len(widths) == 1 else torch.float32
        answers = rounded(*(_floats_to(tensor, dtype) for tensor in tensors))
        return tuple(_floats_to(tensor, width) for tensor in answers)

    return answer


def _floats_to(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor
