"""From an ``nn.Module`` to a published, proven model version."""

import logging
import platform
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

import torch
from torch import nn

from naiad.clock import SystemClock
from naiad.errors import InvalidArgumentError
from naiad.exporter import aoti, onnx, pt2, torchscript
from naiad.exporter.cases import make_cases, select_stored
from naiad.exporter.config import assign_labels, make_config, settle_config
from naiad.exporter.formats import Format, Written
from naiad.exporter.optimization import (
    Measurement,
    Optimization,
    check_optimization,
    write_optimized,
)
from naiad.exporter.options import DEFAULT_MAX_BATCH_SIZE, ExportOptions
from naiad.exporter.plan import ExportPlan, make_plan
from naiad.exporter.proof import Candidate, Proof, prove
from naiad.exporter.quiet import quiet
from naiad.exporter.result import ExportResult
from naiad.exporter.target import check_target
from naiad.model_config.schema import ModelConfig
from naiad.model_config.text_format import format_config, parse_config
from naiad.repository.golden import (
    GoldenCase,
    Manifest,
    digest_files,
    write_cases,
    write_manifest,
)
from naiad.repository.layout import CONFIG_FILENAME
from naiad.repository.paths import check_model_name
from naiad.repository.writer import publish_version, refuse_taken
from naiad.source_model.evaluation import preserve_buffers
from naiad.source_model.model import SourceModel

_LOGGER: Final = logging.getLogger("naiad.exporter")

FormatName = Literal["onnx", "torchscript", "pt2", "aoti"]

FORMATS: Final[Mapping[str, Format]] = MappingProxyType(
    {chosen.name: chosen for chosen in (onnx.FORMAT, torchscript.FORMAT, pt2.FORMAT, aoti.FORMAT)}
)


@dataclass(frozen=True, slots=True)
class _Made:
    """A model file that answers as the model does."""

    plan: ExportPlan
    candidate: Candidate
    proof: Proof
    notes: tuple[str, ...]
    optimization: Optimization | None = None


def export(  # noqa: PLR0913  # the model's call, where it goes, and one object for the rest
    model: nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    name: str,
    repository: str | Path,
    format: FormatName = "onnx",  # noqa: A002  # the word that users look for
    options: ExportOptions | None = None,
) -> ExportResult:
    """A new version of a model in a model repository, proven against eager PyTorch.

    The version folder holds the model file, golden cases and ``naiad.json``; ``config.pbtxt``
    beside it is derived from the model file. The file is loaded by itself and asked all golden
    cases before anything appears in the repository.

    Args:
        model: on the CPU; run in eval mode and left as it was.
        args: an example of forward's positional arguments. Its values matter: integers stand
            for the range that the model takes, such as token ids.
        kwargs: an example of forward's keyword arguments.
        name: of the model in the repository.
        repository: folder of the model repository; made if there is none.
        format: ``onnx`` (for most servers), ``torchscript`` (for Triton's PyTorch backend and
            models that decide by values), ``pt2`` (torch.export; Naiad alone serves it) or
            ``aoti`` (compiled for this kind of CPU; needs a C++ compiler).
        options: everything else.

    Raises:
        InvalidArgumentError: the model, its example and the options do not fit each other.
        UnsupportedError: the model cannot become such a file; the message says what can.
        DisagreementError: the file answers otherwise than the model.
        AlreadyExistsError: the version is there and is not to be overwritten.
    """
    chosen = _find_format(format)
    settings = options or ExportOptions()
    check_model_name(name)
    check_optimization(settings, chosen.name)
    target_notes = check_target(settings, chosen.name)
    if not settings.overwrite:
        refuse_taken(Path(repository), name, settings.version)
    labels = _read_labels(settings.labels)
    existing = _read_config(Path(repository, name, CONFIG_FILENAME))
    with quiet(), tempfile.TemporaryDirectory(prefix="naiad-export-") as folder:
        source = SourceModel(model, args, kwargs, origin=settings.source)
        made = _make(chosen, source, settings, _default_max_batch_size(existing), Path(folder),
                     labels)  # fmt: skip
        plan, interface = made.plan, made.candidate.interface
        config, note = settle_config(existing, make_config(name, chosen, plan, interface), settings)
        notes = (*settings.source_notes, *plan.notes, *target_notes, *made.notes)
        manifest = _manifest(made, notes)

        def write_version(version_dir: Path) -> None:
            _fill_version(version_dir, made.candidate.path.parent, manifest, made.proof.cases)

        _LOGGER.info("publishing")
        version_dir = publish_version(
            Path(repository), name, settings.version, config, write_version,
            assign_labels(labels, {r.name: r.shape for r in interface.outputs}),
            overwrite=settings.overwrite,
        )  # fmt: skip
    return ExportResult(
        model_name=name,
        version=int(version_dir.name),
        path=version_dir,
        format=chosen.name,
        config_text=format_config(config),
        max_batch_size=plan.max_batch_size,
        inputs=interface.inputs,
        outputs=interface.outputs,
        files=_file_sizes(version_dir),
        differences=made.proof.differences,
        notes=(*manifest.notes, *([note] if note else [])),
        run_ns=made.proof.run_ns,
        optimization=made.optimization,
    )


