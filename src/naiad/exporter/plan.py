"""What is decided before anything is captured: names, the batch axis, the dynamic axes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import nn

from naiad.errors import InvalidArgumentError
from naiad.exporter.batching import find_batch
from naiad.exporter.failures import MODEL_FAILURES
from naiad.exporter.options import DEFAULT_MAX_BATCH_SIZE, ExportOptions
from naiad.exporter.sampling import AxisNames, Sampler
from naiad.source_model.model import FlatModel, SourceModel, flatten_model
from naiad.source_model.tensors import datatype_of

# torch.export takes a size of 1, and of 0, for a constant that other sizes need not share.
_LEAST_TRACED_SIZE: Final = 2
# Layers that answer otherwise in train mode.
_CHANGED_BY_TRAIN_MODE: Final = (
    nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout,
    nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """One export, decided.

    Attributes:
        source: the user's module and example.
        flat: the module with the signature that the exported file has.
        options: the caller's.
        axes: for each input its named axes, the batch among them.
        batch: the batch axis's name, or None.
        max_batch_size: of the config; 0 without a batch axis.
        output_names: in the order of the model's result.
        datatypes: v2 datatypes of inputs and outputs by name.
        sampler: makes further inputs.
        notes: what was decided and the user should know.
    """

    source: SourceModel
    flat: FlatModel
    options: ExportOptions
    axes: tuple[AxisNames, ...]
    batch: str | None
    max_batch_size: int
    output_names: tuple[str, ...]
    datatypes: Mapping[str, str]
    sampler: Sampler
    notes: tuple[str, ...]

    @property
    def input_names(self) -> tuple[str, ...]:
        """As in the config, in forward's order."""
        return self.flat.input_names

    def trace_inputs(self) -> tuple[torch.Tensor, ...]:
        """The example to capture the flat model with: every named axis is 2 or longer."""
        sizes = {n: max(s, _LEAST_TRACED_SIZE) for n, s in self.sampler.sizes.items()}
        return tuple(self.flat.pad(self.sampler.resize(sizes)))


def make_plan(
    source: SourceModel,
    options: ExportOptions,
    default_max_batch_size: int = DEFAULT_MAX_BATCH_SIZE,
) -> ExportPlan:
    """Decide an export by running the model in eager mode.

    Args:
        source: the user's module and example.
        options: the caller's.
        default_max_batch_size: where the options give none; raised to the example's rows.

    Raises:
        InvalidArgumentError: the options do not fit the model, or the model is not a function of
            its inputs.
        UnsupportedError: the model takes or returns what no exported file can.
    """
    input_names = _rename(source.input_names, options.input_names, "input")
    outputs = _run_twice(source)
    asked = _asked_axes(source, input_names, options.dynamic)
    ranges = {_position(n, source.input_names, input_names): r for n, r in options.ranges.items()}
    found = find_batch(source, asked, ranges, options)
    if options.max_batch_size and found.name is None:
        raise InvalidArgumentError(
            f"max_batch_size is {options.max_batch_size}, but the model cannot be served in "
            f"batches: {found.reason}. Set max_batch_size to 0"
        )
    flat = flatten_model(source, input_names, has_batch=found.name is not None)
    padded = [flat.pad_output(tensor) for _, tensor in outputs]
    own_output_names = _distinct([name for name, _ in outputs], input_names)
    output_names = _rename(own_output_names, options.output_names, "output")
    _require_distinct(input_names, output_names)
    datatypes = {
        name: datatype_of(tensor, f"{kind} '{name}'").name
        for kind, names, tensors in (
            ("output", output_names, padded),
            ("input", input_names, source.example),
        )
        for name, tensor in zip(names, tensors, strict=True)
    }
    sampler = Sampler(source.example, found.axes, ranges, options.seed)
    return ExportPlan(
        source=source,
        flat=flat,
        options=options,
        axes=found.axes,
        batch=found.name,
        max_batch_size=_max_batch_size(found.name, sampler, options, default_max_batch_size),
        output_names=output_names,
        datatypes=datatypes,
        sampler=sampler,
        notes=(
            found.note(),
            *_mode_notes(source),
            *_name_notes([name for name, _ in outputs], output_names, options),
            *_shape_notes(outputs, padded),
            *_constant_notes(source),
        ),
    )


def _max_batch_size(
    name: str | None, sampler: Sampler, options: ExportOptions, default: int
) -> int:
    if name is None:
        return 0
    if options.max_batch_size is not None:
        return options.max_batch_size
    return max(default, sampler.sizes[name])


