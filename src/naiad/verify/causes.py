"""Why a hop differs, shown by experiment: change one thing and the difference goes away.

A difference is explained by faults taken out of the way the hop is read (``readings``), by faults
put into what it is compared with (``references``), or by one of each, two at once. What no
experiment shows is reported as unexplained, with the numbers; nothing is guessed.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from naiad.clock import Clock
from naiad.inference.comparison import Outputs, same_bits, worst
from naiad.repository.golden import GoldenCase, TensorRecord
from naiad.verify.deafness import find_deaf_input
from naiad.verify.explanation import Cause, Explanation
from naiad.verify.hops import Hop, HopFailedError
from naiad.verify.judge import Judge
from naiad.verify.likeness import (
    DRAWS,
    Sample,
    are_near,
    are_same_draws,
    could_be_near,
    is_alike,
    is_random,
)
from naiad.verify.readings import Ask, Reading, by_rows, readings_for, resize
from naiad.verify.references import (
    Likeness,
    Reference,
    input_references,
    output_references,
    source_references,
)

if TYPE_CHECKING:
    from naiad.source_model.faults import SourceFault
    from naiad.verify.laboratory import Laboratory

_NS_PER_S: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A hop that differs, and what the experiments may use.

    Attributes:
        hop: the first hop that differs.
        cases: all cases that it can be asked, with the right outputs; some of them differ.
        judge: what counts as equal.
        inputs: of the model, with the names of their dynamic axes.
        laboratory: the source model, where --source gave it.
        is_source_right: it answers what was recorded at the export.
        base: something else that answers rightly, such as the file alone for a served hop.
        in_eval_mode: the hop with all of it in eval mode; None where none of it is in train mode.
        clock: that the budget is measured by.
        budget_s: when to give up.
    """

    hop: Hop
    cases: Sequence[GoldenCase]
    judge: Judge
    clock: Clock
    inputs: Sequence[TensorRecord] = ()
    laboratory: "Laboratory | None" = None
    is_source_right: bool = True
    base: Hop | None = None
    in_eval_mode: Hop | None = None
    budget_s: float = 120.0


def find_causes(suspicion: Suspicion) -> list[Explanation]:
    """The cause, or both of two, that an experiment shows; else one that says unexplained."""
    stale = _stale_golden(suspicion)
    if stale is not None:
        return [stale]
    if not suspicion.is_source_right:
        # It is another model, so what it answers with a fault shows nothing about this one.
        suspicion = replace(suspicion, laboratory=None)
    without_source = suspicion.laboratory is None
    found = _left_in_train_mode(suspicion) if without_source else []
    found = found or _search(suspicion)
    if not without_source and not found:
        found = _left_in_train_mode(suspicion)
    return found or [_unexplained(suspicion)]


def _left_in_train_mode(suspicion: Suspicion) -> list[Explanation]:
    """The file itself tells: with its layers in eval mode it is right, or has one more fault."""
    mended = suspicion.in_eval_mode
    if mended is None:
        return []
    name = suspicion.hop.name
    told = Explanation(
        Cause.TRAIN_MODE,
        name,
        f"exported in train mode: '{name}' holds dropout or batch norm in train mode, and with "
        "them set to evaluation it answers what the model answered; call .eval() before the export",
    )
    after = replace(suspicion, hop=mended, in_eval_mode=None)
    if all(_is_right(after, case) for case in suspicion.cases):
        return [told]
    rest = _search(after)
    if rest:
        return [told, *rest]
    return [_with_moved_statistics(told)] if _is_much_nearer(suspicion, mended) else []


def _with_moved_statistics(told: Explanation) -> Explanation:
    return replace(
        told,
        sentence=f"{told.sentence}. It answers nearly so: the export moved the running statistics "
        "of its batch norm as well",
    )


def _is_much_nearer(suspicion: Suspicion, mended: Hop) -> bool:
    samples = []
    for case in suspicion.cases:
        before, after = _try(suspicion.hop.run, case), _try(mended.run, case)
        if before is None or after is None:
            return False
        samples.append(Sample(case, expected=case.outputs, actual=after, plain=before))
    comparable = all(could_be_near(sample) for sample in samples)
    return comparable and are_near(suspicion.judge, samples)


def _search(suspicion: Suspicion) -> list[Explanation]:
    answered, failed = _sort_cases(suspicion)
    found: list[Explanation] = []
    if failed:
        found.extend(_explain_failures(suspicion, failed))
    if answered and not (failed and found and _covers(found)):
        differing = [c for c in answered if not _is_right(suspicion, c)]
        if differing:
            found.extend(_Search(suspicion, answered, differing[0]).run())
    unique = {explanation.cause: explanation for explanation in reversed(found)}
    return list(reversed(unique.values()))


