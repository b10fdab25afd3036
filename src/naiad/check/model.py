"""Checks one model: text, folder, file, tensors, behaviour, in that order."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from naiad.check.artifact import diagnose_target
from naiad.check.evidence import Known, gather
from naiad.check.experiment import Experiment
from naiad.check.report import ModelReport, ReportedFinding
from naiad.check.side_by_side import compare_configs
from naiad.check.trial import Run, Shape, Trials
from naiad.engine.ragged_tensors import RaggedTensors
from naiad.engine.sequence_tensors import SequenceTensors
from naiad.engine.warmup import make_samples
from naiad.errors import NaiadError
from naiad.model_config.config_text import ConfigText
from naiad.model_config.diagnose import (
    Diagnosis,
    Finding,
    diagnose_name,
    diagnose_settings,
    diagnose_variables,
)
from naiad.model_config.diagnose_ensemble import diagnose_ensemble
from naiad.model_config.diagnose_tensors import diagnose_tensors
from naiad.model_config.normalize import fill_defaults
from naiad.model_config.schema import ModelConfig, ModelInstanceGroup
from naiad.model_config.signature import ModelSignature
from naiad.model_config.text_edit import rewrite_config
from naiad.model_config.text_format import parse_config
from naiad.model_config.text_repair import Repair, find_variables, repair_text
from naiad.model_config.triton_release import TritonRelease
from naiad.repository.diagnose_folder import (
    Layout,
    Move,
    Subject,
    diagnose_folder,
    diagnose_labels,
    find_model_file,
)
from naiad.repository.diagnose_onnx import diagnose_onnx, explain_load_error
from naiad.repository.diagnose_torchscript import diagnose_torchscript
from naiad.repository.layout import CONFIG_FILENAME, ModelFolder
from naiad.repository.onnx_file import OnnxFile
from naiad.repository.version_policy import select_versions

# How many tensors may turn out to have another shape than the file declares.
_MAX_SHAPES: Final = 16


@dataclass(frozen=True, slots=True)
class CheckSettings:
    """What holds for all models of one check.

    Attributes:
        trials: loads and runs models.
        examples: shapes by input name; "" for the only input.
        target: the release of Triton that the repository is meant for; None for this server.
    """

    trials: Trials
    examples: Sequence[tuple[str, Shape]] = ()
    target: TritonRelease | None = None


@dataclass(frozen=True, slots=True)
class StepModels:
    """The models of a repository that an ensemble may use.

    Attributes:
        configs: complete, by name.
        versions: that lie in each model's folder.
    """

    configs: Mapping[str, ModelConfig]
    versions: Mapping[str, Sequence[int]]


@dataclass(slots=True)
class CheckedModel:
    """A model's report and what would put it right.

    Attributes:
        report: for people and machines.
        config_path: of its ``config.pbtxt``, which need not exist.
        new_text: of its config; None where it is right, or can't be put right.
        moves: of files.
        config: as it should be, completed where it could be; steps of ensembles look here.
    """

    report: ModelReport
    config_path: Path
    new_text: str | None = None
    moves: list[Move] = field(default_factory=list)
    config: ModelConfig | None = None


def check_model(
    folder: ModelFolder,
    settings: CheckSettings,
    steps: Callable[[ModelConfig], StepModels],
) -> CheckedModel:
    """Check one model and run it.

    Args:
        folder: of the model.
        settings: of the check.
        steps: gives the models that an ensemble may use.
    """
    path = folder.path / CONFIG_FILENAME
    try:
        # Bytes, so that line ends stay as they are.
        text = path.read_bytes().decode("utf-8") if path.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        found = ReportedFinding(
            "config-syntax",
            str(path),
            1,
            1,
            "The config can't be read.",
            str(error),
            "",
            is_fixable=False,
        )
        return CheckedModel(ModelReport(folder.name, [found]), path)
    repaired, repairs = repair_text(text, str(path))
    findings = [_report_repair(repair, path) for repair in repairs]
    if repaired is None:
        return CheckedModel(ModelReport(folder.name, findings), path)
    check = _ModelCheck(folder, settings, text, repaired)
    check.findings.extend(findings)
    check.run(steps)
    return check.result(path)


class _ModelCheck:
    """The check of one model whose config parses."""

    def __init__(
        self, folder: ModelFolder, settings: CheckSettings, text: str, repaired: str
    ) -> None:
        self._folder = folder
        self._settings = settings
        self._text = text
        self._repaired = repaired
        # Repairs never move a line, so what is found in the repaired text stands there.
        self._places = ConfigText(repaired)
        self._diagnosis = Diagnosis(parse_config(repaired, folder.name))
        self._layout = Layout()
        self._inferred: ModelConfig | None = None
        self._effective: ModelConfig | None = None
        self._runs: list[Run] = []
        self.findings: list[ReportedFinding] = []

    def run(self, steps: Callable[[ModelConfig], StepModels]) -> None:
        diagnosis = self._diagnosis
        self._check_variables()
        diagnose_name(diagnosis, self._folder.name)
        self._layout = diagnose_folder(diagnosis, self._folder, self._settings.trials)
        diagnose_settings(diagnosis, self._settings.trials.gpu_ids)
        diagnose_labels(diagnosis, self._folder)
        if diagnosis.wanted.HasField("ensemble_scheduling"):
            models = steps(diagnosis.wanted)
            diagnose_ensemble(diagnosis, self._folder.name, models.configs, models.versions)
            self._effective = diagnosis.result()
            fill_defaults(self._effective)
            return
        subject = self._layout.subject
        if subject is not None:
            self._check_model(subject)

    def result(self, path: Path) -> CheckedModel:
        effective = self._effective
        rows = (
            compare_configs(self._diagnosis.declared, self._inferred, effective)
            if effective is not None
            else []
        )
        findings = self._reported(path)
        report = ModelReport(self._folder.name, findings, rows, self._runs, self._layout.skipped)
        new_text = rewrite_config(
            self._repaired, self._diagnosis.wanted, self._diagnosis.removed
        ) if self._is_corrected() else self._repaired  # fmt: skip
        return CheckedModel(
            report,
            path,
            new_text if new_text != self._text else None,
            self._layout.moves,
            effective or self._diagnosis.result(),
        )

    def _is_corrected(self) -> bool:
        return self._diagnosis.result() != self._diagnosis.declared

    def _reported(self, path: Path) -> list[ReportedFinding]:
        reported = list(self.findings)
        reported += [
            _at(finding, str(place.path), place.line, place.column)
            for finding, place in self._layout.findings
        ]
        reported += [
            _at(finding, str(path), *self._places.find(finding.path))
            for finding in self._diagnosis.findings()
        ]
        return sorted(reported, key=lambda f: (f.file != str(path), f.file, f.line, f.column))

    def _check_variables(self) -> None:
        """Variables of a template inside of strings; the others are no text format."""
        taken = diagnose_variables(self._diagnosis, self._folder.name)
        for offset, variable in find_variables(self._repaired):
            if variable not in taken and variable.startswith("${"):
                line, column = self._places.position(offset)
                path = self._folder.path / CONFIG_FILENAME
                self.findings.append(
                    ReportedFinding(
                        "template-variable",
                        str(path),
                        line,
                        column,
                        f"The template variable {variable} was left in.",
                        "Nothing replaces it when the model is loaded.",
                        "",
                        is_fixable=False,
                    )
                )

    def _check_model(self, subject: Subject) -> None:
        file = find_model_file(self._diagnosis.result(), subject)
        head = None
        if file is not None and file.suffix == ".onnx":
            head = diagnose_onnx(self._layout, file, self._folder.path)
        release = self._settings.target
        if file is not None and release is not None:
            diagnose_target(self._layout, file, head, release)
        if file is not None and file.suffix == ".onnx" and head is None:
            return
        known = gather(
            self._diagnosis,
            subject,
            self._settings.trials,
            self._settings.examples,
            has_max_batch_size=self._places.has("max_batch_size"),
        )
        if file is not None and self._is_too_new(file, head, known):
            return
        self._inferred = known.inferred
        if file is not None and file.suffix == ".pt" and known.inferred is None:
            diagnose_torchscript(self._diagnosis, file)
        self._experiment(subject, known)

    def _experiment(self, subject: Subject, known: Known) -> None:
        before = self._diagnosis
        for _ in range(_MAX_SHAPES):
            self._diagnosis = before.fork()
            if known.evidence is not None:
                diagnose_tensors(self._diagnosis, known.evidence)
            # A load of a model that is known to need work by hand would only say it again.
            if any(not finding.is_fixable for finding in self._diagnosis.findings()):
                return
            experiment = Experiment(
                self._diagnosis, self._settings.trials, subject, known, self._layout
            )
            experiment.conduct()
            if experiment.contradiction is None:
                self._effective = _with_groups(experiment.effective, self._diagnosis.result())
                self._runs = experiment.runs
                self._prepare_to_serve()
                self._load_other_versions(subject)
                return
            known = known.with_shape(*experiment.contradiction)

    def _prepare_to_serve(self) -> None:
        """What the server makes of a config beside the instances, and may refuse."""
        config = self._effective
        if config is None:
            return
        signature = ModelSignature.from_config(config)
        folder = self._folder.path
        for name, make in (
            ("model_warmup", lambda: make_samples(config, signature, folder)),
            ("sequence_batching", lambda: SequenceTensors.from_config(config, folder)),
            ("batch_input", lambda: RaggedTensors.from_config(config, signature)),
        ):
            try:
                make()
            except NaiadError as error:
                problem = f"The model loads, and the server refuses its {name}."
                finding = Finding("load-failed", problem, error.message, (name,), is_fixable=False)
                self._diagnosis.add(finding)

    def _load_other_versions(self, subject: Subject) -> None:
        """All versions that the policy picks are served under one config, or none is."""
        config = self._diagnosis.result()
        if self._effective is None or not self._folder.versions:
            return
        for version in select_versions(config, self._folder.versions):
            if version == subject.version:
                continue
            other = replace(subject, version=version, directory=self._folder.version_path(version))
            try:
                with self._settings.trials.load(config, other):
                    pass
            except NaiadError as error:
                problem = f"Version {version} does not load with this config."
                finding = Finding("load-failed", problem, error.message, is_fixable=False)
                self._layout.add(finding, other.directory)

    def _is_too_new(self, file: Path, head: OnnxFile | None, known: Known) -> bool:
        return head is not None and explain_load_error(self._layout, file, head, known.error)


def _with_groups(tried: ModelConfig | None, wanted: ModelConfig) -> ModelConfig | None:
    """What was tried on the CPU, with the GPUs that the config asks for."""
    if tried is not None:
        for group, asked in zip(tried.instance_group, wanted.instance_group, strict=False):
            if asked.kind == ModelInstanceGroup.KIND_GPU:
                group.kind = asked.kind
                group.gpus.extend(asked.gpus)
    return tried


def _report_repair(repair: Repair, path: Path) -> ReportedFinding:
    if repair.variable:
        code = "template-variable"
        problem = f"The template variable {repair.variable} was left in."
        why = "Nothing replaces it when the model is loaded, and the config is no text format."
    else:
        code, problem, why = "config-syntax", f"The config does not parse: {repair.problem}", ""
        why = f"The line reads: {repair.before.strip()}" if repair.before.strip() else ""
    is_fixable = repair.is_repaired
    block = repair.after or ("# nothing: take the line out" if is_fixable else "")
    return ReportedFinding(
        code, str(path), repair.line, repair.column, problem, why, block, is_fixable
    )


def _at(finding: Finding, file: str, line: int, column: int) -> ReportedFinding:
    return ReportedFinding(
        finding.code,
        file,
        line,
        column,
        finding.problem,
        finding.why,
        finding.block,
        finding.is_fixable,
    )


def mark_fixed(checked: CheckedModel) -> list[ReportedFinding]:
    """The findings of a model whose corrections were written."""
    return [
        replace(finding, is_fixed=True) if finding.is_fixable else finding
        for finding in checked.report.findings
    ]


def completed_config(folder: ModelFolder, trials: Trials) -> ModelConfig | None:
    """A model's config as it would be served; None where it would not be."""
    path = folder.path / CONFIG_FILENAME
    try:
        text = path.read_text("utf-8") if path.exists() else ""
        config = parse_config(text, str(path))
        if not folder.versions or config.HasField("ensemble_scheduling"):
            return config
        directory = folder.version_path(folder.versions[-1])
        names = tuple(sorted(entry.name for entry in directory.iterdir()))
        subject = Subject(folder.name, folder.versions[-1], directory, names)
        return trials.complete(config, subject)
    except (NaiadError, OSError, UnicodeDecodeError):
        return None
