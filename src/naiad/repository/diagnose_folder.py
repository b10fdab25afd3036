"""The files around a config: version folders, model files, labels, and the backend they tell."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple, Protocol

from naiad.errors import InvalidArgumentError, NaiadError
from naiad.model_config.diagnose import Diagnosis, Finding, nearest
from naiad.model_config.normalize import PLATFORM_BACKENDS, normalize_config
from naiad.model_config.schema import ModelConfig
from naiad.repository.containment import check_containment
from naiad.repository.layout import ModelFolder, read_labels
from naiad.repository.version_policy import select_versions

_BACKENDS: Final = {
    ".onnx": "onnxruntime",
    ".pt": "pytorch",
    ".pt2": "pytorch",
    ".py": "python",
    ".plan": "tensorrt",
    ".xml": "openvino",
}
_SUFFIXES: Final = {
    "onnxruntime": (".onnx",),
    "pytorch": (".pt", ".pt2"),
    "python": (".py",),
    "tensorrt": (".plan",),
    "openvino": (".xml",),
}
# That come with Triton's containers, or are named in its documentation.
_TRITON_BACKENDS: Final = frozenset(
    {"dali", "fil", "openvino", "python", "tensorflow", "tensorrt", "tensorrtllm", "vllm"}
)
_DEFAULT_FILES: Final = {"pytorch": "model.pt", "onnxruntime": "model.onnx", "python": "model.py"}
_USUAL_FILES: Final = ("model.onnx", "model.pt", "model.pt2", "model.py")
# Beside a model file, these belong to it.
_COMPANIONS: Final = (".data", ".bin", ".safetensors")
_HEAD_BYTES: Final = 256
# v1, version_2, 003: a person reads a version, and Triton passes over it.
_ALMOST_VERSION: Final = re.compile(r"(?:v|version[-_]?)?0*([1-9]\d*)", re.IGNORECASE)


class Backends(Protocol):
    """What a server has to run models with."""

    @property
    def backend_names(self) -> tuple[str, ...]:
        """Every backend that a config may name."""
        ...

    @property
    def gpu_ids(self) -> Sequence[int] | None:
        """The GPUs of the server; None where the models are meant for another one."""
        ...

    def check_backend(self, name: str) -> None:
        """Import a backend.

        Raises:
            NaiadError: there is none of that name, or its framework is not installed.
        """
        ...


@dataclass(frozen=True, slots=True)
class Subject:
    """The version of a model that is looked at.

    Attributes:
        name: of the model.
        version: of the version whose file is run.
        directory: that the model file lies in.
        artifacts: names in that folder.
    """

    name: str
    version: int
    directory: Path
    artifacts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Move:
    """A file or folder that has to lie elsewhere.

    Attributes:
        source: None to make an empty folder.
        target: where.
    """

    source: Path | None
    target: Path


class FilePlace(NamedTuple):
    """Where in which file; of a folder, or a file as a whole, its beginning."""

    path: Path
    line: int = 1
    column: int = 1

    def __str__(self) -> str:
        return ":".join(map(str, self))


@dataclass(slots=True)
class Layout:
    """Where the model lies, and what about it is wrong that is no line of the config.

    Attributes:
        subject: what to load; None where there is nothing.
        moves: that put right what is wrong.
        findings: each with the place that it is about.
        skipped: why the model is not loaded, though nothing speaks against it; else "".
    """

    subject: Subject | None = None
    moves: list[Move] = field(default_factory=list)
    findings: list[tuple[Finding, FilePlace]] = field(default_factory=list)
    skipped: str = ""

    def add(self, finding: Finding, path: Path, line: int = 1, column: int = 1) -> None:
        """Note a finding about a file or a folder."""
        self.findings.append((finding, FilePlace(path, line, column)))


def diagnose_folder(diagnosis: Diagnosis, folder: ModelFolder, backends: Backends) -> Layout:
    """Find the version to try, its backend and model file; correct how the config names them."""
    layout = Layout()
    if diagnosis.wanted.HasField("ensemble_scheduling"):
        if not folder.versions:
            _report_empty_ensemble(layout, folder)
        return layout
    if folder.versions:
        version = _select_version(diagnosis, folder)
        directory = folder.version_path(version)
    else:
        version = 1
        found = _find_unversioned(layout, folder)
        if found is None:
            return layout
        directory = found
    names = tuple(sorted(entry.name for entry in directory.iterdir()))
    subject = Subject(folder.name, version, directory, names)
    layout.skipped = _elsewhere(diagnosis, backends)
    has_backend = not layout.skipped and _diagnose_backend(diagnosis, names, backends)
    has_file = has_backend and _diagnose_model_file(diagnosis, layout, subject)
    if has_file and _is_contained(diagnosis, layout, folder, version):
        layout.subject = subject
    return layout


def find_model_file(config: ModelConfig, subject: Subject) -> Path | None:
    """The file that a config has loaded; None for a backend without one, or where it is missing."""
    usual = (name for name in _USUAL_FILES if name in subject.artifacts)
    path = subject.directory / (config.default_model_filename or next(usual, ""))
    if path.is_dir():
        path /= path.name
    return path if path.is_file() else None


def diagnose_labels(diagnosis: Diagnosis, folder: ModelFolder) -> None:
    """Label files that are not there, or that have another number of lines than the output."""
    for index, output in diagnosis.kept("output"):
        if not output.label_filename:
            continue
        only = ModelConfig(name=folder.name)
        only.output.append(output)
        try:
            labels = read_labels(folder, only)[output.name]
        except NaiadError as error:
            _replace_label_file(diagnosis, folder, index, error.message)
            continue
        classes = output.dims[-1] if output.dims else -1
        if classes > 0 and len(labels) != classes:
            diagnosis.add(
                Finding(
                    "label-count",
                    f"The label file '{output.label_filename}' of the output '{output.name}' has "
                    f"{len(labels)} lines.",
                    f"The output has {classes} classes; line i is the label of class i, so one "
                    "line too few or too many gives wrong names. Correct the file; without one, "
                    "the output reads as below.",
                    ("output", index, "label_filename"),
                    _without_labels(output),
                    is_fixable=False,
                )
            )


def _without_labels(output: object) -> str:
    config = ModelConfig()
    config.output.append(output)  # type: ignore[arg-type]  # protobuf copies any message of the type
    config.output[0].label_filename = ""
    whole = Diagnosis(config)
    whole.add(Finding("", "", "", ("output", 0)))
    return whole.findings()[0].block


def _replace_label_file(
    diagnosis: Diagnosis, folder: ModelFolder, index: int, problem: str
) -> None:
    output = diagnosis.wanted.output[index]
    name = PurePosixPath(output.label_filename).name
    present = {
        path.name: path.relative_to(folder.path).as_posix()
        for path in sorted(folder.path.rglob("*.txt"))
    }
    meant = name if name in present else nearest(name, list(present))
    given = output.label_filename
    if meant is None:
        output.ClearField("label_filename")
    else:
        output.label_filename = present[meant]
    diagnosis.add(
        Finding(
            "label-file",
            f"The label file '{given}' of the output '{output.name}' can't be read.",
            f"{problem}. The path is relative to the model folder.",
            ("output", index, "label_filename"),
        )
    )


def _report_empty_ensemble(layout: Layout, folder: ModelFolder) -> None:
    layout.moves.append(Move(None, folder.path / "1"))
    layout.add(
        Finding(
            "version-folder",
            "The ensemble has no version folder.",
            "Triton serves versions; that of an ensemble is empty.",
            block=f"mkdir {folder.name}/1",
        ),
        folder.path / "config.pbtxt",
    )


def _select_version(diagnosis: Diagnosis, folder: ModelFolder) -> int:
    config = diagnosis.wanted
    try:
        return select_versions(config, folder.versions)[-1]
    except InvalidArgumentError:
        latest = folder.versions[-1]
        config.version_policy.Clear()
        config.version_policy.specific.versions.append(latest)
        diagnosis.add(
            Finding(
                "version-policy",
                "The version policy picks no version that is there.",
                f"The model folder has version {', '.join(map(str, folder.versions))}.",
                ("version_policy",),
            )
        )
        return latest


def _find_unversioned(layout: Layout, folder: ModelFolder) -> Path | None:
    """Where a model without a version folder lies; None where no model is."""
    target = folder.path / "1"
    for name in folder.ignored:
        match = _ALMOST_VERSION.fullmatch(name)
        if match:
            move = Move(folder.path / name, folder.path / match[1])
            layout.moves.append(move)
            _report_version_folder(layout, folder, f"'{name}' is no version: they are 1, 2, 3...")
            return move.source
    files = [path for path in sorted(folder.path.iterdir()) if _belongs_to_model(path)]
    if any(path.suffix in _BACKENDS for path in files):
        layout.moves.extend(Move(path, target / path.name) for path in files)
        _report_version_folder(layout, folder, "The model file lies in the model folder itself.")
        return folder.path
    layout.add(
        Finding(
            "version-folder",
            "The model has no version folder.",
            "Triton looks for the model file in a folder with a number for a name, such as 1.",
            block=f"mkdir {folder.name}/1",
            is_fixable=False,
        ),
        folder.path / "config.pbtxt",
    )
    return None


def _is_contained(diagnosis: Diagnosis, layout: Layout, folder: ModelFolder, version: int) -> bool:
    """Whether nothing that loading would read lies outside of the repository."""
    versions = [version] if folder.versions else []
    try:
        check_containment(folder, diagnosis.wanted, versions)
    except NaiadError as error:
        place = folder.path / "config.pbtxt"
        problem = "Part of the model lies outside of the repository."
        finding = Finding("outside-repository", problem, error.message, is_fixable=False)
        layout.add(finding, place)
        return False
    return True


def _belongs_to_model(path: Path) -> bool:
    return path.is_file() and path.suffix in {*_BACKENDS, *_COMPANIONS}


def _report_version_folder(layout: Layout, folder: ModelFolder, why: str) -> None:
    commands = [f"mkdir {move.target.parent.relative_to(folder.path.parent)}" for move in
                layout.moves[:1] if move.target.parent != folder.path]  # fmt: skip
    root = folder.path.parent
    commands += [
        f"mv {move.source.relative_to(root)} {move.target.relative_to(root)}"
        for move in layout.moves
        if move.source is not None
    ]
    layout.add(
        Finding(
            "version-folder",
            "The model has no version folder.",
            f"{why} Triton looks for the model file in a folder with a number for a name.",
            block="\n".join(commands),
        ),
        folder.path / "config.pbtxt",
    )


def _diagnose_backend(diagnosis: Diagnosis, names: Sequence[str], backends: Backends) -> bool:
    """Whether the backend is one that can be tried, after correction."""
    config = diagnosis.wanted
    by_file = _backend_of_files(names)
    _diagnose_platform(diagnosis, by_file)
    backend = config.backend or PLATFORM_BACKENDS.get(config.platform, "") or _normalized_backend(
        config, names
    )  # fmt: skip
    if not backend:
        config.backend = by_file
        diagnosis.add(
            Finding(
                "backend-unknown",
                "Nothing tells the backend: the config names none.",
                f"The version folder holds {', '.join(names) or 'nothing'}.",
                ("backend",),
                is_fixable=bool(by_file),
            )
        )
        return bool(by_file)
    try:
        backends.check_backend(backend)
    except NaiadError as error:
        return _report_backend(diagnosis, backend, by_file, backends.backend_names, error.message)
    return True


def _elsewhere(diagnosis: Diagnosis, backends: Backends) -> str:
    """Why a model for another server can't be run here: Triton has the backend, and Naiad not."""
    config = diagnosis.wanted
    backend = config.backend or PLATFORM_BACKENDS.get(config.platform, "")
    is_known = backend in _TRITON_BACKENDS and backend not in backends.backend_names
    if backends.gpu_ids is None and is_known:
        return f"the backend '{backend}' is not one that runs here"
    return ""


