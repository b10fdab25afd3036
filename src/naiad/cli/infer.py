"""``naiad infer``: one request from the shell, and its answer in readable form."""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from naiad.cli.console import make_console
from naiad.cli.credentials import credential_options, take_credentials
from naiad.client.http import HttpClient
from naiad.errors import InvalidArgumentError, NaiadError
from naiad.inference.datatypes import (
    BF16,
    BY_NAME,
    BYTES,
    Datatype,
    round_to_bf16,
    widen_bf16,
)
from naiad.inference.tensor import Tensor
from naiad.printable import terminal_text

Array = npt.NDArray[Any]

# Values shown of an output without labels, before it is abbreviated.
_SHOWN_VALUES: Final = 40


@dataclass(frozen=True, slots=True)
class InputSpec:
    """An input as the model's metadata describes it.

    Attributes:
        name: of the input.
        datatype: v2.
        shape: with the batch axis where there is one; -1 where any length will do.
    """

    name: str
    datatype: Datatype
    shape: tuple[int, ...]

    @classmethod
    def parse(cls, metadata: Mapping[str, Any]) -> "InputSpec":
        """From one entry of the metadata's ``inputs``."""
        datatype = BY_NAME[metadata["datatype"]]
        return cls(metadata["name"], datatype, tuple(int(d) for d in metadata["shape"]))

    def __str__(self) -> str:
        return f"'{self.name}' ({self.datatype.name}, shape {list(self.shape)})"


@click.command("infer")
@click.argument("model")
@click.option(
    "--url",
    metavar="[https://]HOST:PORT",
    default="localhost:8000",
    show_default=True,
    help="A server's HTTP service.",
)
@click.option(
    "--version", type=click.IntRange(min=1), help="Model version. By default the server's choice."
)
@click.option(
    "--input",
    "given",
    multiple=True,
    metavar="NAME=VALUE",
    help="One input: JSON such as [[1, 2]] or 0.5, plain text for BYTES, or @FILE.npy or "
    "@FILE.json. The batch axis may be left out. Repeat it for each input.",
)
@click.option("--example", is_flag=True, help="Make up the inputs that are not given.")
@click.option("--json", "as_json", is_flag=True, help="Send tensors as JSON, not as bytes.")
@click.option("--top", type=click.IntRange(min=1), default=5, show_default=True, help="Classes.")
@credential_options
def infer(  # noqa: PLR0913  # one parameter for each option
    *,
    model: str,
    url: str,
    version: int | None,
    given: tuple[str, ...],
    example: bool,
    as_json: bool,
    top: int,
    **given_credentials: Any,
) -> None:
    """Send one request to MODEL and print what it answers.

    Datatypes and shapes come from the model's metadata. An output with labels is shown as its
    top classes.

    Exit codes: 0 answered, 1 no answer, or a request that the model does not take, 2 wrong options.
    """
    console = make_console()
    credentials = take_credentials(given_credentials)
    model_version = "" if version is None else str(version)
    try:
        with HttpClient(url, credentials=credentials) as client:
            metadata = client.model_metadata(model, model_version)
            specs = [InputSpec.parse(entry) for entry in metadata["inputs"]]
            inputs = build_inputs(specs, given, example=example)
            names = [str(output["name"]) for output in metadata["outputs"]]
            classes = dict.fromkeys(_labelled_outputs(client, model, model_version), top)
            result = client.infer(
                model,
                inputs,
                version=model_version,
                output_names=names,
                classes=classes,
                binary=not as_json,
            )
    except NaiadError as error:
        click.echo(terminal_text(f"naiad infer: {error.message}{_advise(error)}"), err=True)
        sys.exit(1)
    console.print(f"{result.model_name}, version {result.model_version}", highlight=False)
    for tensor in inputs:
        console.print(f"input  {_describe(tensor)}", highlight=False, markup=False)
    for tensor in result.outputs.values():
        if tensor.name in classes:
            _print_classes(console, tensor)
        else:
            _print_output(console, tensor)


