"""Does a model write into tensors that it was given?

An input is the request's own memory, lent without a copy, and may be a client's shared memory or
the output of another model. A model that computes in place on it would change what others read.
So such a model gets copies; all others, by far the most, are found out here when they are loaded.

A wrong "yes" costs a copy per execution. A wrong "no" would be a fault, so what can't be seen
through counts as writing.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

import torch

_WRITES_TENSOR: Final = re.compile(r"Tensor\([^)]*!")
# Operators that give back what they were given when the model is not being trained, though their
# schemas say that the result is new.
_RETURNS_ITS_INPUT: Final = frozenset(
    {"dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout", "rrelu"}
)


def script_writes(module: torch.jit.ScriptModule) -> bool:
    """Whether a TorchScript model may write into its arguments or into its own state."""
    graph = module.inlined_graph
    nodes = list(_nodes(graph))
    writers = [node for node in nodes if _WRITES_TENSOR.search(node.schema())]
    aliases = graph.alias_db()
    for value in _seen(graph):
        # A module has writers when it keeps a new tensor in an attribute, which changes no tensor.
        is_module = value.type().kind() == "ClassType"
        if not is_module and aliases.has_writers(value):  # type: ignore[attr-defined]
            return True
    if not writers:
        return False
    # What comes out of a container is a value of its own, and a plain copy of its input may be
    # its input.
    has_containers = any(str(value.type()).startswith(("Dict", "List")) for value in graph.inputs())
    return has_containers or any(
        node.kind().removeprefix("aten::") in _RETURNS_ITS_INPUT for node in nodes
    )


def program_writes(exported: torch.export.ExportedProgram) -> bool:
    """Whether an exported program may write into its arguments or into its own state."""
    signature = exported.graph_signature
    if signature.user_inputs_to_mutate or signature.buffers_to_mutate:
        return True
    return any(
        _graph_writes(module.graph)
        for module in exported.graph_module.modules()
        if isinstance(module, torch.fx.GraphModule)
    )


def _seen(graph: Any) -> Iterator[Any]:
    """The values that are there before the model runs: its arguments and its attributes."""
    yield from graph.inputs()
    for node in _nodes(graph):
        if node.kind() == "prim::GetAttr":
            yield from node.outputs()


def _nodes(block: Any) -> Iterator[Any]:
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _nodes(inner)


def _graph_writes(graph: torch.fx.Graph) -> bool:
    given: set[torch.fx.Node] = set()
    for node in graph.nodes:
        if node.op in {"placeholder", "get_attr"}:
            given.add(node)
        elif node.op == "call_function":
            sources = given.intersection(node.all_input_nodes)
            if sources and _may_write(node):
                return True
            if sources and _may_return_its_input(node):
                given.add(node)
    return False


def _may_write(node: torch.fx.Node) -> bool:
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return any(
            argument.alias_info is not None and argument.alias_info.is_write
            for argument in target._schema.arguments
        )
    return "mutation" in str(target)


def _may_return_its_input(node: torch.fx.Node) -> bool:
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        name = target._schema.name.partition("::")[2]
        return name in _RETURNS_ITS_INPUT or any(
            result.alias_info is not None for result in target._schema.returns
        )
    return True
