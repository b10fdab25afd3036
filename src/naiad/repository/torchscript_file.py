"""The arguments of a TorchScript model's ``forward``, read without torch.

The archive holds the model's code as text, under the class that ``data.pkl`` names first.
"""

import pickletools
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from naiad.errors import InvalidArgumentError

_FORWARD: Final = re.compile(r"\n  def forward\(\w+: [^,)]+(?P<arguments>[^)]*)\)", re.DOTALL)
_ARGUMENT: Final = re.compile(r"(?P<name>\w+): (?P<type>[^,\[]+(?:\[[^\]]*\])?)(?P<default>=)?")
_TENSOR_DICT: Final = "Dict[str, Tensor]"
# What 'torch.export.save' writes into its archive, in the order of torch's releases.
_EXPORTED_MEMBERS: Final = ("serialized_exported_program.json", "models/model.json")


@dataclass(frozen=True, slots=True)
class ForwardArguments:
    """How a TorchScript model is called.

    Attributes:
        names: without ``self``, in order.
        required: how many of them have no default.
        is_tensor_dict: the only argument takes all inputs by name.
    """

    names: tuple[str, ...]
    required: int
    is_tensor_dict: bool


def read_forward(path: Path) -> ForwardArguments:
    """Read how ``forward`` is declared.

    Raises:
        InvalidArgumentError: the file is no TorchScript archive, or its code is not understood.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            code = _code_of_root(archive)
    except (OSError, zipfile.BadZipFile, KeyError, ValueError) as error:
        raise InvalidArgumentError(f"{path} is no TorchScript archive: {error}") from error
    forward = _FORWARD.search(code)
    if forward is None:
        raise InvalidArgumentError(f"{path} has no forward()")
    found = list(_ARGUMENT.finditer(forward["arguments"]))
    return ForwardArguments(
        tuple(match["name"] for match in found),
        sum(match["default"] is None for match in found),
        len(found) == 1 and found[0]["type"].strip() == _TENSOR_DICT,
    )


def is_exported_program(path: Path) -> bool:
    """Whether a file was written by ``torch.export.save``, and not by AOT Inductor."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return False
    return any(name.endswith(_EXPORTED_MEMBERS) for name in names)


def _code_of_root(archive: zipfile.ZipFile) -> str:
    """The source of the class that the whole model is an instance of."""
    pickles = [name for name in archive.namelist() if name.endswith("/data.pkl")]
    if not pickles:
        raise ValueError("no data.pkl")
    root = pickles[0].rpartition("/")[0]
    names = [
        str(argument)
        for opcode, argument, _ in pickletools.genops(archive.read(pickles[0]))
        if opcode.name == "GLOBAL"
    ]
    if not names:
        raise ValueError("no class in data.pkl")
    module, _, name = names[0].partition(" ")
    text = archive.read(f"{root}/code/{module.replace('.', '/')}.py").decode()
    _, found, body = text.partition(f"class {name}(Module):")
    if not found:
        raise ValueError(f"no class {name}")
    return body.partition("\nclass ")[0]
