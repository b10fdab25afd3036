"""Names in an ONNX graph: the interface is called as wanted, and nothing inside is in its way.

The exporter of torch names outputs after inner values, renames inputs that are passed through
(``a`` becomes ``a_orig``), and gives an output the name of an inner value if it is told to, which
onnxruntime refuses. So it is told nothing, and the file is set right afterwards.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import onnx

_SYMBOL: Final = re.compile(r"[A-Za-z_]\w*")


def rename_interface(
    model: onnx.ModelProto, input_names: Sequence[str], output_names: Sequence[str]
) -> None:
    """Give the graph's inputs and outputs names, in place.

    Args:
        model: to change.
        input_names: distinct, one for each graph input, in order.
        output_names: distinct, and none of them an input's; one for each graph output, in order.
    """
    graph = model.graph
    taken = {*_value_names(graph), *input_names, *output_names}
    _separate_outputs(graph, taken)
    renaming = {
        value.name: name
        for values, names in ((graph.input, input_names), (graph.output, output_names))
        for value, name in zip(values, names, strict=True)
    }
    wanted = {*input_names, *output_names}
    for name in sorted(_value_names(graph)):
        if name in wanted and name not in renaming:
            renaming[name] = _unused(f"{name}_inner", taken)
    _rename_values(graph, lambda name: renaming.get(name, name))


def name_axes(model: onnx.ModelProto, axes: Sequence[Mapping[int, str]]) -> None:
    """Call the symbols of the inputs' sizes what the user calls them, in place, everywhere.

    Args:
        model: to change.
        axes: for each graph input, its named axes.
    """
    symbols: dict[str, str] = {}
    for value, names in zip(model.graph.input, axes, strict=True):
        dims = value.type.tensor_type.shape.dim
        for axis, name in names.items():
            if _SYMBOL.fullmatch(dims[axis].dim_param):
                symbols[dims[axis].dim_param] = name
    for graph in _graphs(model.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            for dim in value.type.tensor_type.shape.dim:
                if dim.dim_param:
                    dim.dim_param = _SYMBOL.sub(
                        lambda match: symbols.get(match[0], match[0]), dim.dim_param
                    )


def strip_provenance(model: onnx.ModelProto) -> None:
    """Drop the exporter's notes on each node: they hold paths and code of this machine."""
    for graph in _graphs(model.graph):
        for node in graph.node:
            del node.metadata_props[:]
        for value in (*graph.input, *graph.output, *graph.value_info):
            del value.metadata_props[:]


def _separate_outputs(graph: onnx.GraphProto, taken: set[str]) -> None:
    """Put an Identity before each output that is an input, a constant or an earlier output."""
    shared = {value.name for value in graph.input} | {t.name for t in graph.initializer}
    for output in graph.output:
        if output.name in shared:
            name = _unused(f"{output.name}_copy", taken)
            graph.node.append(onnx.helper.make_node("Identity", [output.name], [name]))
            output.name = name
        shared.add(output.name)


def _unused(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _graphs(attribute.g)
            for inner in attribute.graphs:
                yield from _graphs(inner)


def _value_names(graph: onnx.GraphProto) -> set[str]:
    names = set()
    for part in _graphs(graph):
        names |= {value.name for value in (*part.input, *part.output, *part.value_info)}
        names |= {tensor.name for tensor in part.initializer}
        names |= {name for node in part.node for name in (*node.input, *node.output)}
    return names


def _rename_values(graph: onnx.GraphProto, rename: Callable[[str], str]) -> None:
    # Names of a subgraph may mean values of the outer one, so all graphs share one renaming.
    for part in _graphs(graph):
        for value in (*part.input, *part.output, *part.value_info):
            value.name = rename(value.name)
        for tensor in part.initializer:
            tensor.name = rename(tensor.name)
        for node in part.node:
            node.input[:] = [rename(name) for name in node.input]
            node.output[:] = [rename(name) for name in node.output]
