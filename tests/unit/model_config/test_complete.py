from collections.abc import Sequence

import pytest
from tests.support.configs import normalized

from naiad.errors import InternalError, InvalidArgumentError, NaiadError
from naiad.inference.datatypes import BYTES, FP32, INT32, INT64, Datatype
from naiad.model_config.complete import (
    ArtifactSignature,
    ArtifactTensor,
    check_against_artifact,
    complete_config,
)
from naiad.model_config.schema import DataType, ModelConfig

Shape = tuple[int, ...] | None


def _tensor(name: str, shape: Shape, datatype: Datatype | None = FP32) -> ArtifactTensor:
    return ArtifactTensor(name, datatype, shape)


def _signature(
    inputs: Sequence[ArtifactTensor], outputs: Sequence[ArtifactTensor] = (_tensor("y", (-1, 2)),)
) -> ArtifactSignature:
    return ArtifactSignature(inputs, outputs)


def _completed(text: str, signature: ArtifactSignature, default: int = 4) -> ModelConfig:
    config = normalized(text)
    complete_config(config, signature, default_max_batch_size=default)
    return config


_BATCHING = _signature([_tensor("b", (-1, 3), INT64), _tensor("a", (-1, -1), BYTES)])


def test_a_model_with_open_first_dims_is_completed_for_batches() -> None:
    config = _completed("", _BATCHING)

    assert config.max_batch_size == 4
    assert list(config.dynamic_batching.preferred_batch_size) == [4]
    assert [(t.name, t.data_type, list(t.dims)) for t in config.input] == [
        ("b", DataType.TYPE_INT64, [3]),
        ("a", DataType.TYPE_STRING, [-1]),
    ]
    assert [(t.name, t.data_type, list(t.dims)) for t in config.output] == [
        ("y", DataType.TYPE_FP32, [2])
    ]


def test_a_model_with_a_fixed_first_dim_keeps_it_in_its_dims() -> None:
    config = _completed("", _signature([_tensor("x", (2, 3))]))

    assert config.max_batch_size == 0
    assert not config.HasField("dynamic_batching")
    assert list(config.input[0].dims) == [2, 3]
    assert list(config.output[0].dims) == [-1, 2]


def test_what_the_config_says_stays_and_only_the_rest_is_filled() -> None:
    text = "max_batch_size: 16 input { name: 'b' data_type: TYPE_INT64 dims: [ 7 ] }"

    config = _completed(text, _BATCHING)

    assert config.max_batch_size == 16
    assert [list(tensor.dims) for tensor in config.input] == [[7]]
    assert [tensor.name for tensor in config.output] == ["y"]
    assert list(config.dynamic_batching.preferred_batch_size) == [16]


def test_a_config_with_inputs_and_outputs_is_left_alone() -> None:
    text = (
        "input { name: 'x' data_type: TYPE_FP32 dims: [ 1 ] }"
        "output { name: 'y' data_type: TYPE_FP32 dims: [ 1 ] }"
    )

    assert _completed(text, _BATCHING) == normalized(text)


@pytest.mark.parametrize(("default", "batcher"), [(0, False), (1, False), (2, True)])
def test_the_default_batch_size_decides_about_the_dynamic_batcher(
    default: int, batcher: bool
) -> None:
    config = _completed("", _BATCHING, default)

    assert config.max_batch_size == default
    assert config.HasField("dynamic_batching") is batcher


def test_a_sequence_model_gets_no_dynamic_batcher_and_no_inputs_that_the_server_feeds() -> None:
    text = """
        sequence_batching {
          control_input { name: "START" control { int32_false_true: [ 0, 1 ] } }
          state { input_name: "S_IN" output_name: "S_OUT" data_type: TYPE_FP32 dims: [ 1 ] }
        }
    """
    signature = _signature(
        [_tensor("x", (-1, 1)), _tensor("START", (-1, 1), INT32), _tensor("S_IN", (-1, 1))],
        [_tensor("y", (-1, 1)), _tensor("S_OUT", (-1, 1))],
    )

    config = _completed(text, signature)

    assert [tensor.name for tensor in config.input] == ["x"]
    assert [tensor.name for tensor in config.output] == ["y"]
    assert not config.HasField("dynamic_batching")
    check_against_artifact(config, signature)


def test_a_scalar_per_row_is_a_reshaped_vector_of_one() -> None:
    config = _completed("", _signature([_tensor("x", (-1,))], [_tensor("y", (-1,))]))

    assert list(config.input[0].dims) == [1]
    assert config.input[0].HasField("reshape")
    assert not config.input[0].reshape.shape


