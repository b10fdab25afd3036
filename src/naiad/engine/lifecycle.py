"""The life of every model version: LOADING, READY, UNLOADING, UNAVAILABLE.

A load prepares the new versions completely before the first request reaches them, and swaps them
in at once: while a model reloads, its old version serves, and when the reload fails it goes on.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar, TypeVarTuple
from weakref import WeakValueDictionary

from naiad.clock import Clock
from naiad.engine.cached_executor import CachedExecutor
from naiad.engine.dependencies import (
    DependencyError,
    LoadRound,
    StepState,
    Waits,
    check_dependencies,
    choose_step,
    step_names,
    write_namespaces,
)
from naiad.engine.ensemble import EnsembleExecutor
from naiad.engine.executor import Executor
from naiad.engine.freed_memory import FreedMemory
from naiad.engine.instance_update import InstanceUpdate, ServedInstances
from naiad.engine.kept_versions import kept_versions
from naiad.engine.latencies import LatencyOptions, measure_latencies
from naiad.engine.loader import (
    AddedInstances,
    LoadedVersion,
    Loader,
    ModelPlan,
    NoVersionError,
    Override,
    Steps,
)
from naiad.engine.log_settings import IS_BLOCK
from naiad.engine.model import Model, ModelExecutor
from naiad.engine.model_entries import UNLOADED_REASON, ModelEntry, VersionEntry
from naiad.engine.model_services import EngineServices, LoadingServices, ServingModels
from naiad.engine.rate_limits import instance_claims
from naiad.engine.response_cache import RequestKeys, ResponseStore
from naiad.errors import InternalError, InvalidArgumentError, NaiadError
from naiad.inference.states import ModelState
from naiad.model_config.schema import ModelConfig
from naiad.model_config.signature import ModelSignature
from naiad.repository.layout import FolderStamp
from naiad.repository.model_id import ModelId
from naiad.scheduling.adaptive import AdaptiveBatcher
from naiad.scheduling.bounded import BoundedScheduler, QueueBudget
from naiad.scheduling.ensemble import EnsembleGraph
from naiad.scheduling.limited import LimitedScheduler
from naiad.scheduling.rate_limiter import RateLimiter

_log = logging.getLogger(__name__)

# For what a model does to end itself; a request that still runs takes longer, as a rule.
_UNLOAD_WAIT_S: Final = 0.5
# Of a failed load, in characters; a model's own error may have millions. With the advice it still
# fits into the header that gRPC carries it in.
_REASON_START_LENGTH: Final = 2048
_REASON_END_LENGTH: Final = 512
_MAX_REASON_LENGTH: Final = 3072

# Of a version: one that was loaded, or is as it was; one that serves and is to change; or why not.
_Outcome = Model | InstanceUpdate | NaiadError


_Given = TypeVarTuple("_Given")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How loads are done.

    Attributes:
        thread_count: parts of loads that may run at the same time.
        retry_count: how often a load that failed is tried again before it is given up.
        max_queue_bytes: of requests that may wait in the models that are loaded; 0 for any.
        latencies: what is measured of each model beside the sums.
    """

    thread_count: int = 4
    retry_count: int = 0
    max_queue_bytes: int = 0
    latencies: LatencyOptions = field(default_factory=LatencyOptions)


