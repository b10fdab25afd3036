"""What a front end asks of the engine."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from naiad.inference.tensor import Tensor

if TYPE_CHECKING:
    from naiad.inference.pace import ResponsePace
    from naiad.inference.response import InferResponse
    from naiad.inference.statistics import ComputeTimes
    from naiad.inference.trace import Trace

ParameterValue = bool | int | float | str
ResponseCallback = Callable[["InferResponse"], None]


class InferRequest:
    """One inference request, from decoding to its last response.

    A front end fills it, the engine validates and answers it. It belongs to the event loop;
    a backend's thread only reads it.

    Attributes:
        request_id: the client's label, echoed; empty when there is none.
        inputs: by name, in the order of the request.
        output_names: the outputs to compute, in that order; None for all of the model's.
        on_response: called on the event loop once per response, and for the last time with a
            response whose ``is_final`` is true. It must not raise.
        parameters: the client's own parameters; the protocol's (sequence, priority, timeout)
            are attributes.
        correlation_id: key of a sequence; 0 and "" mean none.
        sequence_start: the request is the first of its sequence.
        sequence_end: the request is the last of its sequence.
        priority: 1 is the highest; 0 takes the model's default level.
        timeout_us: in the queue; 0 takes the model's default.
        batch_size: rows; 1 where the model has no batch axis. Set by validation.
        batch_key: requests with equal keys may share a batch; None where all of the model's
            may. Set by validation.
        is_cancelled: the caller went away; whoever holds the request drops it when it can.
        is_given_up: a model that has it, or gets it, is told that nobody waits for its answer.
        received_ns: when its first byte was there, on the engine's clock.
        queued_ns: when it was handed to the scheduler.
        waiting_bytes: of its inputs, while they count against what may wait in the server.
        trace: what is written down about it; None for a request that is not traced.
        compute_times: where its share of the model's time is added up; None where nobody asks.
        pace: by which a decoupled model is held up; None where it sends as fast as it can.
    """

    __slots__ = (
        "batch_key",
        "batch_size",
        "compute_times",
        "correlation_id",
        "inputs",
        "is_cancelled",
        "is_given_up",
        "on_response",
        "output_names",
        "pace",
        "parameters",
        "priority",
        "queued_ns",
        "received_ns",
        "request_id",
        "sequence_end",
        "sequence_start",
        "timeout_us",
        "trace",
        "waiting_bytes",
    )

    def __init__(
        self,
        request_id: str,
        inputs: dict[str, Tensor],
        output_names: Sequence[str] | None,
        on_response: ResponseCallback,
        received_ns: int = 0,
    ) -> None:
        self.request_id = request_id
        self.inputs = inputs
        self.output_names = output_names
        self.on_response = on_response
        self.received_ns = received_ns
        self.parameters: dict[str, ParameterValue] | None = None
        self.correlation_id: int | str = 0
        self.sequence_start = False
        self.sequence_end = False
        self.priority = 0
        self.timeout_us = 0
        self.batch_size = 1
        self.batch_key: object = None
        self.queued_ns = 0
        self.waiting_bytes = 0
        self.is_cancelled = False
        self.is_given_up = False
        self.trace: Trace | None = None
        self.compute_times: ComputeTimes | None = None
        self.pace: ResponsePace | None = None
