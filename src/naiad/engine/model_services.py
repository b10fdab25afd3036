"""What models may ask of the server: other models, the repository, metrics.

Models call from their own threads; everything happens on the loop. A model that waits for another
one that waits for it would wait for ever, so such a request is refused when it is made.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol

from naiad.backends.base import OutgoingRequest
from naiad.backends.custom_metrics import CustomMetrics
from naiad.engine.cached_executor import CachedExecutor
from naiad.engine.ensemble import ComposingModels, EnsembleExecutor
from naiad.engine.executor import Executor
from naiad.engine.latencies import TimedExecutor
from naiad.engine.model import Model
from naiad.errors import (
    CancelledError,
    InternalError,
    InvalidArgumentError,
    NaiadError,
    NotFoundError,
    UnavailableError,
)
from naiad.inference.request import InferRequest
from naiad.inference.response import InferResponse
from naiad.inference.trace import TraceSubject
from naiad.repository.model_id import ModelId

_log = logging.getLogger(__name__)

_Done = Callable[[Any], None]


class ServingModels(ComposingModels, Protocol):
    """What the services ask of the engine; see there."""

    @property
    def custom_metrics(self) -> CustomMetrics:
        """Metrics that models define."""
        ...

    def is_model_ready(self, name: str, version: int) -> bool:
        """Whether a model serves."""
        ...

    async def load_model(
        self,
        name: str,
        config_json: str | None,
        files: Mapping[str, bytes | memoryview],
        *,
        caller: ModelId | None = None,
    ) -> None:
        """Load a model."""
        ...

    async def unload_model(
        self, name: str, *, unload_dependents: bool, caller: ModelId | None = None
    ) -> None:
        """Unload a model."""
        ...


class EngineServices:
    """The services of one engine; made on its loop.

    Args:
        models: the engine.
    """

    def __init__(self, models: ServingModels) -> None:
        self._models = models
        self._loop = asyncio.get_running_loop()
        self._targets: dict[InferRequest, Model] = {}
        # Who takes no other batch until a model has answered.
        self._waiting: dict[InferRequest, object] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def custom_metrics(self) -> CustomMetrics:
        """See `ModelServices`."""
        return self._models.custom_metrics

    def infer(self, outgoing: OutgoingRequest) -> None:
        """See `ModelServices`."""
        self._call_soon(self._infer, outgoing)

    def cancel(self, request: InferRequest) -> None:
        """See `ModelServices`."""
        self._call_soon(self._cancel, request)

    def load_model(
        self,
        name: str,
        config_json: str | None,
        files: Mapping[str, bytes | memoryview],
        on_done: _Done,
        caller: ModelId | None = None,
    ) -> None:
        """See `ModelServices`; the caller is one whose own load waits."""
        work = self._models.load_model(name, config_json, files, caller=caller)
        self._call_soon(self._start, work, on_done)

    def unload_model(
        self, name: str, *, unload_dependents: bool, on_done: _Done, caller: ModelId | None = None
    ) -> None:
        """See `ModelServices`; the caller is one whose own load waits."""
        work = self._models.unload_model(name, unload_dependents=unload_dependents, caller=caller)
        self._call_soon(self._start, work, on_done)

    def is_model_ready(self, name: str, version: int, on_done: _Done) -> None:
        """See `ModelServices`."""
        self._call_soon(lambda: on_done(self._models.is_model_ready(name, version)))

    def _call_soon(self, work: Callable[..., None], *given: Any) -> None:
        self._loop.call_soon_threadsafe(work, *given)

    def _infer(self, outgoing: OutgoingRequest) -> None:
        request = outgoing.request
        answer = request.on_response

        def on_response(response: InferResponse) -> None:
            if response.is_final:
                self._forget(request)
            answer(response)

        request.on_response = on_response
        try:
            model = self._find(outgoing)
            self._targets[request] = model
            if outgoing.waiting is not None:
                self._waiting[request] = outgoing.waiting
                self._refuse_circle(model)
            if outgoing.parent is not None and outgoing.parent.trace is not None:
                request.trace = outgoing.parent.trace.add_child(
                    self._models.next_trace_id(),
                    TraceSubject(model.name, model.version, request.request_id),
                )
            self._models.infer(model, request)
        except NaiadError as error:
            on_response(
                InferResponse(
                    outgoing.model_name, outgoing.model_version, request.request_id, (), error
                )
            )

    def _find(self, outgoing: OutgoingRequest) -> Model:
        name = outgoing.model_name
        # Triton's texts: request_executor.cc.
        head = f"Model {name} - Error when running inference: "
        try:
            model = self._models.find(name, outgoing.model_version)
        except NotFoundError as error:
            raise InternalError(head + error.message) from error
        except NaiadError as error:
            raise InternalError(
                f"{head}Failed for execute the inference request. Model '{name}' is not ready."
            ) from error
        if model.signature.is_decoupled and not outgoing.takes_many:
            raise InvalidArgumentError(
                f"{head}Model {name} is using the decoupled. The current BLS request call doesn't "
                "support models using the decoupled transaction policy. Please use "
                "'decoupled=True' argument to the 'exec' or 'async_exec' calls for decoupled "
                "models.'"
            )
        return model

    def _cancel(self, request: InferRequest) -> None:
        model = self._targets.get(request)
        if model is None:
            return
        executor = _executor(model)
        if isinstance(executor, Executor) and executor.ask_to_stop(request):
            # The model may go on all the same, and then its responses count, as in Triton.
            return
        self._forget(request)
        on_response = request.on_response
        self._models.cancel(model, request)
        # Whoever waits for the answer, on another thread, must hear that none comes.
        error = CancelledError("the request was cancelled")
        on_response(InferResponse(model.name, model.version, request.request_id, (), error))

    def _forget(self, request: InferRequest) -> None:
        self._targets.pop(request, None)
        self._waiting.pop(request, None)

    def _refuse_circle(self, model: Model) -> None:
        """Refuse a request that could only be answered after itself.

        Raises:
            UnavailableError: all instances of the model wait, directly or through others, for
                the model itself.
        """
        if self._is_stuck(model, ()):
            raise UnavailableError(
                f"the request to model '{model.name}' would wait for ever: each of its instances "
                "waits for a model that waits for it. Give the model more instances, or don't "
                "let it ask for itself"
            )

    def _is_stuck(self, model: Model, above: tuple[Model, ...]) -> bool:
        if model in above:
            return True
        above = (*above, model)
        executor = _executor(model)
        if isinstance(executor, EnsembleExecutor):
            return any(self._is_stuck(step, above) for step in self._steps(executor))
        if not isinstance(executor, Executor):
            return False
        instances = executor.request_instances()
        return bool(instances) and all(
            any(
                self._is_stuck(self._targets[request], above)
                for request, waiting in self._waiting.items()
                if waiting is instance
            )
            for instance in instances
        )

    def _steps(self, executor: EnsembleExecutor) -> list[Model]:
        found = []
        for step in executor.graph.steps:
            try:
                found.append(
                    self._models.find(step.model_name, step.model_version, step.model_namespace)
                )
            except NaiadError:
                continue  # the request fails by itself
        return found

    def _start(self, work: Coroutine[Any, Any, None], on_done: _Done) -> None:
        task = self._loop.create_task(self._run(work, on_done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, work: Coroutine[Any, Any, None], on_done: _Done) -> None:
        try:
            await work
        except NaiadError as error:
            on_done(error)
        except Exception as error:  # noqa: BLE001 - the model that waits must hear of anything
            on_done(InternalError(f"{type(error).__name__}: {error}"))
        else:
            on_done(None)


class LoadingServices:
    """The services of one load: what the model asks for meanwhile must not wait for it in turn.

    Args:
        services: of the engine.
        model: that is loaded.

    Attributes:
        is_loading: whether it still is.
    """

    def __init__(self, services: EngineServices, model: ModelId) -> None:
        self._services = services
        self._model = model
        self.is_loading = True
        # The same, without a call in between.
        self.infer = services.infer
        self.cancel = services.cancel
        self.is_model_ready = services.is_model_ready

    @property
    def custom_metrics(self) -> CustomMetrics:
        """See `ModelServices`."""
        return self._services.custom_metrics

    def load_model(
        self,
        name: str,
        config_json: str | None,
        files: Mapping[str, bytes | memoryview],
        on_done: _Done,
    ) -> None:
        """See `ModelServices`."""
        self._services.load_model(name, config_json, files, on_done, self._caller())

    def unload_model(self, name: str, *, unload_dependents: bool, on_done: _Done) -> None:
        """See `ModelServices`."""
        self._services.unload_model(
            name, unload_dependents=unload_dependents, on_done=on_done, caller=self._caller()
        )

    def _caller(self) -> ModelId | None:
        return self._model if self.is_loading else None


def _executor(model: Model) -> object:
    """What runs a model, without what stands before it."""
    executor = model.executor
    while isinstance(executor, (CachedExecutor, TimedExecutor)):
        executor = executor.executor
    return executor
