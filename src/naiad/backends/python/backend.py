"""Loads models written in Python."""

from pathlib import Path

from naiad.backends.base import ModelServices, ModelSource, NoServices
from naiad.backends.python.completion import complete_in_process, completion_place
from naiad.backends.python.environment import Environments
from naiad.backends.python.in_process import InProcessInstance
from naiad.backends.python.instance import InstanceSetup, PythonInstance
from naiad.backends.python.options import PythonOptions, read_options
from naiad.backends.python.start import start_arguments
from naiad.errors import InternalError, InvalidArgumentError
from naiad.model_config.instances import list_instances

# In names of models; Triton's IsValidIdentifier.
_FORBIDDEN = frozenset(";|&$`<>()[]{}\\\"'*?~#!")


class PythonBackend:
    """Runs every instance of a model in a process of its own.

    Args:
        shared_file: the ``model.py`` of all models, where the backend is one written in Python;
            None where each model has its own.
    """

    def __init__(self, shared_file: Path | None = None) -> None:
        self._shared_file = shared_file
        self._environments = Environments()

    def complete_config(self, source: ModelSource) -> None:
        """Let the model's ``auto_complete_config`` complete it, in a process that ends then.

        Raises:
            NaiadError: it failed, or speaks against the config.
        """
        options = read_options(source)
        arguments = start_arguments(
            source, completion_place(source), _model_file(source, self._shared_file)
        )
        complete_in_process(
            source.config, arguments, options, self._environments.find(options.environment)
        )

    def load(self, source: ModelSource) -> "PythonModel":
        """See that there is a model file; it is imported by the instances.

        Raises:
            NaiadError: there is none, or its environment can't be used.
        """
        options = read_options(source)
        return PythonModel(
            source, _model_file(source, self._shared_file), options, self._environments
        )


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

    @property
    def has_processes(self) -> bool:
        """See `ProcessModel`."""
        return not self._options.is_in_process

    def create_instance(self, index: int) -> PythonInstance | InProcessInstance:
        """Start the model, in a process of its own if its config does not say otherwise.

        Raises:
            InternalError: the process or the model did not start.
        """
        source = self._source
        place = list_instances(source.config)[index]
        arguments = start_arguments(source, place, self._path)
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

    def regroup(self, source: ModelSource) -> None:
        """Start the processes of this source from now on."""
        self._source = source

    def close(self) -> None:
        """Nothing is held."""


def _model_file(source: ModelSource, shared_file: Path | None) -> Path:
    if not _FORBIDDEN.isdisjoint(source.name):
        raise InvalidArgumentError(
            "Invalid stub name: contains invalid characters; models of the Python backend have "
            "names of letters, digits, '-', '_' and '.'"
        )
    if shared_file is not None:
        return shared_file
    path = source.version_directory / (source.config.default_model_filename or "model.py")
    if not path.is_file():
        raise InternalError(f"Python model file not found in '{path}'")
    return path
