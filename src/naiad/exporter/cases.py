"""The golden cases of an export: what to ask the model, and its eager answers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from naiad.errors import InvalidArgumentError, UnsupportedError
from naiad.exporter.failures import MODEL_FAILURES, first_line
from naiad.exporter.plan import ExportPlan
from naiad.exporter.sampling import Values
from naiad.inference.comparison import Array
from naiad.repository.golden import GoldenCase
from naiad.source_model.tensors import to_array

STORED_LIMIT_BYTES: Final = 20 * 1000 * 1000
_DISTRIBUTIONS: Final = (Values.NORMAL, Values.UNIFORM)
_SIZES_TO_KEEP: Final = 2

Tensors = Sequence[torch.Tensor]


@dataclass(frozen=True, slots=True)
class _Question:
    name: str
    values: Values
    sizes: Mapping[str, int]
    index: int


def make_cases(plan: ExportPlan) -> list[GoldenCase]:
    """The user's example, its negative, and drawn inputs of every batch size, each answered.

    Named axes take sizes that the export does not see. The answers are those of the module in
    eager eval mode.

    Raises:
        InvalidArgumentError: the model fails where it is asked to be flexible.
        UnsupportedError: the number or kind of outputs depends on the input.
    """
    example = plan.sampler.resize(_example_sizes(plan))
    cases = [_case(plan, "example", Values.EXAMPLE, example, _require_run(plan, example))]
    if any(tensor.is_floating_point() for tensor in example):
        negated = [-tensor if tensor.is_floating_point() else tensor for tensor in example]
        outputs = _run(plan, negated)
        if not isinstance(outputs, BaseException):
            cases.append(_case(plan, "negated", Values.NEGATED, negated, outputs))
    cases.extend(
        _case(plan, question.name, question.values, *_answer(plan, question))
        for question in _questions(plan)
    )
    return cases


def select_stored(cases: Sequence[GoldenCase]) -> list[GoldenCase]:
    """The cases that fit into the limit of a version, in their order, earlier ones first."""
    kept, total = [], 0
    for case in cases:
        if total + case.byte_size() <= STORED_LIMIT_BYTES:
            kept.append(case)
            total += case.byte_size()
    return kept


def _questions(plan: ExportPlan) -> Iterator[_Question]:
    variants = {name: _other_sizes(plan, name) for name in plan.sampler.sizes if name != plan.batch}
    batch_sizes: list[int | None] = [None]
    if plan.batch is not None:
        wanted = sorted(set(plan.options.golden_batch_sizes))
        batch_sizes = [size for size in wanted if size <= plan.max_batch_size] or [1]
    index = 0
    for batch_size in batch_sizes:
        for values in _DISTRIBUTIONS:
            index += 1
            sizes = {name: found[index % len(found)] for name, found in variants.items()}
            if plan.batch is not None and batch_size is not None:
                sizes = {plan.batch: batch_size, **sizes}
            words = [f"{name}{size}" for name, size in sizes.items()]
            yield _Question("-".join([*words, values]), values, sizes, index)


def _other_sizes(plan: ExportPlan, name: str) -> list[int]:
    """Sizes of a named axis, other than the traced one, that the model accepts."""
    own = plan.sampler.sizes[name]
    traced = max(own, 2)
    found: list[int] = []
    reason = ""
    for size in (own + 1, own - 1, own * 2, own // 2, own + 2, own * 4):
        if size < 1 or size in {own, traced} or size in found:
            continue
        outputs = _run(plan, plan.sampler.resize({name: size}))
        if isinstance(outputs, BaseException):
            reason = reason or f"{size}: {first_line(outputs)}"
        else:
            found.append(size)
        if len(found) == _SIZES_TO_KEEP:
            break
    if not found:
        raise InvalidArgumentError(
            f"the axis '{name}' cannot be dynamic: the model accepts no other size than the "
            f"example's {own}. It fails at {reason}{_advise_axes(plan, name)}"
        )
    return found


def _advise_axes(plan: ExportPlan, name: str) -> str:
    """Axes that are as long as the named one in the example, and may have to vary with it."""
    own = plan.sampler.sizes[name]
    equal = [
        f"axis {axis} of {tensor_name}"
        for tensor_name, tensor, names in zip(
            plan.input_names, plan.trace_inputs(), plan.axes, strict=True
        )
        for axis, size in enumerate(tensor.shape)
        if size == own > 1 and axis not in names
    ]
    if not equal:
        return ""
    return (
        f". {' and '.join(equal)} {'has' if len(equal) == 1 else 'have'} the size {own} too: where "
        f"they vary together, give both the name '{name}'"
    )


def _example_sizes(plan: ExportPlan) -> dict[str, int]:
    """The example's own sizes, but no more rows than the config will allow."""
    if plan.batch is None:
        return {}
    return {plan.batch: min(plan.sampler.sizes[plan.batch], plan.max_batch_size)}


def _answer(plan: ExportPlan, question: _Question) -> tuple[Tensors, Tensors]:
    """Inputs for a question that the model accepts, and its outputs.

    Drawn values come first; the example's own integers, and at last all of its own values, where
    the model does not take them in every combination.
    """
    sampler = plan.sampler
    drawn = sampler.draw(question.sizes, question.values, question.index)
    outputs = _run(plan, drawn)
    if isinstance(outputs, BaseException):
        drawn = sampler.draw(question.sizes, question.values, question.index, keep_integers=True)
        outputs = _run(plan, drawn)
    if isinstance(outputs, BaseException):
        drawn = sampler.resize(question.sizes)
        outputs = _require_run(plan, drawn)
    return drawn, outputs


def _run(plan: ExportPlan, tensors: Tensors) -> Tensors | BaseException:
    try:
        outputs = [plan.flat.pad_output(tensor) for _, tensor in plan.source.run(tensors)]
    except MODEL_FAILURES as error:
        return error
    if plan.batch is not None:
        for name, output in zip(plan.output_names, outputs, strict=False):
            if output.shape[0] != tensors[0].shape[0]:
                return ValueError(
                    f"output '{name}' has the shape {list(output.shape)} for a batch of "
                    f"{tensors[0].shape[0]}"
                )
    return outputs


def _require_run(plan: ExportPlan, tensors: Tensors) -> Tensors:
    outputs = _run(plan, tensors)
    if isinstance(outputs, BaseException):
        raise InvalidArgumentError(
            "the model fails in eager mode with inputs of the shapes "
            f"{[list(tensor.shape) for tensor in tensors]}: {first_line(outputs)}"
        ) from outputs
    return outputs


def _case(
    plan: ExportPlan, name: str, values: Values, inputs: Tensors, outputs: Tensors
) -> GoldenCase:
    if len(outputs) != len(plan.output_names):
        raise UnsupportedError(
            f"the model returns {len(outputs)} tensors for the case '{name}' and "
            f"{len(plan.output_names)} for the example; an exported file has a fixed number of "
            "outputs"
        )
    return GoldenCase(
        name=name,
        batch_size=inputs[0].shape[0] if plan.batch is not None else 0,
        values=values.value,
        inputs=_arrays(plan.input_names, plan.flat.pad(inputs)),
        outputs=_arrays(plan.output_names, outputs),
    )


def _arrays(names: Sequence[str], tensors: Sequence[torch.Tensor]) -> dict[str, Array]:
    return {name: to_array(tensor) for name, tensor in zip(names, tensors, strict=True)}
