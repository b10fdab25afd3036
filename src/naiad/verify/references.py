"""Faults put into what an answer is compared with: the source model, its inputs, its outputs.

Where the right answer with a fault in it is what the hop answers, the hop has that fault.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from naiad.inference.comparison import Array, Outputs
from naiad.repository.golden import GoldenCase
from naiad.verify.explanation import Cause

if TYPE_CHECKING:
    from naiad.source_model.faults import SourceFault


Change = Callable[[Array], Array]


class Likeness(StrEnum):
    """When an answer with a fault counts as the hop's."""

    EQUAL = "equal"
    """Within the tolerance."""
    NEAR = "near"
    """Much nearer than without the fault: two libraries don't round alike to the last bit."""
    FINITE = "finite"
    """Within the tolerance wherever both are finite."""
    HALF = "half"
    """Near, and nothing but numbers that FP16 has."""
    BRAIN = "brain"
    """Near, and nothing but numbers that BF16 has."""


@dataclass(frozen=True, slots=True)
class Reference:
    """The right answer with one fault in it.

    Attributes:
        cause: the fault.
        sentence: what it says when the hop answers alike, with ``{hop}`` for the hop's name.
        place: two references of one place exclude each other.
        faults: put into the module; by name, see ``SourceFault``.
        ask: what it is asked instead of the case; None for the case itself.
        answer: what becomes of its outputs; None for nothing.
        likeness: when the hop's answer is this one.
        is_random: each answer is another draw.
        is_blunt: it makes one value of all of an output, so that too many other faults would
            look like a second one beside it.
    """

    cause: Cause
    sentence: str
    place: str
    faults: "frozenset[SourceFault]" = field(default_factory=frozenset)
    ask: Callable[[GoldenCase], GoldenCase] | None = None
    answer: Callable[[Outputs], Outputs] | None = None
    likeness: Likeness = Likeness.EQUAL
    is_random: bool = False
    is_blunt: bool = False

    def needs_source(self) -> bool:
        """Whether the golden outputs alone don't do."""
        return bool(self.faults) or self.ask is not None


_MODULE: Final = "module"
_WEIGHTS: Final = "weights"
# Names of weights in a sentence.
_SHOWN: Final = 3


def source_references(
    possible: "Sequence[SourceFault]", other_weights: Sequence[str] = ()
) -> Iterator[Reference]:
    """The faults that can be put into the module itself.

    Args:
        possible: those that this module can have.
        other_weights: names of the weights that the file has with other values.
    """
    # Only with a source is torch there to be imported.
    from naiad.source_model.faults import SourceFault  # noqa: PLC0415

    norm, dropout = SourceFault.BATCH_NORM, SourceFault.DROPOUT
    in_train = "train mode: the source model with {} answers what '{{hop}}' answers; call .eval() "
    for faults, told in (
        ({norm}, "its batch norm in train mode"),
        ({dropout}, "its dropout and all else but batch norm in train mode"),
        ({norm, dropout}, "all of it in train mode"),
    ):
        if faults <= set(possible):
            yield Reference(
                Cause.TRAIN_MODE,
                f"exported in {in_train.format(told)}before the export",
                _MODULE,
                frozenset(faults),
                is_random=dropout in faults,
            )
    yield Reference(
        Cause.BAKED_CONSTANT,
        "baked constant: the source model traced with its example answers what '{hop}' answers, so "
        "the export froze a value or a decision of the Python code that depends on the input",
        _MODULE,
        frozenset({SourceFault.TRACED}),
    )
    for fault in (
        SourceFault.HALF_WEIGHTS,
        SourceFault.HALF_STATE,
        SourceFault.HALF,
        SourceFault.BFLOAT16,
        SourceFault.INT8_WEIGHTS,
        SourceFault.INT8_CHANNEL_WEIGHTS,
        SourceFault.INT8_TABLES,
        SourceFault.UINT8_WEIGHTS,
        SourceFault.INT8,
        SourceFault.UINT8,
        SourceFault.INT8_CHANNEL,
    ):
        if fault in possible:
            yield Reference(
                Cause.ROUNDING,
                f"reduced precision: the source model with this in it ({fault.value}) answers what "
                "'{hop}' answers, to the rounding of that",
                "precision",
                frozenset({fault}),
                likeness=Likeness.NEAR,
            )
    if SourceFault.OTHER_WEIGHTS in possible:
        yield Reference(
            Cause.OTHER_WEIGHTS,
            f"other weights: with {_list(other_weights)} of the file in it the source model "
            "answers what '{hop}' answers, so the file was made of another state of the model",
            _WEIGHTS,
            frozenset({SourceFault.OTHER_WEIGHTS}),
        )


