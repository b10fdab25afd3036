"""TorchScript files: ``model.pt`` of ``torch.jit.save``."""

import warnings
from pathlib import Path
from typing import Any, Final

import torch

from naiad.backends.pytorch.mutation import script_writes
from naiad.backends.pytorch.naming import Argument, ArgumentKind
from naiad.backends.pytorch.program import Program

_KINDS: Final = {kind.value: kind for kind in ArgumentKind}


def load_torchscript(path: Path, device: torch.device | None) -> Program:
    """Read a TorchScript file, which is code.

    Args:
        path: of the file.
        device: where its tensors go; None leaves them where they were saved.

    Raises:
        RuntimeError: torch can't read it.
    """
    # TorchScript is how Triton's model repositories hold PyTorch models, so its deprecation is
    # no news to who serves one. The filter stays: undoing it would undo other threads' filters.
    warnings.filterwarnings("ignore", r"`torch\.jit\.load` is", DeprecationWarning)
    module = torch.jit.load(path, map_location=device)  # type: ignore[no-untyped-call]
    module.eval()
    schema = module.forward.schema
    return Program(
        format="TorchScript",
        call=module,
        writes=script_writes(module),
        arguments=[_describe(argument) for argument in schema.arguments[1:]],
        result_count=_count_results(schema.returns[0].type) if schema.returns else 0,
        takes_unsigned=False,
    )


def _describe(argument: Any) -> Argument:
    type_name = str(argument.type)
    bare = type_name.removeprefix("Optional[").removesuffix("]").removesuffix("?")
    kind = _KINDS.get(type_name) or _KINDS.get(bare)
    return Argument(argument.name, kind, type_name, not argument.has_default_value())


def _count_results(result: Any) -> int | None:
    kind = result.kind()
    if kind == "TensorType":
        return 1
    if kind == "ListType" and result.getElementType().kind() == "StringType":
        return 1
    if kind != "TupleType":
        return None
    total = 0
    for element in result.elements():
        count = _count_results(element)
        if count is None:
            return None
        total += count
    return total
