"""Shapes as a set of cases shows them, for files that do not say."""

from collections.abc import Sequence

from naiad.exporter.formats import Interface
from naiad.exporter.plan import ExportPlan
from naiad.repository.golden import GoldenCase, TensorRecord


def observe(plan: ExportPlan, cases: Sequence[GoldenCase]) -> Interface:
    """The interface that the cases show.

    An input's axis varies where the plan names it; an output's where two cases differ, or where
    it is the batch.
    """
    names = tuple(cases[0].inputs)
    inputs = []
    for position, name in enumerate(names):
        axes = plan.axes[position]
        shape = [
            -1 if axis in axes else size for axis, size in enumerate(cases[0].inputs[name].shape)
        ]
        datatype = plan.datatypes[plan.input_names[position]]
        inputs.append(TensorRecord(name, datatype, tuple(shape), dict(axes)))
    outputs = [
        TensorRecord(
            name,
            plan.datatypes[plan.output_names[position]],
            _varying([case.outputs[name].shape for case in cases],
                     has_batch=plan.batch is not None),
            {},
        )
        for position, name in enumerate(cases[0].outputs)
    ]  # fmt: skip
    return Interface(tuple(inputs), tuple(outputs))


def _varying(shapes: Sequence[tuple[int, ...]], *, has_batch: bool) -> tuple[int, ...]:
    return tuple(
        -1 if len(set(sizes)) > 1 or (axis == 0 and has_batch) else sizes[0]
        for axis, sizes in enumerate(zip(*shapes, strict=True))
    )
