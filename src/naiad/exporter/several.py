"""One model in several formats, side by side; and requests, which may ask for that."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from torch import nn

from naiad.errors import InvalidArgumentError, NaiadError
from naiad.exporter.export import FORMATS, FormatName, export
from naiad.exporter.options import ExportOptions
from naiad.exporter.request import ALL_FORMATS, ExportRequest
from naiad.exporter.result import ExportResult
from naiad.repository.writer import refuse_taken
from naiad.source_model.opening import OpenedSource, open_source


@dataclass(frozen=True, slots=True)
class FormatsResult:
    """What became of a model in several formats.

    All of them were asked the same golden cases, so their differences, times and sizes compare.

    Attributes:
        results: of the formats that carry the model, in the order asked for.
        failures: why the others do not, by format.
    """

    results: tuple[ExportResult, ...]
    failures: Mapping[str, NaiadError]


def export_formats(  # noqa: PLR0913  # as for one format
    model: nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    name: str,
    repository: str | Path,
    formats: Sequence[str] = (ALL_FORMATS,),
    options: ExportOptions | None = None,
) -> FormatsResult:
    """Export a model in several formats, each as a model of its own: ``NAME_FORMAT``.

    A model's versions share one config, and so one backend; hence models and not versions. A
    single format keeps the name as it is.

    Args:
        model: as for ``export``.
        args: as for ``export``.
        kwargs: as for ``export``.
        name: of the models, before the format.
        repository: as for ``export``.
        formats: names of formats, or ``all`` alone.
        options: as for ``export``; ``optimize`` is for ONNX and left out elsewhere.

    Returns:
        At least one result.

    Raises:
        InvalidArgumentError: a format is asked for twice or unknown.
        NaiadError: no format can carry the model; the reason is the first format's.
    """
    settings = options or ExportOptions()
    chosen = _choose(formats)
    named = {form: f"{name}_{form}" if len(chosen) > 1 else name for form in chosen}
    if not settings.overwrite:
        for model_name in named.values():
            refuse_taken(Path(repository), model_name, settings.version)
    results: list[ExportResult] = []
    failures: dict[str, NaiadError] = {}
    for form, model_name in named.items():
        # One format alone is told that it has no such optimisation.
        own = settings if form == "onnx" or len(chosen) == 1 else replace(settings, optimize="")
        try:
            results.append(
                export(
                    model, args, kwargs, name=model_name, repository=repository,
                    format=cast(FormatName, form), options=own,
                )
            )  # fmt: skip
        except NaiadError as error:
            failures[form] = error
    if not results:
        raise next(iter(failures.values()))
    return FormatsResult(tuple(results), failures)


def run_request(request: ExportRequest) -> FormatsResult:
    """Load the model of a request and export it.

    Raises:
        NaiadError: the model cannot be loaded, or no format can carry it.
    """
    with tempfile.TemporaryDirectory(prefix="naiad-source-") as scratch:
        opened = open_source(request.source, Path(scratch))
        return export_formats(
            opened.model.module,
            opened.model.args,
            opened.model.kwargs,
            name=request.name,
            repository=request.repository,
            formats=request.formats,
            options=_complete(request.options, opened, request.source.source),
        )


def _complete(options: ExportOptions, opened: OpenedSource, source: str) -> ExportOptions:
    """The options with what the source knows where they say nothing."""
    return replace(
        options,
        dynamic={**opened.dynamic, **options.dynamic},
        ranges={**opened.ranges, **options.ranges},
        labels=options.labels or opened.labels,
        source=source,
        source_notes=opened.notes,
    )


def _choose(formats: Sequence[str]) -> tuple[str, ...]:
    if tuple(formats) == (ALL_FORMATS,):
        return tuple(FORMATS)
    unknown = [form for form in formats if form not in FORMATS]
    if unknown or len(set(formats)) != len(formats) or not formats:
        raise InvalidArgumentError(
            f"the formats {', '.join(formats) or '(none)'} are not distinct ones of "
            f"{', '.join(FORMATS)}, or {ALL_FORMATS} alone"
        )
    return tuple(formats)
