"""The engine: everything that a front end may ask for, whatever protocol it speaks."""

import asyncio
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from naiad.backends.custom_metrics import CustomMetrics
from naiad.clock import Clock
from naiad.engine.lifecycle import Lifecycle, LoadOptions
from naiad.engine.loader import Loader, Override
from naiad.engine.log_settings import LogSettings
from naiad.engine.model import Model
from naiad.engine.model_entries import ModelEntry, VersionEntry
from naiad.engine.response_cache import ResponseCache, ResponseStore
from naiad.engine.shared_memory import SharedMemoryRegions
from naiad.engine.trace import TraceSettings
from naiad.engine.validation import validate_request
from naiad.errors import InvalidArgumentError, NaiadError, NotFoundError, UnavailableError
from naiad.inference.request import InferRequest
from naiad.inference.states import ModelState
from naiad.model_config.schema import ModelConfig
from naiad.model_config.signature import TensorSpec
from naiad.protocol.log_settings import LogSettingValues
from naiad.protocol.trace_setting import TraceSettingValues
from naiad.repository.model_id import ModelId
from naiad.scheduling.rate_limiter import RateLimiter, ResourceLimit

_log = logging.getLogger(__name__)

LATEST = -1
# Names of the extensions that this server speaks, in Triton's order and spelling.
EXTENSIONS = (
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)


class ModelControlMode(StrEnum):
    """Who decides what is loaded: the repository at start, at all times, or clients."""

    NONE = "none"
    POLL = "poll"
    EXPLICIT = "explicit"


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How the engine behaves.

    Attributes:
        server_id: the name in the server metadata.
        server_version: the version there.
        control_mode: whether clients may load and unload.
        startup_models: with explicit control, what is loaded at start; ``*`` alone for all.
        poll_interval_s: with polling, between two looks at the repositories; 0 for no more looks.
        loads: how loads are done.
        is_readiness_strict: ready only while every model is.
        is_client_shared_memory_allowed: whether clients may register shared memory.
        trace: what is traced at first.
        response_cache_bytes: for responses of models that ask for it; 0 for no cache.
        response_store: in place of a cache of this process.
        resource_limits: of the rate limiter; None for no rate limiter.
    """

    server_id: str
    server_version: str
    control_mode: ModelControlMode = ModelControlMode.NONE
    startup_models: tuple[str, ...] = ()
    poll_interval_s: float = 15
    loads: LoadOptions = field(default_factory=LoadOptions)
    is_readiness_strict: bool = True
    is_client_shared_memory_allowed: bool = False
    trace: TraceSettingValues = field(default_factory=TraceSettingValues)
    response_cache_bytes: int = 0
    response_store: ResponseStore | None = None
    resource_limits: tuple[ResourceLimit, ...] | None = None


@dataclass(frozen=True, slots=True)
class TensorMetadata:
    """An input or output as clients see it; ``shape`` includes the batch axis as -1."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """The answer to a model metadata request."""

    name: str
    versions: tuple[str, ...]
    platform: str
    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One line of the repository index; only a name where the model was never loaded.

    Attributes:
        name: of the model.
        version: empty where no version of it is known.
        state: of the version.
        cause: why it doesn't serve.
        reason: the cause, and what to change where that is known.
        lacks_versions: the config is right, and its version policy finds nothing to load.
    """

    name: str
    version: str = ""
    state: ModelState | None = None
    cause: str = ""
    reason: str = ""
    lacks_versions: bool = False


