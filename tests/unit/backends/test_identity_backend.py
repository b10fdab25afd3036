from pathlib import Path

import numpy as np
import pytest

from naiad.backends.base import ModelSource
from naiad.backends.identity.backend import IdentityBackend, IdentityInstance, IdentityModel
from naiad.errors import InvalidArgumentError
from naiad.inference import datatypes
from naiad.model_config.schema import ModelConfig, ModelInput, ModelOutput, ModelParameter


def make_source(
    output: str = "OUTPUT0", output_type: str = "TYPE_FP32", **parameters: str
) -> ModelSource:
    config = ModelConfig(
        name="m",
        input=[ModelInput(name="INPUT0", data_type="TYPE_FP32", dims=[-1])],
        output=[ModelOutput(name=output, data_type=output_type, dims=[-1])],
        parameters={key: ModelParameter(string_value=value) for key, value in parameters.items()},
    )
    return ModelSource("m", 1, config, Path())


def make_instance(model: IdentityModel, index: int = 0) -> IdentityInstance:
    instance = model.create_instance(index)
    assert isinstance(instance, IdentityInstance)
    return instance


def test_the_output_is_a_copy() -> None:
    instance = make_instance(IdentityBackend().load(make_source()))
    given = np.array([1, 2], np.float32)
    (output,) = instance.execute({"INPUT0": given}, ["OUTPUT0"])
    given[:] = 0
    assert list(output.data) == [1, 2]
    assert output.datatype is datatypes.FP32


def test_an_output_whose_input_was_left_out_is_zero() -> None:
    source = make_source()
    source.config.max_batch_size = 4
    source.config.input.add(name="INPUT1", data_type="TYPE_FP32", dims=[-1, 3], optional=True)
    source.config.output.add(name="OUTPUT1", data_type="TYPE_FP32", dims=[-1, 3])
    instance = make_instance(IdentityBackend().load(source))
    given = {"INPUT0": np.ones((2, 1), np.float32)}
    (output,) = instance.execute(given, ["OUTPUT1"])
    assert output.data.tolist() == [[[0, 0, 0]]] * 2
    with pytest.raises(
        InvalidArgumentError, match="model 'm' copies its inputs and was given none"
    ):
        instance.execute({}, ["OUTPUT0"])


def test_instances_are_told_apart_by_their_delay() -> None:
    source = make_source(execute_delay_ms="100", instance_wise_delay_multiplier="4")
    model = IdentityBackend().load(source)
    delays = [make_instance(model, index).delay_s for index in range(3)]
    assert delays == [0.1, 0.4, 0.8]


def test_without_a_multiplier_all_wait_alike() -> None:
    model = IdentityBackend().load(make_source(execute_delay_ms="100"))
    assert [make_instance(model, index).delay_s for index in range(3)] == [0.1, 0.1, 0.1]


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (make_source("OUTPUT1"), "output 'OUTPUT1' has no such input"),
        (make_source("0"), "output '0' has no such input"),
        (make_source(output_type="TYPE_INT32"), "must have the datatype of 'INPUT0', TYPE_FP32"),
        (make_source(execute_delay_ms="soon"), "must be a number of at least 0, got 'soon'"),
    ],
)
def test_what_can_not_be_copied_is_refused(source: ModelSource, text: str) -> None:
    with pytest.raises(InvalidArgumentError) as failure:
        IdentityBackend().load(source)
    assert text in failure.value.message