def _diagnose_platform(diagnosis: Diagnosis, by_file: str) -> None:
    config = diagnosis.wanted
    expected = PLATFORM_BACKENDS.get(config.platform)
    if config.platform and config.backend and expected != config.backend:
        platform = config.platform
        config.ClearField("platform")
        diagnosis.add(
            Finding(
                "platform-differs",
                f"The platform '{platform}' does not go with the backend '{config.backend}'.",
                "Either of the two is enough.",
                ("platform",),
            )
        )
    elif config.platform and not config.backend and expected is None:
        meant = nearest(config.platform, list(PLATFORM_BACKENDS))
        platform = config.platform
        if meant is not None:
            config.platform = meant
        elif by_file:
            config.ClearField("platform")
            config.backend = by_file
        diagnosis.add(
            Finding(
                "platform-unknown",
                f"There is no platform '{platform}'.",
                f"It is one of {', '.join(PLATFORM_BACKENDS)}.",
                ("platform",),
                is_fixable=bool(meant or by_file),
            )
        )


def _report_backend(
    diagnosis: Diagnosis, backend: str, by_file: str, known: Sequence[str], problem: str
) -> bool:
    """Name the backend that was meant, if one was; whether it can be tried."""
    meant = None if backend in known else nearest(backend, list(known))
    if meant is None and backend not in _SUFFIXES and by_file in known:
        meant = by_file
    if meant is not None:
        diagnosis.wanted.backend = meant
    diagnosis.add(
        Finding(
            "backend-missing",
            f"The backend '{backend}' is not installed here.",
            f"{problem}.",
            ("backend",) if diagnosis.declared.backend else ("platform",),
            is_fixable=meant is not None,
        )
    )
    return meant is not None


