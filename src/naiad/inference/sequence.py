"""What belongs to a sequence of requests while it runs: its state, and its row in a batch."""

from typing import TYPE_CHECKING, Any

from naiad.inference.request import InferRequest

if TYPE_CHECKING:
    import numpy.typing as npt


class SequenceState:
    """The implicit state of one sequence, between two of its requests.

    One execution at a time has it: the instance's thread reads and replaces the tensors, and the
    event loop looks at it only when no execution has it.

    Attributes:
        tensors: by name of the model's input, each with a batch axis of 1 where the model has
            one; None before the first execution, when the initial state counts.
        key: sequences whose states have the same dims have equal keys; None for the initial ones.
    """

    __slots__ = ("key", "tensors")

    def __init__(self) -> None:
        self.tensors: dict[str, npt.NDArray[Any]] | None = None
        self.key: object = None


class SequenceRow:
    """One row of an execution of a sequence model.

    Attributes:
        request: whose row it is; None for a row that only keeps the place of a slot.
        state: of the sequence; None in a row without a request.
    """

    __slots__ = ("request", "state")

    def __init__(self, request: InferRequest | None, state: SequenceState | None) -> None:
        self.request = request
        self.state = state
