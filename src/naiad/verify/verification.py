"""The whole proof: golden outputs, file alone, served JSON, served binary, mixed batches."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from naiad.errors import InvalidArgumentError, NaiadError
from naiad.inference.comparison import EXACT, Difference, Outputs, compare_outputs, worst
from naiad.repository.golden import GoldenCase
from naiad.verify.artifact import open_artifact
from naiad.verify.causes import Suspicion, find_causes
from naiad.verify.hops import (
    CLIENTS,
    ConcurrentHop,
    Hop,
    HopFailedError,
    HttpHop,
    MixedAnswers,
)
from naiad.verify.report import ModelReport, Report, Row, Verdict
from naiad.verify.server_process import ServerProcess
from naiad.verify.subject import Subject, find_unverified, find_versions
from naiad.verify.wire import CallFailedError, Target, get_json

Answers = dict[str, Outputs]
"""Name of a golden case -> what a hop answered to it."""

OnStep = Callable[[str], None]
"""Told in words what is being done, for a progress display."""


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """What to verify and against whom.

    Attributes:
        repository: the model repository.
        models: names; all models with golden cases where empty.
        address: ``HOST:PORT`` of a server that serves the repository; one is started otherwise.
        source: ``MODULE:CALLABLE`` of the PyTorch model, to ask it again; needs one model.
        example: ``MODULE:CALLABLE`` of example inputs, where ``source`` returns none.
        rounds: requests of each concurrent client.
    """

    repository: Path
    models: Sequence[str] = ()
    address: str | None = None
    source: str | None = None
    example: str | None = None
    rounds: int = 2


def verify_repository(options: VerifyOptions, on_step: OnStep = lambda _: None) -> Report:
    """Run every golden case of a repository through every hop.

    Args:
        options: what to verify.
        on_step: called before each step.

    Returns:
        The report; a model that could not be verified is in it with the reason.

    Raises:
        NaiadError: nothing could be verified: no such repository or model, no golden cases, a
            server that doesn't start, a source that doesn't load.
    """
    versions = find_versions(options.repository, options.models)
    if options.source is not None and len({name for name, _ in versions}) > 1:
        raise InvalidArgumentError(
            "--source is one model's source: name the MODEL that it belongs to"
        )
    with ExitStack() as stack:
        address = options.address
        if address is None:
            on_step("starting a server")
            server = ServerProcess(options.repository, options=_serve_options(options.models))
            address = stack.enter_context(server).address
        return Report(
            [_verify_version(options, address, v, on_step) for v in versions],
            () if options.models else find_unverified(options.repository),
        )


def _serve_options(models: Sequence[str]) -> list[str]:
    """Load what is to be verified and nothing else; a model that fails stops no other."""
    flags = ["--exit-on-error=false"]
    if models:
        flags.append("--model-control-mode=explicit")
        flags.extend(f"--load-model={name}" for name in models)
    return flags


def _verify_version(
    options: VerifyOptions, address: str, version: tuple[str, int], on_step: OnStep
) -> ModelReport:
    name, number = version
    try:
        subject = Subject.load(options.repository, name, number)
    except NaiadError as error:
        return ModelReport(name, number, could_not_run=error.message)
    findings = _Findings(subject)
    if not subject.cases:
        return findings.report(could_not_run="no golden case could be read")
    try:
        return _Proof(options, findings, address, on_step).run()
    except NaiadError as error:
        return findings.report(could_not_run=error.message)


@dataclass(slots=True)
class _Findings:
    """What the proof of one version has collected so far."""

    subject: Subject
    rows: list[Row] = field(default_factory=list)
    causes: list[str] = field(default_factory=list)
    batch_sizes: Mapping[int, int] | None = None

    def report(self, could_not_run: str = "") -> ModelReport:
        return ModelReport(
            model=self.subject.model,
            version=self.subject.version,
            artifact=self.subject.manifest.model_file,
            problems=self.subject.problems,
            rows=self.rows,
            causes=self.causes,
            batch_sizes=self.batch_sizes,
            could_not_run=could_not_run,
        )


class _Proof:
    """All hops of one model version."""

    def __init__(
        self, options: VerifyOptions, findings: _Findings, address: str, on_step: OnStep
    ) -> None:
        self._options = options
        self._findings = findings
        self._subject = subject = findings.subject
        self._on_step = on_step
        self._target = Target(
            address, subject.model, subject.version, subject.inputs(), subject.outputs()
        )
        self._max_batch_size = subject.manifest.max_batch_size
        self._eager: Hop | None = None
        self._train: Hop | None = None

    def run(self) -> ModelReport:
        findings, subject = self._findings, self._subject
        source_is_right = self._ask_source()
        artifact = open_artifact(subject.artifact(), subject.inputs(), list(subject.outputs()))
        file_answers, is_right = self._run_hop(artifact, None)
        if not is_right:
            self._explain(artifact, subject.cases)
        elif not source_is_right:
            findings.causes.append(
                f"'{self._options.source}' is not the model that was exported: the file still "
                "answers what was recorded at export, the source now answers something else. "
                "Weights that it draws at random need a seed (torch.manual_seed)"
            )
        try:
            self._require_served()
        except CallFailedError as error:
            return findings.report(could_not_run=str(error))
        served_right = self._run_served(file_answers, may_explain=is_right)
        self._run_mixed(file_answers, may_explain=is_right and served_right)
        return findings.report()

    def _ask_source(self) -> bool:
        """Whether the source, where there is one, still answers what was recorded."""
        options = self._options
        if options.source is None:
            return True
        # torch is imported by this module, and only a source needs it.
        from naiad.verify.eager import open_source  # noqa: PLC0415

        self._eager, self._train = open_source(
            options.source, options.example, self._subject.manifest
        )
        _, is_right = self._run_hop(self._eager, None)
        return is_right

    def _require_served(self) -> None:
        target = self._target
        path = f"/v2/models/{target.model}/versions/{target.version}"
        get_json(target.address, path)
        if self._max_batch_size:
            # A person may have changed it since the export; the golden cases have not.
            config = get_json(target.address, f"{path}/config")
            self._max_batch_size = int(config.get("max_batch_size", 0))

    def _is_too_large(self, case: GoldenCase) -> bool:
        """Whether the server rightly refuses the case; without a batch axis it never does."""
        return 0 < self._max_batch_size < case.batch_size

    def _run_served(self, file_answers: Answers, *, may_explain: bool) -> bool:
        all_right = True
        for binary in (False, True):
            hop = HttpHop(self._target, binary=binary)
            try:
                _, is_right = self._run_hop(hop, file_answers)
                if not is_right and may_explain and all_right:
                    self._explain_served(hop, file_answers)
            finally:
                hop.close()
            all_right = all_right and is_right
        return all_right

    def _run_hop(self, hop: Hop, file_answers: Answers | None) -> tuple[Answers, bool]:
        """One row for each batch size; the answers, and whether all of them hold."""
        refusal = hop.refusal()
        if refusal:
            self._findings.rows.append(Row(hop.name, "all", [], None, Verdict.SKIPPED, refusal))
            return {}, True
        sizes = sorted({case.batch_size for case in self._subject.cases})
        rows = []
        answers: Answers = {}
        for size in sizes:
            self._on_step(f"{self._subject.model}: {hop.name}, batch {size}")
            cases = [case for case in self._subject.cases if case.batch_size == size]
            rows.append(self._run_batch(hop, cases, answers, file_answers))
        self._findings.rows.extend(rows)
        return answers, all(row.verdict in {Verdict.EQUAL, Verdict.SKIPPED} for row in rows)

    def _run_batch(
        self,
        hop: Hop,
        cases: Sequence[GoldenCase],
        answers: Answers,
        file_answers: Answers | None,
    ) -> Row:
        batch = _show_batch(cases[0].batch_size)
        if file_answers is not None and self._is_too_large(cases[0]):
            note = f"the model config takes at most {self._max_batch_size} rows"
            return Row(hop.name, batch, [], None, Verdict.SKIPPED, note)
        try:
            answers.update({case.name: hop.run(case) for case in cases})
        except HopFailedError as error:
            return Row(hop.name, batch, [], None, Verdict.FAILED, str(error))
        differences = self._against_golden([(case, answers[case.name]) for case in cases])
        same_bits = None
        known = [] if file_answers is None else [c for c in cases if c.name in file_answers]
        if file_answers is not None and known:
            same_bits = all(
                self._has_same_bits(file_answers[case.name], answers[case.name]) for case in known
            )
        return _judge(hop.name, batch, differences, same_bits=same_bits)

    def _run_mixed(self, file_answers: Answers, *, may_explain: bool) -> None:
        hop = ConcurrentHop(self._target)
        self._on_step(f"{self._subject.model}: {hop.name}")
        # Two requests have to fit into one batch, or nothing would be mixed.
        fitting = self._max_batch_size // 2
        taken = [case for case in self._subject.cases if not self._is_too_large(case)]
        cases = [case for case in taken if 0 < case.batch_size <= fitting]
        try:
            mixed = hop.run_mixed(cases or taken, self._options.rounds)
        except HopFailedError as error:
            self._findings.rows.append(Row(hop.name, "mixed", [], None, Verdict.FAILED, str(error)))
            return
        row = self._judge_mixed(hop.name, mixed, file_answers)
        self._findings.rows.append(row)
        self._findings.batch_sizes = mixed.executions.batch_sizes
        if row.verdict is Verdict.DIFFERENT and may_explain:
            self._findings.causes.append(
                "only requests of concurrent clients differ, one at a time each is right: rows "
                "of one batch influence each other, or reach the wrong request"
            )

    def _judge_mixed(self, name: str, mixed: MixedAnswers, file_answers: Answers) -> Row:
        # Another batch size may round differently, so a tolerance it is, and not the bits.
        differences = self._against_golden(mixed.answers)
        is_files = all(
            self._subject.is_equal(file_answers[case.name], answer)
            for case, answer in mixed.answers
            if case.name in file_answers
        )
        verdict = Verdict.DIFFERENT
        note = "" if is_files else "beyond the tolerance of what the file alone answers"
        if is_files and all(difference.equal for difference in differences):
            verdict = Verdict.EQUAL
            if self._max_batch_size > 1 and not mixed.executions.has_mixed():
                note = (
                    f"the server joined no requests of {CLIENTS} clients into a batch; "
                    "dynamic_batching in config.pbtxt allows it"
                )
        return Row(name, "mixed", differences, None, verdict, note)

    def _against_golden(self, answers: Sequence[tuple[GoldenCase, Outputs]]) -> list[Difference]:
        """For each output the worst difference over the cases."""
        by_output: dict[str, list[Difference]] = {}
        for case, answer in answers:
            for difference in self._subject.compare(case.outputs, answer):
                by_output.setdefault(difference.output, []).append(difference)
        return [_merge(differences) for differences in by_output.values()]

    def _compare_bits(self, expected: Outputs, actual: Outputs) -> list[Difference]:
        exact = dict.fromkeys(self._subject.outputs(), EXACT)
        return compare_outputs(expected, actual, self._subject.outputs(), exact)

    def _has_same_bits(self, expected: Outputs, actual: Outputs) -> bool:
        return all(difference.same_bits for difference in self._compare_bits(expected, actual))

    def _explain(self, hop: Hop, cases: Sequence[GoldenCase]) -> None:
        """Causes of a difference from the golden outputs."""
        subject = self._subject
        differing = [case for case in cases if not _agrees(hop, case, subject.is_equal)]
        self._on_step(f"{subject.model}: looking for the cause")
        suspicion = Suspicion(
            hop, differing, subject.is_equal, subject.compare, self._eager, self._train
        )
        self._findings.causes.extend(find_causes(suspicion))

    def _explain_served(self, hop: Hop, file_answers: Answers) -> None:
        """Causes of a difference from the file's own answers, where the file is right."""
        cases = [
            replace(case, outputs=file_answers[case.name])
            for case in self._subject.cases
            if case.name in file_answers and not self._is_too_large(case)
        ]
        differing = [case for case in cases if not _agrees(hop, case, self._has_same_bits)]
        self._on_step(f"{self._subject.model}: looking for the cause")
        suspicion = Suspicion(hop, differing, self._has_same_bits, self._compare_bits)
        self._findings.causes.extend(find_causes(suspicion))


