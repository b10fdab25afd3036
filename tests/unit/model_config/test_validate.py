import pytest
from tests.support.configs import normalized

from naiad.errors import InvalidArgumentError
from naiad.model_config.schema import ModelConfig
from naiad.model_config.text_format import parse_config
from naiad.model_config.validate import validate_config, validate_for_load

_CONTROL = "sequence_batching {{ control_input [ {} ] }}"
_START = "kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ]"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "max_batch_size: 8 dynamic_batching { preferred_batch_size: [ 1, 8 ] }",
        "dynamic_batching { }",
        "max_batch_size: 8 dynamic_batching { priority_levels: 2 default_priority_level: 2 }",
        f"sequence_batching {{ control_input {{ name: 'S' control {{ {_START} }} }} }}",
        "model_transaction_policy { decoupled: true }",
        "response_cache { enable: true }",
    ],
)
def test_what_triton_accepts_passes(text: str) -> None:
    validate_config(normalized(text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'platform: "graph"',
            "unexpected platform type 'graph' for m",
        ),
        (
            'backend: "onnxruntime" platform: "pytorch_libtorch"',
            "unexpected 'platform' and 'backend' pair, got:pytorch_libtorch, onnxruntime",
        ),
        (
            'backend: "python" platform: "ensemble"',
            "Ensemble model 'm' must have platform type 'ensemble' and empty backend type",
        ),
        (
            'platform: "ensemble"',
            "ensemble scheduling must be set for ensemble m whose platform is ensemble",
        ),
        ("max_batch_size: -1", "'max_batch_size' must be non-negative value for m"),
        (
            "max_batch_size: 8 dynamic_batching { preferred_batch_size: [ 0 ] }",
            "dynamic batching preferred size must be positive for m",
        ),
        (
            "max_batch_size: 8 dynamic_batching { preferred_batch_size: [ 9 ] }",
            "dynamic batching preferred size must be <= max batch size for m",
        ),
        (
            "dynamic_batching { priority_levels: 2 }",
            "default priority level must be in range [1, 2] for m",
        ),
        (
            "dynamic_batching { priority_levels: 2 default_priority_level: 3 }",
            "default priority level must be in range [1, 2] for m",
        ),
        (
            "dynamic_batching { priority_levels: 2 default_priority_level: 1 "
            "priority_queue_policy { key: 5 value { } } }",
            "priority queue policy must have priority level in range [1, 2] for m",
        ),
        (
            "dynamic_batching { preserve_ordering: true priority_levels: 2 "
            "default_priority_level: 1 }",
            "Only one priority level is allowed when 'preserve_ordering' is true for m",
        ),
        (
            "dynamic_batching { preserve_ordering: true default_queue_policy "
            "{ timeout_action: DELAY default_timeout_microseconds: 1 } }",
            "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true "
            "for m",
        ),
        (
            "sequence_batching { } response_cache { enable: true }",
            "Response Cache does not currently support model m with sequence batching scheduler. "
            "Please disable the response cache.",
        ),
        (
            "model_transaction_policy { decoupled: true } response_cache { enable: true }",
            "Response Cache does not currently support model m with 'decoupled' transaction "
            "policy. Please disable the response cache.",
        ),
        (
            "max_batch_size: 2 sequence_batching { oldest { preferred_batch_size: [ 0 ] } }",
            "sequence batching preferred batch size must be positive for m",
        ),
        (
            "max_batch_size: 2 sequence_batching { oldest { preferred_batch_size: [ 3 ] } }",
            "sequence batching preferred batch size must be <= max batch size for m",
        ),
        (
            "sequence_batching { direct { minimum_slot_utilization: 1.5 } }",
            "sequence batching minimum slot utilization must be in range (0.0, 1.0] for m",
        ),
        (
            _CONTROL.format(f"{{ control {{ {_START} }} }}"),
            "sequence batching control tensor must have a name for m",
        ),
        (
            _CONTROL.format(f'{{ name: "a" control {{ {_START} }} }}, {{ name: "a" }}'),
            "sequence batching control tensor 'a' is specified for multiple control kinds for m",
        ),
        (
            _CONTROL.format(
                f'{{ name: "a" control {{ {_START} }} }}, {{ name: "b" control {{ {_START} }} }}'
            ),
            "sequence batching specifies multiple CONTROL_SEQUENCE_START tensors for m",
        ),
        (
            _CONTROL.format('{ name: "a" control { } }'),
            "sequence batching must specify either 'int32_false_true', 'fp32_false_true' or "
            "'bool_false_true' for CONTROL_SEQUENCE_START for m",
        ),
        (
            _CONTROL.format(f'{{ name: "a" control {{ {_START} fp32_false_true: [ 0, 1 ] }} }}'),
            "sequence batching specifies more than one from 'int32_false_true', "
            "'fp32_false_true' and 'bool_false_true' for CONTROL_SEQUENCE_START for m",
        ),
        (
            _CONTROL.format('{ name: "a" control { bool_false_true: [ true ] } }'),
            "sequence batching control 'bool_false_true' must have exactly 2 entries for "
            "CONTROL_SEQUENCE_START for m",
        ),
        (
            _CONTROL.format('{ name: "a" control { kind: CONTROL_SEQUENCE_CORRID } }'),
            "unexpected data type for control CONTROL_SEQUENCE_CORRID for m. Allowed data types "
            "are TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING",
        ),
        (
            _CONTROL.format(
                '{ name: "a" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_INT32 '
                "int32_false_true: [ 0, 1 ] } }"
            ),
            "sequence batching must not specify either 'int32_false_true', 'fp32_false_true' or "
            "'bool_false_true' for CONTROL_SEQUENCE_CORRID for m",
        ),
        (
            "model_metrics { metric_control { } }",
            "metric control must specify 'metric_identifier'",
        ),
        (
            "model_metrics { metric_control { metric_identifier { } } }",
            "metric identifier must specify non-empty 'family'",
        ),
        (
            'model_metrics { metric_control { metric_identifier { family: "f" } } }',
            "metric control must specify 'histogram_options'",
        ),
        (
            'model_metrics { metric_control { metric_identifier { family: "f" } '
            "histogram_options { } } }",
            "histogram options must specify non-empty 'buckets'",
        ),
        (
            'model_metrics { metric_control { metric_identifier { family: "f" } '
            "histogram_options { buckets: [ 1, 1 ] } } }",
            "histogram options must specify 'buckets' in strictly ascending order",
        ),
        (
            'model_metrics { metric_control { metric_identifier { family: "f" } '
            "histogram_options { buckets: [ 2, 1 ] } } }",
            "histogram options must specify 'buckets' in strictly ascending order",
        ),
        (
            'model_metrics { metric_control { metric_identifier { family: "f" } '
            "histogram_options { buckets: [ nan ] } } }",
            "histogram options must specify 'buckets' in strictly ascending order",
        ),
        (
            'model_metrics { metric_control { metric_identifier { family: "f" } '
            "histogram_options { buckets: [ 1, nan ] } } }",
            "histogram options must specify 'buckets' in strictly ascending order",
        ),
    ],
)
def test_an_early_mistake_is_named_in_tritons_words(text: str, message: str) -> None:
    config = normalized(text)

    with pytest.raises(InvalidArgumentError) as caught:
        validate_config(config)

    assert caught.value.message == message


