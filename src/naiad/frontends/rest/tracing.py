"""What the HTTP side writes into the trace of a request: when it came and when it was answered."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from naiad.engine.trace import TraceSettings
from naiad.frontends.rest.exchange import Exchange
from naiad.frontends.serving import ServedModel
from naiad.inference.request import InferRequest
from naiad.inference.trace import Trace


def begin_trace(
    traces: TraceSettings, exchange: Exchange, model: ServedModel, request: InferRequest
) -> None:
    """Give a decoded request its trace, if it is one to be traced.

    Whoever calls this finishes ``request.trace``, by `sending` or, if nobody is to be answered,
    by itself.
    """
    trace = traces.sample(model.name, model.version, request.request_id)
    if trace is not None:
        trace.stamp("HTTP_RECV_START", exchange.started_ns)
        trace.stamp("HTTP_RECV_END", exchange.received_ns)
        request.trace = trace


@contextmanager
def sending(trace: Trace, now_ns: Callable[[], int]) -> Iterator[None]:
    """While the answer is encoded and sent; then the trace is finished."""
    trace.stamp("HTTP_SEND_START", now_ns())
    try:
        yield
    finally:
        trace.stamp("HTTP_SEND_END", now_ns())
        trace.finish()
