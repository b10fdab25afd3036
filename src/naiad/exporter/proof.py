"""A written file, asked the golden cases: what it answers, how far from the model, how fast."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np

from naiad.clock import Clock
from naiad.errors import InternalError
from naiad.exporter.agreement import (
    CaseDifference,
    DisagreementError,
    compare_case,
    scale_tolerance,
)
from naiad.exporter.failures import first_line
from naiad.exporter.formats import Format, Interface, Runner
from naiad.exporter.optimization import loosen_tolerance
from naiad.exporter.options import ExportOptions
from naiad.inference.comparison import Array, Tolerance
from naiad.repository.golden import GoldenCase

_TIMED_RUNS: Final = 15
_TIMED_NS: Final = 300_000_000


@dataclass(frozen=True, slots=True)
class Proof:
    """The cases as a file answers them.

    Attributes:
        cases: with the source model's outputs.
        tolerances: by output.
        differences: for each output of each case.
        run_ns: median time of the first case in the file alone.
        bytes: of the file and what lies beside it.
    """

    cases: tuple[GoldenCase, ...]
    tolerances: Mapping[str, Tolerance]
    differences: tuple[CaseDifference, ...]
    run_ns: int
    bytes: int

    @property
    def max_abs(self) -> float:
        """The largest difference of all."""
        return max(difference.max_abs for difference in self.differences)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A written model file.

    Attributes:
        format: that wrote it.
        path: of the file; what belongs to it lies beside it, and nothing else.
        interface: its inputs and outputs.
        optimize: how it was made smaller, or "".
    """

    format: Format
    path: Path
    interface: Interface
    optimize: str = ""


def prove(
    candidate: Candidate, cases: Sequence[GoldenCase], options: ExportOptions, clock: Clock
) -> Proof:
    """Load a file by itself and ask it all cases.

    Raises:
        UnsupportedError: it does not load.
        DisagreementError: it fails on a case, or answers otherwise than the model.
    """
    interface = candidate.interface
    datatypes = {record.name: record.datatype for record in interface.outputs}
    run = candidate.format.open(
        candidate.path, {record.name: record.datatype for record in interface.inputs}
    )
    answers = [_ask(run, case, candidate.format) for case in cases]
    tolerances = {}
    for name, datatype in datatypes.items():
        expected = [case.outputs[name] for case in cases]
        tolerance = options.tolerance(datatype)
        if candidate.optimize and datatype not in options.tolerances:
            actual = [answer[name] for answer in answers]
            tolerance = loosen_tolerance(candidate.optimize, name, datatype, expected, actual)
        tolerances[name] = scale_tolerance(tolerance, expected, datatype)
    differences = [
        difference
        for case, answer in zip(cases, answers, strict=True)
        for difference in compare_case(case, answer, datatypes, tolerances)
    ]
    _require_agreement(differences, candidate)
    return Proof(
        tuple(cases),
        tolerances,
        tuple(differences),
        _time(run, cases[0], clock),
        sum(path.stat().st_size for path in candidate.path.parent.iterdir()),
    )


def _time(run: Runner, case: GoldenCase, clock: Clock) -> int:
    """Median nanoseconds of a run that is warm."""
    begin = clock.now_ns()
    times: list[int] = []
    while len(times) < _TIMED_RUNS and (not times or clock.now_ns() - begin < _TIMED_NS):
        before = clock.now_ns()
        run(case.inputs)
        times.append(clock.now_ns() - before)
    return int(median(times))


def _ask(run: Runner, case: GoldenCase, chosen: Format) -> dict[str, Array]:
    try:
        outputs = run(case.inputs)
    except Exception as error:
        shapes = {name: list(array.shape) for name, array in case.inputs.items()}
        raise DisagreementError(
            f"{chosen.file_name} fails on the golden case '{case.name}' with the shapes {shapes}, "
            f"which the model answers: {first_line(error)}. {_advice(chosen)}",
            (),
        ) from error
    if len(outputs) != len(case.outputs):
        raise InternalError(
            f"{chosen.file_name} answers with {len(outputs)} outputs instead of {len(case.outputs)}"
        )
    return dict(zip(case.outputs, map(np.asarray, outputs), strict=True))


def _require_agreement(differences: Sequence[CaseDifference], candidate: Candidate) -> None:
    failed = [difference for difference in differences if not difference.equal]
    if not failed:
        return
    worst = max(failed, key=lambda difference: difference.max_abs)
    advice = _advice(candidate.format)
    if candidate.optimize:
        advice = f"{candidate.optimize} changes this output; leave optimize out"
    raise DisagreementError(
        f"{candidate.path.name} does not answer as the model does, so nothing was published: "
        f"output '{worst.output}' of the golden case '{worst.case}' differs by "
        f"{worst.max_abs:.3g} ({worst.detail}); {len(failed)} of {len(differences)} comparisons "
        f"failed. {advice}",
        failed,
    )


def _advice(chosen: Format) -> str:
    if chosen.name == "torchscript":
        return (
            "A traced model keeps one path through its Python code and the sizes that it took as "
            "numbers; make it scriptable, or use the format onnx or pt2"
        )
    if chosen.name == "aoti":
        return (
            "torch's compiler takes decisions by the size of the example (where it is even, a "
            "pooling with ceil_mode no longer rounds up): try an example of odd sizes, or use the "
            "format pt2 or onnx"
        )
    return (
        "Indices (argmax, topk) may differ where values are tied; other differences come from "
        "operators that the two run apart: raise the tolerance if it is harmless, or use another "
        "format"
    )
