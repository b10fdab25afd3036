"""An engine for front ends: models that answer what a function says, at once or when told to."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from naiad.engine.log_settings import LogSettings
from naiad.engine.shared_memory import SharedMemoryRegions
from naiad.engine.trace import TraceSettings
from naiad.errors import InvalidArgumentError, NaiadError, NotFoundError
from naiad.inference.datatypes import BY_NAME, FP32
from naiad.inference.request import InferRequest
from naiad.inference.response import InferResponse
from naiad.inference.states import ModelState
from naiad.inference.statistics import ModelStatistics
from naiad.inference.tensor import Tensor
from naiad.model_config.schema import ModelConfig
from naiad.model_config.signature import ModelSignature, TensorSpec
from naiad.protocol.log_settings import LogSettingValues
from naiad.protocol.trace_setting import TraceSettingValues

Compute = Callable[[dict[str, Tensor]], Sequence[Tensor]]


def identity(inputs: dict[str, Tensor]) -> Sequence[Tensor]:
    """Every input as an output: IN as OUT."""
    return [
        Tensor(name.replace("IN", "OUT"), tensor.datatype, tensor.shape, tensor.data)
        for name, tensor in inputs.items()
    ]


@dataclass(eq=False)
class FakeModel:
    """One version of a model."""

    signature: ModelSignature
    version: int = 1
    compute: Compute = identity
    labels: dict[str, list[str]] = field(default_factory=dict)
    statistics: ModelStatistics = field(default_factory=ModelStatistics)

    @property
    def name(self) -> str:
        return self.signature.name


def identity_model(
    datatype: str = "FP32", *, name: str = "", max_batch_size: int = 8, version: int = 1
) -> FakeModel:
    """A model that gives back IN as OUT."""
    kind = BY_NAME[datatype]
    name = name or f"id_{datatype.lower()}"
    signature = ModelSignature(
        name,
        max_batch_size,
        [TensorSpec("IN", kind, (-1,))],
        [TensorSpec("OUT", kind, (-1,))],
    )
    return FakeModel(signature, version)


@dataclass(frozen=True)
class FakeTensorMetadata:
    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class FakeMetadata:
    name: str
    versions: tuple[str, ...]
    platform: str
    inputs: tuple[FakeTensorMetadata, ...]
    outputs: tuple[FakeTensorMetadata, ...]


@dataclass(frozen=True)
class FakeIndexEntry:
    name: str
    version: str = ""
    state: ModelState | None = None
    reason: str = ""


class FakeEngine:
    """Answers in the next turn of the loop; with ``holds``, when ``release`` is called."""

    server_id = "triton"
    server_version = "0.0"
    extensions: Sequence[str] = ("classification", "binary_tensor_data")

    def __init__(self, *models: FakeModel) -> None:
        self.models: dict[tuple[str, int], FakeModel] = {}
        for model in models:
            self.add(model)
        self.holds = False
        self.held: list[tuple[FakeModel, InferRequest]] = []
        self.arrived = asyncio.Event()
        self.cancelled: list[InferRequest] = []
        self.cancel_seen = asyncio.Event()
        self.requests: list[InferRequest] = []
        self.refusal: NaiadError | None = None
        self.failure: NaiadError | None = None
        self.live = True
        self.ready = True
        self.loads: list[tuple[str, str | None, Mapping[str, bytes | memoryview]]] = []
        self.unloads: list[tuple[str, bool]] = []
        self.now = 1
        # Models that are loaded and have no instance that can run.
        self.stuck: set[str] = set()
        self.shared_memory = SharedMemoryRegions(is_client_use_allowed=True)
        self.traces = TraceSettings(TraceSettingValues(), self.is_model_ready)
        self.applied_log_settings: list[LogSettingValues] = []
        self.log_settings = LogSettings(LogSettingValues(), self.applied_log_settings.append)

    def add(self, model: FakeModel) -> None:
        self.models[model.name, model.version] = model

    def now_ns(self) -> int:
        return self.now

    def is_live(self) -> bool:
        return self.live

    def is_ready(self) -> bool:
        return self.ready

    def is_model_ready(self, name: str, version: int = -1) -> bool:
        try:
            self.find(name, version)
        except NaiadError:
            return False
        return name not in self.stuck

    def find(self, name: str, version: int = -1) -> FakeModel:
        if version == -1:
            version = max((v for n, v in self.models if n == name), default=0)
            if not version:
                raise NotFoundError(f"Request for unknown model: '{name}' is not found")
        model = self.models.get((name, version))
        if model is None:
            raise NotFoundError(
                f"Request for unknown model: '{name}' version {version} is not found"
            )
        return model

    def infer(self, model: FakeModel, request: InferRequest) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.requests.append(request)
        self.arrived.set()
        if self.holds:
            self.held.append((model, request))
        else:
            asyncio.get_running_loop().call_soon(self._answer, model, request)

    def release(self) -> None:
        """Answer everything that was held."""
        held, self.held = self.held, []
        for model, request in held:
            if request not in self.cancelled:
                self._answer(model, request)

    def cancel(self, model: FakeModel, request: InferRequest) -> None:
        self.cancelled.append(request)
        self.cancel_seen.set()

    def model_metadata(self, name: str, version: int = -1) -> FakeMetadata:
        signature = self.find(name, version).signature
        versions = tuple(str(v) for n, v in self.models if n == name and version in (-1, v))
        batch = (-1,) if signature.max_batch_size else ()

        def described(specs: Mapping[str, TensorSpec]) -> tuple[FakeTensorMetadata, ...]:
            return tuple(
                FakeTensorMetadata(s.name, s.datatype.name, batch + s.dims) for s in specs.values()
            )

        return FakeMetadata(
            name, versions, "fake", described(signature.inputs), described(signature.outputs)
        )

    def model_config(self, name: str, version: int = -1) -> ModelConfig:
        return ModelConfig(name=self.find(name, version).name, max_batch_size=8)

    def statistics(self, name: str = "", version: int = -1) -> list[FakeModel]:
        if not name:
            return list(self.models.values())
        found = [m for m in self.models.values() if m.name == name]
        if not found:
            raise InvalidArgumentError(f"requested model '{name}' is not available")
        return [m for m in found if version in (-1, m.version)]

    async def index(self, *, ready_only: bool) -> list[FakeIndexEntry]:
        lines = [
            FakeIndexEntry(name, str(version), ModelState.READY) for name, version in self.models
        ]
        if not ready_only:
            lines.append(FakeIndexEntry("sleeping"))
        return lines

    async def load_model(
        self, name: str, config_json: str | None, files: Mapping[str, bytes | memoryview]
    ) -> None:
        if self.failure is not None:
            raise self.failure
        self.loads.append((name, config_json, files))

    async def unload_model(self, name: str, *, unload_dependents: bool) -> None:
        if self.failure is not None:
            raise self.failure
        self.unloads.append((name, unload_dependents))

    def _answer(self, model: FakeModel, request: InferRequest) -> None:
        outputs: Sequence[Tensor] = ()
        if self.failure is None:
            outputs = model.compute(request.inputs)
            if request.output_names is not None:
                outputs = [t for t in outputs if t.name in request.output_names]
        request.on_response(
            InferResponse(model.name, model.version, request.request_id, outputs, self.failure)
        )


def mlp_model(features: int = 64, classes: int = 5) -> FakeModel:
    """FP32 in, the first columns out: as much as a small classifier moves."""
    signature = ModelSignature(
        "mlp",
        64,
        [TensorSpec("input__0", FP32, (features,))],
        [TensorSpec("output__0", FP32, (classes,))],
    )

    def compute(inputs: dict[str, Tensor]) -> Sequence[Tensor]:
        tensor = inputs["input__0"]
        rows = tensor.shape[0]
        return [Tensor("output__0", FP32, (rows, classes), tensor.data[:, :classes].copy())]

    return FakeModel(signature, compute=compute)
