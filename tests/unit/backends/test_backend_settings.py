from collections.abc import Mapping
from pathlib import Path

import pytest

from naiad.backends.base import ModelSource
from naiad.backends.settings import read_boolean_setting, read_integer_setting
from naiad.errors import InvalidArgumentError
from naiad.model_config.schema import ModelConfig


def make_source(settings: Mapping[str, str]) -> ModelSource:
    return ModelSource("m", 1, ModelConfig(backend="onnxruntime"), Path(), settings)


@pytest.mark.parametrize(
    ("settings", "value"), [({}, 4), ({"threads": "0"}, 0), ({"threads": "12"}, 12)]
)
def test_a_number(settings: Mapping[str, str], value: int) -> None:
    assert read_integer_setting(make_source(settings), "threads", default=4) == value


@pytest.mark.parametrize(
    ("settings", "value"),
    [({}, True), ({"flag": "FALSE"}, False), ({"flag": "0"}, False), ({"flag": "on"}, True)],
)
def test_a_boolean(settings: Mapping[str, str], value: bool) -> None:
    assert read_boolean_setting(make_source(settings), "flag", default=True) is value


def test_what_is_neither_is_named_with_its_backend() -> None:
    source = make_source({"threads": "0", "flag": "perhaps"})
    with pytest.raises(InvalidArgumentError) as number:
        read_integer_setting(source, "threads", default=4, minimum=1)
    assert number.value.message == (
        "--backend-config=onnxruntime,threads must be a number of at least 1, got '0'"
    )
    with pytest.raises(InvalidArgumentError) as boolean:
        read_boolean_setting(source, "flag", default=True)
    assert boolean.value.message == (
        "--backend-config=onnxruntime,flag must be true or false, got 'perhaps'"
    )
