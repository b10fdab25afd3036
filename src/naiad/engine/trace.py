"""Which requests are traced: the global trace setting, those of models, and sampling.

Sources: Triton's extension_trace.md and tracer.cc. A model without a setting of its own follows the
global one, value by value; the global one falls back to that of the start. A setting is replaced,
not changed, so that a trace ends under the setting that it began with.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from naiad.engine.trace_file import TraceWriter
from naiad.errors import InvalidArgumentError
from naiad.inference.trace import Trace, TraceLevel, TraceSubject
from naiad.protocol.trace_setting import Clear, TraceSettingUpdate, TraceSettingValues

if TYPE_CHECKING:
    from naiad.engine.instances import Execution
    from naiad.inference.request import InferRequest
    from naiad.inference.tensor import Tensor

_log = logging.getLogger(__name__)

# Finished traces are written when this many wait, or their tensors hold this many bytes.
_MAX_WAITING_TRACES: Final = 256
_MAX_WAITING_BYTES: Final = 4 << 20


class TraceSettings:
    """The trace settings in force, and the sampler of requests; belongs to the event loop.

    Args:
        values: the global setting of the start.
        is_known_model: whether a model of that name serves.

    Attributes:
        is_active: whether any request can be sampled; ask this first, it costs the least.

    Raises:
        InvalidArgumentError: ``values`` ask for traces and can't be followed.
    """

    def __init__(self, values: TraceSettingValues, is_known_model: Callable[[str], bool]) -> None:
        _check(values)
        self._default = values
        self._is_known_model = is_known_model
        self._ids = itertools.count(1)
        self._writer = TraceWriter(Path(values.trace_file)) if values.trace_file else None
        self._global = _Sampler(values, TraceSettingUpdate(), self._writer)
        self._models: dict[str, _Sampler] = {}
        # Replaced, with traces still to come.
        self._retired: list[_Sampler] = []
        self._is_dropping = False
        self.is_active = False
        self._note_activity()

    def query(self, model_name: str = "") -> TraceSettingValues:
        """What holds for a model, or for all that have no setting of their own.

        Raises:
            InvalidArgumentError: no such model serves.
        """
        self._check_model(model_name)
        return self._sampler(model_name).values

    def update(self, model_name: str, update: TraceSettingUpdate) -> TraceSettingValues:
        """Change the setting of a model, or the global one when no name is given.

        Returns:
            What holds then. What was traced under the replaced setting is written.

        Raises:
            InvalidArgumentError: no such model serves, or the result could not be followed; then
                nothing has changed.
        """
        self._check_model(model_name)
        replaced: list[_Sampler] = []
        if model_name:
            models = {model_name: self._updated(model_name, update, self._global)}
            new_global = self._global
        else:
            own = _merge(self._global.own, update)
            new_global = _Sampler(_resolve(own, self._default), own, self._writer)
            models = {
                name: self._updated(name, TraceSettingUpdate(), new_global) for name in self._models
            }
            replaced.append(self._global)
        self._global = new_global
        for name, sampler in models.items():
            if name in self._models:
                replaced.append(self._models.pop(name))
            if sampler is not None:
                self._models[name] = sampler
        for sampler in replaced:
            sampler.retire()
        self._retired = [s for s in (*self._retired, *replaced) if s.outstanding]
        self._note_activity()
        return self._sampler(model_name).values

    def sample(self, model_name: str, model_version: int, request_id: str) -> Trace | None:
        """The trace of a request that arrives now, if it is one to be traced.

        The caller gives it to the request, stamps what the engine does not see, and finishes it
        when the answer is sent or given up.
        """
        sampler = self._sampler(model_name)
        if not sampler.is_due() or self._writer is None or self._is_behind(self._writer):
            return None
        trace = sampler.take(next(self._ids), TraceSubject(model_name, model_version, request_id))
        if not sampler.is_on:
            self._note_activity()
        return trace

    def next_trace_id(self) -> int:
        """An id for `Trace.add_child`."""
        return next(self._ids)

    async def close(self) -> None:
        """Write what is finished; call it when no more requests come."""
        self.is_active = False
        for sampler in (self._global, *self._models.values(), *self._retired):
            sampler.close()
        writer, self._writer = self._writer, None
        if writer is not None:
            await asyncio.to_thread(writer.close)

    def _is_behind(self, writer: TraceWriter) -> bool:
        is_behind = writer.is_behind()
        if is_behind and not self._is_dropping:
            _log.warning(
                "requests are not traced until the trace file has caught up: more is traced than "
                "can be written; a larger trace_rate traces fewer"
            )
        self._is_dropping = is_behind
        return is_behind

    def _sampler(self, model_name: str) -> "_Sampler":
        return self._models.get(model_name, self._global)

    def _check_model(self, model_name: str) -> None:
        if model_name and not self._is_known_model(model_name):
            raise InvalidArgumentError(f"Request for unknown model : {model_name}")

    def _updated(
        self, name: str, update: TraceSettingUpdate, fallback: "_Sampler"
    ) -> "_Sampler | None":
        """A model's new sampler; None where it follows the global setting in everything."""
        known = self._models.get(name)
        own = _merge(known.own if known is not None else TraceSettingUpdate(), update)
        if own == TraceSettingUpdate():
            return None
        return _Sampler(_resolve(own, fallback.values), own, self._writer)

    def _note_activity(self) -> None:
        samplers = (self._global, *self._models.values())
        self.is_active = any(sampler.is_on for sampler in samplers)


