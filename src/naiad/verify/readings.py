"""Other ways to ask a hop and to read its answer, each of which takes one fault out.

A hop whose inputs are swapped, say, answers rightly when it is asked with them swapped back. None
of this needs the source model.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from naiad.inference.comparison import Array, Outputs
from naiad.repository.golden import GoldenCase
from naiad.verify.explanation import Cause
from naiad.verify.hops import HopFailedError

Ask = Callable[[GoldenCase], Outputs]
"""A hop's way to answer."""

# Every order of four tensors, every layout of four axes; beyond that pairs and the usual moves.
_MAX_PERMUTED: Final = 4


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to ask a hop and read its answer.

    Attributes:
        cause: that it takes out.
        sentence: what it says when the difference is gone, with ``{hop}`` for the hop's name.
        place: two readings of one place exclude each other.
        wrap: from the hop's own way to answer to this one.
    """

    cause: Cause
    sentence: str
    place: str
    wrap: Callable[[Ask], Ask]


def readings_for(case: GoldenCase, answer: Outputs | None) -> Iterator[Reading]:
    """The readings worth a try, the plainest causes first.

    Args:
        case: one that differs.
        answer: what the hop answered to it; None where it failed.
    """
    yield from _input_orders(case)
    yield from _output_orders(case)
    if answer is not None:
        yield from _output_datatypes(case, answer)
    yield from _output_layouts(case)
    yield from _input_layouts(case)
    if answer is None:
        yield from _input_datatypes(case)
    if case.batch_size:
        yield from _batches(case, answer)


def _input_orders(case: GoldenCase) -> Iterator[Reading]:
    kinds: dict[tuple[object, int], list[str]] = {}
    for name, array in case.inputs.items():
        kinds.setdefault((array.dtype, array.ndim), []).append(name)
    for order in _orders(list(kinds.values())):
        yield Reading(
            Cause.SWAPPED_INPUTS,
            f"inputs are swapped: with {_describe(order)} the difference at '{{hop}}' is gone",
            "inputs",
            _asking(partial(_reorder_inputs, order=order)),
        )


def _output_orders(case: GoldenCase) -> Iterator[Reading]:
    for order in _orders([list(case.outputs)]):
        yield Reading(
            Cause.OUTPUT_ORDER,
            f"outputs are swapped: with {_describe(order)} the difference at '{{hop}}' is gone",
            "outputs",
            _reading(partial(_reorder_outputs, order=order)),
        )


def _output_datatypes(case: GoldenCase, answer: Outputs) -> Iterator[Reading]:
    wrong = [
        name
        for name, expected in case.outputs.items()
        if name in answer and answer[name].dtype != expected.dtype
    ]
    if not wrong or any(case.outputs[name].dtype.hasobject for name in wrong):
        return

    def cast(c: GoldenCase, found: Outputs) -> Outputs:
        return {n: a.astype(c.outputs[n].dtype) if n in wrong else a for n, a in found.items()}

    told = ", ".join(
        f"output '{n}' is {answer[n].dtype} and not {case.outputs[n].dtype}" for n in wrong
    )
    yield Reading(
        Cause.WRONG_DATATYPE,
        f"wrong datatype: at '{{hop}}' {told}; cast back, its values are right",
        "output datatypes",
        _reading(cast),
    )


def _input_datatypes(case: GoldenCase) -> Iterator[Reading]:
    for wide in sorted({array.dtype.name for array in case.inputs.values()}):
        for narrow in ("float16", "float64", "int32", "float32", "int64"):
            if wide != narrow and wide[:3] == narrow[:3]:
                yield Reading(
                    Cause.WRONG_DATATYPE,
                    f"wrong datatype: '{{hop}}' wants {narrow} where the model takes {wide}, and "
                    "answers when its inputs are cast",
                    "datatypes",
                    partial(_between, wide=wide, narrow=narrow),
                )
    for name, array in case.inputs.items():
        if array.dtype.kind not in "fiub":
            continue
        for dtype in ("float32", "float64", "float16", "int64", "int32", "uint8", "bool"):
            if array.dtype == dtype:
                continue
            yield Reading(
                Cause.WRONG_DATATYPE,
                f"wrong datatype: '{{hop}}' answers rightly when input '{name}' is sent as {dtype} "
                f"and not as {array.dtype}",
                f"datatype of {name}",
                _asking(partial(_cast_input, name=name, dtype=dtype)),
            )


def _output_layouts(case: GoldenCase) -> Iterator[Reading]:
    for name, expected in case.outputs.items():
        for axes in _layouts(expected.ndim):

            def undo(c: GoldenCase, found: Outputs, name: str = name, axes: Sequence[int] = axes
                     ) -> Outputs:  # fmt: skip
                return {**found, name: _undo_layout(found[name], c.outputs[name].shape, axes)}

            yield Reading(
                Cause.TRANSPOSED_LAYOUT,
                f"transposed layout: read with its axes in the order {list(axes)}, output '{name}' "
                "of '{hop}' is right",
                f"layout of output {name}",
                _reading(undo),
            )
        yield Reading(
            Cause.TRANSPOSED_LAYOUT,
            f"other shape: output '{name}' of '{{hop}}' holds the right elements in another shape",
            f"layout of output {name}",
            _reading(partial(_reshape_output, name=name)),
        )


def _input_layouts(case: GoldenCase) -> Iterator[Reading]:
    first = 1 if case.batch_size else 0
    for name, array in case.inputs.items():
        for axes in _layouts(array.ndim, first):
            for keeps_shape in (False, True):
                if keeps_shape and tuple(array.shape[a] for a in axes) == array.shape:
                    continue

                def turn(c: GoldenCase, name: str = name, axes: Sequence[int] = axes,
                         keeps: bool = keeps_shape) -> Mapping[str, Array]:  # noqa: FBT001 # fmt: skip
                    turned = c.inputs[name].transpose(axes)
                    shaped = turned.reshape(c.inputs[name].shape) if keeps else turned
                    return {**c.inputs, name: np.ascontiguousarray(shaped)}

                yield Reading(
                    Cause.TRANSPOSED_LAYOUT,
                    f"transposed layout: '{{hop}}' is right when the axes of input '{name}' come "
                    f"in the order {list(axes)}",
                    f"layout of input {name}",
                    _asking(turn),
                )


def _batches(case: GoldenCase, answer: Outputs | None) -> Iterator[Reading]:
    loses_rows = answer is None or any(
        array.shape[:1] != (case.batch_size,) for array in answer.values()
    )
    if not loses_rows:
        yield Reading(
            Cause.BATCH_MIXING,
            "the batch is the cause: '{hop}' is right when it gets the rows one by one, so rows "
            "of one batch influence each other (statistics over the batch, or a wrong reshape)",
            "batch",
            by_rows,
        )
        for told, change in (
            ("in reverse", lambda rows: rows[::-1]),
            ("one row late", lambda rows: np.roll(rows, -1, axis=0)),
            ("one row early", lambda rows: np.roll(rows, 1, axis=0)),
        ):
            yield Reading(
                Cause.BATCH_MIXING,
                f"rows of the batch change places: '{{hop}}' gives them back {told}, so requests "
                "that share a batch get each other's answers",
                "batch",
                _reading(partial(_reorder_rows, change=change)),
            )
        return
    for size in (1, 2, 3, 4, 8, 16):
        yield Reading(
            Cause.LOST_DYNAMIC_DIM,
            f"lost dynamic dim: '{{hop}}' is right when it always gets {size} "
            f"row{'' if size == 1 else 's'}, and not with other batch sizes: the export fixed the "
            "batch to its example's",
            "batch",
            partial(_in_pieces, size=size),
        )


def _reorder_inputs(case: GoldenCase, order: Mapping[str, str]) -> Mapping[str, Array]:
    return {name: case.inputs[order.get(name, name)] for name in case.inputs}


def _reorder_outputs(_case: GoldenCase, found: Outputs, order: Mapping[str, str]) -> Outputs:
    return {name: found[order.get(name, name)] for name in found}


def _reorder_rows(_case: GoldenCase, found: Outputs, change: Callable[[Array], Array]) -> Outputs:
    return {name: np.ascontiguousarray(change(array)) for name, array in found.items()}


def _cast_input(case: GoldenCase, name: str, dtype: str) -> Mapping[str, Array]:
    return {**case.inputs, name: case.inputs[name].astype(dtype)}


def _between(ask: Ask, wide: str, narrow: str) -> Ask:
    """Inputs of one datatype cast to another, and the outputs cast to what they should be."""

    def asked(case: GoldenCase) -> Outputs:
        inputs = {
            name: array.astype(narrow) if array.dtype == wide else array
            for name, array in case.inputs.items()
        }
        found = ask(replace(case, inputs=inputs))
        return {
            name: array.astype(case.outputs[name].dtype) if name in case.outputs else array
            for name, array in found.items()
        }

    return asked


def _reshape_output(case: GoldenCase, found: Outputs, name: str) -> Outputs:
    return {**found, name: _reshaped(found[name], case.outputs[name].shape)}


def by_rows(ask: Ask) -> Ask:
    """The same, but each row of a batch is asked by itself."""
    return _in_pieces(ask, 1)


def _in_pieces(ask: Ask, size: int) -> Ask:
    return partial(_ask_in_pieces, ask, size=size)


def _ask_in_pieces(ask: Ask, case: GoldenCase, size: int) -> Outputs:
    """The answer to a batch that is asked ``size`` rows at a time, the last piece filled up."""
    pieces = []
    for start in range(0, case.batch_size, size):
        rows = [min(start + offset, case.batch_size - 1) for offset in range(size)]
        inputs = {name: array[rows] for name, array in case.inputs.items()}
        pieces.append(ask(replace(case, inputs=inputs, batch_size=size)))
    return {
        name: np.concatenate([piece[name] for piece in pieces])[: case.batch_size]
        for name in pieces[0]
    }


def resize(case: GoldenCase, sizes: Mapping[str, Mapping[int, int]]) -> GoldenCase:
    """The case with inputs cut, or repeated, along some axes; without outputs.

    Args:
        case: whose inputs are taken.
        sizes: input -> axis -> new size.
    """
    inputs = dict(case.inputs)
    for name, axes in sizes.items():
        for axis, size in axes.items():
            index = np.arange(size) % inputs[name].shape[axis]
            inputs[name] = np.take(inputs[name], index, axis=axis)
    return replace(case, inputs=inputs, outputs={})


def _asking(change: Callable[[GoldenCase], Mapping[str, Array]]) -> Callable[[Ask], Ask]:
    return lambda ask: lambda case: ask(replace(case, inputs=change(case)))


def _reading(change: Callable[[GoldenCase, Outputs], Outputs]) -> Callable[[Ask], Ask]:
    def wrap(ask: Ask) -> Ask:
        def read(case: GoldenCase) -> Outputs:
            found = ask(case)
            if set(found) != set(case.outputs):
                raise HopFailedError("it has other outputs")
            return change(case, found)

        return read

    return wrap


def _orders(groups: Sequence[Sequence[str]]) -> Iterator[dict[str, str]]:
    """Each way to give tensors of one group to each other's names, but the given one.

    Yields:
        name -> the name whose array it gets, for the names that change.
    """
    for names in groups:
        if len(names) > _MAX_PERMUTED:
            yield from ({a: b, b: a} for a, b in itertools.combinations(names, 2))
            continue
        for order in itertools.permutations(names):
            changed = {n: source for n, source in zip(names, order, strict=True) if n != source}
            if changed:
                yield changed


def _layouts(rank: int, first: int = 0) -> Iterator[tuple[int, ...]]:
    """Orders of the axes from ``first`` on, but the given one."""
    kept, moved = tuple(range(first)), tuple(range(first, rank))
    if len(moved) < 2:
        return
    if len(moved) <= _MAX_PERMUTED:
        orders: Iterator[tuple[int, ...]] = itertools.permutations(moved)
    else:
        to_end, to_front = (*moved[1:], moved[0]), (moved[-1], *moved[:-1])
        usual = (to_end, to_front, (*moved[:-2], moved[-1], moved[-2]))
        # Channels move while the batch stays.
        within = (tuple(axes[first:]) for axes in _layouts(rank, first + 1))
        orders = itertools.chain(usual, within)
    yield from ((*kept, *order) for order in orders if order != moved)


def _undo_layout(array: Array, shape: Sequence[int], axes: Sequence[int]) -> Array:
    """The array of ``shape`` whose transpose by ``axes`` has these elements in this order."""
    turned = _reshaped(array, [shape[axis] for axis in axes])
    return np.ascontiguousarray(turned.transpose(np.argsort(axes)))


def _reshaped(array: Array, shape: Sequence[int]) -> Array:
    try:
        return array.reshape(shape)
    except ValueError as error:
        raise HopFailedError(f"{list(array.shape)} does not hold {list(shape)}") from error


def _describe(order: Mapping[str, str]) -> str:
    return ", ".join(f"'{source}' in the place of '{name}'" for name, source in order.items())
