import pytest

from naiad.backends.parameters import read_boolean, read_integer, read_text
from naiad.errors import InvalidArgumentError
from naiad.model_config.schema import ModelConfig, ModelParameter


def config_with(value: str) -> ModelConfig:
    return ModelConfig(name="m", parameters={"key": ModelParameter(string_value=value)})


def test_what_is_absent_is_none_and_stays_absent() -> None:
    config = ModelConfig(name="m")
    assert read_text(config, "key") is None
    assert read_integer(config, "key") is None
    assert read_boolean(config, "key") is None
    assert not config.parameters


@pytest.mark.parametrize(("text", "value"), [("true", True), ("ON", True), ("0", False)])
def test_booleans(text: str, value: bool) -> None:
    assert read_boolean(config_with(text), "key") is value


@pytest.mark.parametrize("text", ["", "-1", "1.5", "two"])
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="parameter 'key' of model 'm'"):
        read_integer(config_with(text), "key")


def test_what_is_no_boolean_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="must be true or false, got 'maybe'"):
        read_boolean(config_with("maybe"), "key")
