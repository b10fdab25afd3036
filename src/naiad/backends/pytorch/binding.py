"""How the tensors of a config reach a loaded model and come back: decided once, at load."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from naiad.backends.output_shapes import OutputShapes
from naiad.backends.pytorch.aot_source import check_expectations
from naiad.backends.pytorch.call_spec import Aliases, find_leaves
from naiad.backends.pytorch.naming import (
    ArgumentKind,
    InputBinding,
    InputStyle,
    Slot,
    bind_inputs,
    bind_outputs,
    bind_positions,
)
from naiad.backends.pytorch.program import Leaves, Program
from naiad.errors import InternalError, InvalidArgumentError
from naiad.inference import datatypes
from naiad.inference.datatypes import Datatype
from naiad.model_config.complete import ArtifactSignature, ArtifactTensor, check_against_artifact
from naiad.model_config.schema import ModelConfig
from naiad.model_config.sequence_controls import list_controls
from naiad.model_config.signature import ModelSignature

_TEXT: Final = frozenset({datatypes.BYTES})
_UNSIGNED: Final = frozenset({datatypes.UINT16, datatypes.UINT32, datatypes.UINT64})
_INTEGERS: Final = frozenset(
    {datatypes.INT8, datatypes.INT16, datatypes.INT32, datatypes.INT64, datatypes.UINT8}
)
_NUMBERS: Final = _INTEGERS | {datatypes.FP16, datatypes.FP32, datatypes.FP64}
# What an argument that is no tensor can be made of.
_TAKEN: Final[Mapping[ArgumentKind, frozenset[Datatype]]] = {
    ArgumentKind.TEXT_LIST: frozenset({datatypes.BYTES}),
    ArgumentKind.TEXT: frozenset({datatypes.BYTES}),
    ArgumentKind.INTEGER: _INTEGERS,
    ArgumentKind.NUMBER: _NUMBERS,
    ArgumentKind.BOOLEAN: frozenset({datatypes.BOOL}),
}


@dataclass(frozen=True, slots=True)
class Binding:
    """How to call a model.

    Attributes:
        inputs: where each input of the config goes.
        outputs: the position of each output of the config among the flattened results.
        shapes: what the outputs are held against.
        result_keys: a dict with all these is read by key; empty for results that have no names.
    """

    inputs: InputBinding
    outputs: Mapping[str, int]
    shapes: OutputShapes
    result_keys: frozenset[str]


def bind(config: ModelConfig, signature: ModelSignature, program: Program) -> Binding:
    """Hold a config against the model that was read for it.

    Raises:
        NaiadError: it doesn't fit; with Triton's text where Triton has one.
    """
    shapes = OutputShapes(signature, config)
    names, results = tuple(signature.inputs), tuple(signature.outputs)
    if not program.takes_unsigned:
        _refuse(signature, config, _UNSIGNED)
    if program.leaves is not None:
        # A list of text is no tensor, and exported calls take nothing else.
        _refuse(signature, config, _TEXT)
        if program.signature is not None:
            check_against_artifact(config, _rename(program.signature, program.leaves, signature))
        inputs = _bind_leaves(signature.name, names, program.leaves)
        order = [slot.name for slot in inputs.slots]
        check_expectations(config, signature, order, program.expectations)
        return Binding(
            inputs,
            find_leaves("output", results, program.leaves.outputs),
            shapes,
            frozenset(),
        )
    if program.arguments is None:
        inputs = bind_positions(names)
    else:
        inputs = bind_inputs(signature.name, names, program.arguments)
        _check_kinds(signature, inputs)
    outputs = bind_outputs(results, program.result_count)
    return Binding(inputs, outputs, shapes, frozenset(results))


def _bind_leaves(model_name: str, names: Sequence[str], leaves: Leaves) -> InputBinding:
    if len(names) != len(leaves.inputs):
        raise InvalidArgumentError(
            f"unable to load model '{model_name}', configuration expects {len(names)} inputs, "
            f"model provides {len(leaves.inputs)}"
        )
    found = find_leaves("input", names, leaves.inputs)
    style = InputStyle.BY_NAME if leaves.by_name else InputStyle.BY_POSITION
    return InputBinding(
        style,
        tuple(
            Slot(name, leaves.inputs[found[name]][0], ArgumentKind.TENSOR)
            for name in sorted(names, key=found.__getitem__)
        ),
    )


def _rename(
    artifact: ArtifactSignature, leaves: Leaves, signature: ModelSignature
) -> ArtifactSignature:
    """The model's tensors under those of their names that the config uses."""
    return ArtifactSignature(
        inputs=_rename_all(artifact.inputs, leaves.inputs, signature.inputs),
        outputs=_rename_all(artifact.outputs, leaves.outputs, signature.outputs),
    )


def _rename_all(
    tensors: Sequence[ArtifactTensor], leaves: Sequence[Aliases], wanted: Mapping[str, object]
) -> list[ArtifactTensor]:
    renamed = []
    for tensor, aliases in zip(tensors, leaves, strict=True):
        name = next((alias for alias in aliases if alias in wanted), tensor.name)
        renamed.append(ArtifactTensor(name, tensor.datatype, tensor.shape))
    return renamed


def _refuse(
    signature: ModelSignature, config: ModelConfig, unsupported: frozenset[Datatype]
) -> None:
    controls = {name for name, _ in list_controls(config.sequence_batching)}
    for kind, tensors in (("input", signature.inputs), ("output", signature.outputs)):
        for spec in tensors.values():
            if spec.datatype not in unsupported:
                continue
            if spec.name in controls:
                raise InternalError(
                    f"input '{spec.name}' type '{spec.datatype.config_name}' is not supported by "
                    "PyTorch."
                )
            raise InternalError(
                f"unsupported datatype {spec.datatype.config_name} for {kind} '{spec.name}' "
                f"for model '{signature.name}'"
            )


def _check_kinds(signature: ModelSignature, binding: InputBinding) -> None:
    for slot in binding.slots:
        datatype = signature.inputs[slot.name].datatype
        is_text = datatype is datatypes.BYTES
        taken = _TAKEN.get(slot.kind)
        if is_text if taken is None else datatype not in taken:
            raise InvalidArgumentError(
                f"unable to load model '{signature.name}', configuration expects datatype "
                f"{datatype.config_name} for input '{slot.name}', model provides "
                f"{slot.kind.value} for argument '{slot.argument}'"
            )
