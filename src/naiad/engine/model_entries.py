"""What the server knows of each model and of its versions, loaded or not."""

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from naiad.engine.model import Model
from naiad.inference.states import ModelState
from naiad.repository.model_id import ModelId

if TYPE_CHECKING:
    from naiad.engine.loader import ModelPlan, Steps
    from naiad.errors import NaiadError
    from naiad.repository.layout import FolderStamp

# Triton's word in the repository index.
UNLOADED_REASON: Final = "unloaded"


class VersionEntry:
    """What is known of one version; stays in the index after an unload or a failure.

    Attributes:
        state: of the version.
        reason: why it doesn't serve; empty while nothing went wrong.
        advice: what to change where that is known, over several lines.
        model: that serves; None while none does.
    """

    __slots__ = ("advice", "model", "reason", "state")

    def __init__(self) -> None:
        self.state = ModelState.UNKNOWN
        self.reason = ""
        self.advice = ""
        self.model: Model | None = None

    def become(self, state: ModelState, reason: str = "", advice: str = "") -> None:
        """Change the state; what was said of the last one is forgotten."""
        self.state, self.reason, self.advice = state, reason, advice

    @property
    def has_failed(self) -> bool:
        """Whether it doesn't serve although nobody unloaded it."""
        return self.state is ModelState.UNAVAILABLE and self.reason != UNLOADED_REASON


class ModelEntry:
    """All versions of a model that was ever asked to load.

    Attributes:
        id: which model it is.
        versions: by number, those that failed and those that were unloaded too.
        latest: the version that a request without one goes to.
        plan: what serves; None while nothing does.
        failure: why the last load got no further than the config; None since one did.
        has_config: a config could be read at least once, so there are versions to speak of.
        stamp: of the folder at the last attempt to load it, successful or not.
        is_wanted: the last thing that was asked for is a load, so what failed is missing.
        is_explicit: it was asked for by itself, and not only as the step of an ensemble.
        steps: of an ensemble, the models that it calls, or would if it could be loaded.
        suspended: what an ensemble served until a step went away, and will when it is back.
        is_resting: suspended because somebody unloaded a step, so nothing is wrong with it.
    """

    __slots__ = (
        "__weakref__",
        "failure",
        "has_config",
        "id",
        "is_explicit",
        "is_resting",
        "is_wanted",
        "latest",
        "lock",
        "plan",
        "stamp",
        "steps",
        "suspended",
        "versions",
    )

    def __init__(self, model: ModelId) -> None:
        self.id = model
        self.versions: dict[int, VersionEntry] = {}
        self.latest: Model | None = None
        self.plan: ModelPlan | None = None
        self.failure: NaiadError | None = None
        self.has_config = False
        self.stamp: FolderStamp | None = None
        self.is_wanted = True
        self.is_explicit = False
        self.steps: Steps = {}
        self.suspended: ModelPlan | None = None
        self.is_resting = False
        # Loads and unloads of one model follow each other; those of different models don't wait.
        self.lock = asyncio.Lock()

    def ready_models(self) -> Iterator[Model]:
        """The versions that serve, ascending."""
        for _, entry in sorted(self.versions.items()):
            if entry.state is ModelState.READY and entry.model is not None:
                yield entry.model

    def has(self, model: Model) -> bool:
        """Whether the model is what serves its version."""
        known = self.versions.get(model.version)
        return known is not None and known.model is model

    def failure_reasons(self) -> Iterator[str]:
        """Why the model, or any version of it, is missing."""
        if not self.is_wanted:
            return
        if self.failure is not None:
            yield self.failure.reason()
        for _, known in sorted(self.versions.items()):
            if known.has_failed:
                yield known.reason

    def is_ready(self) -> bool:
        """Whether every version is where it should be: none on its way, none missing."""
        is_failed = self.failure is not None and self.latest is None
        if self.is_wanted and is_failed and not self.is_resting:
            return False
        for known in self.versions.values():
            if known.state is ModelState.READY:
                if known.model is not None and known.model.executor.problem():
                    return False
                continue
            if known.state is not ModelState.UNAVAILABLE:
                return False
            if self.is_wanted and known.has_failed:
                return False
        return True

    def has_problem(self) -> bool:
        """Whether a version that is loaded can't run."""
        return any(model.executor.problem() for model in self.ready_models())

    def refresh_latest(self) -> None:
        """Point ``latest`` at the highest version that serves."""
        self.latest = None
        for model in self.ready_models():
            self.latest = model