def _run_twice(source: SourceModel) -> list[tuple[str, torch.Tensor]]:
    try:
        first = source.run(source.example)
        with torch.random.fork_rng(devices=[]):
            # Other random numbers than the first time, or there would be nothing to notice.
            torch.manual_seed(torch.initial_seed() + 1)
            second = source.run(source.example)
    except MODEL_FAILURES as error:
        raise InvalidArgumentError(
            f"the model fails on its own example in eager mode: {type(error).__name__}: {error}"
        ) from error
    for (name, one), (_, other) in zip(first, second, strict=True):
        if one.shape != other.shape or not torch.allclose(
            one.nan_to_num() if one.is_floating_point() else one.to(torch.complex128),
            other.nan_to_num() if other.is_floating_point() else other.to(torch.complex128),
            rtol=1e-3,
            atol=1e-5,
        ):
            raise InvalidArgumentError(
                f"the model answers the same input differently the second time (output '{name}'): "
                "it uses random numbers or keeps state between calls, so no exported file can "
                "equal it. Dropout called as a function wants training=self.training"
            )
    return first


def _rename(own: Sequence[str], given: Sequence[str], kind: str) -> tuple[str, ...]:
    names = tuple(given) or tuple(own)
    if len(names) != len(own):
        raise InvalidArgumentError(
            f"{len(names)} {kind} names are given, but the model has {len(own)} {kind}s: "
            f"{', '.join(own)}"
        )
    repeated = [name for index, name in enumerate(names) if name in names[:index]]
    if repeated or "" in names:
        raise InvalidArgumentError(
            f"the {kind} names must differ and not be empty: {', '.join(names)}"
        )
    return names


def _distinct(own: Sequence[str], input_names: Sequence[str]) -> list[str]:
    """The outputs' own names, but for one that an input has: a file can use a name once."""
    names: list[str] = []
    for name in own:
        while name in input_names or name in names:
            name = f"{name}_output"  # noqa: PLW2901  # until it is free
        names.append(name)
    return names


def _require_distinct(input_names: Sequence[str], output_names: Sequence[str]) -> None:
    both = [name for name in output_names if name in input_names]
    if both:
        raise InvalidArgumentError(
            f"'{both[0]}' is the name of an input and of an output; an exported file can use a "
            "name once. Set output_names (or input_names) in ExportOptions"
        )


def _position(name: str, own: Sequence[str], renamed: Sequence[str]) -> int:
    for names in (renamed, own):
        if name in names:
            return names.index(name)
    raise InvalidArgumentError(
        f"the model has no input '{name}'; its inputs are {', '.join(renamed)}"
    )


def _asked_axes(
    source: SourceModel, input_names: Sequence[str], dynamic: Mapping[str, Mapping[int, str]]
) -> list[AxisNames]:
    asked: list[AxisNames] = [{} for _ in source.example]
    for name, names in dynamic.items():
        position = _position(name, source.input_names, input_names)
        shape = source.example[position].shape
        for axis, label in names.items():
            if not 0 <= axis < len(shape):
                raise InvalidArgumentError(
                    f"input '{name}' has no axis {axis}: its example has the shape {list(shape)}"
                )
            if not label.isidentifier():
                raise InvalidArgumentError(
                    f"'{label}' cannot name axis {axis} of input '{name}': use a word such as "
                    "batch or tokens"
                )
        asked[position] = dict(names)
    return asked


def _mode_notes(source: SourceModel) -> list[str]:
    """Train mode is torch's default, so it's told only where it changes answers."""
    found = sorted(
        {
            type(part).__name__
            for part in source.module.modules()
            if part.training and isinstance(part, _CHANGED_BY_TRAIN_MODE)
        }
    )
    if not found:
        return []
    return [
        f"the model came in train mode ({', '.join(found)}); the file answers as after model.eval()"
    ]


def _name_notes(own: Sequence[str], names: Sequence[str], options: ExportOptions) -> list[str]:
    if options.output_names:
        return []
    return [
        f"output '{before}' is exported as '{after}', because an input has its name"
        for before, after in zip(own, names, strict=True)
        if before != after
    ]


def _shape_notes(
    outputs: Sequence[tuple[str, torch.Tensor]], padded: Sequence[torch.Tensor]
) -> list[str]:
    notes = []
    for (name, tensor), result in zip(outputs, padded, strict=True):
        if tensor.is_complex():
            notes.append(
                f"output '{name}' is complex: it is exported with a last axis of 2, the real and "
                "the imaginary part"
            )
        elif tensor.ndim != result.ndim:
            notes.append(
                f"output '{name}' has one number a row: it is exported with a last axis of 1, "
                "because the protocol has no scalars"
            )
    return notes


def _constant_notes(source: SourceModel) -> list[str]:
    return [
        f"the argument {constant} is not a tensor: it is a constant of the exported model"
        for constant in source.constants
    ]
