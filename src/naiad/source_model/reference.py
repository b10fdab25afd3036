"""The user's code by name: ``MODULE:CALLABLE``."""

import importlib
import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from naiad.errors import InvalidArgumentError, NotFoundError
from naiad.source_model.model import SourceModel

Call = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of forward."""


def load_source(
    model: str,
    examples: str | None = None,
    *,
    example: Call | None = None,
    fallback: Mapping[str, torch.Tensor] | None = None,
) -> SourceModel:
    """The module that a callable returns, with an example.

    Args:
        model: ``MODULE:CALLABLE``; called without arguments it returns an ``nn.Module``,
            ``(module, args)`` or ``(module, args, kwargs)``.
        examples: ``MODULE:CALLABLE``; called without arguments it returns the example: a tensor,
            a tuple of forward's arguments, a dict of them by name, or ``(args, kwargs)``. It
            replaces the one that comes with the model.
        example: forward's arguments themselves instead.
        fallback: forward's tensors in its order, where there is no example otherwise.

    Raises:
        NotFoundError: no such Python module or attribute.
        InvalidArgumentError: anything else about them is not as described.
    """
    module, call = _split_model(model, call_reference(model))
    if examples is not None:
        call = load_call(examples)
    call = call if example is None else example
    if call is None and fallback is not None:
        call = call_by_names(module, fallback)
    if call is None:
        raise InvalidArgumentError(
            f"'{model}' returns a module without example inputs. Return (module, args) from it, "
            "or name a callable that returns them with --args MODULE:CALLABLE, or describe them "
            "with --input NAME:DATATYPE:SHAPE"
        )
    args, kwargs = call
    return SourceModel(module, args, kwargs, origin=model)


def call_by_names(module: nn.Module, tensors: Mapping[str, torch.Tensor]) -> Call:
    """The call of forward with tensors: by name where it has all the names, else in order."""
    try:
        arguments = inspect.signature(module.forward).parameters
    except ValueError:
        # Code that does not tell.
        return tuple(tensors.values()), {}
    if set(tensors) <= set(arguments):
        return (), dict(tensors)
    return tuple(tensors.values()), {}


def load_call(examples: str) -> Call:
    """The example that a callable returns.

    Args:
        examples: ``MODULE:CALLABLE``, as for ``load_source``.

    Raises:
        NotFoundError: no such Python module or attribute.
        InvalidArgumentError: it returns no example.
    """
    return _split_example(examples, call_reference(examples))


def call_reference(reference: str) -> Any:
    """What a callable returns when it is called without arguments; a module is itself.

    Raises:
        NotFoundError: no such Python module or attribute.
        InvalidArgumentError: it cannot be called so, or raises.
    """
    target = resolve(reference)
    if isinstance(target, nn.Module):
        return target
    if not callable(target):
        raise InvalidArgumentError(
            f"'{reference}' is a {type(target).__name__}, not a callable; write a function that "
            "takes no arguments and returns it"
        )
    required = _required_arguments(target)
    if required:
        raise InvalidArgumentError(
            f"'{reference}' needs the arguments {', '.join(required)}; it must be callable "
            "without any. Write a function that calls it with what it needs"
        )
    try:
        return target()
    except Exception as error:
        raise InvalidArgumentError(
            f"'{reference}' raised {type(error).__name__}: {error}"
        ) from error


def resolve(reference: str) -> Any:
    """The attribute of a Python module that ``MODULE:ATTRIBUTE`` names.

    Raises:
        NotFoundError: no such Python module or attribute.
        InvalidArgumentError: it is not of that form, or importing the module fails.
    """
    module_name, colon, attributes = reference.partition(":")
    if not (colon and module_name and attributes):
        before, dot, last = reference.rpartition(".")
        meant = f"{before}:{last}" if dot and before and last and not colon else ""
        advice = f"did you mean {meant}?" if meant else "for example my_package.nets:make"
        raise InvalidArgumentError(f"'{reference}' is not of the form MODULE:CALLABLE; {advice}")
    if module_name.endswith(".py") or "/" in module_name:
        raise InvalidArgumentError(
            f"'{module_name}' is a file; MODULE is a dotted name that Python can import, "
            f"such as {_dotted(module_name)}:{attributes}"
        )
    value: Any = _import(module_name)
    for attribute in attributes.split("."):
        if not hasattr(value, attribute):
            raise NotFoundError(f"the Python module '{module_name}' has no '{attributes}'")
        value = getattr(value, attribute)
    return value


def _import(module_name: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
            raise NotFoundError(
                f"there is no Python module '{module_name}'; it must be installed, in the current "
                "folder or on PYTHONPATH"
            ) from error
        raise InvalidArgumentError(f"importing '{module_name}' failed: {error}") from error
    except Exception as error:
        raise InvalidArgumentError(
            f"importing '{module_name}' raised {type(error).__name__}: {error}"
        ) from error


def _dotted(path: str) -> str:
    return path.removesuffix(".py").strip("./").replace("/", ".")


def _required_arguments(target: Any) -> list[str]:
    try:
        parameters = inspect.signature(target).parameters.values()
    except ValueError:
        # A callable written in C that does not tell; calling it will.
        return []
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in variadic]


def _split_model(reference: str, value: Any) -> tuple[nn.Module, Call | None]:
    if isinstance(value, nn.Module):
        return value, None
    if not (isinstance(value, tuple) and len(value) in {2, 3} and isinstance(value[0], nn.Module)):
        raise InvalidArgumentError(
            f"'{reference}' returned {_described(value)}; it must return a torch.nn.Module, "
            "(module, args) or (module, args, kwargs)"
        )
    args = (value[1],) if isinstance(value[1], torch.Tensor) else value[1]
    kwargs = value[2] if len(value) == 3 else {}
    if not isinstance(args, tuple | list) or not _is_keywords(kwargs):
        raise InvalidArgumentError(
            f"'{reference}' returned {_described(value)}; args must be a tuple and kwargs a dict"
        )
    return value[0], (tuple(args), dict(kwargs))


def _split_example(reference: str, value: Any) -> Call:
    if isinstance(value, torch.Tensor):
        return (value,), {}
    if _is_keywords(value):
        return (), dict(value)
    if isinstance(value, tuple | list):
        if len(value) == 2 and isinstance(value[0], tuple | list) and _is_keywords(value[1]):
            return tuple(value[0]), dict(value[1])
        return tuple(value), {}
    raise InvalidArgumentError(
        f"'{reference}' returned {_described(value)}; it must return a tensor, a tuple of "
        "forward's arguments, a dict of them by name, or (args, kwargs)"
    )


def _is_keywords(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)


def _described(value: object) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(type(part).__name__ for part in value)})"
    if isinstance(value, Mapping):
        return f"a {type(value).__name__} (a state dict is not a module)"
    return f"a {type(value).__name__}"