def _agrees(hop: Hop, case: GoldenCase, is_equal: Callable[[Outputs, Outputs], bool]) -> bool:
    try:
        return is_equal(case.outputs, hop.run(case))
    except HopFailedError:
        return False


def _judge(
    hop: str, batch: str, differences: Sequence[Difference], *, same_bits: bool | None
) -> Row:
    unequal = [difference for difference in differences if not difference.equal]
    if unequal:
        problem = worst(unequal).problem
        return Row(hop, batch, differences, same_bits, Verdict.DIFFERENT, problem)
    if same_bits is False:
        note = "within the tolerance, but not bit for bit what the file alone answers"
        return Row(hop, batch, differences, same_bits, Verdict.DIFFERENT, note)
    return Row(hop, batch, differences, same_bits, Verdict.EQUAL)


def _merge(differences: Sequence[Difference]) -> Difference:
    """One output over several cases: the worst of each number."""
    top1 = [d.same_top1 for d in differences if d.same_top1 is not None]
    return replace(
        worst(differences),
        max_abs=max(d.max_abs for d in differences),
        max_rel=max(d.max_rel for d in differences),
        same_top1=all(top1) if top1 else None,
        same_bits=all(d.same_bits for d in differences),
    )


def _show_batch(size: int) -> str:
    return str(size) if size else "none"
