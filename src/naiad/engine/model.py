"""One model version that serves."""

from dataclasses import dataclass

from naiad.backends.base import LoadedModel
from naiad.engine.executor import Executor
from naiad.inference.statistics import ModelStatistics
from naiad.model_config.schema import ModelConfig
from naiad.model_config.signature import ModelSignature


@dataclass(slots=True, eq=False)
class Model:
    """A version in state READY, or on its way out with requests still in it.

    Attributes:
        name: of the model.
        version: its number.
        config: normalized and completed, as clients see it.
        signature: the same, in the form that requests are checked against.
        labels: class names by output, for the classification extension.
        executor: its queue and instances.
        loaded: what the instances share; closed after them.
    """

    name: str
    version: int
    config: ModelConfig
    signature: ModelSignature
    labels: dict[str, list[str]]
    executor: Executor
    loaded: LoadedModel

    @property
    def statistics(self) -> ModelStatistics:
        """Counters since this version was loaded."""
        return self.executor.statistics

    async def retire(self) -> None:
        """Answer what was accepted, then free everything; the model is not used again."""
        await self.executor.drain()
        await self.executor.close()
        self.loaded.close()
