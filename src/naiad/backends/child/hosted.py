"""What runs in the process of an instance: the backend, as it would be in the server."""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import orjson

from naiad.backends.base import Instance, LoadedModel, ModelSource
from naiad.backends.merged_instance import merge_requests
from naiad.backends.python.errors import error_to_wire
from naiad.backends.python.stub.naiad_stub.wire import WireError, WireTensor
from naiad.backends.python.tensors import tensor_from_wire, tensor_to_wire
from naiad.backends.registry import make_in_process
from naiad.errors import InternalError, NaiadError
from naiad.model_config.json_format import config_to_json, parse_config_json
from naiad.model_config.signature import ModelSignature

_log = logging.getLogger(__name__)

# By the numbers of `naiad_stub.pb_utils.LogLevel`.
_LEVELS: Final = {logging.DEBUG: 3, logging.INFO: 0, logging.WARNING: 1}
_ERROR: Final = 2


def make_hosted(arguments: Mapping[str, str], log: Callable[[int, str], None]) -> "HostedModel":
    """The model that the arguments of a start describe.

    Args:
        arguments: of the start.
        log: writes to the server's log, with a level.
    """
    logging.getLogger("naiad").addHandler(_ToServer(log))
    source = ModelSource(
        name=arguments["model_name"],
        version=int(arguments["model_version"]),
        config=parse_config_json(arguments["model_config"]),
        version_directory=Path(arguments["model_directory"]),
        settings=json.loads(arguments["settings"]),
        thread_count=int(arguments["thread_count"]),
        core_count=int(arguments["core_count"]),
    )
    return HostedModel(source, arguments["backend"])


class HostedModel:
    """One instance of a model; see `naiad_stub.runner.Hosted`."""

    def __init__(self, source: ModelSource, backend_name: str) -> None:
        self._source = source
        self._backend_name = backend_name
        self._model: LoadedModel | None = None
        self._instance: Instance | None = None

    def complete(self) -> str:
        """See `Hosted`."""
        make_in_process(self._backend_name).complete_config(self._source)
        return orjson.dumps(config_to_json(self._source.config)).decode()

    def start(self) -> None:
        """See `Hosted`."""
        self._model = make_in_process(self._backend_name).load(self._source)
        self._instance = merge_requests(
            self._model.create_instance(0), ModelSignature.for_backend(self._source.config)
        )

    def run(
        self, inputs: Sequence[WireTensor], output_names: Sequence[str]
    ) -> Sequence[WireTensor]:
        """See `Hosted`."""
        if self._instance is None:
            raise InternalError(f"model '{self._source.name}' is not loaded")
        arrays = {tensor.name: tensor_from_wire(tensor).data for tensor in inputs}
        return [tensor_to_wire(output) for output in self._instance.execute(arrays, output_names)]

    def stop(self) -> None:
        """See `Hosted`."""
        if self._instance is not None:
            self._instance.close()
        if self._model is not None:
            self._model.close()

    def describe(self, error: Exception) -> WireError:
        """See `Hosted`; in the server's process the engine says the same of it."""
        if not isinstance(error, NaiadError):
            _log.error("a backend's own exception", exc_info=error)
            error = InternalError(f"{type(error).__name__}: {error}")
        return error_to_wire(error)


class _ToServer(logging.Handler):
    """Sends what the backend logs to the server's log."""

    def __init__(self, log: Callable[[int, str], None]) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        self._log(_LEVELS.get(record.levelno, _ERROR), self.format(record))
