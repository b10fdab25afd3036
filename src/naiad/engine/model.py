"""One model version that serves."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from naiad.engine.instance_update import ServedInstances
from naiad.engine.warmup import WarmupSample
from naiad.inference.request import InferRequest
from naiad.inference.statistics import ModelStatistics
from naiad.model_config.schema import ModelConfig
from naiad.model_config.signature import ModelSignature


class ModelExecutor(Protocol):
    """What answers the requests of a model version: instances behind a queue, or an ensemble."""

    statistics: ModelStatistics

    def submit(self, request: InferRequest) -> None:
        """Take a validated request; its callback is called later.

        Raises:
            NaiadError: the request is refused, and its callback will not be called.
        """
        ...

    def cancel(self, request: InferRequest) -> None:
        """The caller went away: no response follows."""
        ...

    def problem(self) -> str:
        """Why the model can't run although it is loaded; empty where it can."""
        ...

    async def warm_up(self, samples: Sequence[WarmupSample]) -> None:
        """Run samples before the first request."""
        ...

    async def drain(self) -> None:
        """Refuse new requests and wait until the accepted ones are answered."""
        ...

    async def close(self) -> None:
        """Free what runs the model; `drain` came before."""
        ...


class Model:
    """A version in state READY, or on its way out with requests still in it.

    Args:
        config: normalized and completed, as clients see it.
        version: its number.
        signature: the config, in the form that requests are checked against.
        labels: class names by output, for the classification extension.
        executor: its queue and instances, or its steps.
        instances: what changes the executor's instances, and is closed after them. An ensemble
            has none.

    Attributes:
        name: of the model.
    """

    __slots__ = (
        "_holders",
        "_is_free",
        "config",
        "executor",
        "instances",
        "labels",
        "name",
        "signature",
        "version",
    )

    def __init__(
        self,
        config: ModelConfig,
        version: int,
        signature: ModelSignature,
        labels: dict[str, list[str]],
        executor: ModelExecutor,
        instances: ServedInstances | None,
    ) -> None:
        self.name = config.name
        self.version = version
        self.config = config
        self.signature = signature
        self.labels = labels
        self.executor = executor
        self.instances = instances
        self._holders = 0
        self._is_free: asyncio.Event | None = None

    @property
    def statistics(self) -> ModelStatistics:
        """Counters since this version was loaded."""
        return self.executor.statistics

    def hold(self) -> None:
        """Let the model take requests until `release`, whatever is unloaded meanwhile."""
        self._holders += 1

    def release(self) -> None:
        """Take one `hold` back."""
        self._holders -= 1
        if self._is_free is not None and not self._holders:
            self._is_free.set()

    async def retire(self) -> None:
        """Answer what was accepted, then free everything; the model is not used again."""
        while self._holders:
            self._is_free = asyncio.Event()
            await self._is_free.wait()
        await self.executor.drain()
        await self.executor.close()
        if self.instances is not None:
            self.instances.close()
