"""Ensembles need their steps: who is loaded before whom, and what a missing step means.

Source: Triton, ``model_repository_manager.cc`` (DependencyGraph, CheckNode).
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from naiad.engine.loader import Override, Steps
from naiad.errors import InvalidArgumentError, NaiadError
from naiad.model_config.ensemble_steps import check_steps
from naiad.model_config.schema import ModelConfig
from naiad.repository.model_id import ModelId

_LATEST = -1


class DependencyError(InvalidArgumentError):
    """An ensemble can't run on the models of its steps."""


class CircularDependencyError(DependencyError):
    """An ensemble is, over some others, a step of itself."""


@dataclass(frozen=True, slots=True)
class StepState:
    """What an ensemble finds of a model that it calls.

    Attributes:
        model: which one it is; None where its name stands for none, or for more than one.
        is_known: the repository has such a model, with a config that can be read.
        configs: by version that serves.
        failure: why it doesn't serve as it should; None where it does.
    """

    model: ModelId | None
    is_known: bool = False
    configs: Mapping[int, ModelConfig] = field(default_factory=dict)
    failure: NaiadError | None = None


def step_names(config: ModelConfig) -> tuple[str, ...]:
    """The models that an ensemble calls, each once, in the order of its steps; else none."""
    return tuple(dict.fromkeys(step.model_name for step in config.ensemble_scheduling.step))


def choose_step(ensemble: ModelId, found: Sequence[ModelId]) -> ModelId | None:
    """The model that a step's name stands for: of the ensemble's own repository, or the only one.

    Args:
        ensemble: whose step it is.
        found: all models of the name.
    """
    own = [model for model in found if model.namespace == ensemble.namespace]
    candidates = own or found
    return candidates[0] if len(candidates) == 1 else None


def write_namespaces(config: ModelConfig, steps: Steps) -> None:
    """Say in an ensemble's config which models its steps are, for those who look them up."""
    for step in config.ensemble_scheduling.step:
        model = steps[step.model_name]
        step.model_namespace = "" if model is None else model.namespace


def check_dependencies(config: ModelConfig, steps: Mapping[str, StepState]) -> None:
    """Hold an ensemble against what there is of its steps, and note whether it is decoupled.

    Args:
        config: of the ensemble; its transaction policy is filled in.
        steps: by name, all of them.

    Raises:
        DependencyError: Triton's text about the first thing that is missing or does not fit.
    """
    missing = sorted(name for name, step in steps.items() if not step.is_known)
    if missing:
        raise DependencyError(
            f"ensemble {config.name} contains models that are not available or ambiguous: "
            f"{', '.join(missing)}"
        )
    for name, step in steps.items():
        _check_step(config, name, step)
    latest = {name: step.configs[max(step.configs)] for name, step in steps.items()}
    try:
        is_decoupled = check_steps(config, latest)
    except InvalidArgumentError as error:
        raise DependencyError(error.message) from error
    if is_decoupled and config.response_cache.enable:
        raise DependencyError(
            f"Response Cache does not currently support model {config.name} with 'decoupled' "
            "transaction policy. Please disable the response cache."
        )
    config.model_transaction_policy.decoupled = is_decoupled


def _check_step(config: ModelConfig, name: str, step: StepState) -> None:
    model = step.model
    prefix = f"ensemble '{config.name}' depends on '{model}'"
    if not step.configs:
        failure = step.failure
        if isinstance(failure, CircularDependencyError):
            raise CircularDependencyError(failure.message)
        if isinstance(failure, DependencyError):
            raise DependencyError(
                f"{prefix} which is not valid. Model '{model}' failed with error: {failure.message}"
            )
        message = f"{prefix} which has no loaded version."
        if failure is not None:
            text = failure.message.removeprefix(f"load failed for model '{model}': ")
            message += f" Model '{model}' loading failed with error: {text.rstrip()}"
        raise DependencyError(message)
    for version in sorted(_versions(config, name)):
        if version not in step.configs:
            advice = "" if version else " Write 'model_version: -1' for the latest."
            raise DependencyError(
                f"{prefix} whose required version {version} is not loaded.{advice}"
            )


