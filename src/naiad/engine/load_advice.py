"""What to write instead, for the error of a load: in which file, line and column.

Triton's text says what does not fit. These are the findings of ``naiad check`` that can be had
without running the model, so they cost one more look at the model file, and only where a load
failed.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Protocol

import orjson
from google.protobuf.message import Message

from naiad.backends.base import ModelSource
from naiad.backends.parameters import IN_PROCESS
from naiad.backends.registry import BackendRegistry
from naiad.errors import NaiadError
from naiad.model_config.complete import read_signature, with_shape
from naiad.model_config.config_text import ConfigText, FieldPath
from naiad.model_config.diagnose import (
    Diagnosis,
    Finding,
    diagnose_name,
    diagnose_settings,
    diagnose_variables,
    format_finding,
    locate,
)
from naiad.model_config.diagnose_ensemble import diagnose_ensemble
from naiad.model_config.diagnose_tensors import Evidence, diagnose_tensors
from naiad.model_config.json_format import format_fields_json, parse_config_json
from naiad.model_config.load_errors import correct_by_error, read_model_shape
from naiad.model_config.normalize import normalize_config
from naiad.model_config.schema import ModelConfig
from naiad.model_config.text_edit import format_fields
from naiad.model_config.text_format import parse_config
from naiad.model_config.text_repair import Repair, repair_text
from naiad.repository.diagnose_folder import (
    Layout,
    Subject,
    diagnose_folder,
    diagnose_labels,
    find_model_file,
)
from naiad.repository.diagnose_onnx import diagnose_onnx, explain_load_error
from naiad.repository.diagnose_python import explain_syntax_error
from naiad.repository.diagnose_torchscript import diagnose_torchscript
from naiad.repository.layout import ModelFolder, find_config

_log = logging.getLogger(__name__)

# gRPC carries an error's text in a header, escaped, and clients take 8 KiB of headers.
_MAX_FINDINGS: Final = 4
_MAX_BYTES: Final = 2400
_MAX_LINE_LENGTH: Final = 400
# Files of these declare their tensors; of a Python model only its code could tell.
_DECLARING_BACKENDS: Final = frozenset({"onnxruntime", "openvino", "pytorch"})
# A backend reads the weights, too, to tell the tensors: as much memory and time as the load that
# failed, perhaps for want of them.
_MAX_MODEL_BYTES: Final = 256 << 20
_OVERRIDE: Final = "the config of the load request"


@dataclass(frozen=True, slots=True)
class StepModels:
    """What a repository has for the steps of an ensemble.

    Attributes:
        configs: with their tensors, by name.
        versions: that lie in each model's folder.
    """

    configs: Mapping[str, ModelConfig]
    versions: Mapping[str, Sequence[int]]


@dataclass(frozen=True, slots=True)
class AdviceOptions:
    """How the server loads, as far as advice depends on it.

    Attributes:
        gpu_ids: of this machine; None where a config's wish for GPUs is no fault.
        config_name: ``--model-config-name``.
        backend_settings: ``--backend-config``, by backend name.
    """

    gpu_ids: Sequence[int] | None = ()
    config_name: str = ""
    backend_settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


class _ConfigSource(Protocol):
    """Where a config was read from, and how its parts are called there."""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def repairs(self) -> Sequence[tuple[Finding, str]]: ...

    def place(self, path: FieldPath) -> str: ...

    def has(self, name: str) -> bool: ...

    def write(self, message: Message) -> str: ...


class LoadAdvisor:
    """Finds what is wrong with a model that did not load.

    Args:
        backends: of the server.
        options: of the server.
        step_models: gives the models that an ensemble calls, or has meant to call; None where one
            of them can't be read, which is that model's fault and not the ensemble's.
    """

    def __init__(
        self,
        backends: BackendRegistry,
        options: AdviceOptions,
        step_models: Callable[[ModelConfig], StepModels | None],
    ) -> None:
        self._backends = backends
        self._options = options
        self._step_models = step_models

    @property
    def backend_names(self) -> tuple[str, ...]:
        """See `naiad.repository.diagnose_folder.Backends`."""
        return self._backends.names

    @property
    def gpu_ids(self) -> Sequence[int] | None:
        """See `naiad.repository.diagnose_folder.Backends`."""
        return self._options.gpu_ids

    def check_backend(self, name: str) -> None:
        """See `naiad.repository.diagnose_folder.Backends`."""
        self._backends.check(name)

    def advise(self, folder: ModelFolder, config_json: str | None, error: NaiadError) -> str:
        """Lines that say what to change; empty where nothing is found. Blocks, as a load does.

        Args:
            folder: of the model, on this machine.
            config_json: the config that the load request brought; None where the model's own was
                read.
            error: why the model did not load.
        """
        try:
            return self._advise(folder, config_json, error)
        except Exception:  # noqa: BLE001  (the error itself must not be lost for this)
            _log.warning("no advice on model '%s'", folder.name, exc_info=True)
            return ""

    def infer_config(self, config: ModelConfig, subject: Subject) -> ModelConfig | None:
        """What the model file alone says; None where it says nothing, or is large."""
        bare = ModelConfig(
            name=subject.name,
            backend=config.backend,
            platform=config.platform,
            default_model_filename=config.default_model_filename,
        )
        if IN_PROCESS in config.parameters:
            bare.parameters[IN_PROCESS].CopyFrom(config.parameters[IN_PROCESS])
        try:
            normalize_config(bare, directory_name=subject.name, artifact_names=subject.artifacts)
            if bare.backend not in _DECLARING_BACKENDS or _is_large(subject.directory):
                return None
            settings = self._options.backend_settings.get(bare.backend, {})
            self._backends.get(bare.backend).complete_config(
                ModelSource(subject.name, subject.version, bare, subject.directory, settings)
            )
        except NaiadError:
            return None
        return bare if bare.input or bare.output else None

    def _advise(self, folder: ModelFolder, config_json: str | None, error: NaiadError) -> str:
        source = self._read(folder, config_json)
        if source is None:
            return ""
        diagnosis = Diagnosis(source.config)
        layout = Layout()
        if source.config.ListFields() or not source.repairs:
            layout = self._diagnose(diagnosis, folder, error, has=source.has)
        found = [*source.repairs]
        found += [
            (finding, source.place(finding.path))
            for finding in diagnosis.findings(source.write)
            if _is_reason(finding)
        ]
        found += [(finding, str(place)) for finding, place in layout.findings]
        if not found and not source.config.HasField("ensemble_scheduling"):
            found += _point(source, error)
        return _format(found, "" if config_json is not None else _command(folder)) if found else ""

    def _read(self, folder: ModelFolder, config_json: str | None) -> _ConfigSource | None:
        try:
            if config_json is not None:
                return _Override(config_json)
            return _File(folder, self._options.config_name)
        except (NaiadError, OSError, UnicodeDecodeError):
            # The error says so itself.
            return None

    def _diagnose(
        self,
        diagnosis: Diagnosis,
        folder: ModelFolder,
        error: NaiadError,
        *,
        has: Callable[[str], bool],
    ) -> Layout:
        diagnose_variables(diagnosis, folder.name)
        diagnose_name(diagnosis, folder.name)
        layout = diagnose_folder(diagnosis, folder, self)
        diagnose_settings(diagnosis, self.gpu_ids)
        diagnose_labels(diagnosis, folder)
        if diagnosis.wanted.HasField("ensemble_scheduling"):
            models = self._step_models(diagnosis.wanted)
            if models is not None:
                diagnose_ensemble(diagnosis, folder.name, models.configs, models.versions)
        elif layout.subject is not None:
            self._diagnose_file(diagnosis, layout, layout.subject, error, has=has)
        return layout

    def _diagnose_file(
        self,
        diagnosis: Diagnosis,
        layout: Layout,
        subject: Subject,
        error: NaiadError,
        *,
        has: Callable[[str], bool],
    ) -> None:
        file = find_model_file(diagnosis.result(), subject)
        if file is not None and file.suffix == ".py":
            explain_syntax_error(layout, file, error.message)
        if file is not None and file.suffix == ".onnx":
            head = diagnose_onnx(layout, file, subject.directory.parent)
            if head is None or explain_load_error(layout, file, head, error.message):
                return
        inferred = self.infer_config(diagnosis.result(), subject)
        if inferred is not None:
            name = file.name if file is not None else "The model file"
            signature = read_signature(inferred)
            if found := read_model_shape(error.message):
                signature = with_shape(signature, *found)
            diagnose_tensors(diagnosis, Evidence(signature, name, has("max_batch_size")))
            return
        correct_by_error(diagnosis, error.message)
        if file is not None and file.suffix == ".pt":
            diagnose_torchscript(diagnosis, file)


class _File:
    """The config file of a model, or that it has none."""

    def __init__(self, folder: ModelFolder, config_name: str) -> None:
        path = find_config(folder, config_name)
        self._path = folder.path / "config.pbtxt" if path is None else path
        text = "" if path is None else path.read_text("utf-8")
        repaired, repairs = repair_text(text, str(self._path))
        self._text = ConfigText(repaired or "")
        self.config = parse_config(repaired or "", str(self._path))
        self.repairs = [(_describe(repair), self._at(repair)) for repair in repairs]

    def place(self, path: FieldPath) -> str:
        line, column = self._text.find(path)
        return f"{self._path}:{line}:{column}"

    def has(self, name: str) -> bool:
        return self._text.has(name)

    def write(self, message: Message) -> str:
        return format_fields(message)

    def _at(self, repair: Repair) -> str:
        return f"{self._path}:{repair.line}:{repair.column}"


class _Override:
    """The JSON that a load request brought; its lines are nobody's, so its fields are named."""

    def __init__(self, text: str) -> None:
        self.config = parse_config_json(text)
        self.repairs: Sequence[tuple[Finding, str]] = ()
        self._document: dict[str, Any] = orjson.loads(text)

    def place(self, path: FieldPath) -> str:
        words = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
        return f"{_OVERRIDE}: {words.removeprefix('.')}" if path else _OVERRIDE

    def has(self, name: str) -> bool:
        return name in self._document

    def write(self, message: Message) -> str:
        return format_fields_json(message)


