"""Instances that see requests, for callers that have whole batches."""

import queue
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy.typing as npt

from naiad.backends.base import Answer, Instance, ModelResponse, RequestInstance
from naiad.errors import InternalError, NaiadError, UnsupportedError
from naiad.inference.request import InferRequest
from naiad.inference.response import InferResponse
from naiad.inference.tensor import Tensor
from naiad.model_config.signature import ModelSignature


def merge_requests(instance: Instance | RequestInstance, signature: ModelSignature) -> Instance:
    """The instance itself, or one that makes a single request of every batch."""
    if isinstance(instance, RequestInstance):
        return MergedInstance(instance, signature)
    return instance


class MergedInstance:
    """Gives an instance one request at a time, and takes the first of its responses.

    Args:
        instance: closed with this.
        signature: of the model; it says what the arrays are.
    """

    def __init__(self, instance: RequestInstance, signature: ModelSignature) -> None:
        self._instance = instance
        self._signature = signature

    @property
    def is_ready(self) -> bool:
        """See `WatchedInstance`."""
        return self._instance.is_ready

    @property
    def is_lost(self) -> bool:
        """See `WatchedInstance`."""
        return self._instance.is_lost

    @property
    def failure(self) -> str:
        """See `WatchedInstance`."""
        return self._instance.failure

    def watch(self, on_change: Callable[[], None]) -> None:
        """See `WatchedInstance`."""
        self._instance.watch(on_change)

    def execute(
        self, inputs: Mapping[str, npt.NDArray[Any]], output_names: Sequence[str]
    ) -> Sequence[Tensor]:
        """Run the model on one batch; see `Instance`.

        Raises:
            NaiadError: the model failed, or an output is missing.
        """
        tensors = {
            name: Tensor(name, self._signature.inputs[name].datatype, array.shape, array)
            for name, array in inputs.items()
            if name in self._signature.inputs
        }
        batch = _OneRequest(InferRequest("", tensors, output_names, _ignore))
        self._instance.execute_requests(batch)
        outputs = {tensor.name: tensor for tensor in batch.wait()}
        missing = [name for name in output_names if name not in outputs]
        if missing:
            raise InternalError(f"the model did not answer with output '{missing[0]}'")
        return [outputs[name] for name in output_names]

    def close(self) -> None:
        """Free what the instance holds."""
        self._instance.close()


class _OneRequest:
    """A `RequestBatch` that somebody waits for."""

    def __init__(self, request: InferRequest) -> None:
        self.requests = [request]
        self._responses: queue.SimpleQueue[ModelResponse] = queue.SimpleQueue()

    def inputs(self, request: InferRequest) -> Mapping[str, Tensor]:
        return request.inputs

    def wanted(self, request: InferRequest) -> Sequence[str]:
        return request.output_names or ()

    def respond(self, _request: InferRequest, response: ModelResponse) -> None:
        self._responses.put(response)

    def finish(
        self, answers: Sequence[Answer] = (), rescheduled: Sequence[InferRequest] = ()
    ) -> None:
        for _, response in answers:
            self._responses.put(response)
        if rescheduled:
            error = UnsupportedError(
                "the model reschedules its request, which the scheduler of a server does; verify "
                "it while it is served"
            )
            self._responses.put(ModelResponse(error=error))

    def wait(self) -> Sequence[Tensor]:
        """The first response's outputs, once the last response is there."""
        outputs: Sequence[Tensor] = ()
        error: NaiadError | None = None
        is_final = False
        while not is_final:
            response = self._responses.get()
            is_final = response.is_final
            outputs = outputs or response.outputs
            error = error or response.error
        if error is not None:
            raise error
        return outputs


def _ignore(response: InferResponse) -> None:
    """The batch hears of responses, and nobody else."""