class _Sampler:
    """One setting with its counters and its finished traces.

    Attributes:
        values: in force; ``count`` goes down with every trace.
        own: the values that were set here and not taken from the fallback.
        outstanding: traces that are taken and not finished.
        is_on: whether it takes traces.
    """

    __slots__ = (
        "_in_file",
        "_is_retired",
        "_seen",
        "_waiting",
        "_waiting_bytes",
        "_writer",
        "is_on",
        "outstanding",
        "own",
        "values",
    )

    def __init__(
        self, values: TraceSettingValues, own: TraceSettingUpdate, writer: TraceWriter | None
    ) -> None:
        self.values = values
        self.own = own
        self.outstanding = 0
        self.is_on = values.level is not TraceLevel.OFF and values.count != 0
        self._is_retired = False
        self._seen = 0
        self._writer = writer
        self._waiting: list[Trace] = []
        self._waiting_bytes = 0
        self._in_file = 0

    def is_due(self) -> bool:
        """Count a request; true for every ``rate``-th."""
        if not self.is_on:
            return False
        self._seen += 1
        return self._seen % self.values.rate == 0

    def take(self, trace_id: int, subject: TraceSubject) -> Trace:
        """A new trace, which comes back when it is finished."""
        values = self.values
        if values.count > 0:
            self.values = replace(values, count=values.count - 1)
            if self.own.count is not None:
                self.own = replace(self.own, count=values.count - 1)
            self.is_on = values.count > 1
        self.outstanding += 1
        return Trace(trace_id, values.level, subject, self._keep)

    def retire(self) -> None:
        """Write what there is, and what still comes when all of it is there."""
        self._is_retired = True
        self._flush(ends_file=True)

    def close(self) -> None:
        """Write what there is; traces that are finished later are lost."""
        self._flush(ends_file=True)
        self._writer = None

    def _keep(self, trace: Trace) -> None:
        self.outstanding -= 1
        self._waiting.append(trace)
        self._waiting_bytes += sum(
            tensor.byte_size for member in trace.family() for tensor in member.tensors
        )
        self._in_file += 1
        is_last = self.outstanding == 0 and (self._is_retired or self.values.count == 0)
        if is_last or self._in_file == self.values.log_frequency:
            self._flush(ends_file=True)
        elif len(self._waiting) >= _MAX_WAITING_TRACES or self._waiting_bytes >= _MAX_WAITING_BYTES:
            self._flush(ends_file=False)

    def _flush(self, *, ends_file: bool) -> None:
        """Give the finished traces to the writer."""
        count = self.values.count
        # As in Triton, the traces of a count that is used up go into a numbered file, and those of
        # one that isn't into the plain file, unless a part of them was written already.
        is_part = not ends_file or self._in_file > len(self._waiting)
        is_numbered = self.values.log_frequency > 0 or count == 0 or (count > 0 and is_part)
        if self._writer is not None and self._in_file:
            self._writer.write(self._waiting, is_numbered=is_numbered, ends_file=ends_file)
        self._waiting = []
        self._waiting_bytes = 0
        if ends_file:
            self._in_file = 0


def record_execution(
    trace: Trace,
    request: "InferRequest",
    execution: "Execution",
    outputs: "Sequence[Tensor]",
    now_ns: int,
) -> None:
    """Note how a request went through queue and model.

    Args:
        trace: of ``request``.
        request: about to be answered.
        execution: the batch that it was part of.
        outputs: its own; empty when it failed.
        now_ns: when its answer was ready.
    """
    trace.stamp("REQUEST_START", request.queued_ns)
    trace.stamp("QUEUE_START", request.queued_ns)
    trace.stamp("COMPUTE_START", execution.start_ns)
    trace.stamp("COMPUTE_INPUT_END", execution.input_end_ns)
    trace.stamp("COMPUTE_OUTPUT_START", execution.output_start_ns or execution.end_ns)
    trace.stamp("COMPUTE_END", execution.end_ns)
    trace.stamp("INFER_RESPONSE_COMPLETE", now_ns)
    trace.stamp("REQUEST_END", now_ns)
    if TraceLevel.TENSORS in trace.level:
        for activity in ("TENSOR_QUEUE_INPUT", "TENSOR_BACKEND_INPUT"):
            for tensor in request.inputs.values():
                trace.add_tensor(activity, tensor)
        for tensor in outputs:
            trace.add_tensor("TENSOR_BACKEND_OUTPUT", tensor)


def _merge(own: TraceSettingUpdate, update: TraceSettingUpdate) -> TraceSettingUpdate:
    changes = {
        name: None if value is Clear.CLEAR else value
        for name, value in asdict(update).items()
        if value is not None
    }
    return replace(own, **changes)


def _resolve(own: TraceSettingUpdate, fallback: TraceSettingValues) -> TraceSettingValues:
    """The values that hold.

    Raises:
        InvalidArgumentError: they ask for traces and can't be followed.
    """
    values = replace(fallback, **{n: v for n, v in asdict(own).items() if v is not None})
    _check(values)
    return values


def _check(values: TraceSettingValues) -> None:
    if values.level is TraceLevel.OFF:
        return
    reason = ""
    if values.rate == 0:
        reason = "sample rate must be non-zero"
    elif not values.trace_file:
        reason = "trace file name is not given"
    if reason:
        raise InvalidArgumentError(f"Attempting to set invalid trace setting :{reason}")
