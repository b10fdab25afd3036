"""What the process runs: a model file, or something that the server names in its place."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Protocol, TypeVar

from . import pb_utils
from .model_file import ModelError, ModelFile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from . import wire
    from .host import Host
    from .pb_utils import InferenceRequest, InferenceResponse

_T = TypeVar("_T")

# Of the arguments of a start: a module with a function ``make_hosted`` that takes the arguments
# and a function that logs, and gives a `Hosted`.
HOSTED = "hosted"


class Runner(Protocol):
    """See `ModelFile`, whose methods these are."""

    def load(self) -> None:
        """Make ready what the others need."""
        ...

    def complete(self, config: str) -> str:
        """Complete a config; both are JSON."""
        ...

    def initialize(self, arguments: Mapping[str, str]) -> None:
        """Make ready for requests."""
        ...

    def has_readiness(self) -> bool:
        """Whether `is_ready` is worth asking."""
        ...

    def is_ready(self) -> bool:
        """Whether requests are welcome now."""
        ...

    def execute(
        self, requests: list[InferenceRequest], *, is_decoupled: bool
    ) -> list[tuple[InferenceRequest, InferenceResponse]]:
        """Run a batch."""
        ...

    def finalize(self) -> None:
        """Clean up."""
        ...


class Hosted(Protocol):
    """What may run in place of a model file. All of it is called by the main thread."""

    def complete(self) -> str:
        """The completed config as JSON."""
        ...

    def start(self) -> None:
        """Load the model."""
        ...

    def run(
        self, inputs: Sequence[wire.WireTensor], output_names: Sequence[str]
    ) -> Sequence[wire.WireTensor]:
        """The outputs of these names, in order."""
        ...

    def stop(self) -> None:
        """Let go of the model."""
        ...

    def describe(self, error: Exception) -> wire.WireError:
        """What the server should know of an exception of the above."""
        ...


class HostedRunner:
    """Runs a `Hosted`, request by request."""

    def __init__(self, hosted: Hosted) -> None:
        self._hosted = hosted

    def load(self) -> None:
        """See `Runner`."""

    def complete(self, config: str) -> str:
        """See `Runner`."""
        return self._guard(self._hosted.complete)

    def initialize(self, arguments: Mapping[str, str]) -> None:
        """See `Runner`."""
        self._guard(self._hosted.start)

    def has_readiness(self) -> bool:
        """See `Runner`."""
        return False

    def is_ready(self) -> bool:
        """See `Runner`."""
        return True

    def execute(
        self,
        requests: list[InferenceRequest],
        *,
        is_decoupled: bool,
    ) -> list[tuple[InferenceRequest, InferenceResponse]]:
        """See `Runner`."""
        pairs = [(request, self._answer(request)) for request in requests]
        for request, response in pairs:
            pb_utils.answering_of(request).note(
                response, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
            )
        return pairs

    def finalize(self) -> None:
        """See `Runner`."""
        self._guard(self._hosted.stop)

    def _answer(self, request: InferenceRequest) -> InferenceResponse:
        try:
            outputs = self._hosted.run(
                pb_utils.inputs_to_wire(request), request.requested_output_names()
            )
        except Exception as error:  # noqa: BLE001 - the request must be answered
            described = self._hosted.describe(error)
            fault = pb_utils.TritonError(described.message, described.code)
            return pb_utils.InferenceResponse(error=fault)
        return pb_utils.response_from_outputs(outputs)

    def _guard(self, call: Callable[[], _T]) -> _T:
        try:
            return call()
        except Exception as error:
            described = self._hosted.describe(error)
            raise ModelError(described.message, code=described.code) from error


def make_runner(arguments: Mapping[str, str], host: Host) -> Runner:
    """What the arguments of a start name."""
    module = arguments.get(HOSTED)
    if module is None:
        return ModelFile(arguments["model_file"], host.model_name, host.instance_name)
    return HostedRunner(importlib.import_module(module).make_hosted(arguments, host.log))
