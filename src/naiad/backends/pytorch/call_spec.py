"""Names of tensors by their place in the call that a ``.pt2`` was exported with.

Source: pytorch_backend's README, "AOT Inductor Support": ``INPUT__<n>`` and ``OUTPUT__<n>`` count
all tensors of the call; ``ARGS[i]``, ``KWARGS[key]`` and ``RESULT`` follow its structure.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from naiad.errors import InvalidArgumentError

# What torch calls the containers whose children have keys.
_KEYED: Final = ("builtins.dict", "collections.OrderedDict")

Aliases = tuple[str, ...]


def input_aliases(specification: str) -> list[Aliases]:
    """The names of each tensor of a call, in the order of the flattened call.

    Args:
        specification: of the positional and the keyword arguments, as torch serializes it.
    """
    positional, keyword = _root(specification)["children_spec"]
    paths = [*_paths(positional, "ARGS"), *_paths(keyword, "KWARGS")]
    return [(f"INPUT__{index}", path) for index, path in enumerate(paths)]


def output_aliases(specification: str) -> list[Aliases]:
    """The names of each tensor of a result, in the order of the flattened result."""
    paths = _paths(_root(specification), "RESULT")
    return [(f"OUTPUT__{index}", path) for index, path in enumerate(paths)]


def find_leaves(
    kind: str, config_names: Sequence[str], leaves: Sequence[Aliases]
) -> Mapping[str, int]:
    """Which leaf each name of a config means.

    Args:
        kind: ``input`` or ``output``, for the message.
        config_names: of the inputs or outputs.
        leaves: the names that each one has.

    Raises:
        InvalidArgumentError: there is no such leaf, or two names mean the same one.
    """
    known = {alias: index for index, leaf in enumerate(leaves) for alias in leaf}
    found: dict[str, int] = {}
    for name in config_names:
        index = known.get(name)
        if index is None:
            raise InvalidArgumentError(
                f"unexpected inference {kind} '{name}', allowed {kind}s are: "
                + ", ".join(" or ".join(leaf) for leaf in leaves)
            )
        if index in found.values():
            raise InvalidArgumentError(
                f"two {kind}s of the config mean '{' or '.join(leaves[index])}'"
            )
        found[name] = index
    return found


def _root(specification: str) -> Mapping[str, Any]:
    # The first element is the version of the form.
    root: Mapping[str, Any] = json.loads(specification)[1]
    return root


def _paths(node: Mapping[str, Any], path: str) -> Iterator[str]:
    if node["type"] is None:
        yield path
        return
    children = node["children_spec"]
    keys = json.loads(node["context"]) if node["type"] in _KEYED else range(len(children))
    for key, child in zip(keys, children, strict=True):
        yield from _paths(child, f"{path}[{key}]")
