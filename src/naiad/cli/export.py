"""``naiad export``: from a model, wherever it lies, to a model version in a repository."""

import logging
import math
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from naiad.cli.console import make_console
from naiad.cli.current_folder import add_current_folder
from naiad.cli.export_report import phrase_for_shell, print_formats
from naiad.errors import AlreadyExistsError, InvalidArgumentError, NaiadError, NotFoundError
from naiad.exporter.options import LOWEST_OPSET, ExportOptions
from naiad.exporter.recipe import read_recipe
from naiad.exporter.request import ALL_FORMATS, FORMAT_NAMES, ExportRequest
from naiad.inference.comparison import Tolerance
from naiad.inference.datatypes import BY_NAME
from naiad.missing_packages import explain_missing_package
from naiad.model_config.triton_release import find_release
from naiad.repository.paths import check_model_name
from naiad.repository.writer import refuse_taken
from naiad.source_model.description import SourceDescription

if TYPE_CHECKING:
    from rich.status import Status

    from naiad.exporter.several import FormatsResult

_FAILED: Final = 1
_MISUSED: Final = 2
# Parameters that mean something beside a recipe.
_WITH_RECIPE: Final = frozenset({"recipe", "name", "repository", "overwrite"})
_ONE_FORMAT: Final = frozenset((form,) for form in FORMAT_NAMES)


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


def parse_tolerances(values: tuple[str, ...]) -> dict[str, Tolerance]:
    """``FP32:1e-3,1e-4`` as the relative and absolute tolerance of a datatype.

    Raises:
        InvalidArgumentError: a value is not of that form, or a datatype appears twice.
    """
    tolerances: dict[str, Tolerance] = {}
    for value in values:
        datatype, _, limits = value.partition(":")
        try:
            rtol, atol = (float(limit) for limit in limits.split(","))
        except ValueError:
            rtol, atol = math.nan, math.nan
        if datatype not in BY_NAME or not (rtol >= 0 and atol >= 0):
            raise InvalidArgumentError(
                f"'{value}' is not of the form DATATYPE:RTOL,ATOL; for example FP32:1e-3,1e-4"
            )
        if datatype in tolerances:
            raise InvalidArgumentError(f"--tolerance names {datatype} twice")
        tolerances[datatype] = Tolerance(rtol, atol)
    return tolerances


@click.command("export")
@click.argument("source", required=False, metavar="[SOURCE]")
@click.option(
    "--recipe",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Export what this TOML file describes, instead of SOURCE.",
)
@click.option("--name", help="Model name in the repository; with --recipe, only this model.")
@click.option(
    "--repository",
    type=click.Path(file_okay=False, path_type=Path),
    help="Model repository; made if there is none.",
)
@click.option(
    "--class",
    "model_class",
    metavar="MODULE:CLASS",
    help="Makes the module that a file of weights belongs to.",
)
@click.option(
    "--format",
    "format_name",
    type=click.Choice([*FORMAT_NAMES, ALL_FORMATS]),
    default="onnx",
    show_default=True,
    help="Of the model file; all: each that can carry the model, as NAME_FORMAT, compared.",
)
@click.option(
    "--args",
    "examples",
    metavar="MODULE:CALLABLE",
    help="Returns example inputs, where SOURCE has none.",
)
@click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="NAME:DATATYPE:SHAPE",
    help="Describes an example input instead, such as image:FP32:1,3,224,224: random numbers, "
    "integers 0 and 1 unless --range says otherwise. Repeat it for each.",
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
@click.option(
    "--input-name",
    "input_names",
    multiple=True,
    help="Other names than forward's, in its order; repeat it for each input.",
)
@click.option(
    "--output-name",
    "output_names",
    multiple=True,
    help="Other names than the result's keys, in its order; repeat it for each output.",
)
@click.option(
    "--tolerance",
    "tolerances",
    multiple=True,
    metavar="DATATYPE:RTOL,ATOL",
    help="How far outputs may be from eager PyTorch's, such as FP32:1e-3,1e-4.",
)
@click.option(
    "--target",
    metavar="triton:RELEASE",
    default="",
    help="Release of Triton that is to serve the version, such as triton:24.10.",
)
@click.option(
    "--optimize",
    type=click.Choice(["fp16", "int8"]),
    help="Make an ONNX file smaller at the price of precision, which is measured and shown.",
)
@click.option(
    "--opset",
    type=click.IntRange(min=LOWEST_OPSET),
    help="Of ONNX. By default torch's choice, or what the target runs.",
)
def export(**given: Any) -> None:
    """Export the model of SOURCE, and prove the file against it.

    SOURCE is MODULE:CALLABLE, a file or a folder: TorchScript; weights (torch or safetensors) with
    --class; a .mar of TorchServe; a model directory of transformers. The callable takes no
    arguments and returns an nn.Module, (module, args) or (module, args, kwargs), where args are
    example inputs of forward.

    Exit codes: 0 exported, 1 the model cannot be exported or the file answers otherwise, 2 wrong
    use.
    """
    add_current_folder()
    # One stream from the start: while torch works, sys.stderr may be another.
    errors = make_console(sys.stderr)
    worst = 0
    try:
        requests = _read_requests(given)
    except NaiadError as error:
        _fail(error)
        sys.exit(_MISUSED)
    for request in requests:
        try:
            with errors.status("loading torch") as status, _progress(status):
                made = _run(request)
        except ModuleNotFoundError as error:
            click.echo(f"naiad export: {explain_missing_package(error)}", err=True)
            sys.exit(_MISUSED)
        except (NaiadError, OSError) as error:
            prefix = f"{request.name}: " if given["recipe"] is not None else ""
            worst = max(worst, _fail(error, prefix))
        else:
            print_formats(make_console(), request.name, made)
            if made.failures and tuple(request.formats) != (ALL_FORMATS,):
                worst = max(worst, _FAILED)
    sys.exit(worst)