def _is_large(directory: Path) -> bool:
    """Whether the files of a version are more than is read again for advice."""
    try:
        sizes = [path.stat().st_size for path in directory.rglob("*") if path.is_file()]
    except OSError:
        return True
    return sum(sizes) > _MAX_MODEL_BYTES


def _describe(repair: Repair) -> Finding:
    code = "template-variable" if repair.variable else "config-syntax"
    is_fixable = repair.is_repaired
    block = repair.after or ("# nothing: take the line out" if is_fixable else "")
    return Finding(code, f"The line reads: {repair.before.strip()}", "", (), block, is_fixable)


def _point(source: _ConfigSource, error: NaiadError) -> list[tuple[Finding, str]]:
    """At least where the part of the config stands that the error speaks of."""
    path = locate(error.message, source.config)
    if not path or not source.has(str(path[0])):
        return []
    return [
        (
            Finding("load-failed", "The error is about this.", "", is_fixable=False),
            source.place(path),
        )
    ]


def _is_reason(finding: Finding) -> bool:
    """Whether a load can fail for it; inputs may be narrower than the model."""
    if finding.code == "fixed-dim":
        return finding.path[:1] != ("input",)
    return finding.code not in {"label-count", "torchscript-name"}


def _command(folder: ModelFolder) -> str:
    return f"naiad check {folder.path.parent} {folder.name} --fix"


def _cut(line: str) -> str:
    return line if len(line) <= _MAX_LINE_LENGTH else f"{line[:_MAX_LINE_LENGTH]} ..."


def _format(found: Sequence[tuple[Finding, str]], command: str) -> str:
    """As many findings as there is room for, and where the others are to be had."""
    lines: list[str] = []
    shown = 0
    blocks: set[str] = set()
    for finding, place in found[:_MAX_FINDINGS]:
        # A block is the whole field, with the corrections of all its findings.
        is_new = finding.block not in blocks
        more = format_finding(finding if is_new else replace(finding, block=""), place)
        more[1:] = [_cut(line) for line in more[1:]]
        blocks.add(finding.block)
        if sum(len(line.encode()) + 1 for line in (*lines, *more)) > _MAX_BYTES:
            break
        lines += more
        shown += 1
    if shown < len(found):
        left = len(found) - shown
        lines.append(f"{left} more finding{'s are' if left > 1 else ' is'} not shown here.")
    if command and any(finding.is_fixable for finding, _ in found):
        lines.append(f"To have it corrected: {command}")
    elif command and shown < len(found):
        lines.append(f"To see them: {command.removesuffix(' --fix')}")
    return "\n".join(lines)
