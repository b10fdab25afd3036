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

import numpy as np
import torch
from torch import nn

from naiad.errors import InternalError, InvalidArgumentError
from naiad.exporter import onnx, pt2, torchscript
from naiad.exporter.agreement import (
    CaseDifference,
    DisagreementError,
    compare_case,
    scale_tolerance,
)
from naiad.exporter.cases import make_cases, select_stored
from naiad.exporter.config import assign_labels, make_config, settle_config
from naiad.exporter.failures import first_line
from naiad.exporter.formats import Format, Interface, Runner, Written
from naiad.exporter.options import DEFAULT_MAX_BATCH_SIZE, ExportOptions
from naiad.exporter.plan import ExportPlan, make_plan
from naiad.exporter.quiet import quiet
from naiad.exporter.result import ExportResult
from naiad.inference.comparison import Array, Tolerance
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

FormatName = Literal["onnx", "torchscript", "pt2"]

FORMATS: Final[Mapping[str, Format]] = MappingProxyType(
    {chosen.name: chosen for chosen in (onnx.FORMAT, torchscript.FORMAT, pt2.FORMAT)}
)


@dataclass(frozen=True, slots=True)
class _Proof:
    """The cases as the file answers them."""

    cases: tuple[GoldenCase, ...]
    tolerances: Mapping[str, Tolerance]
    differences: tuple[CaseDifference, ...]


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
            models that decide by values) or ``pt2`` (torch.export; Naiad alone serves it).
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
    if not settings.overwrite:
        refuse_taken(Path(repository), name, settings.version)
    labels = _read_labels(settings.labels)
    existing = _read_config(Path(repository, name, CONFIG_FILENAME))
    with quiet(), tempfile.TemporaryDirectory(prefix="naiad-export-") as folder:
        _LOGGER.info("running %s in eager mode", type(model).__name__)
        source = SourceModel(model, args, kwargs, origin=settings.source)
        path = Path(folder, chosen.file_name)
        with preserve_buffers(model):
            plan = make_plan(source, settings, _default_max_batch_size(existing))
            answered = make_cases(plan)
            _LOGGER.info("writing %s", chosen.file_name)
            written = chosen.write(plan, path)
        _LOGGER.info("asking %s the %d golden cases", chosen.file_name, len(answered))
        cases = [_renamed(case, written) for case in answered]
        interface = chosen.describe(path, plan, cases)
        proof = _prove(chosen, path, interface, cases, settings)
        config, note = settle_config(
            existing,
            make_config(name, chosen, plan, interface),
            settings,
        )
        by_output = assign_labels(labels, interface)
        manifest = _manifest(chosen, plan, interface, proof, written.notes)

        def write_version(version_dir: Path) -> None:
            _fill_version(version_dir, Path(folder), manifest, proof.cases)

        _LOGGER.info("publishing")
        version_dir = publish_version(
            Path(repository), name, settings.version, config, write_version, by_output,
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
        differences=proof.differences,
        notes=(*manifest.notes, *([note] if note else [])),
    )


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


def _prove(
    chosen: Format,
    path: Path,
    interface: Interface,
    cases: Sequence[GoldenCase],
    options: ExportOptions,
) -> _Proof:
    datatypes = {record.name: record.datatype for record in interface.outputs}
    tolerances = {
        name: scale_tolerance(
            options.tolerance(datatype), [case.outputs[name] for case in cases], datatype
        )
        for name, datatype in datatypes.items()
    }
    run = chosen.open(path, {record.name: record.datatype for record in interface.inputs})
    differences = [
        difference
        for case in cases
        for difference in compare_case(case, _ask(run, case, chosen), datatypes, tolerances)
    ]
    _require_agreement(differences, chosen)
    return _Proof(tuple(cases), tolerances, tuple(differences))


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


def _require_agreement(differences: Sequence[CaseDifference], chosen: Format) -> None:
    failed = [difference for difference in differences if not difference.equal]
    if not failed:
        return
    worst = max(failed, key=lambda difference: difference.max_abs)
    raise DisagreementError(
        f"{chosen.file_name} does not answer as the model does, so nothing was published: output "
        f"'{worst.output}' of the golden case '{worst.case}' differs by {worst.max_abs:.3g} "
        f"({worst.detail}); {len(failed)} of {len(differences)} comparisons failed. "
        f"{_advice(chosen)}",
        failed,
    )


def _advice(chosen: Format) -> str:
    if chosen.name == "torchscript":
        return (
            "A traced model keeps one path through its Python code and the sizes that it took as "
            "numbers; make it scriptable, or use the format onnx or pt2"
        )
    return (
        "Indices (argmax, topk) may differ where values are tied; other differences come from "
        "operators that the two run apart: raise the tolerance if it is harmless, or use another "
        "format"
    )


def _manifest(
    chosen: Format,
    plan: ExportPlan,
    interface: Interface,
    proof: _Proof,
    format_notes: Sequence[str],
) -> Manifest:
    notes = [*plan.notes, *format_notes]
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
        },
        versions={
            "naiad": metadata.version("naiad"),
            "python": platform.python_version(),
            "torch": torch.__version__,
            **chosen.libraries,
        },
        files={},
        inputs=interface.inputs,
        outputs=interface.outputs,
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
