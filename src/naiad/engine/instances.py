"""Running batches: one thread per model instance, one hand-over per batch in each direction.

The event loop owns the queue and the statistics; a thread owns a backend instance. What passes
between them is an `Execution`: the loop fills it and gives it away, the thread fills the rest and
gives it back. Neither touches it while the other has it, so nothing is locked.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt

from naiad.backends.base import Instance
from naiad.clock import Clock
from naiad.engine.ragged_tensors import Pieces, RaggedTensors, Shapes
from naiad.engine.reshape import Reshaper
from naiad.engine.sequence_tensors import SequenceTensors
from naiad.errors import InternalError, NaiadError
from naiad.inference.datatypes import BF16, BOOL
from naiad.inference.request import InferRequest
from naiad.inference.sequence import SequenceRow
from naiad.inference.tensor import SharedTensor, Tensor
from naiad.scheduling.batch import join_rows, make_blank
from naiad.scheduling.scheduler import Batch


class Execution:
    """One batch on its way through an instance.

    Attributes:
        batch: as the scheduler gave it.
        requests: whose rows it holds, in order.
        output_names: what any of them asked for; each once.
        outputs: one per output name, batched; empty with an error.
        pieces: of a model with ragged batches, the outputs cut apart; None for others.
        error: why the batch failed.
        retries: of a batch that failed, its requests each by itself; empty where they share its
            fate.
        is_finished: the loop has it back.
        start_ns, input_end_ns, output_start_ns, end_ns: when the thread took it, had its inputs
            joined, had the model's outputs, and gave it back.
    """

    __slots__ = (
        "batch",
        "end_ns",
        "error",
        "input_end_ns",
        "is_finished",
        "output_names",
        "output_start_ns",
        "outputs",
        "pieces",
        "requests",
        "retries",
        "start_ns",
    )

    def __init__(self, batch: Batch, output_names: Sequence[str]) -> None:
        self.batch = batch
        self.requests = batch.requests
        self.output_names = output_names
        self.outputs: Sequence[Tensor] = ()
        self.pieces: Pieces | None = None
        self.error: NaiadError | None = None
        self.retries: Sequence[Execution] = ()
        self.is_finished = False
        self.start_ns = 0
        self.input_end_ns = 0
        self.output_start_ns = 0
        self.end_ns = 0


@dataclass(frozen=True, slots=True)
class TensorAdapters:
    """What stands between the tensors of requests and those of a backend.

    Attributes:
        reshaper: between the shapes of the config and those of the backend.
        sequence: of a sequence model.
        ragged: of a model with ragged batches; reshapes too.
        is_retried_singly: the requests of a batch that failed run again, each by itself.
    """

    reshaper: Reshaper
    sequence: SequenceTensors | None = None
    ragged: RaggedTensors | None = None
    is_retried_singly: bool = False


class InstanceThread:
    """A backend instance and the thread that alone uses it.

    Args:
        name: of the thread, for debuggers and logs.
        instance: what runs; closed by the thread when it ends.
        adapters: between the requests and the backend.
        clock: time stamps of the statistics.
        on_done: called by the thread with this object and each execution it finished.

    Attributes:
        instance: that runs.
    """

    def __init__(
        self,
        name: str,
        instance: Instance,
        adapters: TensorAdapters,
        clock: Clock,
        on_done: Callable[["InstanceThread", Execution], None],
    ) -> None:
        self.instance = instance
        self._sequence_tensors = adapters.sequence
        self._ragged = adapters.ragged
        self._reshaper = adapters.reshaper
        self._is_retried_singly = adapters.is_retried_singly
        self._clock = clock
        self._on_done = on_done
        self._inbox: SimpleQueue[Execution | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def hand_over(self, execution: Execution) -> None:
        """Let the thread execute a batch; called on the loop, once the last one came back."""
        self._inbox.put(execution)

    def close(self) -> None:
        """Let the thread close its instance and end; returns when it has. Blocks."""
        self._inbox.put(None)
        self._thread.join()

    def _run(self) -> None:
        get = self._inbox.get
        while (execution := get()) is not None:
            self._execute(execution)
            if execution.error is not None and self._is_retried_singly:
                self._retry(execution, execution.error)
            self._on_done(self, execution)
            del execution
        self.instance.close()

    def _retry(self, execution: Execution, error: NaiadError) -> None:
        """Find out which of the requests the batch failed for; the others get their answers."""
        if len(execution.requests) == 1:
            return
        retries = []
        for request in execution.requests:
            single = Execution(Batch([request], execution.batch.closed_by), execution.output_names)
            if request.is_cancelled:
                single.error = error
            else:
                self._execute(single)
            retries.append(single)
        execution.retries = retries

    def _execute(self, execution: Execution) -> None:
        now_ns = self._clock.now_ns
        execution.start_ns = execution.input_end_ns = now_ns()
        try:
            inputs, shapes = self._gather(execution)
            names = execution.output_names
            if self._sequence_tensors is not None:
                names = self._sequence_tensors.output_names(names)
            execution.input_end_ns = now_ns()
            outputs = self.instance.execute(inputs, names)
            execution.output_start_ns = now_ns()
            self._keep(execution, outputs, shapes)
        except NaiadError as error:
            execution.error = error.detached()
        except Exception as error:  # noqa: BLE001 - a backend's own exception must not end the thread
            execution.error = InternalError(f"{type(error).__name__}: {error}")
        execution.end_ns = now_ns()

    def _gather(self, execution: Execution) -> tuple[dict[str, npt.NDArray[Any]], Shapes | None]:
        """What the model gets, and of ragged batches what tells the requests apart again."""
        rows = execution.batch.rows
        shapes: Shapes | None = None
        if self._ragged is not None:
            inputs, shapes = self._ragged.join(_list_inputs(execution))
        else:
            inputs = _join_inputs(execution.requests) if rows is None else _join_rows(rows)
            if self._reshaper:
                inputs = self._reshaper.to_backend(inputs)
        if rows is not None and self._sequence_tensors is not None:
            self._sequence_tensors.add_inputs(inputs, rows)
        return inputs, shapes

    def _keep(self, execution: Execution, outputs: Sequence[Tensor], shapes: Shapes | None) -> None:
        """Take what the model gave."""
        rows = execution.batch.rows
        if rows is not None and self._sequence_tensors is not None:
            self._sequence_tensors.keep_states(outputs, rows)
            outputs = outputs[: len(execution.output_names)]
        if self._ragged is not None and shapes is not None:
            execution.pieces = _split_ragged(execution, self._ragged, outputs, shapes)
        else:
            execution.outputs = self._reshaper.to_client(outputs) if self._reshaper else outputs


def _join_inputs(requests: Sequence[InferRequest]) -> dict[str, npt.NDArray[Any]]:
    first = requests[0].inputs
    if len(requests) == 1:
        return {
            name: tensor.data if type(tensor) is Tensor else _secure(tensor)
            for name, tensor in first.items()
        }
    return {
        name: join_rows([_secure(request.inputs[name]) for request in requests]) for name in first
    }


def _join_rows(rows: Sequence[SequenceRow]) -> dict[str, npt.NDArray[Any]]:
    """The inputs of a sequence model's rows; those that only keep a place are blank."""
    requests = [row.request for row in rows if row.request is not None]
    if len(requests) == len(rows):
        return _join_inputs(requests)
    inputs = _list_row_inputs(rows, requests[0])
    return {name: join_rows([row[name] for row in inputs]) for name in requests[0].inputs}