def _normalized_backend(config: ModelConfig, names: Sequence[str]) -> str:
    copy = ModelConfig()
    copy.CopyFrom(config)
    try:
        normalize_config(copy, directory_name=copy.name, artifact_names=names)
    except InvalidArgumentError:
        return ""
    return str(copy.backend)


def _backend_of_files(names: Sequence[str]) -> str:
    found = {_BACKENDS[suffix] for name in names if (suffix := Path(name).suffix) in _BACKENDS}
    return found.pop() if len(found) == 1 else ""


def _explain_file(path: Path) -> str:
    """What lies in place of a model file, where it is plain to see; else empty."""
    try:
        if not path.exists():
            return f"It is a link to '{path.readlink()}', where nothing is."
        if path.is_dir():
            return ""
        with path.open("rb") as file:
            return _explain_start(file.read(_HEAD_BYTES), path.suffix)
    except OSError as error:
        return f"It can't be opened: {error.strerror}."


def _explain_start(start: bytes, suffix: str) -> str:
    if start.startswith(b"version https://git-lfs.github.com/spec/"):
        return "It is the pointer that Git LFS keeps in its place: 'git lfs pull' gets the file."
    if start.lstrip().lower().startswith((b"<!doctype html", b"<html")):
        return "It is a web page, such as a failed download leaves. Download the file again."
    if suffix == ".onnx" and start.startswith(b"PK\x03\x04"):
        return (
            "It is an archive, such as PyTorch writes; as such it is named model.pt or model.pt2."
        )
    return ""


