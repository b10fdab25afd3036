"""One model version through every hop, and why the first one differs that does."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from naiad.access.credentials import Credentials
from naiad.clock import Clock, SystemClock
from naiad.errors import UnavailableError
from naiad.inference.comparison import EXACT, Difference, Outputs, compare_outputs, worst
from naiad.repository.golden import GoldenCase
from naiad.verify.artifact import open_artifact
from naiad.verify.artifact_contents import open_in_eval_mode
from naiad.verify.causes import Suspicion, find_causes
from naiad.verify.engine_hop import ENGINE_HOP, ENGINE_MIXED_HOP, EngineHop
from naiad.verify.explanation import Cause, Explanation
from naiad.verify.hops import (
    CLIENTS,
    ConcurrentHop,
    Hop,
    HopFailedError,
    HopMissingError,
    HopSilentError,
    MixedAnswers,
    ServedHop,
    Transport,
    reload_model,
)
from naiad.verify.judge import Judge
from naiad.verify.likeness import is_random
from naiad.verify.plots import PlotCollector
from naiad.verify.report import ModelReport, Row, Verdict
from naiad.verify.subject import Subject
from naiad.verify.wire import CallFailedError, Target, get_json

if TYPE_CHECKING:
    from naiad.verify.laboratory import Laboratory

OnStep = Callable[[str], None]
"""Told in words what is being done, for a progress display."""

OnHop = Callable[[str, Sequence[Row]], None]
"""Told the model and the rows of a hop as soon as they are known."""

Answers = dict[str, Outputs]
"""Name of a golden case -> what a hop answered to it."""

# Asked by HTTP with binary tensors, after the server has loaded the model anew.
RELOADED_HOP: Final = "served, reloaded"
_BAD: Final = frozenset({Verdict.DIFFERENT, Verdict.FAILED})
_NS_PER_MS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Server:
    """A server that serves the repository.

    Attributes:
        address: ``HOST:PORT`` or ``https://HOST:PORT`` of its HTTP service.
        grpc_address: the same of gRPC; "" where that is not to be asked.
        is_ours: this process has started it, so it may be told to reload models.
        credentials: by which it lets us in.
    """

    address: str
    grpc_address: str
    is_ours: bool
    credentials: Credentials = field(default_factory=Credentials)


class Proof:
    """All hops of one model version.

    Args:
        subject: the version, with at least one golden case.
        server: that serves it; None to stop at the file alone.
        laboratory: the source model, where there is one.
        on_step: told what is being done.
        on_hop: told each hop's rows.
        clock: that latencies are measured by.
    """

    def __init__(  # what is proven, against what, and who is told
        self,
        subject: Subject,
        server: Server | None,
        laboratory: "Laboratory | None",
        on_step: OnStep,
        on_hop: OnHop,
        clock: Clock | None = None,
    ) -> None:
        self._subject = subject
        self._server = server
        self._laboratory = laboratory
        self._on_step = on_step
        self._on_hop = on_hop
        self._clock = clock or SystemClock()
        self._rows: list[Row] = []
        self._causes: list[Explanation] = []
        self._plots = PlotCollector(subject.outputs())
        self._batch_sizes: Mapping[int, int] | None = None
        self._max_batch_size = subject.manifest.max_batch_size
        self._judge = Judge(subject.outputs(), subject.manifest.tolerances)
        self._base: Hop | None = None
        self._is_source_right = True
        self._artifact: Hop | None = None
        self._wrong: list[Answers] = []
        self._repeats = True

    def run(self, source: str, rounds: int) -> None:
        """Ask hop after hop.

        Args:
            source: what the report calls the source model.
            rounds: requests of each concurrent client.

        Raises:
            NaiadError: the file doesn't load, or the server doesn't serve it.
        """
        self._tell_changed_files()
        self._ask_source()
        file_answers = self._ask_file(source)
        if self._server is not None:
            self._ask_served(self._server, file_answers, rounds)

    def report(self, could_not_run: str = "") -> ModelReport:
        """What is known by now."""
        named = {found.hop for found in self._causes if found.cause is not Cause.UNEXPLAINED}
        causes = [
            found
            for found in self._causes
            if found.cause is not Cause.UNEXPLAINED or found.hop not in named
        ]
        return ModelReport(
            model=self._subject.model,
            version=self._subject.version,
            artifact=self._subject.manifest.model_file,
            problems=self._subject.problems,
            rows=self._rows,
            causes=[*causes, *self._notes()],
            batch_sizes=self._batch_sizes,
            could_not_run=could_not_run,
            tolerances=self._judge.tolerances,
            noise=self._judge.noise,
            plots=self._plots.plots(),
        )

    def _tell_changed_files(self) -> None:
        changed = self._subject.changed
        if changed:
            self._causes.append(
                Explanation(
                    Cause.CHANGED_FILES,
                    "exported file alone",
                    f"files changed since the export: {', '.join(changed)} "
                    f"{'is' if len(changed) == 1 else 'are'} not what naiad.json has the sha256 "
                    "of. Export the version again, or put the exported files back",
                )
            )

    def _ask_source(self) -> None:
        """Whether the source, where there is one, still answers what was recorded."""
        laboratory = self._laboratory
        if laboratory is None:
            return
        _, self._is_source_right = self._run_hop(laboratory.eager, None)
        if self._is_source_right:
            self._on_step(f"{self._subject.model}: running the source in FP64")
            subject = self._subject
            self._judge = Judge(
                subject.outputs(), subject.manifest.tolerances, laboratory, subject.cases
            )

    def _ask_file(self, source: str) -> Answers:
        subject = self._subject
        artifact = open_artifact(subject.artifact(), subject.inputs(), list(subject.outputs()))
        self._artifact = artifact
        answers, is_right = self._run_hop(artifact, None)
        if not is_right:
            self._wrong.append(answers)
            self._repeats = not is_random(artifact, subject.cases[0])
            in_eval_mode = open_in_eval_mode(
                subject.artifact(), subject.inputs(), list(subject.outputs())
            )
            self._explain(artifact, subject.cases, in_eval_mode)
        elif not self._is_source_right:
            self._causes.append(
                Explanation(
                    Cause.ANOTHER_SOURCE,
                    "PyTorch eager again",
                    f"'{source}' is not the model that was exported: the file still answers what "
                    "was recorded at export, the source now answers something else. Weights that "
                    "it draws at random need a seed (torch.manual_seed)",
                )
            )
        if is_right:
            self._base = artifact
        return answers

    def _ask_served(self, server: Server, file_answers: Answers, rounds: int) -> None:
        subject = self._subject
        target = Target(
            server.address, subject.model, subject.version, subject.inputs(), subject.outputs(),
            server.grpc_address, server.credentials,
        )  # fmt: skip
        if server.is_ours:
            self._ask_engine(file_answers)
        self._require_served(target)
        transports = [t for t in Transport if server.grpc_address or "gRPC" not in t]
        for transport in transports:
            self._ask_wire(target, transport, str(transport), file_answers)
        self._run_mixed(target, file_answers, rounds)
        if server.is_ours:
            self._ask_reloaded(target, file_answers)

    def _ask_engine(self, file_answers: Answers) -> None:
        subject = self._subject
        self._on_step(f"{subject.model}: {ENGINE_HOP}")
        try:
            engine = EngineHop(
                subject.repository(), subject.model, subject.version, subject.inputs()
            )
        except HopFailedError as error:
            self._add([Row(ENGINE_HOP, "all", [], None, Verdict.FAILED, str(error))])
            return
        with engine:
            try:
                self._max_batch_size = engine.max_batch_size()
                answers, is_right = self._run_hop(engine, file_answers)
            except HopFailedError as error:
                self._add([Row(ENGINE_HOP, "all", [], None, Verdict.FAILED, str(error))])
                return
            if not is_right:
                self._explain_own(engine, answers, file_answers)
            self._ask_engine_together(engine)

    def _ask_engine_together(self, engine: EngineHop) -> None:
        """As many cases as fit into one batch, asked in one turn."""
        cases: list[GoldenCase] = []
        rows = 0
        was_right = not self._has_failed()
        for case in self._subject.cases:
            if 0 < case.batch_size <= self._max_batch_size - rows:
                cases.append(case)
                rows += case.batch_size
        if len(cases) < 2:
            return
        try:
            answers = engine.run_together(cases)
        except HopFailedError as error:
            self._add([Row(ENGINE_MIXED_HOP, str(rows), [], None, Verdict.FAILED, str(error))])
            return
        differences = self._against_golden(list(zip(cases, answers, strict=True)))
        row = _judge_row(ENGINE_MIXED_HOP, str(rows), differences, None)
        self._add([row])
        if row.verdict is Verdict.DIFFERENT and was_right:
            self._tell_mixing(ENGINE_MIXED_HOP)

    def _require_served(self, target: Target) -> None:
        path = f"/v2/models/{target.model}/versions/{target.version}"
        try:
            get_json(target, path)
        except CallFailedError as error:
            raise UnavailableError(str(error)) from error
        if not self._max_batch_size:
            return
        try:
            # A person may have changed it since the export; the golden cases have not.
            config = get_json(target, f"{path}/config")
            self._max_batch_size = int(config.get("max_batch_size", 0))
        except CallFailedError:
            # Not every KServe server has this extension of Triton's.
            return

    def _ask_wire(
        self, target: Target, transport: Transport, name: str, file_answers: Answers
    ) -> None:
        try:
            hop = ServedHop(target, transport, name=name)
        except HopFailedError as error:
            self._add([Row(name, "all", [], None, Verdict.FAILED, str(error))])
            return
        try:
            answers, is_right = self._run_hop(hop, file_answers)
            if not is_right:
                self._explain_own(hop, answers, file_answers)
        finally:
            hop.close()

    def _ask_reloaded(self, target: Target, file_answers: Answers) -> None:
        self._on_step(f"{self._subject.model}: reloading")
        try:
            reload_model(target)
        except HopFailedError as error:
            self._add([Row(RELOADED_HOP, "all", [], None, Verdict.FAILED, str(error))])
            return
        self._ask_wire(target, Transport.BINARY, RELOADED_HOP, file_answers)

    def _is_too_large(self, case: GoldenCase) -> bool:
        """Whether the server rightly refuses the case; without a batch axis it never does."""
        return 0 < self._max_batch_size < case.batch_size

    def _add(self, rows: Sequence[Row]) -> None:
        self._rows.extend(rows)
        self._on_hop(f"{self._subject.model} {self._subject.version}", rows)

    def _run_hop(self, hop: Hop, file_answers: Answers | None) -> tuple[Answers, bool]:
        """One row for each batch size; the answers, and whether all of them hold."""
        refusal = hop.refusal()
        if refusal:
            self._add([Row(hop.name, "all", [], None, Verdict.SKIPPED, refusal)])
            return {}, True
        sizes = sorted({case.batch_size for case in self._subject.cases})
        rows: list[Row] = []
        answers: Answers = {}
        try:
            for size in sizes:
                self._on_step(f"{self._subject.model}: {hop.name}, batch {size}")
                cases = [case for case in self._subject.cases if case.batch_size == size]
                rows.append(self._run_batch(hop, cases, answers, file_answers))
        except HopMissingError as error:
            rows = [Row(hop.name, "all", [], None, Verdict.SKIPPED, str(error))]
        except HopSilentError as error:
            rows.append(Row(hop.name, "rest", [], None, Verdict.FAILED, str(error)))
        self._add(rows)
        return answers, not any(row.verdict in _BAD for row in rows)

    def _run_batch(
        self,
        hop: Hop,
        cases: Sequence[GoldenCase],
        answers: Answers,
        file_answers: Answers | None,
    ) -> Row:
        batch = str(cases[0].batch_size or "none")
        if file_answers is not None and self._is_too_large(cases[0]):
            note = f"the model config takes at most {self._max_batch_size} rows"
            return Row(hop.name, batch, [], None, Verdict.SKIPPED, note)
        latencies = []
        try:
            for case in cases:
                started_ns = self._clock.now_ns()
                answers[case.name] = hop.run(case)
                latencies.append(self._clock.now_ns() - started_ns)
        except (HopMissingError, HopSilentError):
            # They hold for the batches to come as well.
            raise
        except HopFailedError as error:
            return Row(hop.name, batch, [], None, Verdict.FAILED, str(error))
        answered = [(case, answers[case.name]) for case in cases]
        self._plots.add(hop.name, answered)
        same_bits = None
        if file_answers is not None and all(case.name in file_answers for case in cases):
            same_bits = all(
                self._has_same_bits(file_answers[case.name], answer) for case, answer in answered
            )
        row = _judge_row(hop.name, batch, self._against_golden(answered), same_bits)
        is_noisy = any(self._judge.needs_noise(case, answer) for case, answer in answered)
        return replace(row, latency_ms=min(latencies) / _NS_PER_MS, is_noisy=is_noisy)

    def _run_mixed(self, target: Target, file_answers: Answers, rounds: int) -> None:
        hop = ConcurrentHop(target)
        self._on_step(f"{self._subject.model}: {hop.name}")
        # Two requests have to fit into one batch, or nothing would be mixed.
        fitting = self._max_batch_size // 2
        taken = [case for case in self._subject.cases if not self._is_too_large(case)]
        cases = [case for case in taken if 0 < case.batch_size <= fitting]
        was_right = not self._has_failed()
        try:
            mixed = hop.run_mixed(cases or taken, rounds)
        except HopFailedError as error:
            self._add([Row(hop.name, "mixed", [], None, Verdict.FAILED, str(error))])
            return
        row = self._judge_mixed(hop.name, mixed, file_answers)
        self._add([row])
        self._plots.add(hop.name, mixed.answers)
        self._batch_sizes = mixed.executions.batch_sizes if mixed.executions else None
        if row.verdict is Verdict.DIFFERENT and was_right:
            self._tell_mixing(hop.name)

    def _tell_mixing(self, hop: str) -> None:
        self._causes.append(
            Explanation(
                Cause.BATCH_MIXING,
                hop,
                "only requests that share a batch differ, one at a time each is right: rows of "
                "one batch influence each other, or reach the wrong request",
            )
        )

    def _judge_mixed(self, name: str, mixed: MixedAnswers, file_answers: Answers) -> Row:
        row = _judge_row(name, "mixed", self._against_golden(mixed.answers), None)
        is_files = all(
            self._judge.is_equal(case, file_answers[case.name], answer)
            for case, answer in mixed.answers
            if case.name in file_answers
        )
        if row.verdict is Verdict.EQUAL and not is_files and self._base is not None:
            note = "beyond the tolerance of what the file alone answers"
            return replace(row, verdict=Verdict.DIFFERENT, note=note)
        executions = mixed.executions
        if executions and self._max_batch_size > 1 and not executions.has_mixed():
            note = (
                f"the server joined no requests of {CLIENTS} clients into a batch; "
                "dynamic_batching in config.pbtxt allows it"
            )
            return replace(row, note=row.note or note)
        return row

    def _against_golden(self, answers: Sequence[tuple[GoldenCase, Outputs]]) -> list[Difference]:
        """For each output the worst difference over the cases."""
        by_output: dict[str, list[Difference]] = {}
        for case, answer in answers:
            for difference in self._judge.compare(case, case.outputs, answer):
                by_output.setdefault(difference.output, []).append(difference)
        return [_merge(differences) for differences in by_output.values()]

    def _has_same_bits(self, expected: Outputs, actual: Outputs) -> bool:
        datatypes = self._subject.outputs()
        exact = dict.fromkeys(datatypes, EXACT)
        found = compare_outputs(expected, actual, datatypes, exact)
        return all(difference.same_bits for difference in found)

    def _has_failed(self) -> bool:
        return any(row.verdict in _BAD for row in self._rows)

    def _explain_own(self, hop: Hop, answers: Answers, file_answers: Answers) -> None:
        """Causes of what a hop does wrong by itself; not of what it passes on from an earlier one.

        Args:
            hop: that differs.
            answers: its own, as far as there are any.
            file_answers: of the file alone, which may be wrong too: then they are what a served
                hop should answer.
        """
        cases = [case for case in self._subject.cases if not self._is_too_large(case)]
        if any(self._passes_on(cases, answers, wrong) for wrong in self._wrong):
            return
        self._wrong.append(answers)
        if self._base is None:
            if not (self._repeats and all(case.name in file_answers for case in cases)):
                return
            cases = [replace(case, outputs=file_answers[case.name]) for case in cases]
        self._explain(hop, cases)

    def _passes_on(self, cases: Sequence[GoldenCase], answers: Answers, wrong: Answers) -> bool:
        """Whether a hop answers just what an earlier one that differs did."""
        asked = {case.name for case in cases}
        if answers.keys() & asked != wrong.keys() & asked:
            return False
        return all(
            self._judge.is_equal(case, wrong[case.name], answers[case.name])
            for case in cases
            if case.name in answers
        )

    def _explain(
        self, hop: Hop, cases: Sequence[GoldenCase], in_eval_mode: Hop | None = None
    ) -> None:
        self._on_step(f"{self._subject.model}: looking for the cause")
        is_passed_on = self._base is None and self._artifact not in {None, hop}
        suspicion = Suspicion(
            hop,
            cases,
            self._judge,
            self._clock,
            inputs=self._subject.manifest.inputs,
            # A wrong file is what the hops after it are compared with, and the source isn't it.
            laboratory=None if is_passed_on else self._laboratory,
            is_source_right=self._is_source_right,
            base=self._artifact if is_passed_on else self._base,
            in_eval_mode=in_eval_mode,
        )
        self._causes.extend(find_causes(suspicion))

    def _notes(self) -> list[Explanation]:
        """What sets equal answers apart: ties, and noise that only a wide tolerance allows."""
        notes = []
        rows = [row for row in self._rows if row.verdict is Verdict.EQUAL]
        tied = [row for row in rows if any(d.only_ties for d in row.differences)]
        if tied:
            notes.append(
                Explanation(
                    Cause.TIE_ORDER,
                    tied[0].hop,
                    f"tie order: indices of '{tied[0].hop}' differ only where the values that they "
                    "point to are equal, so both are right",
                )
            )
        noisy = [row for row in rows if row.is_noisy]
        if noisy:
            found = worst(noisy[0].differences)
            notes.append(
                Explanation(
                    Cause.FLOAT_NOISE,
                    noisy[0].hop,
                    f"float noise: output '{found.output}' of '{noisy[0].hop}' is up to "
                    f"{found.max_abs:.2e} away, more than its datatype's tolerance; eager PyTorch "
                    f"itself is {self._judge.noise.get(found.output, 0.0):.2e} away from the same "
                    "model in FP64, so rounding explains it",
                )
            )
        return notes


def _judge_row(
    hop: str,
    batch: str,
    differences: Sequence[Difference],
    same_bits: bool | None,  # noqa: FBT001
) -> Row:
    unequal = [difference for difference in differences if not difference.equal]
    if unequal:
        problem = worst(unequal).problem
        return Row(hop, batch, differences, same_bits, Verdict.DIFFERENT, problem)
    note = ""
    # Kernels add in another order by batch size and by how the memory is aligned, so other bits
    # prove no fault.
    if same_bits is False:
        note = "float noise: within the tolerance, not the bits that the file alone answers"
    return Row(hop, batch, differences, same_bits, Verdict.EQUAL, note)


def _merge(differences: Sequence[Difference]) -> Difference:
    """One output over several cases: the worst of each number."""
    return replace(
        worst(differences),
        max_abs=max(d.max_abs for d in differences),
        max_rel=max(d.max_rel for d in differences),
        same_top1=_all_of([d.same_top1 for d in differences]),
        same_top5=_all_of([d.same_top5 for d in differences]),
        same_bits=all(d.same_bits for d in differences),
        only_ties=any(d.only_ties for d in differences),
        max_ulp=max((d.max_ulp for d in differences if d.max_ulp is not None), default=None),
        cosine=min((d.cosine for d in differences if d.cosine is not None), default=None),
    )


def _all_of(answers: Sequence[bool | None]) -> bool | None:
    known = [answer for answer in answers if answer is not None]
    return all(known) if known else None
