"""The life of every model version: LOADING, READY, UNLOADING, UNAVAILABLE.

A load prepares the new versions completely before the first request reaches them, and swaps them
in at once: while a model reloads, its old version serves, and when the reload fails it goes on.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar, TypeVarTuple

from naiad.clock import Clock
from naiad.engine.executor import Executor
from naiad.engine.loader import (
    FolderStamp,
    LoadedVersion,
    Loader,
    ModelPlan,
    NoVersionError,
    Override,
)
from naiad.engine.model import Model
from naiad.errors import InternalError, InvalidArgumentError, NaiadError
from naiad.inference.states import ModelState

_log = logging.getLogger(__name__)

UNLOADED_REASON = "unloaded"


_Given = TypeVarTuple("_Given")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How loads are done.

    Attributes:
        thread_count: parts of loads that may run at the same time.
        retry_count: how often a load that failed is tried again before it is given up.
    """

    thread_count: int = 4
    retry_count: int = 0


class VersionEntry:
    """What is known of one version; stays in the index after an unload or a failure."""

    __slots__ = ("model", "reason", "state")

    def __init__(self) -> None:
        self.state = ModelState.UNKNOWN
        self.reason = ""
        self.model: Model | None = None


class ModelEntry:
    """All versions of a model that was ever asked to load.

    Attributes:
        versions: by number, those that failed and those that were unloaded too.
        latest: the version that a request without one goes to.
        plan: what serves; None while nothing does.
        failure: why the last load got no further than the config; None since one did.
        has_config: a config could be read at least once, so there are versions to speak of.
        stamp: of the folder at the last attempt to load it, successful or not.
        is_wanted: the last thing that was asked for is a load, so what failed is missing.
    """

    __slots__ = (
        "failure",
        "has_config",
        "is_wanted",
        "latest",
        "lock",
        "name",
        "plan",
        "stamp",
        "versions",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.versions: dict[int, VersionEntry] = {}
        self.latest: Model | None = None
        self.plan: ModelPlan | None = None
        self.failure: NaiadError | None = None
        self.has_config = False
        self.stamp: FolderStamp | None = None
        self.is_wanted = True
        # Loads and unloads of one model follow each other; those of different models don't wait.
        self.lock = asyncio.Lock()

    def ready_models(self) -> Iterator[Model]:
        """The versions that serve, ascending."""
        for _, entry in sorted(self.versions.items()):
            if entry.state is ModelState.READY and entry.model is not None:
                yield entry.model

    def failure_reasons(self) -> Iterator[str]:
        """Why the model, or any version of it, is missing."""
        if not self.is_wanted:
            return
        if self.failure is not None:
            yield self.failure.reason()
        for _, known in sorted(self.versions.items()):
            if known.state is ModelState.UNAVAILABLE and known.reason != UNLOADED_REASON:
                yield known.reason

    def is_ready(self) -> bool:
        """Whether every version is where it should be: none on its way, none missing."""
        if self.is_wanted and self.failure is not None and self.latest is None:
            return False
        for known in self.versions.values():
            if known.state is ModelState.READY:
                continue
            if known.state is not ModelState.UNAVAILABLE:
                return False
            if self.is_wanted and known.reason != UNLOADED_REASON:
                return False
        return True

    def refresh_latest(self) -> None:
        """Point ``latest`` at the highest version that serves."""
        self.latest = None
        for model in self.ready_models():
            self.latest = model


class Lifecycle:
    """Loads and unloads models, and knows the state of each version."""

    def __init__(self, loader: Loader, clock: Clock, options: LoadOptions) -> None:
        self._loader = loader
        self._options = options
        self._threads = ThreadPoolExecutor(options.thread_count, "load")
        self._clock = clock
        self.entries: dict[str, ModelEntry] = {}
        self._retiring: set[asyncio.Task[None]] = set()
        self._unsettled: dict[str, FolderStamp] = {}

    def repository_names(self) -> dict[str, str]:
        """All models in the repositories, loaded or not, and what speaks against any of them.

        Reads the disk.
        """
        return self._loader.names()

    async def load(self, name: str, override: Override) -> None:
        """Bring a model to what the repository, or the override, now says.

        Returns when the new versions serve. Loading what is loaded and unchanged does nothing.

        Raises:
            NaiadError: why it did not load; what served before still serves.
        """
        entry = self.entries.get(name) or ModelEntry(name)
        async with entry.lock:
            stamp = await asyncio.to_thread(self._loader.stamp, name)
            if entry.plan is not None and _is_in_force(entry.plan, override, stamp):
                entry.failure = None
                return
            if stamp is not None:
                self.entries[name] = entry
            entry.stamp = stamp
            entry.is_wanted = True
            try:
                plan = await asyncio.to_thread(self._loader.plan, name, override)
            except Exception as error:  # a disk can fail in any way
                entry.failure = _as_naiad_error(error)
                entry.has_config |= isinstance(error, NoVersionError)
                _log.error("failed to load '%s': %s", name, entry.failure.reason())
                raise entry.failure from error
            # A model that consists of overriding files alone is in no repository.
            self.entries[name] = entry
            entry.has_config = True
            plan.stamp = stamp
            await self._load_plan(entry, plan)

    async def unload(self, name: str) -> None:
        """Stop giving a model requests; returns at once, while accepted ones finish."""
        entry = self.entries.get(name)
        if entry is None:
            return
        async with entry.lock:
            entry.plan = None
            self._retire(entry, list(entry.versions))
            entry.is_wanted = False

    async def poll(self) -> None:
        """Bring every model to what the repositories now hold.

        A folder that changed is loaded once it is the same for two polls in a row, so that one
        that is still being copied is left alone.
        """
        stamps = await asyncio.to_thread(self._loader.stamps)
        changed = [
            name
            for name, stamp in stamps.items()
            if name not in self.entries or self.entries[name].stamp != stamp
        ]
        settled = [name for name in changed if self._unsettled.get(name) == stamps[name]]
        self._unsettled = {name: stamps[name] for name in changed if name not in settled}
        for name in self.entries.keys() - stamps.keys():
            await self.unload(name)
            self.entries[name].stamp = None
        # Failures are in the log and in the index; nobody waits for them here.
        await asyncio.gather(
            *(self.load(name, Override()) for name in settled), return_exceptions=True
        )

    async def unload_all(self) -> None:
        """Unload every model and wait until nothing runs any more."""
        for name in list(self.entries):
            await self.unload(name)
        while self._retiring:
            await asyncio.gather(*self._retiring)
        self._threads.shutdown(wait=False)

    async def _load_plan(self, entry: ModelEntry, plan: ModelPlan) -> None:
        for version in plan.versions:
            known = entry.versions.setdefault(version, VersionEntry())
            if known.state is not ModelState.READY:
                known.state, known.reason = ModelState.LOADING, ""
            _log.info("loading: %s:%d", entry.name, version)
        results = await self._load_versions(plan)
        failures = {v: r for v, r in results.items() if isinstance(r, NaiadError)}
        models = [r for r in results.values() if isinstance(r, Model)]
        if failures:
            # All or none, as in Triton: a model never serves half of what its policy asks for.
            for model in models:
                await model.retire()
            raise self._note_failures(entry, plan, failures)
        self._swap(entry, plan, models)
        entry.failure = None
        _log.info("successfully loaded '%s'", entry.name)

    async def _load_versions(self, plan: ModelPlan) -> dict[int, Model | NaiadError]:
        results: dict[int, Model | NaiadError] = {}
        for _ in range(self._options.retry_count + 1):
            missing = [v for v in plan.versions if not isinstance(results.get(v), Model)]
            results |= await self._try_versions(plan, missing)
        return results

    async def _try_versions(
        self, plan: ModelPlan, versions: Sequence[int]
    ) -> dict[int, Model | NaiadError]:
        if not versions:
            return {}
        try:
            await self._in_thread(self._loader.complete, plan)
        except Exception as error:  # noqa: BLE001 - third-party backends raise what they like
            return dict.fromkeys(versions, _as_naiad_error(error))
        results = await asyncio.gather(
            *(self._load_version(plan, version) for version in versions), return_exceptions=True
        )
        return {
            version: _as_naiad_error(result) if isinstance(result, BaseException) else result
            for version, result in zip(versions, results, strict=True)
        }

    async def _load_version(self, plan: ModelPlan, version: int) -> Model:
        """One version, warmed up and in nobody's reach yet."""
        item = await self._in_thread(self._loader.load, plan, version)
        model = self._make_model(plan, item)
        try:
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
        text = f"load failed for model '{entry.name}': "
        for version in plan.versions:
            error = failures.get(version)
            known = entry.versions[version]
            if error is not None:
                reason = error.reason()
                _log.error("failed to load '%s' version %d: %s", entry.name, version, reason)
                text += f"version {version} is at {ModelState.UNAVAILABLE} state: {reason};\n"
                if known.state is not ModelState.READY:
                    known.state, known.reason = ModelState.UNAVAILABLE, reason
            elif known.state is not ModelState.READY:
                known.state, known.reason = ModelState.UNAVAILABLE, UNLOADED_REASON
        _log.info("failed to load '%s'", entry.name)
        return InvalidArgumentError(text)

    def _swap(self, entry: ModelEntry, plan: ModelPlan, models: Iterable[Model]) -> None:
        """Put the new versions in place of the old in one step of the loop."""
        previous = {
            version: known.model for version, known in entry.versions.items() if known.model
        }
        for loaded in models:
            known = entry.versions[loaded.version]
            known.model = loaded
            known.state, known.reason = ModelState.READY, ""
        for version, known in entry.versions.items():
            # It is not missing any more: nothing asks for it.
            if version not in plan.versions and known.state is ModelState.UNAVAILABLE:
                known.reason = UNLOADED_REASON
        entry.plan = plan
        for version, model in previous.items():
            if version in plan.versions:
                self._start_retiring(model, None)
        self._retire(entry, [v for v in previous if v not in plan.versions])
        entry.refresh_latest()

    def _make_model(self, plan: ModelPlan, item: LoadedVersion) -> Model:
        executor = Executor(
            item.version, item.signature, item.scheduler, item.instances, self._clock
        )
        return Model(
            plan.config.name,
            item.version,
            plan.config,
            item.signature,
            item.labels,
            executor,
            item.loaded,
        )

    def _retire(self, entry: ModelEntry, versions: Iterable[int]) -> None:
        for version in versions:
            known = entry.versions[version]
            if known.state is not ModelState.READY or known.model is None:
                continue
            known.state, known.reason = ModelState.UNLOADING, ""
            self._start_retiring(known.model, known)
            known.model = None
        entry.refresh_latest()

    def _start_retiring(self, model: Model, known: VersionEntry | None) -> None:
        task = asyncio.get_running_loop().create_task(self._finish_retiring(model, known))
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    async def _finish_retiring(self, model: Model, known: VersionEntry | None) -> None:
        await model.retire()
        if known is not None and known.state is ModelState.UNLOADING:
            known.state, known.reason = ModelState.UNAVAILABLE, UNLOADED_REASON
            _log.info("successfully unloaded '%s' version %d", model.name, model.version)


def _is_in_force(plan: ModelPlan, override: Override, stamp: FolderStamp | None) -> bool:
    """Whether a load would bring what already serves.

    A plain load leaves an overriding config in force while the files are the same, and takes
    overriding files away (both measured on Triton).
    """
    if stamp is None or stamp != plan.stamp:
        return False
    if override == Override():
        return not plan.override.files
    return override == plan.override


def _as_naiad_error(error: BaseException) -> NaiadError:
    if isinstance(error, NaiadError):
        return error
    return InternalError(f"{type(error).__name__}: {error}")