def _advise(error: NaiadError) -> str:
    if "expecting header '" in error.message:
        return ". --header 'KEY: VALUE' sends one"
    if not isinstance(error.__cause__, ConnectionRefusedError):
        return ""
    return ". Nothing listens there: start 'naiad serve DIR', or name a server with --url HOST:PORT"


def build_inputs(
    specs: Sequence[InputSpec], given: Sequence[str], *, example: bool
) -> list[Tensor]:
    """The request's tensors, in the order of the metadata.

    Args:
        specs: the model's inputs.
        given: ``NAME=VALUE`` as typed.
        example: make up what is not given.

    Raises:
        InvalidArgumentError: a name that the model doesn't have or that lacks a value, or a
            value that doesn't fit; the text says what would.
    """
    values = _split(given)
    known = {spec.name for spec in specs}
    listing = ", ".join(str(spec) for spec in specs)
    for name in values:
        if name not in known:
            raise InvalidArgumentError(f"the model has no input '{name}'; it has {listing}")
    missing = [spec for spec in specs if spec.name not in values]
    if missing and not example:
        lacking = ", ".join(str(spec) for spec in missing)
        raise InvalidArgumentError(
            f"no value for {lacking}. Give --input NAME=VALUE, or --example to make values up"
        )
    return [
        _tensor(spec, parse_value(spec, values[spec.name]))
        if spec.name in values
        else _tensor(spec, make_example(spec))
        for spec in specs
    ]


def parse_value(spec: InputSpec, text: str) -> Array:
    """A typed value or the content of a file, as an array in the shape that the model takes.

    Raises:
        InvalidArgumentError: no such file, not JSON, or neither fits datatype and shape.
    """
    if text.startswith("@"):
        loaded = _read_file(Path(text[1:]))
    elif spec.datatype is BYTES and not text.startswith("["):
        loaded = text
    else:
        try:
            loaded = json.loads(text)
        except ValueError as error:
            raise InvalidArgumentError(
                f"the value of input {spec} is not JSON: {error}. Write numbers as [[1, 2]], or "
                f"name a file of them: --input {spec.name}=@FILE.npy"
            ) from error
    return fit_shape(spec, _to_array(spec, loaded))