class Engine:
    """Models by name, and requests on their way to them. Lives on one event loop.

    Args:
        options: how it behaves.
        loader: makes models.
        clock: of everything that it measures.
        log_settings: what clients see and change of the log; of no effect where there is none.

    Attributes:
        shared_memory: regions that clients registered.
        custom_metrics: those that models define.
        cache_statistics: of the response cache; None where the options want none.
        traces: which requests are traced; a front end samples them and finishes their traces.
        log_settings: how the server logs.

    Raises:
        InvalidArgumentError: the options ask for traces that can't be written.
    """

    def __init__(
        self,
        options: EngineOptions,
        loader: Loader,
        clock: Clock,
        log_settings: LogSettings | None = None,
    ) -> None:
        self._options = options
        self.custom_metrics = CustomMetrics()
        size = options.response_cache_bytes
        cache = options.response_store or (ResponseCache(size) if size else None)
        self.cache_statistics = None if cache is None else cache.statistics
        limits = options.resource_limits
        limiter = None if limits is None else RateLimiter(limits)
        self._lifecycle = Lifecycle(loader, clock, options.loads, self, cache, limiter)
        self._clock = clock
        self._is_started = False
        self._is_draining = False
        self._is_stopping = False
        self._polling: asyncio.Task[None] | None = None
        self.server_id = options.server_id
        self.server_version = options.server_version
        self.extensions = EXTENSIONS
        self.shared_memory = SharedMemoryRegions(
            is_client_use_allowed=options.is_client_shared_memory_allowed
        )
        self.traces = TraceSettings(options.trace, self.is_model_ready)
        self.log_settings = log_settings or LogSettings(LogSettingValues(), lambda _values: None)

    async def start(self) -> dict[str, NaiadError]:
        """Load the models of the start; returns those that failed, with the reason.

        Raises:
            NaiadError: a repository is not there, or the options make no sense together. The
                engine answers what it is asked, and never gets live.
        """
        await asyncio.to_thread(self._lifecycle.check_repositories)
        failures = await self._load_startup_models()
        self._is_started = True
        if self._options.control_mode is ModelControlMode.POLL and self._options.poll_interval_s:
            self._polling = asyncio.create_task(self._poll())
        return {str(model): failure for model, failure in failures.items()}

    def announce_stop(self) -> None:
        """Be unready from now on, so that no traffic is sent here; what comes is served."""
        self._is_draining = True

    async def stop(self) -> None:
        """Take no more requests, finish the accepted ones, unload everything, write the traces."""
        self._is_stopping = True
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.wait([self._polling])
        await self._lifecycle.unload_all()
        await self.traces.close()

    def now_ns(self) -> int:
        """Monotonic time on the clock that statistics are kept by."""
        return self._clock.now_ns()

    def is_live(self) -> bool:
        """Whether the server can answer requests at all."""
        return self._is_started and not self._is_stopping

    def is_ready(self) -> bool:
        """Whether traffic should be sent here."""
        if not self.is_live() or self._is_draining:
            return False
        if not self._options.is_readiness_strict:
            return True
        return all(entry.is_ready() for entry in self._lifecycle.entries.values())

    def is_model_ready(self, name: str, version: int = LATEST) -> bool:
        """Whether this version, or any when none is named, serves."""
        try:
            model = self.find(name, version)
        except NaiadError:
            return False
        return not model.executor.problem()

    def find(self, name: str, version: int = LATEST, namespace: str = "") -> Model:
        """The version that a request for ``name`` and ``version`` goes to.

        Args:
            name: of the model.
            version: of it.
            namespace: of its repository, for a step of an ensemble under model namespacing.

        Raises:
            InvalidArgumentError: several repositories have a model of that name.
            NotFoundError: no such model or version, or none of its versions serves.
            UnavailableError: the version is known and does not serve now.
        """
        entry = self._lifecycle.find(name, namespace)
        if entry is None or not entry.has_config:
            raise NotFoundError(
                f"Request for unknown model: '{name}' is not found{_why_not(entry)}"
            )
        if version == LATEST:
            if entry.latest is None:
                raise NotFoundError(
                    f"Request for unknown model: '{name}' has no available versions"
                    f"{_why_not(entry)}"
                )
            return entry.latest
        known = entry.versions.get(version)
        if known is None:
            raise NotFoundError(
                f"Request for unknown model: '{name}' version {version} is not found"
            )
        if known.state is not ModelState.READY or known.model is None:
            raise UnavailableError(
                f"Request for unknown model: '{name}' version {version} is not at ready state"
                f"{_why_not(entry)}"
            )
        return known.model

    def infer(self, model: Model, request: InferRequest) -> None:
        """Check a request and queue it; its callback is called later, on the loop.

        Raises:
            NaiadError: the request is refused, and its callback will not be called.
        """
        validate_request(model.signature, request)
        model.executor.submit(request)

    def cancel(self, model: Model, request: InferRequest) -> None:
        """The caller went away; the request's callback is not called any more."""
        model.executor.cancel(request)

    def next_trace_id(self) -> int:
        """An id for the trace of a request that another one causes."""
        return self.traces.next_trace_id()

    def model_metadata(self, name: str, version: int = LATEST) -> ModelMetadata:
        """Names, datatypes and shapes of a model's inputs and outputs."""
        model = self.find(name, version)
        versions = (version,) if version != LATEST else self._ready_versions(name)
        signature = model.signature
        batch = (-1,) if signature.max_batch_size > 0 else ()
        return ModelMetadata(
            name=model.name,
            versions=tuple(map(str, versions)),
            platform=model.config.platform or model.config.backend,
            inputs=tuple(_metadata(spec, batch) for spec in signature.inputs.values()),
            outputs=tuple(_metadata(spec, batch) for spec in signature.outputs.values()),
        )

    def _ready_versions(self, name: str) -> tuple[int, ...]:
        entry = self._lifecycle.find(name)
        return () if entry is None else tuple(m.version for m in entry.ready_models())

    def serving(self) -> Iterator[tuple[str, Model]]:
        """The models that serve, each after the namespace of its repository, which may be empty."""
        for key, entry in sorted(self._lifecycle.entries.items()):
            for model in entry.ready_models():
                yield key.namespace, model

    def model_config(self, name: str, version: int = LATEST) -> ModelConfig:
        """The config in force, complete."""
        return self.find(name, version).config

    def statistics(self, name: str = "", version: int = LATEST) -> list[Model]:
        """The models whose ``statistics`` were asked for; all that serve when none is named.

        Raises:
            InvalidArgumentError: the model or version named does not serve.
        """
        if not name:
            return [model for _, model in self.serving()]
        entry = self._lifecycle.find(name)
        models = list(entry.ready_models()) if entry is not None else []
        if not models:
            raise InvalidArgumentError(f"requested model '{name}' is not available")
        if version == LATEST:
            return models
        models = [model for model in models if model.version == version]
        if not models:
            raise InvalidArgumentError(
                f"requested model version is not available for model '{name}'"
            )
        return models

    async def index(self, *, ready_only: bool) -> list[IndexEntry]:
        """Every model of the repositories and every version that was ever loaded."""
        problems = await asyncio.to_thread(self._lifecycle.repository_models)
        entries = self._lifecycle.entries
        lines = []
        for model in sorted(problems.keys() | entries.keys()):
            entry = entries.get(model)
            problem = problems.get(model)
            if problem and (entry is None or entry.latest is None):
                lines.append(IndexEntry(model.name, "", ModelState.UNAVAILABLE, problem, problem))
            elif entry is None:
                lines.append(IndexEntry(model.name))
            else:
                lines.extend(_index_lines(entry))
        if ready_only:
            return [line for line in lines if line.state is ModelState.READY]
        return lines

    async def load_model(
        self,
        name: str,
        config_json: str | None,
        files: Mapping[str, bytes | memoryview],
        *,
        caller: ModelId | None = None,
    ) -> None:
        """Load or reload a model; returns when it serves.

        Args:
            name: of the model.
            config_json: instead of its own config.
            files: instead of its own, by path.
            caller: a model whose own load waits for this one.

        Raises:
            UnavailableError: the server does not run with explicit model control.
            NaiadError: why it did not load.
        """
        self._require_explicit_control()
        await self._lifecycle.load(name, Override(config_json, files), caller)

    async def unload_model(
        self, name: str, *, unload_dependents: bool, caller: ModelId | None = None
    ) -> None:
        """Stop serving a model; accepted requests still finish after this returns.

        Args:
            name: of the model.
            unload_dependents: of an ensemble, also the models of its steps that were loaded for
                its sake and that no other ensemble calls.
            caller: a model whose own load waits for this.

        Raises:
            UnavailableError: the server does not run with explicit model control.
        """
        self._require_explicit_control()
        await self._lifecycle.unload(name, with_steps=unload_dependents, caller=caller)

    def _require_explicit_control(self) -> None:
        if self._options.control_mode is not ModelControlMode.EXPLICIT:
            raise UnavailableError(
                "explicit model load / unload is not allowed if polling is enabled. Start the "
                "server with --model-control-mode=explicit to allow it"
            )

    async def poll(self) -> None:
        """Look at the repositories once and follow what changed; never raises."""
        try:
            await self._lifecycle.poll()
        except Exception:  # noqa: BLE001 - a disk that is away now may be back at the next look
            _log.exception("the model repositories could not be polled")

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(self._options.poll_interval_s)
            await self.poll()

    async def _load_startup_models(self) -> dict[ModelId, NaiadError]:
        wanted = self._options.startup_models
        if self._options.control_mode is ModelControlMode.EXPLICIT and "*" not in wanted:
            return await self._lifecycle.load_named(wanted)
        if self._options.control_mode is ModelControlMode.EXPLICIT and len(wanted) > 1:
            raise InvalidArgumentError(
                "Wildcard model name '*' must be the ONLY startup model if specified at all."
            )
        models = await asyncio.to_thread(self._lifecycle.repository_models)
        return await self._lifecycle.load_all(dict.fromkeys(models, Override()))


