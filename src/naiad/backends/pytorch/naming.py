"""Which config name means which argument or result of a TorchScript model.

TorchScript keeps the names of ``forward``'s arguments and none of its results, so the config has to
say. Source: pytorch_backend's README, "Naming Convention".
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from naiad.errors import InvalidArgumentError

_INDEXED: Final = re.compile(r".*__(\d+)", re.DOTALL)


class InputStyle(Enum):
    """How the inputs of a batch become the arguments of ``forward``."""

    BY_POSITION = "position"
    BY_NAME = "name"
    AS_DICT = "dict"


@dataclass(frozen=True, slots=True)
class InputBinding:
    """How to call ``forward``.

    Attributes:
        style: of the call.
        names: config names; in the order of the arguments for a call by position.
    """

    style: InputStyle
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of ``forward``, without ``self``."""

    name: str
    is_required: bool
    is_tensor_dict: bool


def bind_inputs(
    model_name: str, config_names: Sequence[str], arguments: Sequence[Argument]
) -> InputBinding:
    """Decide how the config's inputs reach ``forward``.

    One argument of type ``Dict[str, Tensor]`` takes all inputs by name. Otherwise names that are
    all argument names go to these, names of the form ``<anything>__<index>`` to the argument at
    that index, and any others in the order of the config.

    Raises:
        InvalidArgumentError: the model wants another number of inputs than the config has, or
            the indices are not 0, 1, 2...
    """
    if len(arguments) == 1 and arguments[0].is_tensor_dict:
        return InputBinding(InputStyle.AS_DICT, tuple(config_names))
    required = sum(argument.is_required for argument in arguments)
    if not required <= len(config_names) <= len(arguments):
        raise InvalidArgumentError(
            f"unable to load model '{model_name}', configuration expects {len(config_names)} "
            f"inputs, model provides {len(arguments)}"
        )
    argument_names = {argument.name for argument in arguments}
    if argument_names.issuperset(config_names):
        return InputBinding(InputStyle.BY_NAME, tuple(config_names))
    indices = parse_indices(config_names)
    if indices is None:
        return InputBinding(InputStyle.BY_POSITION, tuple(config_names))
    if sorted(indices.values()) != list(range(len(config_names))):
        raise InvalidArgumentError(
            f"model '{model_name}': inputs named <name>__<index> must count 0, 1, 2... in the "
            f"order of forward's arguments, got {', '.join(config_names)}"
        )
    return InputBinding(InputStyle.BY_POSITION, tuple(sorted(indices, key=indices.__getitem__)))


def bind_outputs(config_names: Sequence[str]) -> Mapping[str, int]:
    """Position of each output among the model's flattened results.

    By ``<anything>__<index>`` if all names have that form, otherwise in the order of the config.
    """
    indices = parse_indices(config_names)
    if indices is not None:
        return indices
    return {name: index for index, name in enumerate(config_names)}


def parse_indices(names: Sequence[str]) -> dict[str, int] | None:
    """The indices of names that all have the form ``<anything>__<index>``; None if any has not."""
    indices: dict[str, int] = {}
    for name in names:
        match = _INDEXED.fullmatch(name)
        if match is None:
            return None
        indices[name] = int(match[1])
    return indices
