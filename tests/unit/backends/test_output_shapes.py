"""Shapes that a model gives, against those of its config."""

import logging

import pytest

from naiad.backends.output_shapes import OutputShapes
from naiad.errors import InternalError
from naiad.inference.datatypes import FP32
from naiad.model_config.schema import ModelConfig
from naiad.model_config.signature import ModelSignature, TensorSpec


def shapes(*, max_batch_size: int = 0, strict: str = "") -> OutputShapes:
    config = ModelConfig(name="m")
    if strict:
        config.parameters["strict_output_shapes"].string_value = strict
    outputs = [
        TensorSpec("fixed", FP32, (2, 3)),
        TensorSpec("open", FP32, (-1, 3)),
        TensorSpec("scalar", FP32, (1,), reshape=()),
    ]
    return OutputShapes(ModelSignature("m", max_batch_size, [], outputs), config)


@pytest.mark.parametrize(
    ("name", "shape", "max_batch_size"),
    [
        ("fixed", (2, 3), 0),
        ("fixed", (7, 2, 3), 8),
        ("open", (9, 3), 0),
        ("open", (0, 3), 0),
        ("scalar", (), 0),
        ("scalar", (4,), 8),
    ],
)
def test_shapes_that_fit_are_silent(
    name: str, shape: tuple[int, ...], max_batch_size: int, caplog: pytest.LogCaptureFixture
) -> None:
    shapes(max_batch_size=max_batch_size, strict="1").check(name, shape)
    assert not caplog.records


def test_a_shape_that_differs_is_said_once_for_each_output(
    caplog: pytest.LogCaptureFixture,
) -> None:
    checked = shapes()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            checked.check("fixed", (2, 4))
        checked.check("open", (3,))
    assert [record.getMessage() for record in caplog.records] == [
        "output 'fixed' of model 'm' has the shape [2,4], which its config declares as [2,3]; it "
        "is passed on as it is, and this is said once",
        "output 'open' of model 'm' has the shape [3], which its config declares as [-1,3]; it is "
        "passed on as it is, and this is said once",
    ]


def test_a_parameter_makes_it_an_error() -> None:
    with pytest.raises(InternalError, match="'strict_output_shapes' makes that an error"):
        shapes(strict="true").check("scalar", (2,))