def _covers(found: Sequence[Explanation]) -> bool:
    """Whether what explains the failures was tried on the answers as well."""
    return len(found) > 1


def _sort_cases(suspicion: Suspicion) -> tuple[list[GoldenCase], list[GoldenCase]]:
    """The cases that the hop answers in the right shapes, and those that it fails."""
    answered: list[GoldenCase] = []
    failed: list[GoldenCase] = []
    for case in suspicion.cases:
        try:
            found = suspicion.hop.run(case)
        except HopFailedError:
            failed.append(case)
            continue
        has_rows = all(a.shape[:1] == (case.batch_size,) for a in found.values())
        has_lost_rows = case.batch_size and not has_rows and _has_lost_rows(case, found)
        (failed if has_lost_rows else answered).append(case)
    return answered, failed


def _has_lost_rows(case: GoldenCase, found: Outputs) -> bool:
    """Whether some output is of another number of elements, by its rows."""
    return any(
        name in found and found[name].size != expected.size and found[name].ndim == expected.ndim
        for name, expected in case.outputs.items()
    )


def _is_right(suspicion: Suspicion, case: GoldenCase) -> bool:
    try:
        return suspicion.judge.is_equal(case, case.outputs, suspicion.hop.run(case))
    except HopFailedError:
        return False


def _explain_failures(suspicion: Suspicion, failed: Sequence[GoldenCase]) -> list[Explanation]:
    """Of cases that the hop doesn't answer, or not with all rows."""
    # A reading that cures the failures must be right on every case.
    found = _Search(suspicion, suspicion.cases, failed[0], has_failed=True).run()
    if found:
        return found
    lost = _lost_axis(suspicion, failed)
    return [] if lost is None else [lost]


def _lost_axis(suspicion: Suspicion, failed: Sequence[GoldenCase]) -> Explanation | None:
    """Dynamic axes at which only the sizes of the cases that work do."""
    hop = suspicion.hop
    working = [case for case in suspicion.cases if case not in failed]
    lost: dict[str, int] = {}
    for axis, places in _axis_places(suspicion.inputs).items():
        sizes = {_size(case, places) for case in working}
        if len(sizes) == 1 and any(_size(case, places) not in sizes for case in failed):
            lost[axis] = sizes.pop()
    if not lost:
        return None
    sizes_of = {
        tensor.name: {axis: lost[name] for axis, name in tensor.axes.items() if name in lost}
        for tensor in suspicion.inputs
    }
    if not all(_answers_resized(suspicion, resize(case, sizes_of)) for case in failed):
        return None
    told = " and ".join(f"'{axis}' is cut or filled to {size}" for axis, size in lost.items())
    return Explanation(
        Cause.LOST_DYNAMIC_DIM,
        hop.name,
        f"lost dynamic dim: '{hop.name}' fails at other sizes than its example's and answers the "
        f"same inputs when {told}: the export fixed {' and '.join(map(repr, lost))}",
    )


def _answers_resized(suspicion: Suspicion, case: GoldenCase) -> bool:
    try:
        found = suspicion.hop.run(case)
        if suspicion.laboratory is None:
            return True
        return suspicion.judge.is_equal(case, suspicion.laboratory.eager.run(case), found)
    except HopFailedError:
        return False


def _axis_places(inputs: Sequence[TensorRecord]) -> dict[str, dict[str, list[int]]]:
    """Name of a dynamic axis -> input -> its axes of that name."""
    found: dict[str, dict[str, list[int]]] = {}
    for tensor in inputs:
        for axis, name in tensor.axes.items():
            found.setdefault(name, {}).setdefault(tensor.name, []).append(axis)
    return found


def _size(case: GoldenCase, places: Mapping[str, Sequence[int]]) -> int:
    name, axes = next(iter(places.items()))
    return int(case.inputs[name].shape[axes[0]])


def _stale_golden(suspicion: Suspicion) -> Explanation | None:
    if suspicion.laboratory is None:
        return None
    eager = suspicion.laboratory.eager
    differing = [case for case in suspicion.cases if not _is_right(suspicion, case)]
    try:
        for case in differing:
            answer = eager.run(case)
            if suspicion.judge.is_equal(case, case.outputs, answer):
                return None
            if not suspicion.judge.is_equal(case, answer, suspicion.hop.run(case)):
                return None
    except HopFailedError:
        return None
    return Explanation(
        Cause.STALE_GOLDEN,
        suspicion.hop.name,
        f"the golden outputs are not what the model answers: eager PyTorch, asked again, agrees "
        f"with '{suspicion.hop.name}' and not with the golden file",
    )