def _fail(error: Exception, prefix: str = "") -> int:
    """Say what went wrong; returns the exit code."""
    if not isinstance(error, NaiadError):
        click.echo(f"naiad export: {prefix}cannot write the version: {error}", err=True)
        return _FAILED
    click.echo(f"naiad export: {prefix}{phrase_for_shell(error.message)}", err=True)
    misused = isinstance(error, InvalidArgumentError | NotFoundError | AlreadyExistsError)
    return _MISUSED if misused else _FAILED


def _run(request: ExportRequest) -> "FormatsResult":
    from naiad.exporter.several import run_request

    logging.getLogger("naiad.exporter").info("running %s", request.source.source)
    return run_request(request)


def _read_requests(given: Mapping[str, Any]) -> list[ExportRequest]:
    """What is asked for; whatever was typed wrong is said before torch, which takes seconds."""
    requests = [_read_request(given)] if given["recipe"] is None else _read_recipe(given)
    command = shlex.join(["naiad", *sys.argv[1:]])
    requests = [
        replace(request, options=replace(request.options, command=command)) for request in requests
    ]
    for request in requests:
        check_model_name(request.name)
        if request.options.target:
            find_release(request.options.target)
        if not request.options.overwrite and tuple(request.formats) in _ONE_FORMAT:
            refuse_taken(request.repository, request.name, request.options.version)
    return requests


def _read_recipe(given: Mapping[str, Any]) -> list[ExportRequest]:
    context = click.get_current_context()
    typed = [
        name
        for name in given
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        and name not in _WITH_RECIPE
    ]
    if typed:
        raise InvalidArgumentError(
            f"--recipe says everything about its models: leave {', '.join(map(_flag, typed))} out, "
            "or write it into the recipe"
        )
    path: Path = given["recipe"]
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    requests = read_recipe(path)
    if given["name"] is not None:
        names = ", ".join(request.name for request in requests)
        requests = tuple(request for request in requests if request.name == given["name"])
        if not requests:
            raise NotFoundError(f"{path} has no model '{given['name']}'; it has {names}")
    repository: Path | None = given["repository"]
    return [
        replace(
            request,
            repository=request.repository if repository is None else repository,
            options=replace(
                request.options, overwrite=given["overwrite"] or request.options.overwrite
            ),
        )
        for request in requests
    ]


def _flag(name: str) -> str:
    option = next(o for o in export.params if o.name == name)
    return "SOURCE" if name == "source" else option.opts[-1]


def _read_request(given: Mapping[str, Any]) -> ExportRequest:
    for name in ("source", "name", "repository"):
        if given[name] is None:
            raise click.UsageError(
                f"{_flag(name)} is missing; without --recipe, SOURCE, --name and --repository "
                "say what to export and where to"
            )
    ranges = parse_ranges(given["ranges"])
    options = ExportOptions(
        dynamic=parse_dynamic(given["dynamic"]),
        max_batch_size=given["max_batch_size"],
        version=given["version"],
        overwrite=given["overwrite"],
        labels=given["labels"] or (),
        input_names=given["input_names"],
        output_names=given["output_names"],
        opset=given["opset"],
        target=given["target"],
        optimize=given["optimize"] or "",
        ranges=ranges,
        tolerances=parse_tolerances(given["tolerances"]),
        instance_count=given["instance_count"],
        torchscript=given["torchscript"],
    )
    source = SourceDescription(
        source=given["source"],
        model_class=given["model_class"],
        examples=given["examples"],
        inputs=given["inputs"],
        ranges=ranges,
    )
    return ExportRequest(
        name=given["name"], repository=given["repository"], source=source,
        formats=(given["format_name"],), options=options,
    )  # fmt: skip


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
    handler, level, propagates = _StatusHandler(status), logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    # A compiler of torch's gives the root logger a handler, which would print each step as well.
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagates
