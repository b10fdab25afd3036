"""Adding instances to a version that serves, and taking some away, without loading it anew.

Source: Triton's ``TritonModel::UpdateInstanceGroup``. Unlike there, a model of several versions
changes in all of them or in none.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from naiad.backends.base import LoadedModel, RegroupedModel
from naiad.engine.executor import Executor
from naiad.engine.loader import AddedInstances
from naiad.engine.rate_limits import instance_claims
from naiad.model_config.instances import InstanceChange, compare_instances, list_traits
from naiad.model_config.schema import ModelConfig
from naiad.scheduling.limited import LimitedScheduler

if TYPE_CHECKING:
    from naiad.engine.model import Model


class ServedInstances:
    """The instances of a version, and what more of them can be made of.

    Args:
        executor: that they run in.
        loaded: what makes them; closed by `close`.
        limited: the scheduler, where batches wait for their turns.
        config: whose instances they are, numbered from 0.
    """

    def __init__(
        self,
        executor: Executor,
        loaded: LoadedModel,
        limited: LimitedScheduler | None,
        config: ModelConfig,
    ) -> None:
        self.executor = executor
        self.loaded = loaded
        self.limited = limited
        self._traits = dict(enumerate(list_traits(config)))
        self._next_number = len(self._traits)

    def compare(self, config: ModelConfig) -> InstanceChange:
        """What it takes to get to the instances of a config."""
        return compare_instances(self._traits, list_traits(config))

    def can_become(self, config: ModelConfig) -> bool:
        """Whether that takes no load."""
        return isinstance(self.loaded, RegroupedModel) or not self.compare(config).added

    def take_numbers(self, count: int) -> range:
        """Numbers that no instance had before."""
        first = self._next_number
        self._next_number += count
        return range(first, self._next_number)

    def keep(self, traits: dict[int, bytes] | None = None) -> None:
        """Give the requests to the instances of these numbers; by default those that have them."""
        if traits is not None:
            self._traits = traits
        self.executor.set_instances(self._traits)

    def close(self) -> None:
        """Free what the instances share; they are closed."""
        if self.limited is not None:
            self.limited.end()
        self.loaded.close()


class InstanceUpdate:
    """One change of a version's instances; belongs to the event loop.

    Args:
        model: that serves, and goes on.
        instances: of it.
        config: that is to be in force.

    Attributes:
        model: as given.
    """

    def __init__(self, model: "Model", instances: ServedInstances, config: ModelConfig) -> None:
        self.model = model
        self._instances = instances
        self._config = config
        change = instances.compare(config)
        numbers = instances.take_numbers(len(change.added))
        self._added = dict(zip(numbers, change.added, strict=True))
        self._removed = change.removed
        wanted = list_traits(config)
        self._traits = change.kept | {n: wanted[index] for n, index in self._added.items()}

    @property
    def is_needed(self) -> bool:
        """Whether anything changes."""
        return bool(self._added or self._removed)

    async def prepare(self, make: Callable[[Sequence[int]], Awaitable[AddedInstances]]) -> None:
        """Make the new instances and warm them up, while the old ones serve.

        Args:
            make: given which of the config's instances.

        Raises:
            Exception: why it can't be; nothing has changed.
        """
        instances = self._instances
        if instances.limited is not None:
            claims = instance_claims(self._config)
            reserved = {number: claims[index] for number, index in self._added.items()}
            instances.limited.reserve(reserved, self._removed)
        if not self._added:
            return
        try:
            made = await make(list(self._added.values()))
            joining = dict(zip(self._added, made.instances, strict=True))
            await instances.executor.join(joining, made.warmup)
        except BaseException:
            self.discard()
            raise

    def commit(self) -> None:
        """Let the new instances have requests; those that are not wanted finish what they have."""
        self._instances.keep(self._traits)

    def discard(self) -> None:
        """Leave everything as it was."""
        self._instances.keep()

    async def settle(self) -> None:
        """Return when those that are not wanted are closed, but for what a sequence keeps."""
        await self._instances.executor.settle()
