"""Which config name means which argument or result of a model.

TorchScript keeps the names of ``forward``'s arguments and none of its results, so the config has to
say. Source: pytorch_backend's README, "Naming Convention".
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from naiad.errors import InternalError, InvalidArgumentError

_INDEXED: Final = re.compile(r".*__(\d+)", re.DOTALL)


class ArgumentKind(Enum):
    """What ``forward`` takes in one argument."""

    TENSOR = "Tensor"
    TENSOR_LIST = "List[Tensor]"
    TENSOR_DICT = "Dict[str, Tensor]"
    TEXT_LIST = "List[str]"
    TEXT = "str"
    INTEGER = "int"
    NUMBER = "float"
    BOOLEAN = "bool"


_OF_ONE_VALUE: Final = {
    ArgumentKind.TEXT,
    ArgumentKind.INTEGER,
    ArgumentKind.NUMBER,
    ArgumentKind.BOOLEAN,
}
_OF_ALL_INPUTS: Final = {ArgumentKind.TENSOR_DICT, ArgumentKind.TENSOR_LIST}


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of ``forward``, without ``self``.

    Attributes:
        name: in the source of the model.
        kind: None where no tensor of the protocol can be given for it.
        type_name: as the model declares it.
        is_required: it has no default value.
    """

    name: str
    kind: ArgumentKind | None
    type_name: str
    is_required: bool


class InputStyle(Enum):
    """How the inputs of a batch become the arguments of ``forward``."""

    BY_POSITION = "position"
    BY_NAME = "name"
    AS_DICT = "dict"
    AS_LIST = "list"


@dataclass(frozen=True, slots=True)
class Slot:
    """Where one input goes.

    Attributes:
        name: of the input in the config.
        argument: its name for a call by name, its key in a dict.
        kind: what the argument takes.
    """

    name: str
    argument: str
    kind: ArgumentKind

    @property
    def takes_one_value(self) -> bool:
        """The argument is a plain Python value, the same for the whole batch."""
        return self.kind in _OF_ONE_VALUE


@dataclass(frozen=True, slots=True)
class InputBinding:
    """How to call ``forward``.

    Attributes:
        style: of the call.
        slots: one per input of the config; in the order of the arguments for a call by position.
    """

    style: InputStyle
    slots: tuple[Slot, ...]


def bind_inputs(
    model_name: str, config_names: Sequence[str], arguments: Sequence[Argument]
) -> InputBinding:
    """Decide how the config's inputs reach the ``forward`` of a TorchScript model.

    One argument of type ``Dict[str, Tensor]`` takes all inputs by name, one of type
    ``List[Tensor]`` in order. Otherwise names that are all argument names go to these, names of
    the form ``<anything>__<index>`` to the argument at that index, and any others in the order
    of the config.

    Raises:
        InternalError: the model takes something that no input can be.
        InvalidArgumentError: the model wants another number of inputs than the config has, or
            the indices are not those of arguments.
    """
    if len(arguments) == 1 and arguments[0].kind in _OF_ALL_INPUTS:
        return _bind_whole(config_names, arguments[0])
    for argument in arguments:
        _check_argument(argument)
    required = sum(argument.is_required for argument in arguments)
    if not required <= len(config_names) <= len(arguments):
        raise InvalidArgumentError(
            f"unable to load model '{model_name}', configuration expects {len(config_names)} "
            f"inputs, model provides {len(arguments)}"
        )
    by_name = {argument.name: argument for argument in arguments}
    indices = parse_indices(config_names)
    if by_name.keys() >= set(config_names):
        chosen = [by_name[name] for name in config_names]
    elif indices is not None:
        chosen = _choose_by_index(model_name, indices, arguments)
    else:
        chosen = list(arguments[: len(config_names)])
    for argument in arguments:
        if argument.is_required and argument not in chosen:
            raise InvalidArgumentError(
                f"model '{model_name}': no input is for argument '{argument.name}' of forward"
            )
    return InputBinding(
        InputStyle.BY_NAME,
        tuple(_slot(name, argument) for name, argument in zip(config_names, chosen, strict=True)),
    )


def bind_positions(config_names: Sequence[str]) -> InputBinding:
    """Every input in the order of the config, as for the class of a ``model.py``."""
    return InputBinding(
        InputStyle.BY_POSITION,
        tuple(Slot(name, name, ArgumentKind.TENSOR) for name in config_names),
    )


def bind_outputs(config_names: Sequence[str], result_count: int | None) -> Mapping[str, int]:
    """Position of each output among the model's flattened results.

    By ``<anything>__<index>`` if all names have that form, otherwise in the order of the config.

    Args:
        config_names: of the outputs.
        result_count: how many results the model gives, or None where only a call can tell.

    Raises:
        InvalidArgumentError: the model has no such result.
    """
    indices = parse_indices(config_names)
    if indices is None:
        indices = {name: index for index, name in enumerate(config_names)}
    if result_count is not None:
        for name, index in indices.items():
            if index >= result_count:
                raise InvalidArgumentError(missing_result(name, result_count))
    return indices


def missing_result(name: str, result_count: int) -> str:
    """Triton's text about an output that the model doesn't have."""
    return (
        f"The output {name} in the model configuration refers to an output index which "
        f"doesn't exist. This model has {result_count} outputs"
    )


def parse_indices(names: Sequence[str]) -> dict[str, int] | None:
    """The indices of names that all have the form ``<anything>__<index>``; None if any has not."""
    indices: dict[str, int] = {}
    for name in names:
        match = _INDEXED.fullmatch(name)
        if match is None:
            return None
        indices[name] = int(match[1])
    return indices


def _bind_whole(config_names: Sequence[str], argument: Argument) -> InputBinding:
    slots = {name: Slot(name, name, ArgumentKind.TENSOR) for name in config_names}
    if argument.kind is ArgumentKind.TENSOR_DICT:
        return InputBinding(InputStyle.AS_DICT, tuple(slots.values()))
    indices = parse_indices(config_names)
    if indices is not None:
        config_names = sorted(config_names, key=indices.__getitem__)
    return InputBinding(InputStyle.AS_LIST, tuple(slots[name] for name in config_names))


def _check_argument(argument: Argument) -> None:
    if argument.is_required and (argument.kind is None or argument.kind in _OF_ALL_INPUTS):
        raise InternalError(
            f"An input of type '{argument.type_name}' was detected in the model. Only a single "
            "input of type Dict(str, Tensor) or input(s) of type Tensor are supported. "
            f"(Argument '{argument.name}'; besides these, int, float, bool, str, List[str] and a "
            "single List[Tensor] are taken.)"
        )


def _choose_by_index(
    model_name: str, indices: Mapping[str, int], arguments: Sequence[Argument]
) -> list[Argument]:
    found = set(indices.values())
    if len(found) < len(indices) or max(found, default=0) >= len(arguments):
        raise InvalidArgumentError(
            f"model '{model_name}': inputs named <name>__<index> must count 0, 1, 2... in the "
            f"order of forward's arguments, got {', '.join(indices)}"
        )
    return [arguments[index] for index in indices.values()]


def _slot(name: str, argument: Argument) -> Slot:
    if argument.kind is None:
        raise InvalidArgumentError(
            f"input '{name}' is for argument '{argument.name}' of type '{argument.type_name}', "
            "which no tensor can be given for; leave the input out, so that the argument has its "
            "default value"
        )
    return Slot(name, argument.name, argument.kind)