class Lifecycle:
    """Loads and unloads models, and knows the state of each version.

    Args:
        loader: reads models and makes instances.
        clock: of the statistics.
        options: how loads are done.
        models: where ensembles find the models of their steps, and models others.
        cache: for the responses of models whose config asks for that; None where there is none.
        limiter: gives the instances their turns; None where they run as soon as they can.
    """

    def __init__(
        self,
        loader: Loader,
        clock: Clock,
        options: LoadOptions,
        models: ServingModels,
        cache: ResponseStore | None = None,
        limiter: RateLimiter | None = None,
    ) -> None:
        self._limiter = limiter
        self._cache = cache
        self._queue_budget = (
            QueueBudget(options.max_queue_bytes) if options.max_queue_bytes else None
        )
        self._loader = loader
        self._options = options
        self._threads = ThreadPoolExecutor(options.thread_count, "load")
        self._freed_memory = FreedMemory(self._threads)
        self._clock = clock
        self._models = models
        self._waits = Waits()
        self._services: EngineServices | None = None
        self.entries: dict[ModelId, ModelEntry] = {}
        self._by_name: dict[str, list[ModelEntry]] = {}
        # Models that were never loaded, while somebody tries: all who do must share one lock.
        self._newcomers: WeakValueDictionary[ModelId, ModelEntry] = WeakValueDictionary()
        self._retiring: set[asyncio.Task[None]] = set()
        self._unsettled: dict[ModelId, FolderStamp] = {}

    def check_repositories(self) -> None:
        """Look whether every repository is there; reads the disk.

        Raises:
            InternalError: one is not.
        """
        self._loader.check_repositories()

    def repository_models(self) -> dict[ModelId, str]:
        """All models in the repositories, loaded or not, and what speaks against any of them.

        Reads the disk.
        """
        return self._loader.models()

    def find(self, name: str, namespace: str = "") -> ModelEntry | None:
        """What is known of a model; None where nothing is.

        Args:
            name: of the model.
            namespace: of its repository, where the caller knows it.

        Raises:
            InvalidArgumentError: the name alone stands for several models.
        """
        found = self._by_name.get(name)
        if found is None:
            return None
        if len(found) == 1 and not namespace:
            return found[0]
        if namespace:
            return self.entries.get(ModelId(name, namespace))
        wanted = [entry for entry in found if entry.is_wanted]
        if len(wanted) > 1:
            raise _ambiguity(name, [entry.id for entry in wanted])
        return wanted[0] if wanted else found[0]

    async def load(self, name: str, override: Override, caller: ModelId | None = None) -> None:
        """Bring a model to what the repository, or the override, now says.

        Returns when the new versions serve. Loading what is loaded and unchanged does nothing.
        A name that stands for several models loads all of them.

        Args:
            name: of the model.
            override: of its files and config.
            caller: a model whose own load waits for this one.

        Raises:
            NaiadError: why it did not load; what served before still serves.
        """
        models = await asyncio.to_thread(self._loader.ids, name)
        if override.files and len(models) > 1:
            raise _ambiguity(name, models)
        with self._waits.of_caller(caller, models):
            failures = list((await self.load_all(dict.fromkeys(models, override))).values())
        if len(failures) > 1:
            raise InvalidArgumentError(
                "".join(_with_advice(failure).message for failure in failures)
            )
        if failures:
            raise _with_advice(failures[0])

    async def load_all(self, models: Mapping[ModelId, Override]) -> dict[ModelId, NaiadError]:
        """Load several models side by side, each after the steps that it needs.

        Returns:
            Those that did not load, with the reason.
        """
        loads = LoadRound(self._load)
        failures = await loads.load(models)
        for model in models:
            if model in self.entries:
                self.entries[model].is_explicit = True
        await self._follow(loads.changed)
        return failures

    async def load_named(self, names: Iterable[str]) -> dict[ModelId, NaiadError]:
        """The same for names, each of which may stand for several models."""
        found = await asyncio.to_thread(lambda: [self._loader.ids(name) for name in names])
        return await self.load_all({model: Override() for models in found for model in models})

    async def _load(self, model: ModelId, override: Override, loads: LoadRound) -> None:
        entry = self.entries.get(model) or self._newcomers.get(model)
        if entry is None:
            entry = self._newcomers[model] = ModelEntry(model)
        async with entry.lock:
            stamp = await asyncio.to_thread(self._loader.stamp, model)
            if await self._is_in_force(entry, override, stamp):
                entry.failure = None
                # A step may have changed although its ensemble has not.
                await self._load_steps(entry, loads)
                return
            if stamp is not None:
                self._register(entry)
            entry.stamp = stamp
            entry.is_wanted, entry.is_resting = True, False
            try:
                plan = await asyncio.to_thread(self._loader.plan, model, override)
            except Exception as error:  # a disk can fail in any way
                entry.failure = _as_naiad_error(error)
                entry.has_config |= isinstance(error, NoVersionError)
                _log.error("failed to load '%s': %s", model, entry.failure.reason())
                _log_advice(entry.failure.advice)
                raise entry.failure from error
            # A model that consists of overriding files alone is in no repository.
            self._register(entry)
            plan.stamp = stamp
            plan.steps = entry.steps = await self._find_steps(model, plan.config)
            if entry.steps:
                await self._prepare_ensemble(entry, plan, loads)
            entry.has_config = True
            updates = await self._load_plan(entry, plan)
            loads.changed.add(model)
        # Without the lock: what a model still has to do must not keep it from being unloaded.
        for update in updates:
            await update.settle()

    def _register(self, entry: ModelEntry) -> None:
        if self.entries.get(entry.id) is not entry:
            self.entries[entry.id] = entry
            self._by_name.setdefault(entry.id.name, []).append(entry)

    async def _is_in_force(
        self, entry: ModelEntry, override: Override, stamp: FolderStamp | None
    ) -> bool:
        """Whether a load would bring what already serves."""
        plan = entry.plan
        return (
            plan is not None
            and not entry.has_problem()
            and _is_unchanged(plan, override, stamp)
            and plan.steps == await self._find_steps(entry.id, plan.config)
        )

    async def unload(
        self, name: str, *, with_steps: bool = False, caller: ModelId | None = None
    ) -> None:
        """Stop giving a model requests, and let the accepted ones finish.

        Ensembles that call the model stop, too, until it is back. Returns when all of them are
        gone, so that the server is ready again, as it does in Triton; but not much later than at
        once where they have much left to do.

        Args:
            name: of the model.
            with_steps: of an ensemble, also the models that were loaded for its sake alone.
            caller: a model whose own load waits for this.

        Raises:
            InvalidArgumentError: this would wait for the caller.
        """
        others = set(self._retiring)
        entries = list(self._by_name.get(name, ()))
        with self._waits.of_caller(caller, [entry.id for entry in entries]):
            for entry in entries:
                await self._unload_one(entry, with_steps=with_steps, caller=caller)
        retiring = self._retiring - others
        if retiring:
            await asyncio.wait(retiring, timeout=_UNLOAD_WAIT_S)

    async def _unload_one(
        self, entry: ModelEntry, *, with_steps: bool, caller: ModelId | None = None
    ) -> None:
        # Ensembles that are loading on it come first, or their loads would fail for no fault.
        for waiting in self._waits.callers(entry.id) - {caller}:
            async with self.entries[waiting].lock:
                continue
        await self._unload(entry)
        await self._follow({entry.id})
        if with_steps:
            for step in entry.steps.values():
                known = None if step is None else self.entries.get(step)
                if known is None or known.is_explicit or self._is_called(known.id):
                    continue
                await self._unload_one(known, with_steps=True)

    async def _unload(self, entry: ModelEntry) -> None:
        async with entry.lock:
            entry.plan = entry.suspended = None
            entry.is_wanted = entry.is_explicit = False
            self._retire(entry, list(entry.versions))

    async def poll(self) -> None:
        """Bring every model to what the repositories now hold.

        A folder that changed is loaded once it is the same for two polls in a row, so that one
        that is still being copied is left alone.
        """
        stamps = await asyncio.to_thread(self._loader.stamps)
        changed = [
            model
            for model, stamp in stamps.items()
            if model not in self.entries or self.entries[model].stamp != stamp
        ]
        settled = {model for model in changed if self._unsettled.get(model) == stamps[model]}
        self._unsettled = {model: stamps[model] for model in changed if model not in settled}
        for model in self.entries.keys() - stamps.keys():
            await self._unload_one(self.entries[model], with_steps=False)
            self.entries[model].stamp = None
        # Failures are in the log and in the index; nobody waits for them here.
        await self.load_all(dict.fromkeys(settled, Override()))
        # What could not load for want of a step may be able to now.
        names = {model.name for model in settled}
        waiting = [
            entry.id
            for entry in self.entries.values()
            if entry.plan is None and entry.is_wanted and not names.isdisjoint(entry.steps)
        ]
        await self.load_all({m: Override() for m in waiting if m in stamps and m not in changed})

    async def unload_all(self) -> None:
        """Unload every model and wait until nothing runs any more."""
        for entry in list(self.entries.values()):
            await self._unload(entry)
        while self._retiring:
            await asyncio.gather(*self._retiring)
        self._threads.shutdown(wait=False)

    async def _find_steps(self, ensemble: ModelId, config: ModelConfig) -> Steps:
        """Which models the steps of an ensemble are; empty for other models."""
        names = step_names(config)
        if not names:
            return {}
        found = await asyncio.to_thread(lambda: {n: self._loader.ids(n) for n in names})
        return {
            name: choose_step(ensemble, [model for model in models if not self._is_held(model)])
            for name, models in found.items()
        }

    def _is_held(self, model: ModelId) -> bool:
        """Whether the model's folder may be half a copy, and nothing of it was loaded before."""
        return model in self._unsettled and model not in self.entries

    async def _prepare_ensemble(self, entry: ModelEntry, plan: ModelPlan, loads: LoadRound) -> None:
        """Load the steps of an ensemble and see whether it can run on them.

        Raises:
            InvalidArgumentError: it can't.
        """
        try:
            failures = await self._load_steps(entry, loads)
            self._check_steps(plan, failures)
        except DependencyError as error:
            await self._in_thread(self._loader.advise, plan, error)
            entry.failure = error
            _log.error("failed to load '%s': %s", entry.id, error.reason())
            _log_advice(error.advice)
            # The line end is Triton's, whose text has a line for each failure.
            text = f"load failed for model '{entry.id}': {error.message}\n"
            failure = InvalidArgumentError(text)
            failure.advice = error.advice
            raise failure from error

    async def _load_steps(self, entry: ModelEntry, loads: LoadRound) -> dict[ModelId, NaiadError]:
        """Load what an ensemble calls. Its lock is held, and `Waits` sees to it that this ends."""
        steps = [model for model in entry.steps.values() if model is not None]
        if not steps:
            return {}
        self._waits.begin(entry.id, steps)
        try:
            return await loads.load(
                {model: Override() for model in steps if not self._must_stay(model)}
            )
        finally:
            self._waits.end(entry.id, steps)

    def _must_stay(self, model: ModelId) -> bool:
        """Whether a load for an ensemble's sake would do harm.

        The model's folder may be half a copy, or a client brought its files, which a load from the
        disk would undo.
        """
        if model in self._unsettled:
            return True
        entry = self.entries.get(model)
        return entry is not None and entry.plan is not None and bool(entry.plan.override.files)

    def _check_steps(self, plan: ModelPlan, failures: Mapping[ModelId, NaiadError]) -> None:
        check_dependencies(
            plan.config,
            {name: self._step_state(model, failures) for name, model in plan.steps.items()},
        )
        write_namespaces(plan.config, plan.steps)

    def _step_state(
        self, model: ModelId | None, failures: Mapping[ModelId, NaiadError]
    ) -> StepState:
        entry = None if model is None else self.entries.get(model)
        if entry is None:
            return StepState(model)
        failure = entry.failure or failures.get(entry.id)
        return StepState(
            model,
            entry.has_config or isinstance(failure, DependencyError),
            {known.version: known.config for known in entry.ready_models()},
            failure,
        )

    def _is_called(self, model: ModelId) -> bool:
        """Whether an ensemble that serves, or would, calls the model."""
        plans = (entry.plan or entry.suspended for entry in self.entries.values())
        return any(plan is not None and model in plan.steps.values() for plan in plans)

    def _callers(self, names: set[str]) -> list[ModelEntry]:
        """The ensembles that serve, or would, and call a model of one of these names."""
        found = []
        for entry in self.entries.values():
            plan = entry.plan or entry.suspended
            if plan is not None and not names.isdisjoint(plan.steps):
                found.append(entry)
        return found

    async def _follow(self, changed: Iterable[ModelId]) -> None:
        """Let the ensembles that call these models follow the change, and theirs after them."""
        changed = set(changed)
        callers = [
            entry
            for entry in self._callers({model.name for model in changed})
            if entry.id not in changed
        ]
        followed = [entry.id for entry in callers if await self._reload_ensemble(entry, changed)]
        if followed:
            await self._follow(followed)

    def _is_unloaded(self, step: ModelId | None) -> bool:
        entry = None if step is None else self.entries.get(step)
        return entry is not None and (entry.is_resting or not entry.is_wanted)

    async def _reload_ensemble(self, entry: ModelEntry, changed: set[ModelId]) -> bool:
        """Build an ensemble anew over its steps; False where the change is none of its own."""
        async with entry.lock:
            plan = entry.plan or entry.suspended
            if plan is None:
                return False
            steps = await self._find_steps(entry.id, plan.config)
            if steps != plan.steps:
                # What serves until the swap keeps its own config.
                config = ModelConfig()
                config.CopyFrom(plan.config)
                plan = replace(plan, config=config, steps=steps)
                entry.steps = steps
            elif changed.isdisjoint(steps.values()):
                return False
            try:
                self._check_steps(plan, {})
                await self._load_plan(entry, plan)
            except NaiadError as error:
                _log.warning("ensemble '%s' stops: %s", entry.id, error.message)
                entry.failure = error
                entry.plan, entry.suspended = None, plan
                entry.is_resting = any(self._is_unloaded(step) for step in steps.values())
                self._retire(entry, list(entry.versions))
            else:
                entry.suspended, entry.is_resting = None, False
            return True

    async def _load_plan(self, entry: ModelEntry, plan: ModelPlan) -> list[InstanceUpdate]:
        """Load what the plan says.

        Returns:
            The changes of versions that were not loaded anew, which may not be over yet.
        """
        for version in plan.versions:
            known = entry.versions.setdefault(version, VersionEntry())
            if known.state is not ModelState.READY:
                known.become(ModelState.LOADING)
            _log.info("loading: %s:%d", entry.id, version)
        results = await self._load_versions(entry, plan)
        self._freed_memory.give_back()
        failures = {v: r for v, r in results.items() if isinstance(r, NaiadError)}
        models = [r for r in results.values() if isinstance(r, Model)]
        updates = [r for r in results.values() if isinstance(r, InstanceUpdate)]
        if failures:
            # All or none, as in Triton: a model never serves half of what its policy asks for.
            for update in updates:
                update.discard()
            for model in models:
                if not entry.has(model):
                    await model.retire()
            raise self._note_failures(entry, plan, failures)
        self._swap(entry, plan, models + [update.model for update in updates])
        for update in updates:
            update.commit()
        entry.failure = None
        _log.info("successfully loaded '%s'", entry.id)
        return updates

    async def _load_versions(self, entry: ModelEntry, plan: ModelPlan) -> dict[int, _Outcome]:
        results: dict[int, _Outcome] = {}
        for _ in range(self._options.retry_count + 1):
            missing = [v for v in plan.versions if isinstance(results.get(v), NaiadError | None)]
            results |= await self._try_versions(entry, plan, missing)
        return results

    async def _try_versions(
        self, entry: ModelEntry, plan: ModelPlan, versions: Sequence[int]
    ) -> dict[int, _Outcome]:
        if not versions:
            return {}
        try:
            await self._in_thread(self._loader.complete, plan)
        except Exception as error:  # noqa: BLE001 - third-party backends raise what they like
            return dict.fromkeys(versions, _as_naiad_error(error))
        kept = _kept_versions(entry, plan)
        if self._services is None:
            self._services = EngineServices(self._models)
        services = LoadingServices(self._services, entry.id)
        results = await asyncio.gather(
            *(self._bring(plan, version, kept.get(version), services) for version in versions),
            return_exceptions=True,
        )
        services.is_loading = False
        return {
            version: _as_naiad_error(result) if isinstance(result, BaseException) else result
            for version, result in zip(versions, results, strict=True)
        }

    async def _bring(
        self, plan: ModelPlan, version: int, serving: Model | None, services: LoadingServices
    ) -> Model | InstanceUpdate:
        """One version as the plan wants it; what serves is changed, where that is enough."""
        instances = None if serving is None else serving.instances
        if serving is None or instances is None or not instances.can_become(plan.config):
            return await self._load_version(plan, version, services)
        update = InstanceUpdate(serving, instances, plan.config)
        if not update.is_needed:
            return serving

        def make(indexes: Sequence[int]) -> Awaitable[AddedInstances]:
            return self._in_thread(
                self._loader.load_instances, plan, version, instances.loaded, indexes, services
            )

        await update.prepare(make)
        return update

    async def _load_version(
        self, plan: ModelPlan, version: int, services: LoadingServices
    ) -> Model:
        """One version, warmed up and in nobody's reach yet."""
        if plan.config.HasField("ensemble_scheduling"):
            return await self._make_ensemble(plan, version)
        item = await self._in_thread(self._loader.load, plan, version, services)
        batcher = item.scheduler
        self._limit(plan, item)
        model = self._make_model(plan, item)
        if isinstance(batcher, AdaptiveBatcher):
            model.statistics.tuning = batcher.tuning
        try:
            if isinstance(item.scheduler, LimitedScheduler):
                item.scheduler.begin(_find_executor(model.executor).look_again)
            await model.executor.warm_up(item.warmup)
        except BaseException:
            await model.retire()
            raise
        return model

    async def _in_thread(self, work: Callable[[*_Given], _Result], *given: *_Given) -> _Result:
        """Do a part of a load beside the loop, in one of the threads that loads may take."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *given)

    def _note_failures(
        self, entry: ModelEntry, plan: ModelPlan, failures: dict[int, NaiadError]
    ) -> InvalidArgumentError:
        text = f"load failed for model '{entry.id}': "
        # Of what serves, instances should have changed; a load would have been another version.
        changed = _kept_versions(entry, plan)
        for version in plan.versions:
            error = failures.get(version)
            known = entry.versions[version]
            if error is not None:
                reason = error.reason()
                _log.error("failed to load '%s' version %d: %s", entry.id, version, reason)
                state = ModelState.READY if version in changed else ModelState.UNAVAILABLE
                text += f"version {version} is at {state} state: {reason};\n"
                if known.state is not ModelState.READY:
                    known.become(ModelState.UNAVAILABLE, reason, error.advice)
            elif known.state is not ModelState.READY:
                known.become(ModelState.UNAVAILABLE, UNLOADED_REASON)
        _log.info("failed to load '%s'", entry.id)
        failure = InvalidArgumentError(text)
        advice = dict.fromkeys(error.advice for error in failures.values())
        failure.advice = "\n".join(filter(None, advice))
        _log_advice(failure.advice)
        return failure

    def _swap(self, entry: ModelEntry, plan: ModelPlan, models: Iterable[Model]) -> None:
        """Put the new versions in place of the old in one step of the loop."""
        previous = {
            version: known.model for version, known in entry.versions.items() if known.model
        }
        for loaded in models:
            known = entry.versions[loaded.version]
            known.model = loaded
            # Of a version that is kept, what else the config says of versions.
            loaded.config = plan.config
            known.become(ModelState.READY)
        for version, known in entry.versions.items():
            # It is not missing any more: nothing asks for it.
            if version not in plan.versions and known.state is ModelState.UNAVAILABLE:
                known.become(ModelState.UNAVAILABLE, UNLOADED_REASON)
        entry.plan = plan
        for version, model in previous.items():
            if version in plan.versions and not entry.has(model):
                self._start_retiring(model, None)
        self._retire(entry, [v for v in previous if v not in plan.versions])
        entry.refresh_latest()

    def _limit(self, plan: ModelPlan, item: LoadedVersion) -> None:
        """Let the model's batches wait for their turns, where there is a rate limiter."""
        claims = instance_claims(plan.config)
        if self._limiter is not None:
            limited = LimitedScheduler(item.scheduler, self._limiter, claims)
            item.scheduler = limited
        elif any(claim.claims or claim.priority > 1 for claim in claims):
            _log.warning(
                "model '%s': its rate_limiter has no effect without --rate-limit=execution_count",
                plan.config.name,
            )

    def _make_model(self, plan: ModelPlan, item: LoadedVersion) -> Model:
        scheduler = item.scheduler
        if self._queue_budget is not None:
            scheduler = BoundedScheduler(scheduler, self._queue_budget)
        executor = Executor(
            item.version,
            item.signature,
            scheduler,
            item.instances,
            self._clock,
            item.adapters,
        )
        keys = self._request_keys(item.signature, item.version, item.fingerprint)
        limited = item.scheduler if isinstance(item.scheduler, LimitedScheduler) else None
        return Model(
            plan.config,
            item.version,
            item.signature,
            item.labels,
            self._with_fronts(plan, keys, item.signature, executor),
            ServedInstances(executor, item.loaded, limited, plan.config),
        )

    def _request_keys(
        self, signature: ModelSignature, version: int, fingerprint: str = ""
    ) -> RequestKeys:
        """Keys in the response cache, such that what was loaded otherwise has others."""
        generation = 0 if self._cache is None else self._cache.generation(fingerprint)
        return RequestKeys(signature.name, version, generation, signature.outputs)

    def _with_fronts(
        self, plan: ModelPlan, keys: RequestKeys, signature: ModelSignature, executor: ModelExecutor
    ) -> ModelExecutor:
        """The executor, behind the response cache and what takes the time, where they are."""
        front = self._with_cache(plan, keys, signature, executor)
        return measure_latencies(front, plan.config, self._options.latencies, self._clock)

    def _with_cache(
        self, plan: ModelPlan, keys: RequestKeys, signature: ModelSignature, executor: ModelExecutor
    ) -> ModelExecutor:
        """The executor, behind the response cache where the config says so."""
        config = plan.config
        if not config.response_cache.enable:
            return executor
        if self._cache is None:
            _log.warning(
                "model '%s': its config enables the response cache, and this server has none; "
                "start it with --cache-config=local,size=BYTES",
                config.name,
            )
            return executor
        return CachedExecutor(
            keys,
            signature,
            executor,
            self._cache,
            self._clock,
            is_order_preserved=config.dynamic_batching.preserve_ordering,
        )

    async def _make_ensemble(self, plan: ModelPlan, version: int) -> Model:
        own = await self._in_thread(self._loader.read_labels, plan)
        executor = EnsembleExecutor(version, plan.config, self._models, self._clock)
        labels = self._step_labels(executor.graph) | own
        keys = self._request_keys(executor.signature, version)
        front = self._with_fronts(plan, keys, executor.signature, executor)
        return Model(plan.config, version, executor.signature, labels, front, None)

    def _step_labels(self, graph: EnsembleGraph) -> dict[str, list[str]]:
        """The labels that the models of the steps have for what they write."""
        labels = {}
        for step in graph.steps:
            model = self._models.find(step.model_name, step.model_version, step.model_namespace)
            for output, tensor in step.outputs.items():
                if output in model.labels:
                    labels[tensor] = model.labels[output]
        return labels

    def _retire(self, entry: ModelEntry, versions: Iterable[int]) -> None:
        for version in versions:
            known = entry.versions[version]
            if known.state is not ModelState.READY or known.model is None:
                continue
            known.become(ModelState.UNLOADING)
            self._start_retiring(known.model, known)
            known.model = None
        entry.refresh_latest()

    def _start_retiring(self, model: Model, known: VersionEntry | None) -> None:
        task = asyncio.get_running_loop().create_task(self._finish_retiring(model, known))
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    async def _finish_retiring(self, model: Model, known: VersionEntry | None) -> None:
        await model.retire()
        self._freed_memory.give_back()
        if known is not None and known.state is ModelState.UNLOADING:
            known.become(ModelState.UNAVAILABLE, UNLOADED_REASON)
        _log.info("successfully unloaded '%s' version %d", model.name, model.version)


