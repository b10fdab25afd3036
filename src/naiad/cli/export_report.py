"""What ``naiad export`` says when it is done."""

import re
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from naiad.exporter.result import ExportResult
    from naiad.exporter.several import FormatsResult
    from naiad.repository.golden import TensorRecord

# Messages speak to callers of naiad.export; at a command line the same things have other names.
_PHRASES: Final = tuple(
    (re.compile(pattern), phrase)
    for pattern, phrase in (
        (r"[Ss]et output_names \(or input_names\) in ExportOptions",
         "Give --output-name (or --input-name)"),
        (r"tolerances in ExportOptions", "--tolerance DATATYPE:RTOL,ATOL"),
        (r"raise the tolerance", "raise it with --tolerance"),
        (r"[Ll]eave optimize out", "Leave --optimize out"),
        (r"^optimize (\w+)", r"--optimize \1"),
        (r"[Ss]et max_batch_size to 0", "give --max-batch-size 0"),
        (r"^max_batch_size is", "--max-batch-size is"),
        (r"(?<=the )format (onnx|pt2|torchscript|aoti)\b", r"option --format \1"),
        (r"\(--overwrite, or overwrite=True\)", "(--overwrite)"),
        (r"take the axis out of the dynamic ones", "leave the axis out of --dynamic"),
        (r"[Ll]eave the opset out", "Leave --opset out"),
        (r"^opset (is )?(?=\d)", "--opset "),
        (r"ExportOptions\(translations=([^)]*)\)", r"ExportOptions(translations=\1) in Python"),
        (r"(?<=: move the module and its example to the CPU before exporting: )module\.cpu\(\)",
         "return module.cpu() from your callable"),
    )
)  # fmt: skip


def phrase_for_shell(message: str) -> str:
    """A message of the Python API, in the words of the command line."""
    for pattern, phrase in _PHRASES:
        message = pattern.sub(phrase, message)
    return message


def print_formats(console: Console, name: str, made: "FormatsResult") -> None:
    """What was exported; several formats side by side.

    Args:
        console: of standard output.
        name: of the model, before the format.
        made: at least one result.
    """
    if len(made.results) + len(made.failures) == 1:
        print_result(console, made.results[0])
        return
    table = Table(
        "format", "model", "bytes", "ms", "largest difference",
        title=f"{name}: one set of golden cases, against eager PyTorch", title_justify="left",
    )  # fmt: skip
    for result in made.results:
        size = sum(n for file, n in result.files.items() if not _is_record(file))
        table.add_row(
            result.format, escape(f"{result.model_name} {result.version}"),
            f"{size:,}", f"{result.run_ns / 1e6:.3g}", f"{result.max_difference:.3g}",
        )  # fmt: skip
    console.print(table)
    for form, error in made.failures.items():
        _say(console, f"- not {form}: {phrase_for_shell(error.message)}")
    formats: dict[str, list[str]] = {}
    for result in made.results:
        for note in result.notes:
            formats.setdefault(phrase_for_shell(note), []).append(result.format)
    for note, holding in formats.items():
        # What is so in every format is said of none.
        prefix = "" if len(holding) == len(made.results) else f"{', '.join(holding)}: "
        _say(console, f"- {prefix}{note}")
    if made.results:
        _print_next(console, made.results[0])


def _is_record(file: str) -> bool:
    return file == "naiad.json" or file.startswith("golden/")


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def print_result(console: Console, result: "ExportResult") -> None:
    """Everything about one version.

    Args:
        console: of standard output.
        result: of the export.
    """
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
        _say(console, f"- {phrase_for_shell(note)}")
    if fixed := _fixed_tokens(result):
        flags = " ".join(f"--dynamic {shlex.quote(f'{name}:batch,tokens')}" for name in fixed)
        console.print(
            f"- rows of {' and '.join(fixed)} are as long as in the example; "
            f"for any length: {flags}",
            highlight=False, markup=False, soft_wrap=True,
        )  # fmt: skip
    _print_next(console, result)


def _print_next(console: Console, result: "ExportResult") -> None:
    repository = shlex.quote(str(result.path.parent.parent))
    _say(
        console,
        f"Next: naiad serve {repository}, and in another shell "
        f"naiad infer {shlex.quote(result.model_name)} --example",
    )


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
