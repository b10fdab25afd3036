"""Loads models written in Python."""

import json
import logging
from pathlib import Path

import orjson

from naiad.backends.base import ModelServices, ModelSource, NoServices
from naiad.backends.python.environment import Environments
from naiad.backends.python.in_process import InProcessInstance
from naiad.backends.python.instance import InstanceSetup, PythonInstance
from naiad.backends.python.model_process import ModelProcess, ProcessOptions
from naiad.backends.python.options import PythonOptions, read_options
from naiad.backends.python.stub.naiad_stub import wire
from naiad.backends.python.stub.naiad_stub.channel import Frame
from naiad.errors import InternalError, InvalidArgumentError
from naiad.model_config.instances import InstancePlace, list_instances
from naiad.model_config.json_format import config_to_json, parse_config_json
from naiad.model_config.schema import ModelConfig, ModelInstanceGroup

_log = logging.getLogger(__name__)

# In names of models; Triton's IsValidIdentifier.
_FORBIDDEN = frozenset(";|&$`<>()[]{}\\\"'*?~#!")
_COMPLETED = ("input", "output", "dynamic_batching", "model_transaction_policy")
_KINDS = {
    ModelInstanceGroup.KIND_GPU: "GPU",
    ModelInstanceGroup.KIND_MODEL: "MODEL",
}


class PythonBackend:
    """Runs every instance of a model in a process of its own."""

    def __init__(self) -> None:
        self._environments = Environments()

    def complete_config(self, source: ModelSource) -> None:
        """Let the model's ``auto_complete_config`` complete it, in a process that ends then.

        Raises:
            NaiadError: it failed, or speaks against the config.
        """
        options = read_options(source)
        path = _model_file(source)
        name = f"{source.name}_autocomplete"
        place = InstancePlace(name, ModelInstanceGroup.KIND_CPU, None)
        arguments = _arguments(source, place, path)
        process = ModelProcess(
            ProcessOptions(
                name,
                self._environments.find(options.environment),
                options.region_bytes,
                options.start_timeout_s,
            ),
            _Silent(),
        )
        try:
            text = process.ask(
                wire.COMPLETE_CONFIG, json.dumps(arguments), options.initialize_timeout_s
            )
        finally:
            process.kill("it has completed the config")
        _apply(source.config, text, is_completed=text != arguments["model_config"])

    def load(self, source: ModelSource) -> "PythonModel":
        """See that there is a model file; it is imported by the instances.

        Raises:
            NaiadError: there is none, or its environment can't be used.
        """
        options = read_options(source)
        return PythonModel(source, _model_file(source), options, self._environments)


class PythonModel:
    """A model file and how to run it."""

    def __init__(
        self, source: ModelSource, path: Path, options: PythonOptions, environments: Environments
    ) -> None:
        self._source = source
        self._path = path
        self._options = options
        self._environment = environments.find(options.environment)
        self._services: ModelServices = source.services or NoServices()

    def create_instance(self, index: int) -> PythonInstance | InProcessInstance:
        """Start the model, in a process of its own if its config does not say otherwise.

        Raises:
            InternalError: the process or the model did not start.
        """
        source = self._source
        place = list_instances(source.config)[index]
        arguments = _arguments(source, place, self._path)
        if self._options.is_in_process:
            return InProcessInstance(arguments, source.version, self._services)
        return PythonInstance(
            InstanceSetup(
                place.name,
                source.name,
                source.version,
                arguments,
                self._environment,
                self._options,
                self._services,
            )
        )

    def close(self) -> None:
        """Nothing is held."""


class _Silent:
    """Hears nothing: the process of a completion speaks only when it is asked."""

    def on_frame(self, process: ModelProcess, frame: Frame) -> None:
        """Something that there is no answer to at this time."""
        process.kill("auto_complete_config can't ask the server")

    def on_end(self, process: ModelProcess) -> None:
        """It was expected."""


def _model_file(source: ModelSource) -> Path:
    if not _FORBIDDEN.isdisjoint(source.name):
        raise InvalidArgumentError(
            "Invalid stub name: contains invalid characters; models of the Python backend have "
            "names of letters, digits, '-', '_' and '.'"
        )
    path = source.version_directory / (source.config.default_model_filename or "model.py")
    if not path.is_file():
        raise InternalError(f"Python model file not found in '{path}'")
    return path


def _arguments(source: ModelSource, place: InstancePlace, path: Path) -> dict[str, str]:
    """What ``initialize`` gets, and what the process needs to find the model."""
    config = source.config
    return {
        "model_config": orjson.dumps(config_to_json(config)).decode(),
        "model_instance_kind": _KINDS.get(place.kind, "CPU"),
        "model_instance_name": place.name,
        "model_instance_device_id": str(place.gpu or 0),
        "model_repository": str(source.version_directory.parent),
        "model_version": str(source.version),
        "model_name": source.name,
        "model_directory": str(source.version_directory),
        "model_file": str(path),
        "is_decoupled": str(int(config.model_transaction_policy.decoupled)),
    }


def _apply(config: ModelConfig, text: str, *, is_completed: bool) -> None:
    """Take what a model may complete into its config."""
    if not is_completed:
        return
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
