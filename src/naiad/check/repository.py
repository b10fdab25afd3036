"""Checks a model repository, and writes the corrections where that is asked for."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from naiad.backends.registry import BackendRegistry
from naiad.check.evidence import parse_example
from naiad.check.model import (
    CheckedModel,
    CheckSettings,
    StepModels,
    check_model,
    completed_config,
    mark_fixed,
)
from naiad.check.report import ModelReport, Report
from naiad.check.trial import Trials
from naiad.errors import NotFoundError
from naiad.model_config.schema import ModelConfig
from naiad.model_config.triton_release import find_release
from naiad.repository.layout import ModelFolder, doubt_repository, scan_model, scan_repository

# Written corrections can bring to light what they hid, a few layers deep.
_MAX_PASSES = 4


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """What to check and how.

    Attributes:
        repository: a folder of model folders.
        models: names; empty for all.
        fix: write the corrections.
        examples: ``[NAME:]SHAPE`` of inputs that the model takes, with the batch axis.
        target: ``triton:<release>``, or "" for the server here.
        gpu_ids: of the server here.
    """

    repository: Path
    models: Sequence[str] = ()
    fix: bool = False
    examples: Sequence[str] = ()
    target: str = ""
    gpu_ids: Sequence[int] = ()


def check_repository(options: CheckOptions, progress: Callable[[str], None]) -> Report:
    """Check models of a repository.

    Args:
        options: what to check.
        progress: told what is being done, for people who wait.

    Raises:
        NotFoundError: a model that is asked for is not there.
        InvalidArgumentError: an example or a target is not understood.
        InternalError: the repository can't be read.
    """
    folders = {folder.name: folder for folder in scan_repository(options.repository)}
    if doubt := doubt_repository(options.repository):
        raise NotFoundError(doubt)
    missing = [name for name in options.models if name not in folders]
    if missing:
        raise NotFoundError(
            f"no model '{missing[0]}' in {options.repository}; it has "
            f"{', '.join(folders) or 'no models'}"
        )
    target = find_release(options.target) if options.target else None
    # The GPUs of another server are not known here.
    gpu_ids = options.gpu_ids if target is None else None
    settings = CheckSettings(
        Trials(BackendRegistry(), gpu_ids),
        [parse_example(text) for text in options.examples],
        target,
    )
    chosen = options.models or list(folders)
    checker = _Checker(settings, folders)
    # Steps before the ensembles that use them.
    reports = {}
    with settings.trials.log:
        for name in sorted(chosen, key=checker.is_ensemble):
            progress(f"checking {name}")
            reports[name] = checker.fix(name) if options.fix else checker.check(name).report
    return Report([reports[name] for name in chosen])


class _Checker:
    def __init__(self, settings: CheckSettings, folders: Mapping[str, ModelFolder]) -> None:
        self._settings = settings
        self._folders = dict(folders)
        self._configs: dict[str, ModelConfig] = {}

    def is_ensemble(self, name: str) -> bool:
        path = self._folders[name].path / "config.pbtxt"
        return path.is_file() and b"ensemble_scheduling" in path.read_bytes()

    def check(self, name: str) -> CheckedModel:
        checked = check_model(self._folders[name], self._settings, self._step_models)
        checked.report = replace(checked.report, log=self._settings.trials.log.take())
        if checked.config is not None:
            self._configs[name] = checked.config
        return checked

    def fix(self, name: str) -> ModelReport:
        """Check, write the corrections, and check again until there are none left to write."""
        written = []
        for _ in range(_MAX_PASSES):
            checked = self.check(name)
            if checked.new_text is None and not checked.moves:
                break
            _write(checked)
            written += [finding for finding in mark_fixed(checked) if finding.is_fixed]
            self._folders[name] = scan_model(self._folders[name].path)
        return replace(checked.report, findings=[*written, *checked.report.findings])

    def _step_models(self, config: ModelConfig) -> StepModels:
        """All other models, which an ensemble may name or have meant to name."""
        for name, folder in self._folders.items():
            if name not in self._configs and name != config.name:
                completed = completed_config(folder, self._settings.trials)
                if completed is not None:
                    self._configs[name] = completed
        return StepModels(
            {name: c for name, c in self._configs.items() if name != config.name},
            {name: folder.versions for name, folder in self._folders.items()},
        )


def _write(checked: CheckedModel) -> None:
    for move in checked.moves:
        if move.source is None:
            move.target.mkdir()
            continue
        move.target.parent.mkdir(exist_ok=True)
        move.source.rename(move.target)
    if checked.new_text is not None:
        checked.config_path.write_bytes(checked.new_text.encode("utf-8"))