def _list(names: Sequence[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"


def input_references(cases: Sequence[GoldenCase]) -> Iterator[Reference]:
    """Casts of inputs, and inputs that became part of the file."""
    example = cases[0]
    for name, array in example.inputs.items():
        for told, cast in (*_casts(array.dtype), *_pixels(array.dtype)):
            changes = any(_changes(cast, case.inputs[name]) for case in cases)
            if changes:
                yield Reference(
                    Cause.WRONG_DATATYPE,
                    f"wrong datatype: '{{hop}}' answers as the source model does when input "
                    f"'{name}' is cast to {told} on the way",
                    f"cast of {name}",
                    ask=partial(_ask_with, name=name, change=cast),
                )
    for name, array in example.inputs.items():
        constants = {"the example's": array}
        if example.batch_size:
            constants["the example's first row"] = array[:1]
        for told, constant in constants.items():
            yield Reference(
                Cause.BAKED_CONSTANT,
                f"baked constant: '{{hop}}' answers as if input '{name}' were always {told}, so "
                "the export made a constant of it",
                f"value of {name}",
                ask=partial(_ask_with, name=name, change=partial(_as_many, constant)),
            )


def output_references(cases: Sequence[GoldenCase]) -> Iterator[Reference]:
    """Casts of outputs, and values that are not finite."""
    for name, array in cases[0].outputs.items():
        for told, cast in _casts(array.dtype):
            if any(_changes(cast, case.outputs[name]) for case in cases):
                yield Reference(
                    Cause.WRONG_DATATYPE,
                    f"wrong datatype: output '{name}' of '{{hop}}' is the right one cast to {told}",
                    f"cast of output {name}",
                    answer=partial(_change_output, name=name, change=cast),
                    is_blunt=_has_one_value([cast(case.outputs[name]) for case in cases]),
                )
    if any(array.dtype in {np.dtype("f4"), np.dtype("f8")} for array in cases[0].outputs.values()):
        for name, likeness in (("FP16", Likeness.HALF), ("BF16", Likeness.BRAIN)):
            yield Reference(
                Cause.ROUNDING,
                f"reduced precision: every number that '{{hop}}' answers is one of {name}, and all "
                "of them are near the right ones, so it computes in that",
                "precision",
                likeness=likeness,
            )
    yield Reference(
        Cause.NON_FINITE,
        "NaN or infinity: wherever '{hop}' and the golden outputs are both finite they agree; the "
        "difference is NaN or infinity on one side only (a division by zero, the log of nothing, "
        "a mask of -inf)",
        "finite",
        likeness=Likeness.FINITE,
    )


def _casts(dtype: np.dtype[np.generic]) -> Iterator[tuple[str, Change]]:
    """Casts to another datatype and back, that keep the dtype and lose something."""
    targets: Mapping[str, Sequence[str]] = {
        "f": ("float16", "int64", "int8", "uint8", "bool"),
        "i": ("int32", "float32", "int16", "int8", "uint8", "bool"),
        "u": ("int8", "bool"),
    }
    for target in targets.get(dtype.kind, ()):
        yield target, partial(_there_and_back, target=target)
    if dtype == np.float64:
        yield "float32", partial(_there_and_back, target="float32")
    if dtype.kind == "f":
        yield "the nearest integer", np.rint


def _pixels(dtype: np.dtype[np.generic]) -> Iterator[tuple[str, Change]]:
    """Values of 0 to 1 that travel as the bytes of an image's pixels."""
    if dtype.kind == "f":
        for told, to_whole in (("rounded", np.rint), ("cut off", np.floor)):
            yield f"pixels of 8 bits, {told} to steps of 1/255", partial(_as_pixels, whole=to_whole)


def _as_pixels(array: Array, whole: Change) -> Array:
    with np.errstate(all="ignore"):
        steps = whole(np.clip(array, 0, 1) * array.dtype.type(255))
        pixels: Array = (steps / array.dtype.type(255)).astype(array.dtype)
        return pixels


def _ask_with(case: GoldenCase, name: str, change: Change) -> GoldenCase:
    return replace(case, inputs={**case.inputs, name: change(case.inputs[name])})


def _change_output(found: Outputs, name: str, change: Change) -> Outputs:
    return {**found, name: change(found[name])}


def _there_and_back(array: Array, target: str) -> Array:
    # Overflow and NaN as an integer are part of what such a cast does.
    with np.errstate(all="ignore"):
        cast = array.astype(np.int64) if np.dtype(target).kind in "iu" else array
        return cast.astype(target).astype(array.dtype)


def _changes(cast: Callable[[Array], Array], array: Array) -> bool:
    return not np.array_equal(cast(array), array, equal_nan=array.dtype.kind == "f")


def _has_one_value(arrays: Sequence[Array]) -> bool:
    return len({value for array in arrays for value in np.unique(array).tolist()}) == 1


def _as_many(array: Array, other: Array) -> Array:
    """The array's elements, repeated or cut to the other's shape."""
    index = np.ix_(*(np.arange(n) % m for n, m in zip(other.shape, array.shape, strict=True)))
    return np.ascontiguousarray(array[index])