def _versions(config: ModelConfig, name: str) -> set[int]:
    steps = config.ensemble_scheduling.step
    return {step.model_version for step in steps if step.model_name == name} - {_LATEST}


class Waits:
    """Which loads wait for which models right now, so that none ever waits for itself.

    An ensemble waits for its steps, and a model for what it has loaded or unloaded while it loads.
    """

    def __init__(self) -> None:
        self._steps: dict[ModelId, list[ModelId]] = {}

    def begin(self, ensemble: ModelId, steps: Sequence[ModelId]) -> None:
        """Note that an ensemble is going to wait.

        Raises:
            CircularDependencyError: one of the steps waits for the ensemble.
        """
        for step in steps:
            last = self._path_end(step, ensemble) if step != ensemble else ensemble
            if last is not None:
                raise CircularDependencyError(
                    f"circular dependency between ensembles: {ensemble} -> ... -> {last} -> "
                    f"{ensemble}"
                )
        self._steps.setdefault(ensemble, []).extend(steps)

    def end(self, ensemble: ModelId, steps: Sequence[ModelId]) -> None:
        """The ensemble waits no more for steps that it began to wait for."""
        waiting = self._steps[ensemble]
        for step in steps:
            waiting.remove(step)
        if not waiting:
            del self._steps[ensemble]

    @contextmanager
    def of_caller(self, caller: ModelId | None, models: Sequence[ModelId]) -> Iterator[None]:
        """Note that a model which is loading waits for others, as it has asked for.

        Args:
            caller: None where nobody is held up.
            models: that are loaded or unloaded meanwhile.

        Raises:
            InvalidArgumentError: one of them is or waits for the caller.
        """
        if caller is None:
            yield
            return
        try:
            self.begin(caller, models)
        except CircularDependencyError:
            names = ", ".join(f"'{model}'" for model in models)
            raise InvalidArgumentError(
                f"model '{caller}' would wait for ever: it asks for {names} while it loads, and "
                "that waits for it. Ask for it in 'execute'"
            ) from None
        try:
            yield
        finally:
            self.end(caller, models)

    def callers(self, step: ModelId) -> set[ModelId]:
        """The ensembles that wait for a model, be it over others."""
        found: set[ModelId] = set()
        models = [step]
        while models:
            model = models.pop()
            new = {name for name, steps in self._steps.items() if model in steps} - found
            found |= new
            models.extend(new)
        return found

    def _path_end(self, start: ModelId, goal: ModelId) -> ModelId | None:
        """Who waits for ``goal`` itself, of those that ``start`` waits for in any way."""
        seen = {start}
        models = [start]
        while models:
            model = models.pop()
            steps = self._steps.get(model, ())
            if goal in steps:
                return model
            models.extend(step for step in steps if step not in seen)
            seen.update(steps)
        return None


class LoadRound:
    """Loads that belong together: each model is loaded once, however many ensembles call it.

    Args:
        load: loads one model; what else that needs, it asks of the round.

    Attributes:
        changed: what was loaded anew, so that ensembles which call it have to look again.
    """

    def __init__(
        self, load: Callable[[ModelId, Override, "LoadRound"], Coroutine[None, None, None]]
    ) -> None:
        self._load = load
        self._tasks: dict[ModelId, asyncio.Task[None]] = {}
        self.changed: set[ModelId] = set()

    async def load(self, models: Mapping[ModelId, Override]) -> dict[ModelId, NaiadError]:
        """Load models side by side; returns those that failed, with the reason."""
        tasks = [self._begin(model, override) for model, override in models.items()]
        results = await asyncio.gather(*tasks, return_exceptions=True)
        failures: dict[ModelId, NaiadError] = {}
        for model, result in zip(models, results, strict=True):
            if isinstance(result, NaiadError):
                failures[model] = result
            elif isinstance(result, BaseException):
                raise result
        return failures

    def _begin(self, model: ModelId, override: Override) -> asyncio.Task[None]:
        task = self._tasks.get(model)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._load(model, override, self))
            self._tasks[model] = task
        return task