_Hypothesis = tuple[tuple[Reading, ...], tuple[Reference, ...]]


@dataclass(slots=True)
class _Search:
    """All hypotheses about one hop: one fault first, then two.

    Attributes:
        suspicion: the hop.
        cases: that an explanation must hold for.
        probe: one that differs; what doesn't explain it is not tried on the others.
        has_failed: the hop doesn't answer the probe rightly shaped.
    """

    suspicion: Suspicion
    cases: Sequence[GoldenCase]
    probe: GoldenCase
    has_failed: bool = False
    _answers: dict[tuple[object, ...], Outputs | None] = field(default_factory=dict)
    _is_random: bool = False

    def run(self) -> list[Explanation]:
        """The first hypothesis that holds for every case, in words."""
        self._is_random = is_random(self.suspicion.hop, self.probe)
        deadline = self.suspicion.clock.now_ns() + int(self.suspicion.budget_s * _NS_PER_S)
        singles, pairs = self._hypotheses()
        shown = self._first_that_holds(singles, deadline)
        if not shown and not self._is_random:
            shown = _as_list(find_deaf_input(self.suspicion.hop, self._eager(), self.cases))
        if not shown and not self._is_random:
            shown = _as_list(_levels(self.suspicion, self.probe))
        if not shown:
            shown = self._first_that_holds(pairs, deadline)
        if shown:
            return shown
        if self._is_random:
            return [_random(self.suspicion)]
        return _as_list(_mixing(self.suspicion, self.probe))

    def _eager(self) -> Hop | None:
        laboratory = self.suspicion.laboratory
        return None if laboratory is None else laboratory.eager

    def _first_that_holds(
        self, hypotheses: Iterable[_Hypothesis], deadline_ns: int
    ) -> list[Explanation]:
        for hypothesis in hypotheses:
            if self.suspicion.clock.now_ns() > deadline_ns:
                break
            if self._holds(hypothesis):
                return self._tell(hypothesis)
        return []

    def _hypotheses(self) -> tuple[list[_Hypothesis], Iterator[_Hypothesis]]:
        """One fault at a time, the plainest first, and two at a time."""
        readings = list(readings_for(self.probe, self._plain_answer()))
        references = self._references()
        early = [r for r in references if r.cause is Cause.TRAIN_MODE]
        late = [r for r in references if r.cause is not Cause.TRAIN_MODE]
        mixing = [r for r in readings if r.cause is Cause.BATCH_MIXING]
        plain = [r for r in readings if r.cause is not Cause.BATCH_MIXING]
        # A batch norm in train mode mixes the batch too, and is the better explanation.
        singles: list[_Hypothesis] = [
            *(((reading,), ()) for reading in plain),
            *(((), (reference,)) for reference in early),
            *(((reading,), ()) for reading in mixing),
            *(((), (reference,)) for reference in late),
        ]
        laboratory = self.suspicion.laboratory
        # Where the file has other weights, they are one of the two.
        has_other = laboratory is not None and laboratory.is_other_state
        sharp = [r for r in references if not r.is_blunt]
        return singles, _pairs(readings, sharp, Cause.OTHER_WEIGHTS if has_other else None)

    def _references(self) -> list[Reference]:
        laboratory, cases = self.suspicion.laboratory, self.suspicion.cases
        found = list(output_references(cases))
        if laboratory is not None:
            own = source_references(laboratory.possible, laboratory.other_weights)
            found = [*own, *found]
        if laboratory is not None or self.suspicion.base is not None:
            found = [*input_references(cases), *found]
        return [r for r in found if r.is_random == self._is_random]

    def _plain_answer(self) -> Outputs | None:
        if self.has_failed:
            return None
        return self._ask((), self.probe)

    def _holds(self, hypothesis: _Hypothesis) -> bool:
        if self._compare(hypothesis, self.probe) is not True:
            return False
        others = [case for case in self.cases if case is not self.probe]
        if any(self._compare(hypothesis, case) is False for case in others):
            return False
        if not any(reference.likeness is Likeness.NEAR for reference in hypothesis[1]):
            return True
        samples = [self._sample(hypothesis, case) for case in self.cases]
        return are_near(self.suspicion.judge, [sample for sample in samples if sample is not None])

    def _compare(self, hypothesis: _Hypothesis, case: GoldenCase) -> bool | None:
        """Whether the hop answers a case as foretold; None where there is nothing to foretell."""
        readings, references = hypothesis
        if self._foretell(references, case) is None:
            return None
        if self._is_random:
            return self._compare_draws(readings, references, case)
        sample = self._sample(hypothesis, case)
        if sample is None:
            return False
        likeness = {reference.likeness for reference in references}
        return is_alike(self.suspicion.judge, sample, likeness)

    def _sample(self, hypothesis: _Hypothesis, case: GoldenCase) -> Sample | None:
        readings, references = hypothesis
        expected = self._foretell(references, case)
        actual = self._ask(readings, case)
        if expected is None or actual is None:
            return None
        plain = self._foretell(tuple(r for r in references if r.likeness is Likeness.EQUAL), case)
        return Sample(case, expected, actual, case.outputs if plain is None else plain)

    def _compare_draws(
        self, readings: Sequence[Reading], references: Sequence[Reference], case: GoldenCase
    ) -> bool:
        if not references:
            return False
        expected = [self._foretell(references, case, fresh=True) for _ in range(DRAWS)]
        actual = [self._ask(readings, case, fresh=True) for _ in range(DRAWS)]
        return are_same_draws(
            [a for a in expected if a is not None], [a for a in actual if a is not None]
        )

    def _ask(
        self, readings: Sequence[Reading], case: GoldenCase, *, fresh: bool = False
    ) -> Outputs | None:
        key = ("ask", *map(id, readings), case.name)
        if fresh or key not in self._answers:
            ask: Ask = self.suspicion.hop.run
            for reading in readings:
                ask = reading.wrap(ask)
            self._answers[key] = _try(ask, case)
        return self._answers[key]

    def _foretell(
        self, references: Sequence[Reference], case: GoldenCase, *, fresh: bool = False
    ) -> Outputs | None:
        """The right answer with the faults of the references in it; None where there is none."""
        key = ("foretell", *map(id, references), case.name)
        if fresh or key not in self._answers:
            self._answers[key] = self._foretell_fresh(references, case)
        return self._answers[key]

    def _foretell_fresh(self, references: Sequence[Reference], case: GoldenCase) -> Outputs | None:
        answer: Outputs | None = case.outputs
        if any(reference.needs_source() for reference in references):
            asked = case
            for reference in references:
                asked = asked if reference.ask is None else reference.ask(asked)
            faults = frozenset(fault for r in references for fault in r.faults)
            answer = self._ask_source(faults, asked)
        for reference in references:
            if reference.answer is not None and answer is not None:
                answer = reference.answer(answer)
        return answer

    def _ask_source(self, faults: "frozenset[SourceFault]", case: GoldenCase) -> Outputs | None:
        laboratory, base = self.suspicion.laboratory, self.suspicion.base
        if laboratory is not None:
            try:
                hop: Hop = laboratory.variant(faults) if faults else laboratory.eager
            except HopFailedError:
                return None
            return _try(hop.run, case)
        return None if base is None else _try(base.run, case)

    def _tell(self, hypothesis: _Hypothesis) -> list[Explanation]:
        hop = self.suspicion.hop.name
        readings, references = hypothesis
        told = [
            *((r.cause, r.sentence) for r in readings),
            *((r.cause, r.sentence) for r in references),
        ]
        return [Explanation(cause, hop, text.replace("{hop}", hop)) for cause, text in told]