def _make(  # the steps of one export share what they were given
    chosen: Format,
    source: SourceModel,
    settings: ExportOptions,
    default_max_batch_size: int,
    folder: Path,
    labels: Sequence[str],
) -> _Made:
    """Write a model file and prove it, in the folder."""
    _LOGGER.info("running %s in eager mode", type(source.module).__name__)
    path = folder / "exact" / chosen.file_name
    path.parent.mkdir()
    with preserve_buffers(source.module):
        plan = make_plan(source, settings, default_max_batch_size)
        answered = make_cases(plan)
        # Minutes later would be late to say that they do not fit.
        assign_labels(labels, {name: a.shape for name, a in answered[0].outputs.items()})
        _LOGGER.info("writing %s", chosen.file_name)
        written = chosen.write(plan, path)
    _LOGGER.info("asking %s the %d golden cases", chosen.file_name, len(answered))
    cases = [_renamed(case, written) for case in answered]
    exact = Candidate(chosen, path, chosen.describe(path, plan, cases))
    proof = prove(exact, cases, settings, SystemClock())
    made = _Made(plan, exact, proof, written.notes)
    return _optimize(made, settings, folder) if settings.optimize else made


def _optimize(made: _Made, settings: ExportOptions, folder: Path) -> _Made:
    """The smaller form of what was made, proven and measured against it."""
    kind = settings.optimize
    path = folder / "optimized" / made.candidate.path.name
    path.parent.mkdir()
    _LOGGER.info("making it %s", kind)
    notes = write_optimized(kind, made.candidate.path, path)
    candidate = replace(made.candidate, path=path, optimize=kind)
    proof = prove(candidate, made.proof.cases, settings, SystemClock())
    before, after = (Measurement(p.bytes, p.run_ns, p.max_abs) for p in (made.proof, proof))
    done = Optimization(kind, before, after)
    allowed = ", ".join(
        f"'{name}' rtol {t.rtol:.3g}, atol {t.atol:.3g}" for name, t in proof.tolerances.items()
    )
    told = f"golden tolerances are wide enough for {kind}: {allowed}"
    return _Made(made.plan, candidate, proof, (*made.notes, *notes, done.note(), told), done)


def _read_config(path: Path) -> ModelConfig | None:
    if not path.is_file():
        return None
    return parse_config(path.read_text(encoding="utf-8"), str(path))


def _default_max_batch_size(existing: ModelConfig | None) -> int:
    """What the model's config already says, so that golden cases fit it where it is kept."""
    if existing is None or existing.max_batch_size < 1:
        return DEFAULT_MAX_BATCH_SIZE
    return existing.max_batch_size


def _find_format(name: str) -> Format:
    chosen = FORMATS.get(name)
    if chosen is None:
        raise InvalidArgumentError(
            f"there is no format '{name}'; choose one of {', '.join(FORMATS)}"
        )
    return chosen


def _read_labels(labels: Sequence[str] | Path) -> tuple[str, ...]:
    if not isinstance(labels, str | Path):
        return tuple(labels)
    try:
        return tuple(Path(labels).read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"cannot read the labels of {labels}: {error}") from error


def _renamed(case: GoldenCase, written: Written) -> GoldenCase:
    """The case with the names that the file has."""
    return replace(
        case,
        inputs=dict(zip(written.input_names, case.inputs.values(), strict=True)),
        outputs=dict(zip(written.output_names, case.outputs.values(), strict=True)),
    )


def _manifest(made: _Made, told: Sequence[str]) -> Manifest:
    plan, proof, chosen = made.plan, made.proof, made.candidate.format
    notes = list(told)
    left_out = len(proof.cases) - len(select_stored(proof.cases))
    if left_out:
        notes.append(
            f"{left_out} of {len(proof.cases)} golden cases were compared and not kept: a version "
            "holds at most 20 MB of them"
        )
    module = type(plan.source.module)
    return Manifest(
        format=chosen.name,
        model_file=chosen.file_name,
        max_batch_size=plan.max_batch_size,
        source={
            "callable": plan.source.origin,
            "class": f"{module.__module__}.{module.__qualname__}",
            **({"optimize": made.candidate.optimize} if made.candidate.optimize else {}),
            **({"command": plan.options.command} if plan.options.command else {}),
            **({"target": plan.options.target} if plan.options.target else {}),
        },
        versions={
            "naiad": metadata.version("naiad"),
            "python": platform.python_version(),
            "torch": torch.__version__,
            **chosen.libraries,
        },
        files={},
        inputs=made.candidate.interface.inputs,
        outputs=made.candidate.interface.outputs,
        tolerances=proof.tolerances,
        cases=(),
        notes=tuple(notes),
    )


def _fill_version(
    version_dir: Path, written: Path, manifest: Manifest, cases: Sequence[GoldenCase]
) -> None:
    for path in sorted(written.iterdir()):
        shutil.move(path, version_dir / path.name)
    records = write_cases(version_dir, select_stored(cases))
    files = digest_files(version_dir)
    write_manifest(version_dir, replace(manifest, cases=records, files=files))


def _file_sizes(version_dir: Path) -> dict[str, int]:
    return {
        path.relative_to(version_dir).as_posix(): path.stat().st_size
        for path in sorted(version_dir.rglob("*"))
        if path.is_file()
    }
