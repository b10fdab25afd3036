"""An ensemble against its models, with Triton's texts."""

import pytest

from naiad.errors import InvalidArgumentError
from naiad.model_config.ensemble_steps import check_steps
from naiad.model_config.schema import ModelConfig
from naiad.model_config.text_format import parse_config

TENSOR = '{{ name: "{name}" data_type: TYPE_FP32 dims: [ {dims} ] {more} }}'


def model(
    name: str, batch: int = 8, dims: str = "4", *, more: str = "", extra: str = ""
) -> ModelConfig:
    text = f'name: "{name}" max_batch_size: {batch} {more}'
    text += f" input [ {TENSOR.format(name='IN', dims=dims, more='')} {extra} ]"
    text += f" output [ {TENSOR.format(name='OUT', dims=dims, more='')} ]"
    return parse_config(text, "m")


def ensemble(
    read: str = "IN", written: str = "OUT", batch: int = 8, dims: str = "4", more: str = "",
    kind: str = "TYPE_FP32",
) -> ModelConfig:  # fmt: skip
    return parse_config(
        f'name: "e" platform: "ensemble" max_batch_size: {batch} '
        f'input [ {{ name: "X" data_type: {kind} dims: [ {dims} ] }} ] '
        f'output [ {{ name: "Y" data_type: TYPE_FP32 dims: [ {dims} ] }} ] '
        'ensemble_scheduling { step { model_name: "m" model_version: -1 '
        f'input_map {{ key: "{read}" value: "X" }} {more}'
        f'output_map {{ key: "{written}" value: "Y" }} }} }}',
        "e",
    )


def test_what_fits_is_taken() -> None:
    assert not check_steps(ensemble(), {"m": model("m")})


@pytest.mark.parametrize(
    ("config", "called", "text"),
    [
        (
            ensemble(batch=16), model("m"),
            "ensemble e allows maximum batch size 16, but it contains model m which only allows "
            "maximum batch size to be 8",
        ),
        (
            ensemble(read="NOPE"), model("m"),
            "in ensemble e, ensemble tensor X is mapping to non-existing input NOPE in model m",
        ),
        (
            ensemble(written="NOPE"), model("m"),
            "in ensemble e, ensemble tensor Y is mapped from non-existing output NOPE in model m",
        ),
        (
            ensemble(kind="TYPE_INT32"), model("m"),
            "in ensemble e, ensemble tensor X: inconsistent data type: TYPE_INT32 is inferred from "
            "model e while TYPE_FP32 is inferred from model m",
        ),
        (
            ensemble(dims="5"), model("m"),
            "in ensemble e, ensemble tensor X: inconsistent shape: [-1,5] is inferred from model e "
            "while [-1,4] is inferred from model m",
        ),
        (
            ensemble(), model("m", extra=", " + TENSOR.format(name="IN2", dims="4", more="")),
            "in ensemble e, input IN2 in model m is not mapped to any ensemble tensors",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(config: ModelConfig, called: ModelConfig, text: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        check_steps(config, {"m": called})
    assert caught.value.message == text


def test_an_optional_input_may_stay_unmapped() -> None:
    extra = ", " + TENSOR.format(name="IN2", dims="4", more="optional: true")
    check_steps(ensemble(), {"m": model("m", extra=extra)})


@pytest.mark.parametrize(
    ("own_batch", "own_dims", "batch", "dims"),
    [
        (8, "4", 0, "-1, 4"),  # the batch is one of the model's own dims
        (0, "-1, 4", 8, "4"),
        (8, "4", 0, "4"),  # the batch axis is stripped when it is 1
        (8, "-1", 8, "4"),
    ],
)
def test_shapes_may_agree_with_or_without_the_batch_axis(
    own_batch: int, own_dims: str, batch: int, dims: str
) -> None:
    check_steps(ensemble(batch=own_batch, dims=own_dims), {"m": model("m", batch, dims)})


DECOUPLED = "model_transaction_policy { decoupled: true }"


def test_a_decoupled_model_makes_the_ensemble_decoupled() -> None:
    assert check_steps(ensemble(), {"m": model("m", more=DECOUPLED)})


def test_answers_of_two_decoupled_models_are_not_mixed() -> None:
    config = parse_config(
        'name: "e" max_batch_size: 8 '
        'input [ { name: "X" data_type: TYPE_FP32 dims: [ 4 ] } ] '
        'output [ { name: "Y" data_type: TYPE_FP32 dims: [ 4 ] },'
        ' { name: "Z" data_type: TYPE_FP32 dims: [ 4 ] } ] ensemble_scheduling { step ['
        '{ model_name: "m" input_map { key: "IN" value: "X" } output_map { key: "OUT" value: "Y" } '
        '}, { model_name: "m" input_map { key: "IN" value: "X" } output_map { key: "OUT" value: '
        '"Z" } } ] }',
        "e",
    )
    assert not check_steps(config, {"m": model("m")})
    with pytest.raises(
        InvalidArgumentError, match="receives inputs originated from different decoupled models"
    ):
        check_steps(config, {"m": model("m", more=DECOUPLED)})