def test_a_scalar_without_batch_axis_is_a_reshaped_vector_of_one() -> None:
    signature = _signature([_tensor("x", ())], [_tensor("y", ())])

    config = _completed("", signature)

    for tensor in (config.input[0], config.output[0]):
        assert list(tensor.dims) == [1]
        assert tensor.HasField("reshape")
        assert not tensor.reshape.shape
    check_against_artifact(config, signature)


def test_a_length_of_zero_is_left_open() -> None:
    signature = _signature([_tensor("x", (0, 3))], [_tensor("y", (0,))])

    config = _completed("", signature)

    assert config.max_batch_size == 0
    assert list(config.input[0].dims) == [-1, 3]
    assert list(config.output[0].dims) == [-1]
    check_against_artifact(config, signature)


@pytest.mark.parametrize(
    ("text", "tensor", "message"),
    [
        (
            "max_batch_size: 8",
            _tensor("x", (1, 3)),
            "autofill failed for model 'm': model does not support batching while non-zero "
            "max_batch_size is specified",
        ),
        (
            "",
            _tensor("x", (-1, 3), None),
            "autofill failed for model 'm': tensor 'x' has no data type that a model "
            "configuration can express",
        ),
        (
            "",
            _tensor("x", None),
            "autofill failed for model 'm': tensor 'x' has no rank that a model configuration can "
            "express",
        ),
    ],
)
def test_a_model_that_cannot_be_described_is_refused(
    text: str, tensor: ArtifactTensor, message: str
) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        _completed(text, _signature([tensor]))

    assert caught.value.message == message


def _check(
    text: str,
    inputs: Sequence[ArtifactTensor],
    outputs: Sequence[ArtifactTensor] = (),
    overridable: Sequence[ArtifactTensor] = (),
) -> None:
    check_against_artifact(normalized(text), ArtifactSignature(inputs, outputs, overridable))


_X4 = "input { name: 'x' data_type: TYPE_FP32 dims: [ 4 ] }"
_Y4 = "output { name: 'y' data_type: TYPE_FP32 dims: [ 4 ] }"
_FP32_4 = _tensor("x", (-1, 4))


@pytest.mark.parametrize(
    ("text", "inputs", "outputs"),
    [
        (f"max_batch_size: 8 {_X4} {_Y4}", [_FP32_4], [_tensor("y", (-1, 4))]),
        (_X4, [_tensor("x", (-1,))], []),  # a model may take more than its config lets through
        (_X4, [_tensor("x", None)], []),
        (
            f"max_batch_size: 8 {_X4[:-1]} reshape {{ shape: [ 2, 2 ] }} }}",
            [_tensor("x", (-1, 2, 2))],
            [],
        ),
        (
            f"max_batch_size: 8 {_X4[:-1]} allow_ragged_batch: true }}",
            [_tensor("x", (-1,))],
            [],
        ),
        (
            f"batch_output {{ source_input: 'x' target_name: 'y' }} {_X4} {_Y4}",
            [_tensor("x", (4,))],
            [_tensor("y", (-1,))],
        ),
    ],
)
def test_a_config_that_fits_its_model_passes(
    text: str, inputs: list[ArtifactTensor], outputs: list[ArtifactTensor]
) -> None:
    _check(text, inputs, outputs)


def test_an_input_with_a_value_in_the_file_may_be_optional() -> None:
    text = "input { name: 'x' data_type: TYPE_FP32 dims: [ -1 ] optional: true }"

    _check(text, [], [], [_tensor("x", (-1,))])


_SEQUENCE = "max_batch_size: 4 sequence_batching {{ {} }}"
_START = "control_input { name: 'S' control { int32_false_true: [ 0, 1 ] } }"
_STATE = "state { input_name: 'I' output_name: 'O' data_type: TYPE_FP32 dims: [ 1 ] }"


