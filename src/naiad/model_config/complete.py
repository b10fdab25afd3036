"""Model config and model file: fill the one from the other, and hold the one against the other.

Source: Triton's onnxruntime backend, ``onnxruntime.cc`` (AutoCompleteConfig, ValidateInputs,
ValidateOutputs) and ``onnxruntime_utils.cc`` (CompareDimsSupported).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NoReturn, cast

from naiad.errors import InternalError, InvalidArgumentError
from naiad.inference.datatypes import BY_CONFIG_NUMBER, Datatype
from naiad.model_config.normalize import fill_defaults
from naiad.model_config.schema import (
    DataType,
    ModelConfig,
    ModelInput,
    ModelOutput,
    ModelSequenceBatching,
)
from naiad.model_config.sequence_controls import control_datatype, list_controls

_ANY_LENGTH: Final = -1


@dataclass(frozen=True, slots=True)
class ArtifactTensor:
    """One tensor as the model file declares it.

    Attributes:
        name: in the file.
        datatype: None where no datatype of the protocol is like it.
        shape: with the batch axis, if there is one; -1 for any length; None for any rank.
    """

    name: str
    datatype: Datatype | None
    shape: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class ArtifactSignature:
    """What a model file says about itself.

    Attributes:
        inputs: that a caller must give, in the order of the file.
        outputs: in the order of the file.
        overridable_inputs: that have a value in the file, which a caller may replace.
    """

    inputs: Sequence[ArtifactTensor]
    outputs: Sequence[ArtifactTensor]
    overridable_inputs: Sequence[ArtifactTensor] = ()


def with_shape(
    signature: ArtifactSignature, name: str, shape: tuple[int, ...]
) -> ArtifactSignature:
    """The same signature, but for the shape of one tensor."""
    sides = [
        [replace(tensor, shape=shape) if tensor.name == name else tensor for tensor in tensors]
        for tensors in (signature.inputs, signature.outputs)
    ]
    return ArtifactSignature(sides[0], sides[1], signature.overridable_inputs)


def read_signature(config: ModelConfig) -> ArtifactSignature:
    """The tensors of a model from a config that was completed from its file alone."""
    return ArtifactSignature(
        [_artifact_tensor(tensor, config) for tensor in config.input],
        [_artifact_tensor(tensor, config) for tensor in config.output],
    )


def complete_config(
    config: ModelConfig, signature: ArtifactSignature, *, default_max_batch_size: int = 4
) -> None:
    """Fill inputs, outputs, the batch limit and the batcher from the model file, in place.

    A config that lists both inputs and outputs is left alone. A model batches if the first dim of
    every tensor is open.

    Args:
        config: normalized.
        signature: of the model file.
        default_max_batch_size: for a model that batches and whose config gives no limit; 0 keeps
            such a model from batching.

    Raises:
        InvalidArgumentError: the config asks for batches and the model can't, or a tensor of the
            model has no datatype or rank that a config can express.
    """
    has_inputs = bool(config.input or config.batch_input)
    has_outputs = bool(config.output)
    if has_inputs and has_outputs:
        return
    _complete_batching(config, signature, default_max_batch_size)
    if not has_inputs:
        server_fed = _server_fed_inputs(config)
        for tensor in signature.inputs:
            if tensor.name not in server_fed:
                _describe(config.input.add(), tensor, config)
    if not has_outputs:
        kept = {state.output_name for state in config.sequence_batching.state}
        for tensor in signature.outputs:
            if tensor.name not in kept:
                _describe(config.output.add(), tensor, config)
    fill_defaults(config)


def check_against_artifact(config: ModelConfig, signature: ArtifactSignature) -> None:
    """Refuse a config that its model file does not fit.

    Args:
        config: normalized, completed and valid.
        signature: of the model file.

    Raises:
        InvalidArgumentError: Triton's text about the first difference.
        InternalError: a sequence control that the model does not have, as Triton classes it.
    """
    prefix = f"unable to load model '{config.name}'"
    inputs = {tensor.name: tensor for tensor in signature.inputs}
    for name, control in list_controls(config.sequence_batching):
        _check_control(name, control, inputs, config)
    _check_input_count(config, signature)
    inputs |= {tensor.name: tensor for tensor in signature.overridable_inputs}
    for tensor in config.input:
        if tensor.optional and config.max_batch_size:
            _fail(
                f"{prefix}, optional input '{tensor.name}' is not supported for models that "
                "support batching"
            )
        artifact = _find("input", tensor.name, inputs)
        _check_datatype("input", tensor.name, tensor.data_type, artifact, config)
        _check_input_shape(tensor, artifact, config)
    _check_outputs(config, {tensor.name: tensor for tensor in signature.outputs})
    for state in config.sequence_batching.state:
        _find("input", state.input_name, inputs)


def _artifact_tensor(tensor: ModelInput | ModelOutput, config: ModelConfig) -> ArtifactTensor:
    dims = tuple(tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims)
    shape = (-1, *dims) if config.max_batch_size else dims
    return ArtifactTensor(tensor.name, BY_CONFIG_NUMBER.get(tensor.data_type), shape)


def format_shape(shape: Iterable[int]) -> str:
    """A shape as Triton prints it: ``[-1,16]``."""
    return f"[{','.join(map(str, shape))}]"


def _fail(message: str) -> NoReturn:
    raise InvalidArgumentError(message)


def _complete_batching(
    config: ModelConfig, signature: ArtifactSignature, default_max_batch_size: int
) -> None:
    can_batch = all(
        tensor.shape and tensor.shape[0] == _ANY_LENGTH
        for tensor in (*signature.inputs, *signature.outputs)
    )
    if not can_batch:
        if config.max_batch_size:
            _fail(
                f"autofill failed for model '{config.name}': model does not support batching while "
                "non-zero max_batch_size is specified"
            )
        return
    if config.max_batch_size == 0:
        config.max_batch_size = max(default_max_batch_size, 0)
    if config.max_batch_size > 1 and config.WhichOneof("scheduling_choice") is None:
        config.dynamic_batching.SetInParent()


def _server_fed_inputs(config: ModelConfig) -> set[str]:
    """Inputs of the model that no request brings: controls, states and batch inputs."""
    names = {name for name, _ in list_controls(config.sequence_batching)}
    names.update(state.input_name for state in config.sequence_batching.state)
    names.update(name for batch_input in config.batch_input for name in batch_input.target_name)
    return names


def _describe(
    described: ModelInput | ModelOutput, tensor: ArtifactTensor, config: ModelConfig
) -> None:
    if tensor.datatype is None or tensor.shape is None:
        missing = "data type" if tensor.datatype is None else "rank"
        _fail(
            f"autofill failed for model '{config.name}': tensor '{tensor.name}' has no {missing} "
            "that a model configuration can express"
        )
    described.name = tensor.name
    described.data_type = cast("DataType", tensor.datatype.config_number)
    dims = tensor.shape[1:] if config.max_batch_size else tensor.shape
    # A config can't say "no dims", so a scalar is a vector of one that is reshaped for the model.
    # Nor can it say "no elements", so a length of 0 is left open; the model refuses any other.
    described.dims.extend([dim or _ANY_LENGTH for dim in dims] or (1,))
    if not dims:
        described.reshape.SetInParent()


def _check_control(
    name: str,
    control: ModelSequenceBatching.Control,
    inputs: dict[str, ArtifactTensor],
    config: ModelConfig,
) -> None:
    tensor = inputs.get(name)
    if tensor is None:
        raise InternalError(
            f"configuration specified sequence control '{name}', but model does not provide that "
            "input"
        )
    prefix = f"unable to load model '{config.name}', sequence control '{name}'"
    dims = (tensor.shape or ())[1 if config.max_batch_size else 0 :]
    if tensor.shape is not None and dims != (1,):
        _fail(f"{prefix} in model has dims {format_shape(dims)} but dims [1] is expected")
    expected = control_datatype(control)
    if expected is not tensor.datatype:
        _fail(
            f"{prefix}, the model expects data-type {_type_name(tensor.datatype)} but the model "
            f"configuration specifies data-type {_type_name(expected)}"
        )


def _check_input_count(config: ModelConfig, signature: ArtifactSignature) -> None:
    expected = sum(not tensor.optional for tensor in config.input)
    expected += sum(len(batch_input.target_name) for batch_input in config.batch_input)
    expected += sum(1 for _ in list_controls(config.sequence_batching))
    expected += len(config.sequence_batching.state)
    if expected != len(signature.inputs):
        _fail(
            f"unable to load model '{config.name}', configuration expects {expected} inputs, model "
            f"provides {len(signature.inputs)}"
        )


def _find(role: str, name: str, tensors: dict[str, ArtifactTensor]) -> ArtifactTensor:
    tensor = tensors.get(name)
    if tensor is None:
        allowed = ", ".join(sorted(tensors))
        _fail(f"unexpected inference {role} '{name}', allowed {role}s are: {allowed}")
    return tensor


def _type_name(datatype: Datatype | None) -> str:
    return "TYPE_INVALID" if datatype is None else f"TYPE_{datatype.name}"


def _check_datatype(
    role: str, name: str, number: DataType, artifact: ArtifactTensor, config: ModelConfig
) -> None:
    if BY_CONFIG_NUMBER.get(number) is not artifact.datatype:
        _fail(
            f"unable to load model '{config.name}', configuration expects datatype "
            f"{DataType.Name(number)} for {role} '{name}', model provides "
            f"{_type_name(artifact.datatype)}"
        )


def _check_input_shape(tensor: ModelInput, artifact: ArtifactTensor, config: ModelConfig) -> None:
    if not tensor.allow_ragged_batch:
        _check_shape(tensor, artifact, config, is_exact=False)
        return
    expectation = (
        f"unable to load model '{config.name}', configuration expects model provides input with "
        f"shape [-1] for ragged input '{tensor.name}'"
    )
    if tensor.optional:
        _fail(f"{expectation}, which is not supported for optional input")
    if artifact.shape is not None and artifact.shape != (_ANY_LENGTH,):
        _fail(f"{expectation}, model provides {format_shape(artifact.shape)}")


def _check_outputs(config: ModelConfig, outputs: dict[str, ArtifactTensor]) -> None:
    scattered = {name for batch_output in config.batch_output for name in batch_output.target_name}
    for tensor in config.output:
        artifact = _find("output", tensor.name, outputs)
        _check_datatype("output", tensor.name, tensor.data_type, artifact, config)
        if tensor.name not in scattered:
            _check_shape(tensor, artifact, config, is_exact=True)
    for state in config.sequence_batching.state:
        artifact = _find("output", state.output_name, outputs)
        _check_datatype("output state", state.output_name, state.data_type, artifact, config)


def _check_shape(
    tensor: ModelInput | ModelOutput,
    artifact: ArtifactTensor,
    config: ModelConfig,
    *,
    is_exact: bool,
) -> None:
    """Compare dims; where not exact, an open dim of the model takes any dim of the config."""
    shape = artifact.shape
    if shape is None:
        return
    dims = tuple(tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims)
    if not shape:
        _check_scalar(tensor.name, dims, config)
        return
    label = f"model '{config.name}', tensor '{tensor.name}'"
    if config.max_batch_size:
        if shape[0] != _ANY_LENGTH:
            _fail(
                f"{label}: for the model to support batching the shape should have at least 1 "
                "dimension and the first dimension must be -1; but shape expected by the model is "
                f"{format_shape(shape)}"
            )
        dims = (_ANY_LENGTH, *dims)
        stated = (
            "an initial batch dimension because max_batch_size > 0 followed by the explicit tensor "
            f"shape, making complete shape {format_shape(dims)}"
        )
    else:
        stated = f"shape {format_shape(dims)}"
    if not _fits(shape, dims, is_exact=is_exact):
        _fail(
            f"{label}: the model expects {len(shape)} dimensions (shape {format_shape(shape)}) but "
            f"the model configuration specifies {len(dims)} dimensions ({stated})"
            f"{_advise_on_batch(shape, dims, config)}"
        )


def _advise_on_batch(shape: tuple[int, ...], dims: tuple[int, ...], config: ModelConfig) -> str:
    """What to do where only the batch dimension is too much or missing; Triton doesn't say."""
    if config.max_batch_size:
        if dims[1:2] == (_ANY_LENGTH,) and _fits(shape, dims[1:], is_exact=False):
            return ". The batch dimension is not part of dims: leave its -1 out of them"
    elif shape[0] == _ANY_LENGTH and _fits(shape[1:], dims, is_exact=False):
        return ". Set max_batch_size, or put the batch dimension into dims as -1"
    return ""


def _check_scalar(name: str, dims: tuple[int, ...], config: ModelConfig) -> None:
    if any(dim != 1 for dim in dims):
        _fail(
            f"unable to load model '{config.name}', scalar tensor '{name}', should only provide 1 "
            "in the model configuration when the model doesn't support batching. Model "
            f"configuration provided: {format_shape(dims)}."
        )


def _fits(shape: tuple[int, ...], dims: tuple[int, ...], *, is_exact: bool) -> bool:
    if len(shape) != len(dims):
        return False
    return all(
        model_dim == dim
        or (model_dim == _ANY_LENGTH and not is_exact)
        # What `_describe` writes for it.
        or (model_dim == 0 and dim == _ANY_LENGTH)
        for model_dim, dim in zip(shape, dims, strict=True)
    )