def _kept_versions(entry: ModelEntry, plan: ModelPlan) -> dict[int, Model]:
    """The versions that serve and need no load for what the plan wants."""
    serving = {model.version: model for model in entry.ready_models()}
    return kept_versions(serving, entry.plan, plan)


def _is_unchanged(plan: ModelPlan, override: Override, stamp: FolderStamp | None) -> bool:
    """Whether the files and what is put in their place are those that serve.

    A plain load leaves an overriding config in force while the files are the same, and takes
    overriding files away (both measured on Triton).
    """
    if stamp is None or stamp != plan.stamp:
        return False
    if override == Override():
        return not plan.override.files
    return override == plan.override


def _ambiguity(name: str, models: Sequence[ModelId]) -> InvalidArgumentError:
    places = ", ".join(f"'{model.namespace}'" for model in models)
    return InvalidArgumentError(
        f"There are {len(models)} identifiers of model '{name}' in global map, model namespace "
        f"must be provided to resolve ambiguity. Its repositories are {places}"
    )


def _with_advice(error: NaiadError) -> NaiadError:
    """The error for whoever asked for the load, and so may change the model."""
    if not error.advice:
        return error
    return type(error)(f"{error.message.rstrip()}\n{error.advice}\n")


def _log_advice(advice: str) -> None:
    if advice:
        _log.error("%s", advice, extra={IS_BLOCK: True})


def _find_executor(executor: ModelExecutor) -> Executor:
    """That of the instances, behind the cache if there is one."""
    if isinstance(executor, CachedExecutor):
        executor = executor.executor
    if not isinstance(executor, Executor):
        raise InternalError("only models with instances take turns")
    return executor


def _as_naiad_error(error: BaseException) -> NaiadError:
    """Why a model did not load, short enough to be kept, listed in the index and told again."""
    found = error if isinstance(error, NaiadError) else InternalError(_describe(error))
    if len(found.message) > _MAX_REASON_LENGTH:
        # What it is about comes first, and what went wrong last in many a text.
        left = len(found.message) - _REASON_START_LENGTH - _REASON_END_LENGTH
        found.message = (
            f"{found.message[:_REASON_START_LENGTH]} ... {left} characters are left out ... "
            f"{found.message[-_REASON_END_LENGTH:]}"
        )
    return found


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