def _list_row_inputs(
    rows: Sequence[SequenceRow], example: InferRequest
) -> list[dict[str, npt.NDArray[Any]]]:
    """The inputs of each row; one without a request is blank, in the shapes of the example's."""
    blank = {name: make_blank(tensor.data) for name, tensor in example.inputs.items()}
    return [blank if row.request is None else _list_tensors(row.request) for row in rows]


def _list_inputs(execution: Execution) -> list[dict[str, npt.NDArray[Any]]]:
    """The inputs of each request, or of each row of a sequence model, not joined."""
    rows = execution.batch.rows
    if rows is None:
        return [_list_tensors(request) for request in execution.requests]
    return _list_row_inputs(rows, execution.requests[0])


def _list_tensors(request: InferRequest) -> dict[str, npt.NDArray[Any]]:
    return {name: _secure(tensor) for name, tensor in request.inputs.items()}


def _split_ragged(
    execution: Execution, ragged: RaggedTensors, outputs: Sequence[Tensor], shapes: Shapes
) -> Pieces:
    """One piece of each output for each request; rows that only kept a place go."""
    rows = execution.batch.rows
    if rows is None:
        return ragged.split(outputs, [request.batch_size for request in execution.requests], shapes)
    pieces = ragged.split(outputs, [1] * len(rows), shapes)
    return [
        (
            name,
            datatype,
            [a for a, row in zip(arrays, rows, strict=True) if row.request is not None],
        )
        for name, datatype, arrays in pieces
    ]


def _secure(tensor: Tensor) -> npt.NDArray[Any]:
    """The data of an input, such that no client can make the backend read outside of its memory.

    Integers and booleans may be indices, which backends check before they use them, so they are
    copied out of shared memory. Copied here and not when the request was decoded: the instances
    bound how many copies there are, and the event loop is not held up.
    """
    data = tensor.data
    if type(tensor) is not SharedTensor or data.dtype.kind == "f" or tensor.datatype is BF16:
        return data
    if tensor.datatype is BOOL:
        # A byte that has become 2 since it was checked is no bool that numpy may hold.
        return np.not_equal(data.view(np.uint8), 0)
    return data.copy()