def fit_shape(spec: InputSpec, array: Array) -> Array:
    """The array with a batch axis where that was left out, or a flat one in its only shape.

    Raises:
        InvalidArgumentError: the array has no form that fits.
    """
    shape = spec.shape
    if _fits(array.shape, shape):
        return array
    if shape and shape[0] in {-1, 1} and _fits(array.shape, shape[1:]):
        return array[np.newaxis]
    # A flat list of values for a shape in which at most the batch is open.
    row = math.prod(shape[1:]) if shape and -1 not in shape[1:] else 0
    if (
        array.ndim <= 1
        and row > 0
        and array.size % row == 0
        and shape[0] in {-1, array.size // row}
    ):
        return array.reshape(-1, *shape[1:])
    raise InvalidArgumentError(
        f"input {spec} got a value of shape {list(array.shape)}, which does not fit"
    )


def make_example(spec: InputSpec) -> Array:
    """Values of the right datatype and shape, the same each time; -1 becomes 1.

    Integers are 0 and 1, which any vocabulary holds; floats are of a standard normal.
    """
    shape = tuple(1 if dim < 0 else dim for dim in spec.shape)
    random = np.random.default_rng(0)
    if spec.datatype is BYTES:
        text = np.empty(shape, dtype=np.object_)
        text.fill(b"example")
        return text
    if spec.datatype is BF16 or spec.datatype.dtype.kind == "f":
        return _from_floats(spec.datatype, random.standard_normal(shape))
    return random.integers(0, 2, shape).astype(spec.datatype.dtype)


def _labelled_outputs(client: HttpClient, model: str, version: str) -> list[str]:
    config = client.model_config(model, version)
    return [o["name"] for o in config.get("output", []) if o.get("label_filename")]


def _split(given: Sequence[str]) -> dict[str, str]:
    values: dict[str, str] = {}
    for pair in given:
        name, equals, value = pair.partition("=")
        if not equals:
            raise InvalidArgumentError(f"--input '{pair}' is not of the form NAME=VALUE")
        if name in values:
            raise InvalidArgumentError(f"--input '{name}' is given twice")
        values[name] = value
    return values


def _read_file(path: Path) -> Any:
    try:
        if path.suffix == ".npy":
            return np.load(path, allow_pickle=False)
        if path.suffix == ".json":
            return _parse_json(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise InvalidArgumentError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise InvalidArgumentError(f"cannot read {path}: {error}") from error
    raise InvalidArgumentError(f"{path} is neither a .npy nor a .json file")


def _parse_json(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidArgumentError(f"{what} is not JSON: {error}") from error


def _to_array(spec: InputSpec, value: Any) -> Array:
    datatype = spec.datatype
    try:
        if datatype is BYTES:
            raw = np.array(value, dtype=np.object_)
            encode = np.frompyfunc(_encode_element, 1, 1)
            return np.array(encode(raw), dtype=np.object_)
        array = _to_numbers(spec, value)
        if datatype is BF16:
            return _from_floats(datatype, array.astype(np.float64))
        # Numbers must not lose their meaning on the way: 1.5 is no INT64, 300 no UINT8.
        cast = array.astype(datatype.dtype, casting="unsafe")
        if datatype.dtype.kind != "f" and not np.array_equal(cast, array):
            raise InvalidArgumentError(f"input {spec} can't hold the value {array.tolist()}")
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"input {spec} got a value of another kind: {error}") from error
    return cast


def _to_numbers(spec: InputSpec, value: Any) -> Array:
    try:
        array = np.array(value)
    except ValueError as error:
        # numpy's own text is about array elements and inhomogeneous shapes.
        raise InvalidArgumentError(
            f"input {spec} got lists of different lengths, which make no tensor"
        ) from error
    if array.dtype.kind not in "biuf":
        raise InvalidArgumentError(
            f"input {spec} takes numbers of at most 64 bits, and its value holds something else"
        )
    return array


def _encode_element(element: object) -> bytes:
    if isinstance(element, bytes):
        return element
    if isinstance(element, str):
        return element.encode()
    raise TypeError(f"{element!r} is not text")


def _from_floats(datatype: Datatype, values: Array) -> Array:
    return round_to_bf16(values) if datatype is BF16 else values.astype(datatype.dtype)


def _tensor(spec: InputSpec, array: Array) -> Tensor:
    contiguous = np.array(array, order="C")
    return Tensor(spec.name, spec.datatype, contiguous.shape, contiguous)


def _fits(shape: Sequence[int], wanted: Sequence[int]) -> bool:
    return len(shape) == len(wanted) and all(
        want in {-1, size} for size, want in zip(shape, wanted, strict=True)
    )


def _describe(tensor: Tensor) -> str:
    return f"{tensor.name}: {tensor.datatype.name} {list(tensor.shape)}"


def _print_output(console: Console, tensor: Tensor) -> None:
    console.print(f"output {_describe(tensor)}", highlight=False, markup=False)
    if tensor.datatype is BYTES:
        for element in _texts(tensor):
            console.print(f"  {element}", highlight=False, markup=False)
        return
    values: Array = tensor.data.reshape(tuple(tensor.shape))
    if tensor.datatype is BF16:
        values = widen_bf16(values)
    shown = np.array2string(values, threshold=_SHOWN_VALUES, precision=6, suppress_small=True)
    console.print(shown, highlight=False, markup=False)


def _print_classes(console: Console, tensor: Tensor) -> None:
    """The classification extension's ``value:index`` or ``value:index:label``, best first."""
    console.print(f"output {tensor.name}: the largest values", highlight=False, markup=False)
    table = Table()
    for heading in ("value", "class", "label"):
        table.add_column(heading, justify="left" if heading == "label" else "right")
    for index, text in enumerate(_texts(tensor)):
        if index and index % tensor.shape[-1] == 0:
            # Another row of the batch.
            table.add_section()
        table.add_row(*text.split(":", 2))
    console.print(table)


def _texts(tensor: Tensor) -> list[str]:
    return [bytes(e).decode(errors="replace") for e in tensor.data.reshape(-1).tolist()]
