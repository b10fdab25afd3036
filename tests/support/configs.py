"""Model configs for tests, from text."""

from collections.abc import Sequence

from naiad.model_config.normalize import normalize_config
from naiad.model_config.schema import ModelConfig
from naiad.model_config.text_format import parse_config


def normalized(
    text: str, *, name: str = "m", artifacts: Sequence[str] = ("model.onnx",)
) -> ModelConfig:
    """The config of model ``name`` after normalization; text may be empty."""
    config = parse_config(text, "config.pbtxt")
    normalize_config(config, directory_name=name, artifact_names=artifacts)
    return config
