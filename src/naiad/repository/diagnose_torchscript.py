"""A TorchScript file against its config: which input is which argument, which output which result.

A TorchScript file keeps no names and no shapes; Triton goes by the names in the config.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from naiad.errors import NaiadError
from naiad.model_config.diagnose import Diagnosis, Finding, nearest
from naiad.repository.torchscript_file import read_forward

_INDEXED: Final = re.compile(r".*__(\d+)", re.DOTALL)


def diagnose_torchscript(diagnosis: Diagnosis, path: Path) -> None:
    """The names of a TorchScript model's inputs and outputs against Triton's convention."""
    try:
        forward = read_forward(path)
    except NaiadError:
        return
    if not diagnosis.is_ignored("torchscript-name"):
        _diagnose_outputs(diagnosis)
    _diagnose_absent(diagnosis, forward.names)
    inputs = diagnosis.kept("input")
    if forward.is_tensor_dict or not inputs:
        return
    for index, tensor in inputs[len(forward.names) :]:
        diagnosis.remove("input", index)
        diagnosis.add(
            Finding(
                "unknown-input",
                f"The input '{tensor.name}' has no argument to go to.",
                f"forward() takes {', '.join(forward.names)}.",
                ("input", index),
            )
        )
    inputs = diagnosis.kept("input")
    for position in range(len(inputs), forward.required):
        name = forward.names[position]
        diagnosis.add(
            Finding(
                "missing-input",
                f"The config lacks an input for the argument '{name}' of forward().",
                "It has no default.",
                ("input",),
                f'input [ {{ name: "{name}__{position}" data_type: TYPE_FP32 dims: [ -1 ] }} ]'
                "  # with its data_type and dims",
                is_fixable=False,
            )
        )
    if not diagnosis.is_ignored("torchscript-name"):
        _diagnose_inputs(diagnosis, forward.names)


def _diagnose_absent(diagnosis: Diagnosis, arguments: Sequence[str]) -> None:
    """No inputs or no outputs at all: the file doesn't tell them, so the config has to."""
    for role, names, why in (
        ("input", arguments, f"forward() takes {', '.join(arguments)}."),
        ("output", ("OUTPUT",), "One is needed for each result of forward(), in its order."),
    ):
        if diagnosis.kept(role):
            continue
        entries = ",\n".join(
            f'  {{ name: "{name}__{position}" data_type: TYPE_FP32 dims: [ -1 ] }}'
            for position, name in enumerate(names)
        )
        diagnosis.add(
            Finding(
                f"missing-{role}",
                f"The config names no {role}s, and a TorchScript file does not tell them.",
                f"{why} The datatypes and dims below are to be replaced by the model's; with "
                "max_batch_size, dims leave the batch axis out.",
                (role,),
                f"{role} [\n{entries}\n]",
                is_fixable=False,
            )
        )


def _diagnose_inputs(diagnosis: Diagnosis, arguments: tuple[str, ...]) -> None:
    inputs = diagnosis.kept("input")
    names = [tensor.name for _, tensor in inputs]
    if set(names) <= set(arguments) or _counts_up(names):
        return
    uses_arguments = any(name in arguments for name in names)
    for position, (index, tensor) in enumerate(inputs):
        name = tensor.name
        if uses_arguments and name in arguments:
            continue
        free = [argument for argument in arguments if argument not in names]
        meant = nearest(name, free) if uses_arguments else None
        tensor.name = meant or _indexed(name, position)
        if uses_arguments and meant is None and free:
            tensor.name = free[0]
        if tensor.name == name:
            continue
        names[position] = tensor.name
        diagnosis.add(
            Finding(
                "torchscript-name",
                f"The input name '{name}' does not say which argument it is.",
                "A TorchScript input is named <name>__<position>, or all inputs like the arguments "
                f"of forward(): {', '.join(arguments)}. Otherwise Triton takes them in the order "
                "of the config, and a reordered config swaps them without an error.",
                ("input", index, "name"),
            )
        )


def _diagnose_outputs(diagnosis: Diagnosis) -> None:
    """Outputs are all indexed, or none: a mix is taken in the order of the config."""
    outputs = diagnosis.kept("output")
    names = [tensor.name for _, tensor in outputs]
    indexed = [name for name in names if _INDEXED.fullmatch(name)]
    if not indexed or len(indexed) == len(names):
        return
    for position, (index, tensor) in enumerate(outputs):
        if tensor.name in indexed:
            continue
        name = tensor.name
        tensor.name = _indexed(name, position)
        diagnosis.add(
            Finding(
                "torchscript-name",
                f"The output name '{name}' does not say which result it is.",
                f"Other outputs are named <name>__<position>: {', '.join(indexed)}. Unless all "
                "are, Triton takes them in the order of the config.",
                ("output", index, "name"),
            )
        )


def _counts_up(names: list[str]) -> bool:
    matches = [_INDEXED.fullmatch(name) for name in names]
    return sorted(int(m[1]) for m in matches if m) == list(range(len(names)))


def _indexed(name: str, position: int) -> str:
    match = re.fullmatch(r"(.*?)_{1,2}(\d+)", name, re.DOTALL)
    return f"{match[1] if match else name}__{position}"
