"""What a backend is: five methods between the engine and a framework.

``complete_config`` and ``load`` of the backend, ``create_instance`` of the model that it loads,
``execute`` of an instance, and ``close`` of the last two. A backend turns a model version into
instances; an instance executes one batch at a time in a thread of its own. The engine joins the
rows of a batch before and splits them after, so an instance sees whole arrays and knows nothing of
requests.

Other packages bring backends of their own by the entry point group ``naiad.backends``; an example
is in ``examples/sklearn_backend``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy.typing as npt

from naiad.backends.custom_metrics import CustomMetrics
from naiad.errors import NaiadError, UnsupportedError
from naiad.inference.request import InferRequest, ParameterValue
from naiad.inference.response import InferResponse
from naiad.inference.tensor import Tensor

if TYPE_CHECKING:
    from naiad.model_config.schema import ModelConfig


@dataclass(frozen=True, slots=True)
class ModelSource:
    """What a backend loads.

    Attributes:
        name: of the model.
        version: its number.
        config: normalized; a backend may complete it in ``complete_config`` and not later.
        version_directory: holds the model file.
        settings: the server's ``--backend-config`` for this backend.
        thread_count: cores that one instance may use, so that all instances of the model together
            do not take more than the process has.
        core_count: cores that the process may use: its affinity, cut down by a container's quota.
            For what all instances of the model share.
        cores: of each instance, those that it is kept to by its host policy, or None; empty where
            no instance is kept to any. The engine keeps to them what ``create_instance`` starts and
            the thread that runs ``execute``, so that backends need only look at `for_instance`.
    """

    name: str
    version: int
    config: "ModelConfig"
    version_directory: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    thread_count: int = 1
    services: "ModelServices | None" = None
    core_count: int = 1
    cores: tuple[frozenset[int] | None, ...] = ()

    def cores_of(self, index: int) -> frozenset[int] | None:
        """The cores that instance number ``index`` is kept to; None where it is kept to none."""
        return self.cores[index] if index < len(self.cores) else None

    def for_instance(self, index: int) -> "ModelSource":
        """The same with the numbers of cores that hold for one instance.

        Instances that are kept to the same cores share them out.
        """
        cores = self.cores_of(index)
        if cores is None:
            return self
        count = min(len(cores), self.core_count)
        return replace(
            self, thread_count=max(1, count // self.cores.count(cores)), core_count=count
        )


class Instance(Protocol):
    """One runnable copy of a model, used by one thread at a time."""

    def execute(
        self, inputs: Mapping[str, npt.NDArray[Any]], output_names: Sequence[str]
    ) -> Sequence[Tensor]:
        """Run the model on one batch.

        Args:
            inputs: by name, with the batch axis where the model has one, of the datatypes that
                the config declares; read-only.
            output_names: which outputs to compute.

        Returns:
            One tensor per name, in that order, with the datatype that the model really gave.

        The outputs belong to the caller: an execution that follows must not write to them, and they
        live on after `close`. An output may be a view of an input, which numpy then keeps alive.

        Raises:
            NaiadError: the model failed on this batch; the message reaches the clients. Any other
                exception is answered as an internal error with its class and text.
        """
        ...

    def close(self) -> None:
        """Free what the instance holds; it is not used again."""
        ...


class ModelResponse:
    """One answer of a model to one request.

    Attributes:
        outputs: those that the request wants, with the batch axis where the model has one.
        error: why there are none.
        parameters: for the client.
        is_final: no other follows.
        is_empty: it only says that no other follows.
    """

    __slots__ = ("error", "is_empty", "is_final", "outputs", "parameters")

    def __init__(
        self,
        outputs: Sequence[Tensor] = (),
        error: NaiadError | None = None,
        parameters: dict[str, ParameterValue] | None = None,
        *,
        is_final: bool = True,
        is_empty: bool = False,
    ) -> None:
        self.outputs = outputs
        self.error = error
        self.parameters = parameters
        self.is_final = is_final
        self.is_empty = is_empty


Answer = tuple[InferRequest, ModelResponse]


class RequestBatch(Protocol):
    """Requests that an instance runs together and answers one by one."""

    @property
    def requests(self) -> Sequence[InferRequest]:
        """In order; to be read only."""
        ...

    def inputs(self, request: InferRequest) -> Mapping[str, Tensor]:
        """The inputs of one request, in the shapes that the model sees."""
        ...

    def wanted(self, request: InferRequest) -> Sequence[str]:
        """The outputs that one request wants."""
        ...

    def respond(self, request: InferRequest, response: ModelResponse) -> None:
        """Answer a request; may be called by any thread, also after `finish`.

        Nothing may follow the response of a request that is final. Where the request has a
        ``pace``, a response that is not final goes through its ``wait`` first, and the next is
        sent only when that has called back; without that, what the steps of an ensemble have no
        room for gathers in memory.
        """
        ...

    def finish(
        self, answers: "Sequence[Answer]" = (), rescheduled: Sequence[InferRequest] = ()
    ) -> None:
        """The instance can take the next batch; called once, by any thread.

        Args:
            answers: responses that were not given to `respond`; together they cost one hand-over.
            rescheduled: requests that are not done with and are to run again, in a later batch.
        """
        ...


@runtime_checkable
class WatchedInstance(Protocol):
    """An instance that can be lost, and come back, while its model serves."""

    @property
    def is_ready(self) -> bool:
        """Whether it can take a batch now, or as soon as it has finished the one that it has."""
        ...

    @property
    def is_lost(self) -> bool:
        """Whether it will never be ready again."""
        ...

    @property
    def failure(self) -> str:
        """Why it is not ready, for whoever runs the server; empty where it is.

        Not empty with ``is_ready`` means that the model says so of itself: it gets the requests
        that come, and its readiness endpoint says no.
        """
        ...

    def watch(self, on_change: Callable[[], None]) -> None:
        """Have a function called, by any thread, when one of the above changes."""
        ...


@runtime_checkable
class RequestInstance(WatchedInstance, Protocol):
    """A runnable copy of a model that sees requests as they are, unmerged."""

    def execute_requests(self, batch: RequestBatch) -> None:
        """Begin a batch; may return before it is finished. Must not raise."""
        ...

    def cancel(self, request: InferRequest) -> None:
        """Nobody waits for a request that it may have; called on the loop, and must not wait.

        Where it is only about to take the request, ``is_given_up`` says so then.
        """
        ...

    def close(self) -> None:
        """Free what the instance holds; it is not used again."""
        ...


@runtime_checkable
class PromptInstance(RequestInstance, Protocol):
    """One that need not be given every batch by a thread of its own."""

    def begin_at_once(self, batch: RequestBatch) -> bool:
        """Begin a batch on the loop, or decline where that would mean to wait or to copy much.

        Must not raise.

        Returns:
            False where nothing has been done with the batch.
        """
        ...


@dataclass(frozen=True, slots=True)
class OutgoingRequest:
    """A request that a model makes.

    Attributes:
        model_name: who is asked.
        model_version: -1 for the latest.
        request: what is asked; refusals too come to its callback, on the loop.
        takes_many: any number of responses will do.
        waiting: the instance that takes no other batch until it has the answer; None where that
            goes on.
        parent: the request on whose behalf the model asks, if it says so: its trace is this one's
            parent.
    """

    model_name: str
    model_version: int
    request: InferRequest
    takes_many: bool = False
    waiting: object = None
    parent: InferRequest | None = None


class ModelServices(Protocol):
    """What a model may ask of the server that runs it; any thread may call any of it.

    The callbacks are called on the loop, with what came out or a `NaiadError`.
    """

    @property
    def custom_metrics(self) -> CustomMetrics:
        """Metrics that models define."""
        ...

    def infer(self, outgoing: OutgoingRequest) -> None:
        """Ask a model."""
        ...

    def cancel(self, request: InferRequest) -> None:
        """The answers of `infer` are not wanted any more."""
        ...

    def load_model(
        self,
        name: str,
        config_json: str | None,
        files: Mapping[str, bytes | memoryview],
        on_done: Callable[[Any], None],
    ) -> None:
        """Load a model, or load it anew."""
        ...

    def unload_model(
        self, name: str, *, unload_dependents: bool, on_done: Callable[[Any], None]
    ) -> None:
        """Unload a model."""
        ...

    def is_model_ready(self, name: str, version: int, on_done: Callable[[Any], None]) -> None:
        """Whether a model serves."""
        ...


class NoServices:
    """For models that are loaded outside of a server: everything is refused."""

    def __init__(self) -> None:
        self.custom_metrics = CustomMetrics()

    def infer(self, outgoing: OutgoingRequest) -> None:
        """See `ModelServices`."""
        request = outgoing.request
        request.on_response(
            InferResponse(
                outgoing.model_name, outgoing.model_version, request.request_id, (), _no_server()
            )
        )

    def cancel(self, request: InferRequest) -> None:
        """See `ModelServices`."""

    def load_model(
        self,
        name: str,
        config_json: str | None,
        files: Mapping[str, bytes | memoryview],
        on_done: Callable[[Any], None],
    ) -> None:
        """See `ModelServices`."""
        on_done(_no_server())

    def unload_model(
        self,
        name: str,
        *,
        unload_dependents: bool,
        on_done: Callable[[Any], None],
    ) -> None:
        """See `ModelServices`."""
        on_done(_no_server())

    def is_model_ready(self, name: str, version: int, on_done: Callable[[Any], None]) -> None:
        """See `ModelServices`."""
        on_done(_no_server())


def _no_server() -> NaiadError:
    return UnsupportedError("the model runs outside of a server and can't ask for anything")


class LoadedModel(Protocol):
    """A model version whose files were read and whose config was found to fit."""

    def create_instance(self, index: int) -> Instance | RequestInstance:
        """Make the instance number ``index``, counted over all instance groups."""
        ...

    def close(self) -> None:
        """Free what the instances shared, after the last of them was closed."""
        ...


@runtime_checkable
class ProcessModel(Protocol):
    """A loaded model that says where its instances run."""

    @property
    def has_processes(self) -> bool:
        """Whether each instance has a process of its own, so that they can be made side by side."""
        ...


@runtime_checkable
class RegroupedModel(Protocol):
    """A loaded model that can make instances for other instance groups than it was loaded with.

    While it serves, a change of ``instance_group`` then adds and removes instances; of a model
    that is none of these, it loads the version anew.
    """

    def regroup(self, source: ModelSource) -> None:
        """Make instances as this says from now on; those that there are stay as they are.

        Args:
            source: what the model was loaded from, but for the instance groups of its config and
                the number of threads.
        """
        ...


class Backend(Protocol):
    """A framework adapter; one object per server."""

    def complete_config(self, source: ModelSource) -> None:
        """Fill what ``source.config`` leaves open from the model's own signature.

        Raises:
            NaiadError: the model file can't be read, or can't be what the config says.
        """
        ...

    def load(self, source: ModelSource) -> LoadedModel:
        """Read the model and hold it against its config.

        Called from a thread of its own; may take long.

        Raises:
            NaiadError: with the reason that the repository index will show.
        """
        ...
