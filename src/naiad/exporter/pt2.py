"""Programs of torch.export, saved as they are: an extension that Triton itself does not serve."""

from collections.abc import Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Final

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind, OutputSpec, TensorArgument
from torch.fx import Node

from naiad.exporter.formats import Interface, Runner, Written
from naiad.exporter.plan import ExportPlan
from naiad.exporter.program import capture
from naiad.exporter.torchscript import open_torch
from naiad.repository.golden import GoldenCase, TensorRecord


class ExportedProgramFormat:
    """One ``model.pt2``, whose graph has the names of inputs and outputs."""

    name = "pt2"
    file_name = "model.pt2"
    backend = "pytorch"
    platform = ""
    is_default_file = False

    @property
    def libraries(self) -> Mapping[str, str]:
        """Nothing but torch itself."""
        return {}

    def write(self, plan: ExportPlan, path: Path) -> Written:
        """Capture the model, name its results and save it."""
        program = capture(plan)
        _name_outputs(program, plan.output_names)
        torch.export.save(program, path)
        signature = program.graph_signature
        return Written(
            tuple(str(name) for name in signature.user_inputs),
            tuple(str(name) for name in signature.user_outputs),
        )

    def open(self, path: Path, datatypes: Mapping[str, str]) -> Runner:
        """The file as torch loads it."""
        return open_torch(torch.export.load(path).module(), datatypes)

    def describe(self, path: Path, plan: ExportPlan, cases: Sequence[GoldenCase]) -> Interface:
        """What the program says of its shapes."""
        program = torch.export.load(path)
        values = {node.name: node.meta["val"] for node in program.graph.nodes if "val" in node.meta}

        def record(name: str, own_name: str, axes: Mapping[int, str]) -> TensorRecord:
            shape = tuple(size if isinstance(size, int) else -1 for size in values[name].shape)
            return TensorRecord(name, plan.datatypes[own_name], shape, axes)

        return Interface(
            tuple(
                record(name, plan.input_names[position], dict(plan.axes[position]))
                for position, name in enumerate(cases[0].inputs)
            ),
            tuple(
                record(name, plan.output_names[position], {})
                for position, name in enumerate(cases[0].outputs)
            ),
        )


def _name_outputs(program: ExportedProgram, names: Sequence[str]) -> None:
    """Give the program's results names, each a node of its own.

    torch names a result after the operator that made it, and a passed-through one after its
    input. Where a name is taken inside of the graph, the result gets a number after it; the
    config follows the file.
    """
    graph = program.graph
    output = graph.output_node()
    results = list(output.args[0])
    specs = program.graph_signature.output_specs
    remaining = iter(names)
    for position, spec in enumerate(specs):
        result = results[position]
        if spec.kind is not OutputKind.USER_OUTPUT or not isinstance(result, Node):
            continue
        with graph.inserting_before(output):
            named = graph.create_node(
                "call_function", torch.ops.aten.alias.default, (result,), name=next(remaining)
            )
        named.meta = copy(result.meta)
        results[position] = named
        specs[position] = OutputSpec(spec.kind, TensorArgument(named.name), spec.target)
    output.args = (tuple(results),)
    program.graph_module.recompile()


FORMAT: Final = ExportedProgramFormat()
