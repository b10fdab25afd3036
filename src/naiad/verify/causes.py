"""Why a hop differs, shown by experiment: change one thing and the difference goes away.

Each experiment is a function that returns one sentence, or None when it showed nothing. A cause
that no experiment shows is reported as unexplained, with the numbers; nothing is guessed.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from naiad.inference.comparison import Array, Difference, Outputs, worst
from naiad.repository.golden import GoldenCase
from naiad.verify.hops import Hop, HopFailedError

# Every order of four tensors of one kind; beyond that the experiment costs more than it tells.
_MAX_PERMUTED: Final = 4


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A hop that differs, and what the experiments may use.

    Attributes:
        hop: the first hop that differs.
        cases: those of its cases that differ, at least one.
        is_equal: whether two sets of outputs agree within the hop's tolerances.
        compare: the numbers behind ``is_equal``; expected outputs first.
        eager: the user's model in eval mode, where --source gave it.
        train: the same model in train mode.
    """

    hop: Hop
    cases: Sequence[GoldenCase]
    is_equal: Callable[[Outputs, Outputs], bool]
    compare: Callable[[Outputs, Outputs], Sequence[Difference]]
    eager: Hop | None = None
    train: Hop | None = None


def find_causes(suspicion: Suspicion) -> list[str]:
    """Every cause that an experiment shows, or one sentence that says it is unexplained."""
    found = []
    for experiment in _EXPERIMENTS:
        try:
            sentence = experiment(suspicion)
        except HopFailedError:
            # The changed question has no answer, so it explains nothing.
            continue
        if sentence is not None:
            found.append(sentence)
    return found or [_unexplained(suspicion)]


def _stale_golden(suspicion: Suspicion) -> str | None:
    eager = suspicion.eager
    if eager is None:
        return None
    for case in suspicion.cases:
        answer = eager.run(case)
        if suspicion.is_equal(case.outputs, answer):
            return None
        if not suspicion.is_equal(answer, suspicion.hop.run(case)):
            return None
    return (
        f"the golden outputs are not what the model answers: eager PyTorch, asked again, agrees "
        f"with '{suspicion.hop.name}' and not with the golden file"
    )


def _swapped_inputs(suspicion: Suspicion) -> str | None:
    first = suspicion.cases[0]
    for order in _permutations(first.inputs):
        if all(
            suspicion.is_equal(
                case.outputs, suspicion.hop.run(replace(case, inputs=_renamed(case.inputs, order)))
            )
            for case in suspicion.cases
        ):
            return (
                f"inputs are swapped: with {_describe(order)} the difference at "
                f"'{suspicion.hop.name}' is gone"
            )
    return None


def _swapped_outputs(suspicion: Suspicion) -> str | None:
    answers = [(case.outputs, suspicion.hop.run(case)) for case in suspicion.cases]
    if any(set(expected) != set(answer) for expected, answer in answers):
        return None
    for order in _permutations(answers[0][1]):
        if all(
            suspicion.is_equal(expected, _renamed(answer, order)) for expected, answer in answers
        ):
            return (
                f"outputs are swapped: with {_describe(order)} the difference at "
                f"'{suspicion.hop.name}' is gone"
            )
    return None


def _train_mode(suspicion: Suspicion) -> str | None:
    train = suspicion.train
    if train is None:
        return None
    for case in suspicion.cases:
        answer = train.run(case)
        if not suspicion.is_equal(answer, suspicion.hop.run(case)):
            return None
        if suspicion.is_equal(case.outputs, answer):
            return None
    return (
        f"the file was exported in train mode: the source model after .train() answers what "
        f"'{suspicion.hop.name}' answers; call .eval() before the export"
    )


def _random_operation(suspicion: Suspicion) -> str | None:
    case = suspicion.cases[0]
    if suspicion.is_equal(suspicion.hop.run(case), suspicion.hop.run(case)):
        return None
    sentence = (
        f"'{suspicion.hop.name}' answers the same question differently each time: it holds a "
        "random operation"
    )
    train = suspicion.train
    if train is not None and not suspicion.is_equal(train.run(case), train.run(case)):
        return f"{sentence}, as the source model does after .train(): exported in train mode"
    return f"{sentence}, such as dropout of a model exported in train mode"


def _mixed_rows(suspicion: Suspicion) -> str | None:
    """Rows of a batch influence each other, or only the first survives."""
    batched = [case for case in suspicion.cases if case.batch_size > 1]
    if not batched:
        return None
    for case in batched:
        rows = [
            suspicion.hop.run(replace(case, inputs=row))
            for row in _rows(case.inputs, case.batch_size)
        ]
        joined = {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
        if not suspicion.is_equal(case.outputs, joined):
            return None
    return (
        f"the batch is the cause: '{suspicion.hop.name}' is right when it gets the rows one by "
        "one, so the export fixed something to the example's batch size, or a layer uses "
        "statistics of the batch (train mode)"
    )


_EXPERIMENTS: Final = (
    _stale_golden,
    _swapped_inputs,
    _swapped_outputs,
    _train_mode,
    _random_operation,
    _mixed_rows,
)


def _unexplained(suspicion: Suspicion) -> str:
    case = suspicion.cases[0]
    try:
        difference = worst(suspicion.compare(case.outputs, suspicion.hop.run(case)))
    except HopFailedError as error:
        return f"unexplained: '{suspicion.hop.name}' failed at batch {case.batch_size}: {error}"
    if difference.problem:
        return f"unexplained: '{suspicion.hop.name}': {difference.problem}"
    return (
        f"unexplained: '{suspicion.hop.name}', output '{difference.output}', "
        f"batch {case.batch_size}: max abs {difference.max_abs:.3e}, max rel "
        f"{difference.max_rel:.3e}, worst at {difference.worst_index}"
    )


def _permutations(arrays: Mapping[str, Array]) -> Iterator[dict[str, str]]:
    """Each way to give tensors of one dtype and shape to each other's names, but the given one.

    Yields:
        name -> the name whose array it gets, for the names that change.
    """
    kinds: dict[tuple[object, ...], list[str]] = {}
    for name, array in arrays.items():
        kinds.setdefault((array.dtype, array.shape), []).append(name)
    groups = [names for names in kinds.values() if 1 < len(names) <= _MAX_PERMUTED]
    for orders in itertools.product(*(itertools.permutations(names) for names in groups)):
        order = {
            name: source
            for names, sources in zip(groups, orders, strict=True)
            for name, source in zip(names, sources, strict=True)
            if name != source
        }
        if order:
            yield order


def _renamed(arrays: Mapping[str, Array], order: Mapping[str, str]) -> dict[str, Array]:
    return {name: arrays[order.get(name, name)] for name in arrays}


def _describe(order: Mapping[str, str]) -> str:
    return ", ".join(f"'{source}' in the place of '{name}'" for name, source in order.items())


def _rows(inputs: Mapping[str, Array], batch: int) -> Iterator[dict[str, Array]]:
    for index in range(batch):
        yield {name: array[index : index + 1] for name, array in inputs.items()}
