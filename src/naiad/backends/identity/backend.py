"""The ``identity`` backend of Triton's own tests: OUTPUTn is a copy of INPUTn.

Parameters of the model config: ``execute_delay_ms`` makes each execution last at least that long;
``instance_wise_delay_multiplier`` multiplies it by itself times the number of the instance, where
that is more than 1; ``creation_delay_sec`` makes each load last at least that long. Source:
identity_backend.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from naiad.backends.base import ModelResponse, ModelSource, RequestBatch
from naiad.backends.parameters import read_integer
from naiad.errors import InvalidArgumentError, NaiadError
from naiad.inference.datatypes import BYTES
from naiad.inference.request import InferRequest
from naiad.inference.tensor import Tensor
from naiad.model_config.signature import ModelSignature, TensorSpec

_INPUT: Final = "INPUT"
_OUTPUT: Final = "OUTPUT"


class IdentityBackend:
    """Loads models that have no file."""

    def complete_config(self, source: ModelSource) -> None:
        """There is nothing to complete it from."""

    def load(self, source: ModelSource) -> "IdentityModel":
        """Pair the outputs with the inputs.

        Raises:
            InvalidArgumentError: an output has no input of its number and datatype, or a
                parameter is not a number.
        """
        creation_delay_s = read_integer(source.config, "creation_delay_sec")
        if creation_delay_s:
            threading.Event().wait(creation_delay_s)
        signature = ModelSignature.for_backend(source.config)
        sources = {
            output.name: _source_of(output, signature) for output in signature.outputs.values()
        }
        delay_ms = read_integer(source.config, "execute_delay_ms") or 0
        multiplier = read_integer(source.config, "instance_wise_delay_multiplier") or 0
        return IdentityModel(signature, sources, delay_ms, multiplier)


class IdentityModel:
    """Which input each output copies, and how long that shall take."""

    def __init__(
        self,
        signature: ModelSignature,
        sources: Mapping[str, TensorSpec],
        delay_ms: int,
        multiplier: int,
    ) -> None:
        self._signature = signature
        self._sources = sources
        self._delay_ms = delay_ms
        self._multiplier = multiplier

    def create_instance(self, index: int) -> "IdentityInstance | RaggedIdentityInstance":
        """An instance whose delay depends on its number, so that tests can tell them apart."""
        delay_ms = self._delay_ms * max(self._multiplier * index, 1)
        instance = IdentityInstance(self._signature, self._sources, delay_ms / 1000)
        if any(spec.allow_ragged_batch for spec in self._signature.inputs.values()):
            return RaggedIdentityInstance(instance)
        return instance

    def regroup(self, source: ModelSource) -> None:
        """All instances are alike."""

    def close(self) -> None:
        """Nothing is held."""


class IdentityInstance:
    """Copies.

    Attributes:
        delay_s: how long an execution lasts at least.
    """

    __slots__ = ("_never", "_signature", "_sources", "delay_s")

    def __init__(
        self, signature: ModelSignature, sources: Mapping[str, TensorSpec], delay_s: float
    ) -> None:
        self._signature = signature
        self._sources = sources
        self.delay_s = delay_s
        self._never = threading.Event()

    def execute(
        self, inputs: Mapping[str, npt.NDArray[Any]], output_names: Sequence[str]
    ) -> Sequence[Tensor]:
        """Copy the inputs that the outputs pair with, after the delay.

        An output whose optional input was left out is zero.

        Raises:
            InvalidArgumentError: no input was given at all.
        """
        self.wait()
        return self.copy(inputs, output_names)

    def wait(self) -> None:
        """Let the time of an execution pass."""
        if self.delay_s:
            self._never.wait(self.delay_s)

    def copy(
        self, inputs: Mapping[str, npt.NDArray[Any]], output_names: Sequence[str]
    ) -> list[Tensor]:
        """The outputs at once.

        Raises:
            InvalidArgumentError: no input was given at all.
        """
        if not inputs:
            raise InvalidArgumentError(
                f"model '{self._signature.name}' copies its inputs and was given none"
            )
        return [self._copy(name, inputs) for name in output_names]

    def _copy(self, output_name: str, inputs: Mapping[str, npt.NDArray[Any]]) -> Tensor:
        spec = self._sources[output_name]
        given = inputs.get(spec.name)
        if given is None:
            given = self._zeros(spec, inputs)
        # A copy, not the input itself: the answer may still be on its way to the client when
        # the buffer that the request came in takes the next one.
        return Tensor(output_name, spec.datatype, given.shape, np.array(given, order="C"))

    def _zeros(self, spec: TensorSpec, inputs: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """In the shape of the config, any length taken for 1, and with the batch of the others."""
        rows = next(iter(inputs.values())).shape[:1] if self._signature.max_batch_size else ()
        shape = rows + tuple(1 if dim == -1 else dim for dim in spec.dims)
        return np.full(shape, b"" if spec.datatype is BYTES else 0, spec.datatype.dtype)

    def close(self) -> None:
        """Nothing is held."""


class RaggedIdentityInstance:
    """Copies request by request, as Triton's does: what is joined to a vector has lost its shapes.

    Args:
        instance: does the copying.
    """

    is_ready: Final = True
    is_lost: Final = False
    failure: Final = ""

    __slots__ = ("_instance",)

    def __init__(self, instance: IdentityInstance) -> None:
        self._instance = instance

    def watch(self, on_change: Callable[[], None]) -> None:
        """Nothing changes."""

    def execute_requests(self, batch: RequestBatch) -> None:
        """Copy after one delay for all of them."""
        self._instance.wait()
        answers = []
        for request in batch.requests:
            arrays = {name: tensor.data for name, tensor in batch.inputs(request).items()}
            try:
                response = ModelResponse(self._instance.copy(arrays, batch.wanted(request)))
            except NaiadError as error:
                response = ModelResponse(error=error.detached())
            answers.append((request, response))
        batch.finish(answers)

    def cancel(self, request: InferRequest) -> None:
        """The copy that nobody waits for any more costs little."""

    def close(self) -> None:
        """Nothing is held."""


def _source_of(output: TensorSpec, signature: ModelSignature) -> TensorSpec:
    name = _INPUT + output.name.removeprefix(_OUTPUT)
    source = signature.inputs.get(name)
    if source is None or not output.name.startswith(_OUTPUT):
        raise InvalidArgumentError(
            f"model '{signature.name}': the identity backend answers OUTPUT<n> with INPUT<n>; "
            f"output '{output.name}' has no such input"
        )
    if source.datatype is not output.datatype:
        raise InvalidArgumentError(
            f"model '{signature.name}': output '{output.name}' must have the datatype of "
            f"'{name}', {source.datatype.config_name}, got {output.datatype.config_name}"
        )
    return source