def test_a_config_that_was_not_normalized_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="must specify 'name'"):
        validate_config(ModelConfig())
    with pytest.raises(InvalidArgumentError, match="must specify 'version policy' for m"):
        validate_config(parse_config('name: "m" backend: "python"', "text"))
    with pytest.raises(InvalidArgumentError, match="must specify one or more 'instance group's"):
        validate_for_load(parse_config('name: "m" backend: "python"', "text"))


def _with_input(fields: str, max_batch_size: int = 8) -> ModelConfig:
    return normalized(f"max_batch_size: {max_batch_size} input {{ {fields} }}")


@pytest.mark.parametrize(
    "fields",
    [
        'name: "x" data_type: TYPE_FP32 dims: [ -1, 3 ]',
        'name: "x" data_type: TYPE_FP32 dims: [ 1 ] reshape { shape: [ ] }',
        'name: "x" data_type: TYPE_FP32 dims: [ 4, -1, 6 ] reshape { shape: [ 2, 2, -1, 1, 6 ] }',
        'name: "x" data_type: TYPE_FP32 dims: [ 2, 3, 4 ] format: FORMAT_NCHW',
    ],
)
def test_tensors_that_a_model_may_have_pass(fields: str) -> None:
    validate_for_load(_with_input(fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("dims: 1", "model input must specify 'name' for m"),
        ('name: "x" dims: 1', "model input 'x' must specify 'data_type' for m"),
        ("name: 'x' data_type: TYPE_FP32", "model input 'x' must specify 'dims' for m"),
        (
            "name: 'x' data_type: TYPE_FP32 dims: [ 0 ]",
            "model input 'x' dimension must be integer >= 1, or -1 to indicate a variable-size "
            "dimension for m",
        ),
        (
            "name: 'x' data_type: TYPE_FP32 dims: [ 1 ] reshape { shape: [ -2 ] }",
            "model input 'x' reshape dimensions must be integer >= 1, or -1 to indicate a "
            "variable-size dimension for m",
        ),
        (
            "name: 'x' data_type: TYPE_FP32 dims: [ 5 ] reshape { shape: [ 2, 2 ] }",
            "model input 'x' has different size for dims and reshape for m",
        ),
        (
            "name: 'x' data_type: TYPE_FP32 dims: [ -1 ] reshape { shape: [ 2, 2 ] }",
            "model input 'x' has different size for dims and reshape for m",
        ),
        (
            "name: 'x' data_type: TYPE_FP32 dims: [ 2, -1, 3 ] reshape { shape: [ 3, -1, 2 ] }",
            "model input 'x' has different size for dims and reshape for m",
        ),
        (
            "name: 'x' data_type: TYPE_FP32 dims: [ -1, -1 ] reshape { shape: [ -1 ] }",
            "model input 'x' has different number of variable-size dimensions for dims and "
            "reshape for m",
        ),
        (
            "name: 'x' data_type: TYPE_FP32 dims: [ 2 ] format: FORMAT_NHWC",
            "model input NHWC/NCHW require 3 dims for m",
        ),
        (
            "name: 'x' data_type: TYPE_FP32 dims: [ 2 ] is_shape_tensor: true",
            "shape tensors are only supported for TensorRT platform for m",
        ),
        (
            "name: 'x' data_type: TYPE_FP32 dims: [ 2 ] is_non_linear_format_io: true",
            "Non-linear IO format is only supported for the TensorRT platform for m",
        ),
    ],
)
def test_a_wrong_tensor_is_named_in_tritons_words(fields: str, message: str) -> None:
    config = _with_input(fields)

    with pytest.raises(InvalidArgumentError) as caught:
        validate_for_load(config)

    assert caught.value.message == message


