"""The server's side of a backend whose models run in processes of their own.

Every instance has a process, watched and started again as those of Python models are. The server
joins the rows of a batch and sends them as one request, so an instance is asked as it would be in
the server's process.
"""

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from naiad.backends.base import ModelSource, NoServices
from naiad.backends.merged_instance import MergedInstance
from naiad.backends.parameters import IN_PROCESS, read_boolean
from naiad.backends.python.completion import complete_in_process, completion_place
from naiad.backends.python.environment import Environment, Environments
from naiad.backends.python.instance import InstanceSetup, PythonInstance
from naiad.backends.python.options import PythonOptions, read_options
from naiad.backends.python.start import start_arguments
from naiad.backends.python.stub.naiad_stub.runner import HOSTED
from naiad.errors import InvalidArgumentError
from naiad.model_config.instances import InstancePlace, list_instances
from naiad.model_config.schema import ModelConfig, ModelInstanceGroup
from naiad.model_config.signature import ModelSignature

_HOSTED_MODULE: Final = "naiad.backends.child.hosted"


class ChildBackend:
    """Runs the models of one backend in processes.

    Args:
        backend_name: of the backend, which is imported in the processes only.
        in_process_only: boolean parameters of model configs that processes can't give.
    """

    def __init__(self, backend_name: str, in_process_only: Sequence[str]) -> None:
        self._backend_name = backend_name
        self._in_process_only = in_process_only
        self._environments = Environments()

    def complete_config(self, source: ModelSource) -> None:
        """Let the backend complete the config, in a process that ends then.

        Raises:
            NaiadError: as of the backend.
        """
        if source.config.input and source.config.output:
            return
        options = self._read_options(source)
        arguments = self._arguments(source, completion_place(source))
        environment = self._environments.find(options.environment)
        complete_in_process(source.config, arguments, options, environment)

    def load(self, source: ModelSource) -> "ChildModel":
        """Read how the processes run; the model is loaded by them.

        Raises:
            NaiadError: a parameter is not what it should be.
        """
        options = self._read_options(source)
        environment = self._environments.find(options.environment)
        return ChildModel(source, options, environment, self._arguments)

    def _read_options(self, source: ModelSource) -> PythonOptions:
        for key in self._in_process_only:
            if read_boolean(source.config, key):
                raise InvalidArgumentError(
                    f"model '{source.name}': parameter '{key}' needs the server's process, and "
                    "its instances run in processes of their own; remove it, or set parameter "
                    f"'{IN_PROCESS}' to 'true'"
                )
        return read_options(source)

    def _arguments(self, source: ModelSource, place: InstancePlace) -> dict[str, str]:
        return {
            **start_arguments(source, place, Path()),
            HOSTED: _HOSTED_MODULE,
            "backend": self._backend_name,
            "settings": json.dumps(dict(source.settings)),
            "thread_count": str(source.thread_count),
            "core_count": str(source.core_count),
        }


class ChildModel:
    """How to start the instances of a model."""

    def __init__(
        self,
        source: ModelSource,
        options: PythonOptions,
        environment: Environment,
        make_arguments: Callable[[ModelSource, InstancePlace], dict[str, str]],
    ) -> None:
        self._source = source
        self._options = options
        self._environment = environment
        self._make_arguments = make_arguments
        self._signature = ModelSignature.for_backend(source.config)

    @property
    def has_processes(self) -> bool:
        """See `ProcessModel`."""
        return True

    def create_instance(self, index: int) -> MergedInstance:
        """Start a process and the model in it.

        Raises:
            NaiadError: the process did not start, or as of the backend.
        """
        source = self._source
        places = list_instances(source.config)
        place = (
            places[index]
            if index < len(places)
            else InstancePlace(f"{source.name}_{index}", ModelInstanceGroup.KIND_CPU, None)
        )
        alone = dataclasses.replace(
            source.for_instance(index), config=_with_one_instance(source.config, place), cores=()
        )
        setup = InstanceSetup(
            place.name,
            source.name,
            source.version,
            self._make_arguments(alone, place),
            self._environment,
            self._options,
            source.services or NoServices(),
        )
        return MergedInstance(PythonInstance(setup), self._signature)

    def regroup(self, source: ModelSource) -> None:
        """Start the processes of this source from now on."""
        self._source = source

    def close(self) -> None:
        """Nothing is held."""


def _with_one_instance(config: ModelConfig, place: InstancePlace) -> ModelConfig:
    """The config as one process should see it, which else would look after all of them."""
    copy = ModelConfig()
    copy.CopyFrom(config)
    del copy.instance_group[:]
    gpus = [] if place.gpu is None else [place.gpu]
    copy.instance_group.add(name=place.name, kind=place.kind, count=1, gpus=gpus)
    return copy