def _pairs(
    readings: Sequence[Reading], references: Sequence[Reference], certain_cause: Cause | None
) -> Iterator[_Hypothesis]:
    certain = [r for r in references if r.cause is certain_cause]
    uncertain = [r for r in references if r.cause is not certain_cause]
    for reference in certain:
        yield from (((reading,), (reference,)) for reading in readings)
        yield from (((), (reference, other)) for other in uncertain)
    for reference, reading in itertools.product(uncertain, readings):
        yield (reading,), (reference,)
    for one, other in itertools.combinations(uncertain, 2):
        if one.place != other.place:
            yield (), (one, other)
    for reading, another in itertools.combinations(readings, 2):
        if reading.place != another.place:
            yield (reading, another), ()


def _as_list(found: Explanation | None) -> list[Explanation]:
    return [] if found is None else [found]


def _try(ask: Ask, case: GoldenCase) -> Outputs | None:
    try:
        return ask(case)
    except HopFailedError:
        return None


def _random(suspicion: Suspicion) -> Explanation:
    name = suspicion.hop.name
    return Explanation(
        Cause.RANDOM,
        name,
        f"'{name}' answers the same question differently each time: it holds a random operation, "
        "such as dropout of a model exported in train mode",
    )


_NUDGES: Final = 24
_NUDGE: Final = 1e-4
"""Of an input's range: a fortieth of the step between 256 levels."""


