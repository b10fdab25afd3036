"""Named tensors out of nested arguments and results, and tensors back into their places."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from naiad.errors import UnsupportedError

Path = tuple[str | int, ...]
"""Where a leaf is: mapping keys and field names as str, positions as int."""

Leaf = tuple[Path, Any]


def _field_names(value: tuple[Any, ...]) -> tuple[str, ...]:
    """The names of a tuple's fields; empty for a plain one."""
    if hasattr(value, "n_sequence_fields"):
        # The results of torch.topk, torch.max and so on: named, but no named tuples of Python's.
        return tuple(type(value).__match_args__)  # type: ignore[attr-defined]
    return tuple(getattr(value, "_fields", ()))


def leaves(value: Any, path: Path = ()) -> Iterator[Leaf]:
    """Every part that is not a container, in order, with its path.

    Containers are mappings, tuples, named tuples, lists and dataclasses.
    """
    for step, part in _parts(value):
        yield from leaves(part, (*path, step))
    if not _is_container(value):
        yield path, value


def rebuild(template: Any, tensors: Iterator[torch.Tensor]) -> Any:
    """The template with each tensor in it replaced by the next of ``tensors``.

    The order is that of ``leaves``; whatever is not a tensor is the template's.
    """
    if isinstance(template, torch.Tensor):
        return next(tensors)
    if not _is_container(template):
        return template
    if isinstance(template, Mapping):
        # Of the same class: an OrderedDict or a ModelOutput stays one.
        parts = {key: rebuild(part, tensors) for key, part in template.items()}
        return parts if type(template) is dict else type(template)(parts)  # type: ignore[call-arg]
    if dataclasses.is_dataclass(template):
        fields = {str(step): rebuild(part, tensors) for step, part in _parts(template)}
        return dataclasses.replace(template, **fields)  # type: ignore[type-var]
    items = [rebuild(part, tensors) for part in template]
    return type(template)(*items) if hasattr(template, "_fields") else type(template)(items)


def name_leaf(path: Path, position: int) -> str:
    """The name of an output: its keys and fields joined, else ``output__0`` and so on.

    Args:
        path: where the output is in the model's result.
        position: among all outputs.
    """
    if not any(isinstance(step, str) for step in path):
        return f"output__{position}"
    first_name = next(index for index, step in enumerate(path) if isinstance(step, str))
    return "_".join(str(step) for step in path[first_name:])


def output_tensors(value: Any) -> list[tuple[str, torch.Tensor]]:
    """The tensors of a model's result with their names; None is left out.

    Raises:
        UnsupportedError: something in it is neither a tensor nor None, or there is no tensor.
    """
    found: list[tuple[str, torch.Tensor]] = []
    for path, leaf in leaves(value):
        if leaf is None:
            continue
        if not isinstance(leaf, torch.Tensor):
            shown = "".join(f"[{step!r}]" for step in path)
            raise UnsupportedError(
                f"the model's result{shown} is a Python {type(leaf).__name__} ({leaf!r:.60}); "
                "an exported model can return tensors only. Return torch.tensor(...) of it, or "
                "leave it out"
            )
        name = name_leaf(path, len(found))
        if any(name == other for other, _ in found):
            name = f"output__{len(found)}"
        found.append((name, leaf))
    if not found:
        raise UnsupportedError("the model returns no tensor, so there is nothing to export")
    return found


def _is_container(value: object) -> bool:
    if isinstance(value, Mapping | tuple | list):
        return True
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _parts(value: Any) -> list[tuple[str | int, Any]]:
    """The container's own parts; nothing for a leaf."""
    if isinstance(value, Mapping):
        return [(str(key), part) for key, part in value.items()]
    if isinstance(value, tuple) and (names := _field_names(value)):
        return list(zip(names, value, strict=True))
    if isinstance(value, tuple | list):
        return list(enumerate(value))
    if _is_container(value):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    return []