def _metadata(spec: TensorSpec, batch: tuple[int, ...]) -> TensorMetadata:
    return TensorMetadata(spec.name, spec.datatype.name, batch + spec.dims)


def _why_not(entry: ModelEntry | None) -> str:
    """What Triton leaves to its log, to be appended to its text."""
    reason = next(entry.failure_reasons(), "") if entry is not None else ""
    return f". It failed to load: {reason.strip()}" if reason else ""


def _index_lines(entry: ModelEntry) -> list[IndexEntry]:
    if not entry.versions:
        cause = next(entry.failure_reasons(), "")
        state = ModelState.UNAVAILABLE if cause else None
        advice = entry.failure.advice if cause and entry.failure is not None else ""
        reason = _join(cause, advice)
        return [
            IndexEntry(entry.id.name, "", state, cause, reason, lacks_versions=entry.has_config)
        ]
    return [
        _version_line(entry.id.name, version, known)
        for version, known in sorted(entry.versions.items())
    ]


def _version_line(name: str, version: int, known: VersionEntry) -> IndexEntry:
    problem = known.model.executor.problem() if known.model is not None else ""
    if problem:
        return IndexEntry(name, str(version), ModelState.UNAVAILABLE, problem, problem)
    reason = _join(known.reason, known.advice)
    return IndexEntry(name, str(version), known.state, known.reason, reason)


def _join(cause: str, advice: str) -> str:
    return f"{cause}\n{advice}" if advice else cause