@pytest.mark.parametrize(
    ("text", "inputs", "outputs", "message"),
    [
        (
            f"{_X4} {_X4.replace('x', 'z')}",
            [_FP32_4],
            [],
            "unable to load model 'm', configuration expects 2 inputs, model provides 1",
        ),
        (
            _X4.replace("'x'", "'z'"),
            [_FP32_4],
            [],
            "unexpected inference input 'z', allowed inputs are: x",
        ),
        (
            _X4 + _Y4.replace("'y'", "'z'"),
            [_tensor("x", (4,))],
            [_tensor("y", (4,)), _tensor("w", (4,))],
            "unexpected inference output 'z', allowed outputs are: w, y",
        ),
        (
            _X4.replace("FP32", "INT32"),
            [_FP32_4],
            [],
            "unable to load model 'm', configuration expects datatype TYPE_INT32 for input 'x', "
            "model provides TYPE_FP32",
        ),
        (
            _X4 + _Y4,
            [_tensor("x", (4,))],
            [_tensor("y", (4,), BYTES)],
            "unable to load model 'm', configuration expects datatype TYPE_FP32 for output 'y', "
            "model provides TYPE_BYTES",
        ),
        (
            f"max_batch_size: 8 {_X4}",
            [_tensor("x", (-1, 5))],
            [],
            "model 'm', tensor 'x': the model expects 2 dimensions (shape [-1,5]) but the model "
            "configuration specifies 2 dimensions (an initial batch dimension because "
            "max_batch_size > 0 followed by the explicit tensor shape, making complete shape "
            "[-1,4])",
        ),
        (
            f"max_batch_size: 8 {_X4.replace('4 ]', '-1, 4 ]')}",
            [_tensor("x", (-1, 4))],
            [],
            "model 'm', tensor 'x': the model expects 2 dimensions (shape [-1,4]) but the model "
            "configuration specifies 3 dimensions (an initial batch dimension because "
            "max_batch_size > 0 followed by the explicit tensor shape, making complete shape "
            "[-1,-1,4]). The batch dimension is not part of dims: leave its -1 out of them",
        ),
        (
            _X4,
            [_tensor("x", (-1, 4))],
            [],
            "model 'm', tensor 'x': the model expects 2 dimensions (shape [-1,4]) but the model "
            "configuration specifies 1 dimensions (shape [4]). Set max_batch_size, or put the "
            "batch dimension into dims as -1",
        ),
        (
            _X4,
            [_tensor("x", (2, 4))],
            [],
            "model 'm', tensor 'x': the model expects 2 dimensions (shape [2,4]) but the model "
            "configuration specifies 1 dimensions (shape [4])",
        ),
        (
            _X4 + _Y4,
            [_tensor("x", (4,))],
            [_tensor("y", (-1,))],
            "model 'm', tensor 'y': the model expects 1 dimensions (shape [-1]) but the model "
            "configuration specifies 1 dimensions (shape [4])",
        ),
        (
            f"max_batch_size: 8 {_X4}",
            [_tensor("x", (1, 4))],
            [],
            "model 'm', tensor 'x': for the model to support batching the shape should have at "
            "least 1 dimension and the first dimension must be -1; but shape expected by the "
            "model is [1,4]",
        ),
        (
            _X4,
            [_tensor("x", ())],
            [],
            "unable to load model 'm', scalar tensor 'x', should only provide 1 in the model "
            "configuration when the model doesn't support batching. Model configuration "
            "provided: [4].",
        ),
        (
            f"max_batch_size: 8 {_X4[:-1]} optional: true }}",
            [],
            [],
            "unable to load model 'm', optional input 'x' is not supported for models that "
            "support batching",
        ),
        (
            f"max_batch_size: 8 {_X4[:-1]} allow_ragged_batch: true }}",
            [_FP32_4],
            [],
            "unable to load model 'm', configuration expects model provides input with shape [-1] "
            "for ragged input 'x', model provides [-1,4]",
        ),
        (
            _SEQUENCE.format(_START),
            [],
            [],
            "configuration specified sequence control 'S', but model does not provide that input",
        ),
        (
            _SEQUENCE.format(_START),
            [_tensor("S", (-1, 2), INT32)],
            [],
            "unable to load model 'm', sequence control 'S' in model has dims [2] but dims [1] is "
            "expected",
        ),
        (
            _SEQUENCE.format(_START),
            [_tensor("S", (-1, 1), FP32)],
            [],
            "unable to load model 'm', sequence control 'S', the model expects data-type "
            "TYPE_FP32 but the model configuration specifies data-type TYPE_INT32",
        ),
        (
            _SEQUENCE.format(_STATE),
            [_tensor("I", (-1, 1))],
            [_tensor("y", (-1, 1))],
            "unexpected inference output 'O', allowed outputs are: y",
        ),
        (
            _SEQUENCE.format(_STATE),
            [_tensor("i", (-1, 1))],
            [_tensor("O", (-1, 1))],
            "unexpected inference input 'I', allowed inputs are: i",
        ),
    ],
)
def test_a_config_that_does_not_fit_is_named_in_tritons_words(
    text: str, inputs: list[ArtifactTensor], outputs: list[ArtifactTensor], message: str
) -> None:
    with pytest.raises(NaiadError) as caught:
        _check(text, inputs, outputs)

    assert caught.value.message == message
    is_missing_control = "sequence control 'S', but" in message
    assert isinstance(caught.value, InternalError) is is_missing_control


def test_a_ragged_input_cannot_be_optional() -> None:
    text = (
        "input { name: 'x' data_type: TYPE_FP32 dims: [ -1 ] optional: true "
        "allow_ragged_batch: true }"
    )

    with pytest.raises(InvalidArgumentError, match="is not supported for optional input"):
        _check(text, [], [], [_tensor("x", (-1,))])
