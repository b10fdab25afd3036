"""A module with its example, seen as a function from named tensors to named tensors."""

import inspect
import keyword
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from naiad.errors import InvalidArgumentError, UnsupportedError
from naiad.source_model.evaluation import evaluation
from naiad.source_model.structure import leaves, output_tensors, rebuild
from naiad.source_model.tensors import datatype_of

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class SourceModel:
    """The user's module and one example call of it.

    Attributes:
        module: the user's own object; it is run, never changed.
        args: the example's positional arguments, as given.
        kwargs: the example's keyword arguments, as given.
        origin: where it came from (``MODULE:CALLABLE``), or "".
        input_names: of the tensors among the arguments, in forward's order: the argument's name,
            the key for a tensor in a dict, ``argument_0`` for one in a sequence.
        example: those tensors, as copies that share no memory: one tensor passed for two
            arguments must not become one input.
        constants: the arguments that are not tensors, as ``name=value``: they become part of
            the exported model.
    """

    def __init__(
        self,
        module: nn.Module,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None = None,
        *,
        origin: str = "",
    ) -> None:
        """Bind the example to the module's forward.

        Raises:
            InvalidArgumentError: the module, or the example, is not one, they do not fit each
                other, or they are not on the CPU.
            UnsupportedError: an input is of a type that no protocol carries.
        """
        _require_module(module)
        if not isinstance(args, tuple | list):
            raise InvalidArgumentError(
                f"args is a {type(args).__name__}; it must be a tuple of forward's arguments, "
                "for one argument: (x,)"
            )
        self.module = module
        self.args = tuple(args)
        self.kwargs = dict(kwargs or {})
        self.origin = origin
        self._bound = _bind(module, self.args, self.kwargs)
        named, self.constants = _named_arguments(self._bound)
        self.input_names = tuple(named)
        for name, tensor in named.items():
            datatype_of(tensor, f"input '{name}'")
        self.example = tuple(t.detach().clone(memory_format=torch.contiguous_format)
                             for t in named.values())  # fmt: skip
        _require_cpu(module, named)

    def arguments(self, tensors: Sequence[torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The positional and keyword arguments of forward with these tensors in them."""
        remaining = iter(tensors)
        filled = {name: rebuild(value, remaining) for name, value in self._bound.arguments.items()}
        bound = inspect.BoundArguments(self._bound.signature, OrderedDict(filled))
        return bound.args, bound.kwargs

    def run(self, tensors: Sequence[torch.Tensor]) -> list[tuple[str, torch.Tensor]]:
        """The named outputs of the module in eager eval mode, as copies."""
        with evaluation(self.module):
            # The module may write to its input; the caller's tensors stay as they are.
            args, kwargs = self.arguments([tensor.clone() for tensor in tensors])
            outputs = output_tensors(self.module(*args, **kwargs))
            return [(name, tensor.detach().clone()) for name, tensor in outputs]

    def written_inputs(self) -> frozenset[int]:
        """Positions of the inputs that the module changes in place, tried on the example."""
        tensors = [tensor.clone() for tensor in self.example]
        with evaluation(self.module):
            args, kwargs = self.arguments(tensors)
            self.module(*args, **kwargs)
        return frozenset(
            position
            for position, (tensor, before) in enumerate(zip(tensors, self.example, strict=True))
            if not torch.allclose(tensor, before, rtol=0, atol=0, equal_nan=True)
        )


class FlatModel(nn.Module):
    """The module as a forward from tensors to a tuple of tensors, in the shapes of the protocol.

    What Triton cannot carry gets a last axis: a scalar becomes ``[1]``, with a batch axis a
    vector ``[n]`` becomes ``[n, 1]`` and a complex number becomes its two parts.

    Attributes:
        model: the user's module, or another form of it.
        has_batch: axis 0 of every input and output is the batch.
        input_names: as they are to be called in the exported file.
    """

    def __init__(
        self,
        source: SourceModel,
        input_names: Sequence[str],
        *,
        has_batch: bool,
        module: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.model = source.module if module is None else module
        self.has_batch = has_batch
        self.input_names = tuple(input_names)
        self._arguments = source.arguments
        rank = 1 if has_batch else 0
        self._padded = tuple(tensor.ndim <= rank for tensor in source.example)
        self._written = source.written_inputs()

    def pad(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The module's inputs in the shapes that ``forward`` takes."""
        return [
            tensor.unsqueeze(-1) if padded else tensor
            for tensor, padded in zip(tensors, self._padded, strict=True)
        ]

    def pad_output(self, tensor: torch.Tensor) -> torch.Tensor:
        """One of the module's outputs in the shape that ``forward`` returns."""
        real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        return real.unsqueeze(-1) if real.ndim <= (1 if self.has_batch else 0) else real

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The outputs in the order in which the module's result holds them."""
        plain = [
            tensor.squeeze(-1) if padded else tensor
            for tensor, padded in zip(tensors, self._padded, strict=True)
        ]
        # A server's input is a view of what it received, and nothing may write to that.
        plain = [t.clone() if i in self._written else t for i, t in enumerate(plain)]
        args, kwargs = self._arguments(plain)
        return tuple(self.pad_output(t) for _, t in output_tensors(self.model(*args, **kwargs)))


def flatten_model(
    source: SourceModel,
    input_names: Sequence[str],
    *,
    has_batch: bool,
    module: nn.Module | None = None,
) -> FlatModel:
    """The flat form of a module, whose forward has arguments with the input names.

    torch names the inputs of what it captures after forward's arguments, so the class has to be
    made for the names.

    Args:
        source: the module with its example, which is run once.
        input_names: distinct, one for each input, in forward's order.
        has_batch: axis 0 of every input and output is the batch.
        module: another form of the source's module, such as a scripted one, to be called in its
            place.
    """
    usable = [
        name if name.isidentifier() and not keyword.iskeyword(name) else f"input__{index}"
        for index, name in enumerate(input_names)
    ]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD

    def forward(self: FlatModel, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return FlatModel.forward(self, *tensors)

    forward.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, kind) for name in ("self", *usable)]
    )
    named_class = type("FlatModel", (FlatModel,), {"forward": forward})
    flat: FlatModel = named_class(source, input_names, has_batch=has_batch, module=module)
    return flat


