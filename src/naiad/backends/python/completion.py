"""Completing a model's config in a process that ends then."""

import json
from collections.abc import Mapping
from typing import Final

from naiad.backends.base import ModelSource
from naiad.backends.python.environment import Environment
from naiad.backends.python.model_process import ModelProcess, ProcessOptions
from naiad.backends.python.options import PythonOptions
from naiad.backends.python.stub.naiad_stub import wire
from naiad.backends.python.stub.naiad_stub.channel import Frame
from naiad.errors import InvalidArgumentError
from naiad.model_config.instances import InstancePlace
from naiad.model_config.json_format import parse_config_json
from naiad.model_config.schema import ModelConfig, ModelInstanceGroup

_COMPLETED: Final = ("input", "output", "dynamic_batching", "model_transaction_policy")


def completion_place(source: ModelSource) -> InstancePlace:
    """What the process is, beside the instances that follow it."""
    return InstancePlace(f"{source.name}_autocomplete", ModelInstanceGroup.KIND_CPU, None)


def complete_in_process(
    config: ModelConfig,
    arguments: Mapping[str, str],
    options: PythonOptions,
    environment: Environment,
) -> None:
    """Start a process, let it complete a config, and end it.

    Args:
        config: is completed.
        arguments: of the start.
        options: how the process runs.
        environment: whose interpreter runs it.

    Raises:
        NaiadError: it failed, or speaks against the config.
    """
    process = ModelProcess(
        ProcessOptions(
            arguments["model_instance_name"],
            environment,
            options.region_bytes,
            options.start_timeout_s,
        ),
        _Silent(),
    )
    try:
        text = process.ask(
            wire.COMPLETE_CONFIG, json.dumps(dict(arguments)), options.initialize_timeout_s
        )
    finally:
        process.kill("it has completed the config")
    if text != arguments["model_config"]:
        _apply(config, text)


class _Silent:
    """Hears nothing: the process of a completion speaks only when it is asked."""

    def on_frame(self, process: ModelProcess, frame: Frame) -> None:
        """Something that there is no answer to at this time."""
        process.kill("auto_complete_config can't ask the server")

    def on_end(self, process: ModelProcess) -> None:
        """It was expected."""


def _apply(config: ModelConfig, text: str) -> None:
    """Take what a model may complete into its config."""
    try:
        completed = parse_config_json(text)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(
            f"auto_complete_config of model '{config.name}' returned what is no model config: "
            f"{error.message}"
        ) from error
    config.max_batch_size = completed.max_batch_size
    for field in _COMPLETED:
        config.ClearField(field)
    partial = ModelConfig(
        input=completed.input,
        output=completed.output,
    )
    if completed.HasField("dynamic_batching"):
        partial.dynamic_batching.CopyFrom(completed.dynamic_batching)
    if completed.HasField("model_transaction_policy"):
        partial.model_transaction_policy.CopyFrom(completed.model_transaction_policy)
    config.MergeFrom(partial)
