"""``naiad export``: from a callable that makes a module to a model version in a repository."""

import logging
import math
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from naiad.cli.current_folder import add_current_folder
from naiad.errors import AlreadyExistsError, InvalidArgumentError, NaiadError, NotFoundError
from naiad.repository.paths import check_model_name
from naiad.repository.writer import refuse_taken

if TYPE_CHECKING:
    from rich.status import Status

    from naiad.exporter.result import ExportResult
    from naiad.repository.golden import TensorRecord

_FAILED = 1
_MISUSED = 2


def parse_dynamic(values: tuple[str, ...]) -> dict[str, dict[int, str]]:
    """``input_ids:batch,tokens`` as axes of inputs; an empty place is an axis of fixed size.

    Raises:
        InvalidArgumentError: a value is not of that form, or an input appears twice.
    """
    dynamic: dict[str, dict[int, str]] = {}
    for value in values:
        name, colon, axes = value.rpartition(":")
        named = {axis: label.strip() for axis, label in enumerate(axes.split(","))}
        named = {axis: label for axis, label in named.items() if label}
        if not (colon and name and named):
            raise InvalidArgumentError(
                f"'{value}' is not of the form INPUT:AXIS,AXIS; for example "
                "input_ids:batch,tokens, or image:batch,,height,width for a fixed axis 1"
            )
        if name in dynamic:
            raise InvalidArgumentError(f"--dynamic names the input '{name}' twice")
        dynamic[name] = named
    return dynamic


def parse_ranges(values: tuple[str, ...]) -> dict[str, tuple[float, float]]:
    """``input_ids:0,29999`` as the lowest and highest value of inputs.

    Raises:
        InvalidArgumentError: a value is not of that form, or an input appears twice.
    """
    ranges: dict[str, tuple[float, float]] = {}
    for value in values:
        name, _, limits = value.rpartition(":")
        try:
            lowest, highest = (float(limit) for limit in limits.split(","))
        except ValueError:
            lowest, highest = math.nan, math.nan
        if not (name and math.isfinite(highest - lowest)):
            raise InvalidArgumentError(
                f"'{value}' is not of the form INPUT:LOWEST,HIGHEST; for example "
                "input_ids:0,29999 or image:-1,1"
            )
        if name in ranges:
            raise InvalidArgumentError(f"--range names the input '{name}' twice")
        ranges[name] = (lowest, highest)
    return ranges


@click.command("export")
@click.argument("source", metavar="MODULE:CALLABLE")
@click.option("--name", required=True, help="Model name in the repository.")
@click.option(
    "--repository",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Model repository; made if there is none.",
)
@click.option(
    "--format",
    "format_name",
    type=click.Choice(["onnx", "torchscript", "pt2"]),
    default="onnx",
    show_default=True,
    help="Of the model file.",
)
@click.option(
    "--args",
    "examples",
    metavar="MODULE:CALLABLE",
    help="Returns example inputs, where the first callable returns a module alone.",
)
@click.option(
    "--dynamic",
    multiple=True,
    metavar="INPUT:AXIS,AXIS",
    help="Names of an input's axes that vary, such as input_ids:batch,tokens. Repeat it for each.",
)
@click.option(
    "--range",
    "ranges",
    multiple=True,
    metavar="INPUT:LOWEST,HIGHEST",
    help="Values that golden inputs may hold, such as input_ids:0,29999. By default the "
    "example's own range. Repeat it for each.",
)
@click.option(
    "--max-batch-size",
    type=click.IntRange(min=0),
    help="Of the config. By default 8 where the model can be batched, else 0.",
)
@click.option(
    "--labels",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Class names, one a line.",
)
@click.option(
    "--version", type=click.IntRange(min=1), help="Model version. By default the next one."
)
@click.option("--overwrite", is_flag=True, help="Replace the version if it exists.")
@click.option(
    "--instance-count",
    type=click.IntRange(min=1),
    help="Instances in the config. By default the server decides.",
)
@click.option(
    "--torchscript",
    type=click.Choice(["auto", "script", "trace"]),
    default="auto",
    show_default=True,
    help="How TorchScript is made: scripted where the model allows it, always, or never.",
)
@click.option("--opset", type=click.IntRange(min=1), help="Of ONNX. By default torch's choice.")
def export(**given: Any) -> None:
    """Export the model that MODULE:CALLABLE returns, and prove the file against it.

    The callable takes no arguments and returns an nn.Module, (module, args) or
    (module, args, kwargs), where args are example inputs of forward.

    Exit codes: 0 exported, 1 the model cannot be exported or the file answers otherwise, 2 wrong
    use.
    """
    console = Console(stderr=True)
    add_current_folder()
    try:
        with console.status("loading torch") as status, _progress(status):
            result = _export(given)
    except (InvalidArgumentError, NotFoundError, AlreadyExistsError) as error:
        click.echo(f"naiad export: {error.message}", err=True)
        sys.exit(_MISUSED)
    except NaiadError as error:
        click.echo(f"naiad export: {error.message}", err=True)
        sys.exit(_FAILED)
    except OSError as error:
        click.echo(f"naiad export: cannot write the version: {error}", err=True)
        sys.exit(_FAILED)
    _print_result(Console(), result)