def test_a_scalar_needs_no_batch_axis() -> None:
    validate_for_load(
        _with_input("name: 'x' data_type: TYPE_FP32 dims: [ 1 ] reshape { shape: [ ] }", 0)
    )


def test_more_than_one_element_is_no_scalar() -> None:
    config = _with_input("name: 'x' data_type: TYPE_FP32 dims: [ 2 ] reshape { shape: [ ] }", 0)

    with pytest.raises(InvalidArgumentError, match="has different size for dims and reshape"):
        validate_for_load(config)


def test_outputs_are_checked_like_inputs() -> None:
    config = normalized("output { name: 'y' data_type: TYPE_FP32 dims: [ -3 ] }")

    with pytest.raises(InvalidArgumentError, match="model output 'y' dimension must be integer"):
        validate_for_load(config)


@pytest.mark.parametrize(
    ("group", "message"),
    [
        ("kind: KIND_GPU", "instance group m_0 of model m has kind KIND_GPU but no GPUs are "),
        ("kind: KIND_GPU gpus: [ 3 ]", "specifies invalid or unsupported gpu id 3. GPUs with at"),
        ("kind: KIND_CPU gpus: [ 0 ]", "has kind KIND_CPU but specifies one or more GPUs"),
        ("kind: KIND_MODEL gpus: [ 0 ]", "has kind KIND_MODEL but specifies one or more GPUs"),
        ("profile: [ '1' ]", "profile field which is only supported for TensorRT models"),
    ],
)
def test_instances_that_this_server_cannot_run_are_refused(group: str, message: str) -> None:
    config = normalized(f"instance_group {{ {group} }}")

    with pytest.raises(InvalidArgumentError) as caught:
        validate_for_load(config)

    assert message in caught.value.message


def test_a_gpu_that_is_there_may_be_used() -> None:
    validate_for_load(normalized("instance_group { kind: KIND_GPU gpus: [ 1 ] }"), gpu_ids=[0, 1])


_X = "input { name: 'x' data_type: TYPE_FP32 dims: [ -1 ] }"
_Y = "output { name: 'y' data_type: TYPE_FP32 dims: [ -1 ] }"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "batch_input { source_input: [ 'x', 'x' ] data_type: TYPE_FP32 }",
            "batch input kind 'BATCH_ELEMENT_COUNT' expects 1 source input, got 2 for m",
        ),
        (
            "batch_input { source_input: 'x' data_type: TYPE_FP16 }",
            "batch input data type must be TYPE_INT32 or TYPE_FP32 for m",
        ),
        (
            "batch_input { source_input: 'z' data_type: TYPE_FP32 }",
            "unknown source input name 'z' for m",
        ),
        ("batch_input { kind: 99 }", "unknown batch input kind '99' for m"),
        (
            "batch_output { }",
            "batch output kind 'BATCH_SCATTER_WITH_INPUT_SHAPE' expects 1 source input, got 0 "
            "for m",
        ),
        ("batch_output { kind: 9 }", "unknown batch output kind '9' for m"),
        ("batch_output { source_input: 'z' }", "unknown source input name 'z' for m"),
        (
            "batch_output { source_input: 'x' target_name: 'z' }",
            "unknown target output name 'z' for m",
        ),
        (
            "batch_output { source_input: 'x' target_name: [ 'y', 'y' ] }",
            "target output name 'y' can only be specified once for m",
        ),
    ],
)
def test_tensors_of_a_batch_refer_to_those_of_requests(text: str, message: str) -> None:
    config = normalized(f"{_X} {_Y} {text}")

    with pytest.raises(InvalidArgumentError) as caught:
        validate_for_load(config)

    assert caught.value.message == message
