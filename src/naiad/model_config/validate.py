"""What a model config may say, in Triton's words.

Triton looks twice: ``validate_config`` before anything of the model is read, so that a mistake
makes the model unknown to the server; ``validate_for_load`` after the backend has completed inputs
and outputs, so that a mistake makes one version unavailable.

Source: Triton, ``model_config_utils.cc``: ValidateModelConfig, ValidateModelIOConfig,
ValidateInstanceGroup, ValidateEnsembleSchedulingConfig.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import isnan, prod
from typing import Final, NoReturn

from naiad.errors import InvalidArgumentError
from naiad.model_config.ensemble_graph import validate_ensemble
from naiad.model_config.normalize import ENSEMBLE_PLATFORM, PLATFORM_BACKENDS
from naiad.model_config.schema import (
    BatchInput,
    BatchOutput,
    DataType,
    ModelConfig,
    ModelDynamicBatching,
    ModelInput,
    ModelInstanceGroup,
    ModelMetrics,
    ModelOutput,
    ModelQueuePolicy,
    ModelSequenceBatching,
)

_TENSORRT_PLATFORM: Final = "tensorrt_plan"
_ANY_LENGTH: Final = -1
_Control = ModelSequenceBatching.Control
_CORRELATION_ID_TYPES: Final = (
    DataType.TYPE_UINT64,
    DataType.TYPE_INT64,
    DataType.TYPE_UINT32,
    DataType.TYPE_INT32,
    DataType.TYPE_STRING,
)


def _fail(message: str) -> NoReturn:
    raise InvalidArgumentError(message)


def validate_config(config: ModelConfig) -> None:
    """Check a normalized config before its model is looked at.

    Raises:
        InvalidArgumentError: Triton's text about the first mistake.
    """
    name = config.name
    if not name:
        _fail("model configuration must specify 'name'")
    _validate_backend(config)
    if config.max_batch_size < 0:
        _fail(f"'max_batch_size' must be non-negative value for {name}")
    if not config.HasField("version_policy"):
        _fail(f"must specify 'version policy' for {name}")
    if config.HasField("dynamic_batching"):
        _validate_dynamic_batching(config.dynamic_batching, config)
    if config.HasField("sequence_batching"):
        _validate_sequence_batching(config.sequence_batching, config)
    if config.HasField("ensemble_scheduling"):
        validate_ensemble(config)
    elif config.platform == ENSEMBLE_PLATFORM:
        _fail(
            f"ensemble scheduling must be set for ensemble {name} whose platform is "
            f"{ENSEMBLE_PLATFORM}"
        )
    if config.model_transaction_policy.decoupled and config.response_cache.enable:
        _fail(
            f"Response Cache does not currently support model {name} with 'decoupled' transaction "
            "policy. Please disable the response cache."
        )
    _validate_metrics(config.model_metrics)


def validate_for_load(config: ModelConfig, *, gpu_ids: Sequence[int] = ()) -> None:
    """Check instance groups, inputs and outputs of a completed config.

    Args:
        config: normalized and completed.
        gpu_ids: the GPUs of this server.

    Raises:
        InvalidArgumentError: Triton's text about the first mistake.
    """
    if not config.HasField("ensemble_scheduling"):
        _validate_instance_groups(config, gpu_ids)
    for tensor in config.input:
        _validate_tensor(tensor, "model input", config)
        is_image = tensor.format in {ModelInput.FORMAT_NHWC, ModelInput.FORMAT_NCHW}
        if is_image and len(tensor.dims) != 3:
            _fail(f"model input NHWC/NCHW require 3 dims for {config.name}")
    for output in config.output:
        _validate_tensor(output, "model output", config)
    input_names = {tensor.name for tensor in config.input}
    for batch_input in config.batch_input:
        _validate_batch_input(batch_input, input_names, config.name)
    output_names = {output.name for output in config.output}
    for batch_output in config.batch_output:
        _validate_batch_output(batch_output, input_names, output_names, config.name)


def _validate_backend(config: ModelConfig) -> None:
    if not config.backend:
        if config.platform != ENSEMBLE_PLATFORM:
            _fail(f"unexpected platform type '{config.platform}' for {config.name}")
    elif config.platform == ENSEMBLE_PLATFORM:
        _fail(
            f"Ensemble model '{config.name}' must have platform type '{config.platform}' and empty "
            "backend type"
        )
    has_platforms = config.backend in PLATFORM_BACKENDS.values()
    if has_platforms and PLATFORM_BACKENDS.get(config.platform) != config.backend:
        _fail(f"unexpected 'platform' and 'backend' pair, got:{config.platform}, {config.backend}")


def _validate_dynamic_batching(batching: ModelDynamicBatching, config: ModelConfig) -> None:
    for size in batching.preferred_batch_size:
        if size <= 0:
            _fail(f"dynamic batching preferred size must be positive for {config.name}")
        if size > config.max_batch_size:
            _fail(f"dynamic batching preferred size must be <= max batch size for {config.name}")
    levels = batching.priority_levels
    if levels:
        if not 1 <= batching.default_priority_level <= levels:
            _fail(f"default priority level must be in range [1, {levels}] for {config.name}")
        if not all(1 <= level <= levels for level in batching.priority_queue_policy):
            _fail(
                f"priority queue policy must have priority level in range [1, {levels}] for "
                f"{config.name}"
            )
    if batching.preserve_ordering:
        _validate_preserved_ordering(batching, config.name)


def _validate_preserved_ordering(batching: ModelDynamicBatching, name: str) -> None:
    if batching.priority_levels > 1:
        _fail(f"Only one priority level is allowed when 'preserve_ordering' is true for {name}")
    policies = [batching.default_queue_policy, *batching.priority_queue_policy.values()]
    for policy in policies:
        is_delayed = policy.timeout_action == ModelQueuePolicy.DELAY
        if policy.default_timeout_microseconds and is_delayed:
            _fail(
                "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is "
                f"true for {name}"
            )


def _validate_sequence_batching(batching: ModelSequenceBatching, config: ModelConfig) -> None:
    name = config.name
    if config.response_cache.enable:
        _fail(
            f"Response Cache does not currently support model {name} with sequence batching "
            "scheduler. Please disable the response cache."
        )
    _validate_controls(batching, name)
    if batching.HasField("oldest"):
        for size in batching.oldest.preferred_batch_size:
            if size <= 0:
                _fail(f"sequence batching preferred batch size must be positive for {name}")
            if size > config.max_batch_size:
                _fail(
                    f"sequence batching preferred batch size must be <= max batch size for {name}"
                )
    if not 0.0 <= batching.direct.minimum_slot_utilization <= 1.0:
        _fail("sequence batching minimum slot utilization must be in range (0.0, 1.0] for " + name)


def _validate_controls(batching: ModelSequenceBatching, name: str) -> None:
    tensors: set[str] = set()
    kinds: set[int] = set()
    for control_input in batching.control_input:
        if not control_input.name:
            _fail(f"sequence batching control tensor must have a name for {name}")
        if control_input.name in tensors:
            _fail(
                f"sequence batching control tensor '{control_input.name}' is specified for "
                f"multiple control kinds for {name}"
            )
        tensors.add(control_input.name)
        for control in control_input.control:
            kind = _Control.Kind.Name(control.kind)
            if control.kind in kinds:
                _fail(f"sequence batching specifies multiple {kind} tensors for {name}")
            kinds.add(control.kind)
            if control.kind == _Control.CONTROL_SEQUENCE_CORRID:
                _validate_correlation_id_control(control, name)
            else:
                _validate_boolean_control(control, name)


def _validate_boolean_control(control: ModelSequenceBatching.Control, name: str) -> None:
    kind = _Control.Kind.Name(control.kind)
    lengths = {
        "int32_false_true": len(control.int32_false_true),
        "fp32_false_true": len(control.fp32_false_true),
        "bool_false_true": len(control.bool_false_true),
    }
    given = [field for field, length in lengths.items() if length]
    if not given:
        _fail(
            "sequence batching must specify either 'int32_false_true', 'fp32_false_true' or "
            f"'bool_false_true' for {kind} for {name}"
        )
    if len(given) > 1:
        _fail(
            "sequence batching specifies more than one from 'int32_false_true', 'fp32_false_true' "
            f"and 'bool_false_true' for {kind} for {name}"
        )
    if lengths[given[0]] != 2:
        _fail(
            f"sequence batching control '{given[0]}' must have exactly 2 entries for {kind} for "
            f"{name}"
        )


def _validate_correlation_id_control(control: ModelSequenceBatching.Control, name: str) -> None:
    kind = _Control.Kind.Name(control.kind)
    if control.int32_false_true or control.fp32_false_true or control.bool_false_true:
        _fail(
            "sequence batching must not specify either 'int32_false_true', 'fp32_false_true' or "
            f"'bool_false_true' for {kind} for {name}"
        )
    if control.data_type not in _CORRELATION_ID_TYPES:
        _fail(
            f"unexpected data type for control {kind} for {name}. Allowed data types are "
            "TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING"
        )


def _validate_metrics(metrics: ModelMetrics) -> None:
    for control in metrics.metric_control:
        if not control.HasField("metric_identifier"):
            _fail("metric control must specify 'metric_identifier'")
        if not control.metric_identifier.family:
            _fail("metric identifier must specify non-empty 'family'")
        if not control.HasField("histogram_options"):
            _fail("metric control must specify 'histogram_options'")
        buckets = control.histogram_options.buckets
        if not buckets:
            _fail("histogram options must specify non-empty 'buckets'")
        # Triton leaves it to the metrics library, which throws in the middle of the load.
        if isnan(buckets[0]) or not all(a < b for a, b in pairwise(buckets)):
            _fail("histogram options must specify 'buckets' in strictly ascending order")


def _validate_instance_groups(config: ModelConfig, gpu_ids: Sequence[int]) -> None:
    if not config.instance_group:
        _fail(f"must specify one or more 'instance group's for {config.name}")
    for group in config.instance_group:
        label = f"instance group {group.name} of model {config.name}"
        if group.count < 0:
            # Triton takes it for the default, and nobody is told of the slip.
            _fail(f"{label} has count {group.count}; it counts instances, and 0 takes the default")
        if group.kind == ModelInstanceGroup.KIND_GPU:
            _validate_gpu_group(group, label, gpu_ids)
        elif group.gpus:
            kind = ModelInstanceGroup.Kind.Name(group.kind)
            _fail(f"{label} has kind {kind} but specifies one or more GPUs")
        if group.profile and config.platform != _TENSORRT_PLATFORM:
            _fail(
                f"{label} and platform {config.platform} specifies profile field which is only "
                "supported for TensorRT models"
            )


def _validate_gpu_group(group: ModelInstanceGroup, label: str, gpu_ids: Sequence[int]) -> None:
    if not group.gpus:
        _fail(f"{label} has kind KIND_GPU but no GPUs are available")
    for gpu in group.gpus:
        if gpu not in gpu_ids:
            available = ", ".join(map(str, gpu_ids))
            _fail(
                f"{label} specifies invalid or unsupported gpu id {gpu}. GPUs with at least the "
                "minimum required CUDA compute compatibility of 6.000000 are: "
                f"{available}"
            )


def _validate_tensor(tensor: ModelInput | ModelOutput, label: str, config: ModelConfig) -> None:
    model = config.name
    if not tensor.name:
        _fail(f"{label} must specify 'name' for {model}")
    label = f"{label} '{tensor.name}'"
    if tensor.data_type == DataType.TYPE_INVALID:
        _fail(f"{label} must specify 'data_type' for {model}")
    if not tensor.dims:
        _fail(f"{label} must specify 'dims' for {model}")
    if not _are_dims(tensor.dims):
        _fail(
            f"{label} dimension must be integer >= 1, or -1 to indicate a variable-size dimension "
            f"for {model}"
        )
    if tensor.HasField("reshape"):
        _validate_reshape(tensor, label, config)
    if config.platform != _TENSORRT_PLATFORM:
        if tensor.is_shape_tensor:
            _fail(f"shape tensors are only supported for TensorRT platform for {model}")
        if tensor.is_non_linear_format_io:
            _fail(f"Non-linear IO format is only supported for the TensorRT platform for {model}")


def _validate_reshape(tensor: ModelInput | ModelOutput, label: str, config: ModelConfig) -> None:
    dims, shape = tuple(tensor.dims), tuple(tensor.reshape.shape)
    if not _are_dims(shape):
        _fail(
            f"{label} reshape dimensions must be integer >= 1, or -1 to indicate a variable-size "
            f"dimension for {config.name}"
        )
    both_open = _ANY_LENGTH in dims and _ANY_LENGTH in shape
    if both_open and dims.count(_ANY_LENGTH) != shape.count(_ANY_LENGTH):
        _fail(
            f"{label} has different number of variable-size dimensions for dims and reshape for "
            f"{config.name}"
        )
    if _counts_between_open_dims(dims) != _counts_between_open_dims(shape):
        _fail(f"{label} has different size for dims and reshape for {config.name}")


def _are_dims(dims: Sequence[int]) -> bool:
    return all(dim >= 1 or dim == _ANY_LENGTH for dim in dims)


def _counts_between_open_dims(dims: Sequence[int]) -> list[int]:
    """Elements of each run of fixed dims, cut at the -1s: [2, 4, -1, 6] gives [8, 6].

    Two shapes stand for the same elements, whatever the open dims become, if these are equal.
    """
    cuts = [index for index, dim in enumerate(dims) if dim == _ANY_LENGTH]
    starts = [0, *(cut + 1 for cut in cuts)]
    return [prod(dims[start:end]) for start, end in zip(starts, [*cuts, len(dims)], strict=True)]


def _validate_batch_input(batch_input: BatchInput, inputs: set[str], name: str) -> None:
    if batch_input.kind not in BatchInput.Kind.values():
        _fail(f"unknown batch input kind '{batch_input.kind}' for {name}")
    if len(batch_input.source_input) != 1:
        _fail(
            f"batch input kind '{BatchInput.Kind.Name(batch_input.kind)}' expects 1 source input, "
            f"got {len(batch_input.source_input)} for {name}"
        )
    if batch_input.data_type not in {DataType.TYPE_INT32, DataType.TYPE_FP32}:
        _fail(f"batch input data type must be TYPE_INT32 or TYPE_FP32 for {name}")
    if batch_input.source_input[0] not in inputs:
        _fail(f"unknown source input name '{batch_input.source_input[0]}' for {name}")


def _validate_batch_output(
    batch_output: BatchOutput, inputs: set[str], outputs: set[str], name: str
) -> None:
    if batch_output.kind not in BatchOutput.Kind.values():
        _fail(f"unknown batch output kind '{batch_output.kind}' for {name}")
    if len(batch_output.source_input) != 1:
        _fail(
            f"batch output kind '{BatchOutput.Kind.Name(batch_output.kind)}' expects 1 source "
            f"input, got {len(batch_output.source_input)} for {name}"
        )
    if batch_output.source_input[0] not in inputs:
        _fail(f"unknown source input name '{batch_output.source_input[0]}' for {name}")
    seen: set[str] = set()
    for target in batch_output.target_name:
        if target not in outputs:
            _fail(f"unknown target output name '{target}' for {name}")
        if target in seen:
            _fail(f"target output name '{target}' can only be specified once for {name}")
        seen.add(target)