def _require_module(module: object) -> None:
    if isinstance(module, type) and issubclass(module, nn.Module):
        raise InvalidArgumentError(
            f"got the class {module.__name__}, not a module: make one of it ({module.__name__}()) "
            "and load its weights"
        )
    if not isinstance(module, nn.Module):
        raise InvalidArgumentError(
            f"got a {type(module).__name__}, not a torch.nn.Module. A checkpoint read with "
            "torch.load is usually a state dict: build the module and call "
            "load_state_dict on it first"
        )


def _require_cpu(module: nn.Module, inputs: Mapping[str, torch.Tensor]) -> None:
    held: Iterator[tuple[str, torch.Tensor]] = (
        (name, tensor)
        for named in (module.named_parameters(), module.named_buffers(), inputs.items())
        for name, tensor in named
    )
    for name, tensor in held:
        if tensor.device.type != "cpu":
            raise InvalidArgumentError(
                f"'{name}' is on the device {tensor.device}; move the module and its example to "
                "the CPU before exporting: module.cpu()"
            )


def _bind(
    module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> inspect.BoundArguments:
    signature = _forward_signature(module)
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as error:
        raise InvalidArgumentError(
            f"the example does not fit {type(module).__name__}.forward{signature}: {error}"
        ) from error


def _forward_signature(module: nn.Module) -> inspect.Signature:
    try:
        return inspect.signature(module.forward)
    except ValueError:
        # TorchScript out of a file: its own schema has what Python's signature would.
        scripted: Any = module.forward
        arguments = scripted.schema.arguments[1:]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature(
        [
            inspect.Parameter(
                argument.name,
                kind,
                default=argument.default_value
                if argument.has_default_value()
                else inspect.Parameter.empty,
            )
            for argument in arguments
        ]
    )


def _named_arguments(
    bound: inspect.BoundArguments,
) -> tuple[dict[str, torch.Tensor], tuple[str, ...]]:
    tensors: dict[str, torch.Tensor] = {}
    constants = []
    for argument, value in bound.arguments.items():
        is_variadic = bound.signature.parameters[argument].kind in _VARIADIC
        for path, leaf in leaves(value):
            if not isinstance(leaf, torch.Tensor):
                shown = argument + "".join(f"[{step!r}]" for step in path)
                constants.append(f"{shown}={_shown(leaf, shown)}")
                continue
            name = _name_input(argument, path, is_variadic=is_variadic)
            if name in tensors:
                name = "_".join([argument, *(str(step) for step in path)])
            tensors[name] = leaf
    if not tensors:
        raise InvalidArgumentError("the example holds no tensor, so the model would have no input")
    return tensors, tuple(constants)


def _name_input(argument: str, path: Sequence[str | int], *, is_variadic: bool) -> str:
    if path and isinstance(path[-1], str):
        return path[-1]
    if is_variadic and path and isinstance(path[0], str):
        return "_".join(str(step) for step in path)
    return "_".join([argument, *(str(step) for step in path)])


def _shown(leaf: object, name: str) -> str:
    if leaf is None or isinstance(leaf, bool | int | float | str | torch.dtype | torch.device):
        return repr(leaf)
    hint = ": wrap it with torch.from_numpy" if type(leaf).__module__ == "numpy" else ""
    raise UnsupportedError(
        f"the argument {name} is a {type(leaf).__name__}; an example may hold tensors, None, "
        f"numbers and text, in dicts, lists, tuples and dataclasses{hint}"
    )