def _levels(suspicion: Suspicion, case: GoldenCase) -> Explanation | None:
    """Inputs that are rounded to levels: small changes of them change nothing, most often."""
    if suspicion.laboratory is None:
        return None
    name = suspicion.hop.name
    still = moved = 0
    for nudged in _nudged(case):
        both = [
            (_try(ask, case), _try(ask, nudged))
            for ask in (suspicion.hop.run, suspicion.laboratory.eager.run)
        ]
        if any(answer is None for pair in both for answer in pair):
            return None
        is_still, eager_is_still = (_are_same(*pair) for pair in both)
        still += is_still and not eager_is_still
        moved += not eager_is_still
    # A step of 1/256 is seldom crossed; arithmetic in FP32 moves with nearly every change.
    if moved < _NUDGES // 2 or still < 0.75 * moved:
        return None
    return Explanation(
        Cause.ROUNDING,
        name,
        f"quantisation: {still} of {moved} changes of an input by a ten-thousandth of its range "
        f"move the source model's answer and leave that of '{name}' bit for bit: it rounds its "
        "activations to few levels",
    )


def _nudged(case: GoldenCase) -> Iterator[GoldenCase]:
    """The case with one element of a float input changed a little, inside the input's range."""
    for name, array in case.inputs.items():
        if array.dtype.kind != "f" or array.size < 3:
            continue
        step = _NUDGE * float(array.max() - array.min())
        # The extremes define the levels themselves.
        inner = np.argsort(array.reshape(-1))[1:-1]
        for index in inner[:: max(len(inner) // _NUDGES, 1)][:_NUDGES]:
            changed = array.copy()
            changed.reshape(-1)[index] += np.asarray(step, array.dtype)
            yield replace(case, inputs={**case.inputs, name: changed})
        return


def _are_same(first: Outputs | None, second: Outputs | None) -> bool:
    assert first is not None  # noqa: S101  # the caller has looked
    assert second is not None  # noqa: S101
    return all(same_bits(first[name], second[name]) for name in first)


def _mixing(suspicion: Suspicion, case: GoldenCase) -> Explanation | None:
    """Rows that answer otherwise in company, at a hop whose source doesn't do that."""
    if suspicion.laboratory is None or case.batch_size < 2:
        return None
    mixes = [
        _changes_in_company(suspicion, ask, case)
        for ask in (suspicion.hop.run, suspicion.laboratory.eager.run)
    ]
    if mixes != [True, False]:
        return None
    name = suspicion.hop.name
    return Explanation(
        Cause.BATCH_MIXING,
        name,
        f"the batch is the cause: at '{name}' a row's answer changes with the other rows of its "
        "batch, and in the source model it does not",
    )


def _changes_in_company(suspicion: Suspicion, ask: Ask, case: GoldenCase) -> bool | None:
    together, alone = _try(ask, case), _try(by_rows(ask), case)
    if together is None or alone is None:
        return None
    return not suspicion.judge.is_equal(case, together, alone)


def _unexplained(suspicion: Suspicion) -> Explanation:
    hop = suspicion.hop
    differing = [case for case in suspicion.cases if not _is_right(suspicion, case)]
    case = (differing or suspicion.cases)[0]
    try:
        found = worst(suspicion.judge.compare(case, case.outputs, hop.run(case)))
    except HopFailedError as error:
        told = f"'{hop.name}' failed at batch {case.batch_size}: {error}"
        return Explanation(Cause.UNEXPLAINED, hop.name, f"unexplained: {told}")
    if found.problem:
        told = f"'{hop.name}': {found.problem}"
    else:
        told = (
            f"'{hop.name}', output '{found.output}', batch {case.batch_size}: max abs "
            f"{found.max_abs:.3e}, max rel {found.max_rel:.3e}, worst at {found.worst_index}: "
            f"{found.actual_value} instead of {found.expected_value}"
        )
    if suspicion.laboratory is None:
        told += ". With --source more experiments are possible"
    return Explanation(Cause.UNEXPLAINED, hop.name, f"unexplained: {told}")
