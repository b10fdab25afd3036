"""Requests and responses on their way through the channel."""

import json
from typing import TYPE_CHECKING, Final

from naiad.backends.base import ModelResponse, RequestBatch
from naiad.backends.python.errors import error_from_wire, error_to_wire
from naiad.backends.python.stub.naiad_stub import wire
from naiad.backends.python.tensors import tensor_from_wire, tensor_to_wire
from naiad.errors import InternalError, InvalidArgumentError, NaiadError
from naiad.inference.request import InferRequest, ParameterValue, ResponseCallback
from naiad.inference.response import InferResponse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from naiad.inference.tensor import Tensor

_SEQUENCE_START: Final = 1
_SEQUENCE_END: Final = 2


def request_to_wire(
    key: int, request: InferRequest, batch: RequestBatch, version: int
) -> wire.WireRequest:
    """A request as a model gets it.

    Args:
        key: under which it is answered.
        request: of a client.
        batch: that it is part of.
        version: of the model.
    """
    return wire.WireRequest(
        key,
        request.request_id,
        request.correlation_id,
        _SEQUENCE_START * request.sequence_start
        + _SEQUENCE_END * request.sequence_end
        + wire.IS_PACED * (request.pace is not None)
        + wire.IS_GIVEN_UP * request.is_given_up,
        request.timeout_us,
        json.dumps(request.parameters) if request.parameters else "",
        "",
        version,
        batch.wanted(request),
        [tensor_to_wire(tensor) for tensor in batch.inputs(request).values()],
    )


def request_from_wire(asked: wire.WireRequest, on_response: ResponseCallback) -> InferRequest:
    """A request that a model makes.

    Raises:
        InvalidArgumentError: an input is no tensor, or the parameters are none.
    """
    try:
        inputs = {tensor.name: tensor_from_wire(tensor) for tensor in asked.inputs}
        parameters = _parse_parameters(asked.parameters)
    except (ValueError, KeyError) as fault:
        raise InvalidArgumentError(f"the request can't be read: {fault}") from fault
    request = InferRequest(asked.request_id, inputs, asked.output_names or None, on_response)
    request.correlation_id = asked.correlation_id
    request.sequence_start = bool(asked.flags & _SEQUENCE_START)
    request.sequence_end = bool(asked.flags & _SEQUENCE_END)
    request.timeout_us = asked.timeout_us
    request.parameters = parameters
    return request


def response_to_wire(response: InferResponse) -> wire.WireResponse:
    """The answer to a request that a model made."""
    error = None if response.error is None else error_to_wire(response.error)
    return wire.WireResponse(
        [tensor_to_wire(tensor) for tensor in response.outputs],
        error,
        json.dumps(response.parameters) if response.parameters else "",
        is_empty=error is None and not response.outputs and response.is_final,
    )


def response_from_wire(response: wire.WireResponse, *, is_final: bool) -> ModelResponse:
    """A model's answer to a request of a client."""
    error: NaiadError | None = None
    outputs: Sequence[Tensor] = ()
    parameters: dict[str, ParameterValue] | None = None
    if response.error is not None:
        error = error_from_wire(response.error)
    else:
        try:
            outputs = [tensor_from_wire(tensor) for tensor in response.outputs]
            parameters = _parse_parameters(response.parameters)
        except (ValueError, KeyError) as fault:
            error = InternalError(f"the model answered with what can't be read: {fault}")
            outputs = ()
    return ModelResponse(outputs, error, parameters, is_final=is_final, is_empty=response.is_empty)


def _parse_parameters(text: str) -> dict[str, ParameterValue] | None:
    """Parameters from the process, which may say anything.

    Raises:
        ValueError: they are not what they should be.
    """
    if not text:
        return None
    try:
        given = json.loads(text)
    except RecursionError:
        raise ValueError("parameters are nested too deep") from None
    if not isinstance(given, dict) or not all(
        isinstance(value, bool | int | str) for value in given.values()
    ):
        raise ValueError("parameters must be a dict of booleans, integers and texts")
    return given or None


def with_request_id(message: str, request: InferRequest) -> str:
    """The text for one client, who finds the request's own lines in the log by its id."""
    return f"{message} [request id: {request.request_id}]" if request.request_id else message