def _export(given: Mapping[str, Any]) -> "ExportResult":
    dynamic, ranges = parse_dynamic(given["dynamic"]), parse_ranges(given["ranges"])
    # Torch takes seconds to import, and what is typed wrong can be said before.
    check_model_name(given["name"])
    if not given["overwrite"]:
        refuse_taken(given["repository"], given["name"], given["version"])
    from naiad.exporter.export import export as export_model
    from naiad.exporter.options import ExportOptions
    from naiad.source_model.reference import load_source

    logging.getLogger("naiad.exporter").info("running %s", given["source"])
    source = load_source(given["source"], given["examples"])
    options = ExportOptions(
        dynamic=dynamic,
        max_batch_size=given["max_batch_size"],
        version=given["version"],
        overwrite=given["overwrite"],
        labels=given["labels"] or (),
        opset=given["opset"],
        ranges=ranges,
        instance_count=given["instance_count"],
        torchscript=given["torchscript"],
        source=given["source"],
    )
    return export_model(
        source.module,
        source.args,
        source.kwargs,
        name=given["name"],
        repository=given["repository"],
        format=given["format_name"],
        options=options,
    )


class _StatusHandler(logging.Handler):
    """Shows the exporter's latest log line beside the spinner."""

    def __init__(self, status: "Status") -> None:
        super().__init__(logging.INFO)
        self._status = status

    def emit(self, record: logging.LogRecord) -> None:
        self._status.update(record.getMessage())


@contextmanager
def _progress(status: "Status") -> Iterator[None]:
    logger = logging.getLogger("naiad.exporter")
    handler, level = _StatusHandler(status), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def _print_result(console: Console, result: "ExportResult") -> None:
    console.print(
        f"{result.model_name}, version {result.version} ({result.format}) in {result.path}",
        highlight=False, markup=False, soft_wrap=True,
    )  # fmt: skip
    tensors = Table(
        "", "name", "datatype", "shape", title="Inputs and outputs", title_justify="left"
    )
    # The file names the batch axis of inputs alone; outputs have the same one.
    batch = {0: result.inputs[0].axes[0]} if result.max_batch_size else {}
    for kind, records in (("input", result.inputs), ("output", result.outputs)):
        for record in records:
            shape = _shape(record, batch if kind == "output" else {})
            tensors.add_row(kind, escape(record.name), record.datatype, escape(shape))
    console.print(tensors)
    files = Table("file", "bytes", title="Files", title_justify="left")
    for name, size in result.files.items():
        files.add_row(escape(name), f"{size:,}")
    console.print(files)
    cases = Table(
        "golden case", "largest difference", "output",
        title="Against eager PyTorch", title_justify="left",
    )  # fmt: skip
    for case in dict.fromkeys(difference.case for difference in result.differences):
        worst = max((d for d in result.differences if d.case == case), key=lambda d: d.max_abs)
        cases.add_row(escape(case), f"{worst.max_abs:.3g}", escape(worst.output))
    console.print(cases)
    console.print(f"max_batch_size: {result.max_batch_size}", highlight=False)
    for note in result.notes:
        console.print(f"- {note}", highlight=False, markup=False, soft_wrap=True)
    if fixed := _fixed_tokens(result):
        flags = " ".join(f"--dynamic {shlex.quote(f'{name}:batch,tokens')}" for name in fixed)
        console.print(
            f"- rows of {' and '.join(fixed)} are as long as in the example; "
            f"for any length: {flags}",
            highlight=False, markup=False, soft_wrap=True,
        )  # fmt: skip
    repository = shlex.quote(str(result.path.parent.parent))
    console.print(
        f"Next: naiad serve {repository}, and in another shell "
        f"naiad infer {shlex.quote(result.model_name)} --example",
        highlight=False, markup=False, soft_wrap=True,
    )  # fmt: skip


def _fixed_tokens(result: "ExportResult") -> list[str]:
    """Inputs that look like tokens, and whose number was taken from the example."""
    if not result.max_batch_size:
        return []
    return [
        record.name
        for record in result.inputs
        if record.datatype in {"INT32", "INT64"} and len(record.shape) == 2 and record.shape[1] > 1
    ]


def _shape(record: "TensorRecord", also_named: Mapping[int, str]) -> str:
    names = {**also_named, **record.axes}
    named = {axis: names.get(axis, "-1") for axis in range(len(record.shape))}
    sizes = [named[axis] if size == -1 else str(size) for axis, size in enumerate(record.shape)]
    return f"[{', '.join(sizes)}]"
