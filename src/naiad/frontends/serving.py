"""What front ends need from the engine, so that they can be tested without one."""

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

from naiad.engine.log_settings import LogSettings
from naiad.engine.shared_memory import SharedMemoryRegions
from naiad.engine.trace import TraceSettings
from naiad.inference.request import InferRequest
from naiad.inference.statistics import ModelStatistics
from naiad.model_config.schema import ModelConfig
from naiad.model_config.signature import ModelSignature
from naiad.protocol.v2_metadata import IndexDescription, ModelDescription

LATEST = -1


class ServedModel(Protocol):
    """One model version that serves."""

    @property
    def name(self) -> str:
        """Of the model."""
        ...

    @property
    def version(self) -> int:
        """Of this version."""
        ...

    @property
    def signature(self) -> ModelSignature:
        """Its tensors and batch limit."""
        ...

    @property
    def labels(self) -> Mapping[str, Sequence[str]]:
        """Class names by output."""
        ...

    @property
    def statistics(self) -> ModelStatistics:
        """Its counters."""
        ...


ModelT = TypeVar("ModelT")


class ServingEngine(Protocol[ModelT]):
    """The engine, as ``naiad.engine.engine.Engine`` describes it; errors are ``NaiadError``."""

    @property
    def server_id(self) -> str:
        """The server's name."""
        ...

    @property
    def server_version(self) -> str:
        """The server's version."""
        ...

    @property
    def extensions(self) -> Sequence[str]:
        """The protocol extensions that it speaks."""
        ...

    @property
    def shared_memory(self) -> SharedMemoryRegions:
        """Memory that clients share."""
        ...

    @property
    def traces(self) -> TraceSettings:
        """What is traced."""
        ...

    @property
    def log_settings(self) -> LogSettings:
        """How the server logs."""
        ...

    def now_ns(self) -> int:
        """Monotonic time."""
        ...

    def is_live(self) -> bool:
        """Whether it can answer at all."""
        ...

    def is_ready(self) -> bool:
        """Whether traffic should be sent here."""
        ...

    def is_model_ready(self, name: str, version: int = LATEST) -> bool:
        """Whether this model version serves."""
        ...

    def find(self, name: str, version: int = LATEST) -> ModelT:
        """The model version that a request goes to."""
        ...

    def infer(self, model: ModelT, request: InferRequest) -> None:
        """Queue a request; its callback is called later, on the loop."""
        ...

    def cancel(self, model: ModelT, request: InferRequest) -> None:
        """Drop a request; its callback is not called any more."""
        ...

    def model_metadata(self, name: str, version: int = LATEST) -> ModelDescription:
        """Names, datatypes and shapes."""
        ...

    def model_config(self, name: str, version: int = LATEST) -> ModelConfig:
        """The config in force."""
        ...

    def statistics(self, name: str = "", version: int = LATEST) -> Sequence[ModelT]:
        """The models whose statistics were asked for."""
        ...

    async def index(self, *, ready_only: bool) -> Sequence[IndexDescription]:
        """The repository index."""
        ...

    async def load_model(
        self, name: str, config_json: str | None, files: Mapping[str, bytes | memoryview]
    ) -> None:
        """Load or reload a model."""
        ...

    async def unload_model(self, name: str, *, unload_dependents: bool) -> None:
        """Stop serving a model."""
        ...
