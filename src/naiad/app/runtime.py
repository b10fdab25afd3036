"""What runs an application's model in its process: the class that the Python backend looks for."""

import importlib
import inspect
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from naiad.app.definition import PARAMETERS, ServedModel
from naiad.app.repository import load_models

_Array = npt.NDArray[Any]


def make_model(path: str, name: str) -> type:
    """The class ``TritonPythonModel`` of one model of an application file."""
    # The backend's own process has it under this name, and no other does.
    pb_utils = importlib.import_module("triton_python_backend_utils")
    sys.path.insert(0, str(Path(path).parent))
    served = load_models(Path(path))[name]

    class TritonPythonModel:
        """Calls what was decorated."""

        def initialize(self, _arguments: Mapping[str, str]) -> None:
            """Make the class's object, where it is a class."""
            made = served.target() if inspect.isclass(served.target) else served.target
            self._runner = _Runner(served, made, pb_utils)

        def execute(self, requests: Sequence[Any]) -> list[Any] | None:
            """Answer a batch of requests."""
            if served.is_streaming:
                for request in requests:
                    self._runner.stream(request)
                return None
            if served.max_batch_size:
                return self._runner.run_joined(requests)
            return [self._runner.run_one(request) for request in requests]

    return TritonPythonModel


class _Runner:
    """One object of a model, and its calls."""

    def __init__(self, served: ServedModel, target: Any, pb_utils: Any) -> None:
        self._served = served
        self._target = target
        self._pb_utils = pb_utils

    def run_one(self, request: Any) -> Any:
        """The response to a request that is a call of its own."""
        return self._respond(self._outputs(self._target(**self._arguments(request))))

    def run_joined(self, requests: Sequence[Any]) -> list[Any]:
        """The responses to requests that share a call."""
        given = [self._arguments(request) for request in requests]
        joined = given[0]
        if len(given) > 1:
            joined = {key: np.concatenate([part[key] for part in given]) for key in joined}
        rows = [len(next(iter(part.values()))) for part in given]
        outputs = self._outputs(self._target(**joined))
        for name, array in outputs.items():
            if array.shape[:1] != (sum(rows),):
                raise ValueError(
                    f"output '{name}' has shape {array.shape} for {sum(rows)} rows of input"
                )
        ends = np.cumsum(rows)[:-1]
        pieces = {name: np.split(array, ends) for name, array in outputs.items()}
        return [
            self._respond({name: parts[index] for name, parts in pieces.items()})
            for index in range(len(requests))
        ]

    def stream(self, request: Any) -> None:
        """Send what the function yields, until it ends or the client goes."""
        sender = request.get_response_sender()
        answers: Iterator[Any] = self._target(**self._arguments(request))
        for answer in answers:
            if sender.is_cancelled():
                break
            sender.send(self._respond(self._outputs(answer)))
        sender.send(flags=self._pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def _arguments(self, request: Any) -> dict[str, Any]:
        arguments = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        if self._served.takes_parameters:
            arguments[PARAMETERS] = json.loads(request.parameters())
        return arguments

    def _outputs(self, answer: Any) -> dict[str, _Array]:
        """What was returned, by name and in the declared datatypes."""
        outputs = self._served.outputs
        if not isinstance(answer, dict):
            values = answer if isinstance(answer, tuple) else (answer,)
            if len(values) != len(outputs):
                raise ValueError(f"{len(values)} outputs were returned, {len(outputs)} declared")
            answer = {output.name: value for output, value in zip(outputs, values, strict=True)}
        missing = [output.name for output in outputs if output.name not in answer]
        if missing:
            raise ValueError(f"output '{missing[0]}' was declared and not returned")
        return {
            output.name: np.asarray(answer[output.name], output.datatype.dtype)
            for output in outputs
        }

    def _respond(self, outputs: Mapping[str, _Array]) -> Any:
        pb_utils = self._pb_utils
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor(name, np.atleast_1d(array)) for name, array in outputs.items()]
        )
