"""What is written down about one request that was sampled for tracing."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Flag, auto
from typing import TYPE_CHECKING, Any, Final

from naiad.inference.datatypes import BYTES, Datatype
from naiad.inference.tensor import Tensor

if TYPE_CHECKING:
    import numpy.typing as npt

# Copying a tensor of this size takes the event loop about two milliseconds.
MAX_TENSOR_BYTES: Final = 8 << 20


class TraceLevel(Flag):
    """What a trace holds; the names are the trace extension's."""

    OFF = 0
    TIMESTAMPS = auto()
    TENSORS = auto()


@dataclass(frozen=True, slots=True)
class TraceSubject:
    """Whose trace it is: the model version that runs, and the client's label of the request."""

    model_name: str
    model_version: int
    request_id: str


class TracedTensor:
    """A tensor as it was at one point of a request.

    Attributes:
        activity: where, for example ``TENSOR_QUEUE_INPUT``.
        name, datatype, shape: the tensor's.
        data: a copy; None where it has more than `MAX_TENSOR_BYTES`.
        byte_size: of the copy.
    """

    __slots__ = ("activity", "byte_size", "data", "datatype", "name", "shape")

    def __init__(self, activity: str, tensor: Tensor) -> None:
        self.activity = activity
        self.name = tensor.name
        self.datatype: Datatype = tensor.datatype
        self.shape = tuple(tensor.shape)
        self.byte_size = _byte_size(tensor)
        self.data: npt.NDArray[Any] | None = None
        if self.byte_size > MAX_TENSOR_BYTES:
            self.byte_size = 0
        else:
            # A request's tensors are views of memory that others use once it is answered.
            self.data = tensor.data.copy()


class Trace:
    """The time stamps and tensors of one request; belongs to the event loop until it is finished.

    Whoever had the request sampled finishes its trace, answered or not.

    Attributes:
        trace_id: unique in this process, from 1 on.
        level: what it holds.
        subject: whose trace it is.
        parent_id: trace of the request that this one is part of; 0 for none.
        stamps: names and monotonic nanoseconds.
        tensors: in the order of the activities.
        children: traces of the requests that this one caused.
    """

    __slots__ = (
        "_has_tensors",
        "_has_timestamps",
        "_on_finish",
        "children",
        "level",
        "parent_id",
        "stamps",
        "subject",
        "tensors",
        "trace_id",
    )

    def __init__(
        self,
        trace_id: int,
        level: TraceLevel,
        subject: TraceSubject,
        on_finish: Callable[["Trace"], None] | None,
        parent_id: int = 0,
    ) -> None:
        self.trace_id = trace_id
        self.level = level
        self.subject = subject
        self.parent_id = parent_id
        self.stamps: list[tuple[str, int]] = []
        self.tensors: list[TracedTensor] = []
        self.children: list[Trace] = []
        self._on_finish = on_finish
        # Asking a flag costs more than all else in `stamp`.
        self._has_timestamps = TraceLevel.TIMESTAMPS in level
        self._has_tensors = TraceLevel.TENSORS in level

    def stamp(self, name: str, ns: int) -> None:
        """Note when something happened, on the engine's clock, in Triton's name for it."""
        if self._has_timestamps:
            self.stamps.append((name, ns))

    def add_tensor(self, activity: str, tensor: Tensor) -> None:
        """Note the contents of a tensor; they are copied."""
        if self._has_tensors:
            self.tensors.append(TracedTensor(activity, tensor))

    def add_child(self, trace_id: int, subject: TraceSubject) -> "Trace":
        """The trace of a request that this one causes; it is written when this one is finished."""
        child = Trace(trace_id, self.level, subject, None, self.trace_id)
        self.children.append(child)
        return child

    def family(self) -> Iterator["Trace"]:
        """This trace, then its children and theirs."""
        yield self
        for child in self.children:
            yield from child.family()

    def finish(self) -> None:
        """Hand the trace over to be written, once; nothing is added to it afterwards."""
        on_finish, self._on_finish = self._on_finish, None
        if on_finish is not None:
            on_finish(self)


def _byte_size(tensor: Tensor) -> int:
    if tensor.datatype is BYTES:
        return sum(map(len, tensor.data.ravel().tolist()))
    return tensor.data.nbytes