def _diagnose_model_file(diagnosis: Diagnosis, layout: Layout, subject: Subject) -> bool:
    """Whether the model file is there, after correction."""
    config = diagnosis.wanted
    backend = config.backend or PLATFORM_BACKENDS.get(config.platform, "") or _normalized_backend(
        config, subject.artifacts
    )  # fmt: skip
    suffixes = _SUFFIXES.get(backend)
    if suffixes is None or config.runtime:
        return True
    copy = ModelConfig()
    copy.CopyFrom(config)
    copy.name = subject.name
    normalize_config(copy, directory_name=subject.name, artifact_names=subject.artifacts)
    expected = copy.default_model_filename or _DEFAULT_FILES.get(backend, "")
    if not expected:
        return True
    if expected in subject.artifacts and (said := _explain_file(subject.directory / expected)):
        finding = Finding("model-file", "The model file is no model.", said, is_fixable=False)
        layout.add(finding, subject.directory / expected)
        return False
    if (subject.directory / expected).exists():
        return True
    candidates = [name for name in subject.artifacts if Path(name).suffix in suffixes]
    meant = candidates[0] if len(candidates) == 1 else nearest(expected, candidates)
    listing = ", ".join(subject.artifacts) or "nothing"
    where = f"Version {subject.version} holds {listing}"
    if meant is None:
        finding = Finding(
            "model-file",
            f"The model file '{expected}' is missing.",
            f"{where}. Put the model file there.",
            is_fixable=False,
        )
        layout.add(finding, subject.directory / expected)
        return False
    config.default_model_filename = meant
    diagnosis.add(
        Finding(
            "model-file",
            f"The config expects the model file '{expected}'.",
            f"{where}: rename the file, or name it in the config.",
            ("default_model_filename",),
        )
    )
    return True
