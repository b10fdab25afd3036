"""Load a model by its backend and run it on generated inputs, without a server."""

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from naiad.backends.base import Instance, LoadedModel, ModelSource, NoServices, OutgoingRequest
from naiad.backends.merged_instance import merge_requests
from naiad.backends.registry import BackendRegistry
from naiad.check.model_log import ModelLog
from naiad.engine.config_support import move_to_cpu
from naiad.errors import InternalError, NaiadError
from naiad.inference import datatypes
from naiad.inference.datatypes import BY_CONFIG_NUMBER, Datatype
from naiad.inference.tensor import Tensor
from naiad.model_config.normalize import fill_defaults, normalize_config
from naiad.model_config.schema import (
    DataType,
    ModelConfig,
    ModelInstanceGroup,
    ModelSequenceBatching,
)
from naiad.model_config.signature import ModelSignature
from naiad.model_config.validate import validate_config, validate_for_load
from naiad.repository.diagnose_folder import Subject

Array = npt.NDArray[Any]
Shape = tuple[int, ...]

# Tried in this order for dims of any length; convolutions and poolings need the longer ones.
LENGTHS: Final = (8, 32, 3, 64, 1, 224)
_MAX_ELEMENTS: Final = 1 << 26
_ASKS_SERVER: Final = "the model asks a server for other models, and the check has none"
_Control = ModelSequenceBatching.Control


@dataclass(frozen=True, slots=True)
class Run:
    """One execution.

    Attributes:
        batch_size: rows; 0 where the config has no batch axis.
        inputs: shape by name.
        outputs: shape by name; empty where it failed.
        error: why there are no outputs, else "".
        is_tried: False where nothing speaks against the model: it was not run, or not as it is
            run by a server.
        datatypes: of the outputs, by name.
    """

    batch_size: int
    inputs: Mapping[str, Shape]
    outputs: Mapping[str, Shape] = field(default_factory=dict)
    error: str = ""
    is_tried: bool = True
    datatypes: Mapping[str, str] = field(default_factory=dict)


class _NoServer(NoServices):
    """Notices that a model asks the server for something, which it can't have here."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked = False

    def infer(self, outgoing: OutgoingRequest) -> None:
        self.is_asked = True
        super().infer(outgoing)

    def load_model(
        self,
        name: str,
        config_json: str | None,
        files: Mapping[str, bytes | memoryview],
        on_done: Callable[[Any], None],
    ) -> None:
        self.is_asked = True
        super().load_model(name, config_json, files, on_done)

    def unload_model(
        self, name: str, *, unload_dependents: bool, on_done: Callable[[Any], None]
    ) -> None:
        self.is_asked = True
        super().unload_model(name, unload_dependents=unload_dependents, on_done=on_done)

    def is_model_ready(self, name: str, version: int, on_done: Callable[[Any], None]) -> None:
        self.is_asked = True
        super().is_model_ready(name, version, on_done)


def prepare(config: ModelConfig, subject: Subject) -> ModelConfig:
    """A normalized copy of a config, checked as the server checks it before it looks at the model.

    The copy asks for no GPU: whether there are those that the config names is another question
    than whether the model is what the config says, and a CPU answers the second.

    Raises:
        InvalidArgumentError: Triton's text about the first mistake.
    """
    prepared = ModelConfig()
    prepared.CopyFrom(config)
    move_to_cpu(prepared)
    for group in prepared.instance_group:
        if group.kind == ModelInstanceGroup.KIND_AUTO:
            del group.gpus[:]
    normalize_config(prepared, directory_name=subject.name, artifact_names=subject.artifacts)
    validate_config(prepared)
    return prepared


class Trial:
    """One loaded model with one instance; use as a context manager."""

    def __init__(self, config: ModelConfig, loaded: LoadedModel, server: _NoServer) -> None:
        self.config = config
        self._loaded = loaded
        self._server = server
        self._instance: Instance = merge_requests(
            loaded.create_instance(0), ModelSignature.from_config(config)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._instance.close()
        self._loaded.close()

    def run(
        self, shapes: Mapping[str, Shape], batch_size: int, data: Mapping[str, Array] | None = None
    ) -> Run:
        """Execute one batch.

        Args:
            shapes: of the inputs, with the batch axis where there is one.
            batch_size: for the report and for the inputs that the server makes.
            data: inputs to use instead of generated ones.
        """
        if sum(int(np.prod(shape)) for shape in shapes.values()) > _MAX_ELEMENTS:
            return Run(batch_size, shapes, error="the inputs would be too large", is_tried=False)
        inputs = {
            tensor.name: make_array(tensor.name, _datatype(tensor.data_type), shapes[tensor.name])
            for tensor in self.config.input
            if tensor.name in shapes
        }
        inputs.update(data or {})
        inputs.update(_server_fed(self.config, batch_size))
        names = [tensor.name for tensor in self.config.output]
        self._server.is_asked = False
        try:
            outputs = self._instance.execute(inputs, names)
        except Exception as error:  # noqa: BLE001  (a framework raises what it likes)
            if self._server.is_asked:
                return Run(batch_size, shapes, error=_ASKS_SERVER, is_tried=False)
            return Run(batch_size, shapes, error=_text(error))
        return Run(
            batch_size,
            shapes,
            {tensor.name: _shape(tensor) for tensor in outputs},
            datatypes={tensor.name: tensor.datatype.config_name for tensor in outputs},
        )


class Trials:
    """Backends, and how to load a model with them.

    Attributes:
        gpu_ids: of the server; None where the models are meant for another one.
        log: what the backends log, while it is entered.
    """

    def __init__(self, backends: BackendRegistry, gpu_ids: Sequence[int] | None = ()) -> None:
        self._backends = backends
        self.gpu_ids = gpu_ids
        self.log = ModelLog()

    @property
    def backend_names(self) -> tuple[str, ...]:
        """Every backend that a config may name."""
        return self._backends.names

    def check_backend(self, name: str) -> None:
        """Import a backend.

        Raises:
            NaiadError: there is none of that name, or its framework is not installed.
        """
        self._backends.get(name)

    def complete(self, config: ModelConfig, subject: Subject) -> ModelConfig:
        """The config as the server would serve it.

        Raises:
            NaiadError: the reason why it would not.
        """
        completed = prepare(config, subject)
        with _frameworks_errors():
            self._backends.get(completed.backend).complete_config(_source(completed, subject))
        fill_defaults(completed)
        validate_for_load(completed)
        return completed

    def load(self, config: ModelConfig, subject: Subject) -> Trial:
        """Load a model as the server would.

        Raises:
            NaiadError: the reason why it would not load.
        """
        completed = self.complete(config, subject)
        server = _NoServer()
        source = replace(_source(completed, subject), services=server)
        with _frameworks_errors():
            loaded = self._backends.get(completed.backend).load(source)
            try:
                return Trial(completed, loaded, server)
            except BaseException:
                loaded.close()
                raise

    def infer(self, config: ModelConfig, subject: Subject) -> ModelConfig:
        """What the backend completes where the config says nothing but which file to read.

        Raises:
            NaiadError: the file can't be read, or does not say what it takes.
        """
        bare = ModelConfig(
            name=subject.name,
            backend=config.backend,
            platform=config.platform,
            default_model_filename=config.default_model_filename,
        )
        return self.complete(bare, subject)


def input_shapes(config: ModelConfig, batch_size: int, length: int) -> dict[str, Shape]:
    """Shapes of the inputs that a request must bring, as the backend sees them.

    Args:
        config: complete.
        batch_size: rows; not used without a batch axis.
        length: of every dim that may have any.
    """
    shapes = {}
    for tensor in config.input:
        if tensor.optional:
            continue
        dims = tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims
        fixed = tuple(length if dim == -1 else dim for dim in dims)
        shapes[tensor.name] = (batch_size, *fixed) if config.max_batch_size else fixed
    return shapes


def make_array(name: str, datatype: Datatype, shape: Shape) -> Array:
    """The same plausible values for the same name and shape.

    Integers are 0 and 1, which index any embedding of two rows; floats are normal.
    """
    random = np.random.default_rng(zlib.crc32(name.encode()))
    if datatype is datatypes.BYTES:
        array = np.empty(shape, np.object_)
        array[...] = b"0"
        return array
    if datatype is datatypes.BF16:
        values = random.standard_normal(shape).astype(np.float32)
        return datatypes.round_to_bf16(values).astype(np.uint16)
    if datatype.dtype.kind == "f":
        return np.asarray(random.standard_normal(shape)).astype(datatype.dtype)
    return np.asarray(random.integers(0, 2, shape)).astype(datatype.dtype)


class _frameworks_errors:  # noqa: N801  (reads as a statement)
    """Turns whatever a framework raises into an error of ours."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, NaiadError):
            raise InternalError(_text(error)) from error


def _text(error: Exception) -> str:
    return error.message if isinstance(error, NaiadError) else f"{type(error).__name__}: {error}"


def _source(config: ModelConfig, subject: Subject) -> ModelSource:
    return ModelSource(subject.name, subject.version, config, subject.directory)


def _datatype(number: DataType) -> Datatype:
    return BY_CONFIG_NUMBER[number]


def _shape(tensor: Tensor) -> Shape:
    return tuple(int(length) for length in tensor.shape)


def _server_fed(config: ModelConfig, batch_size: int) -> Iterator[tuple[str, Array]]:
    """What the sequence batcher would add: the controls of a first request, and empty states."""
    batching = config.sequence_batching
    rows = (batch_size,) if config.max_batch_size else ()
    for entry in batching.control_input:
        for control in entry.control:
            yield entry.name, _control_array(control, (*rows, 1))
    for state in batching.state:
        dims = tuple(1 if dim == -1 else dim for dim in state.dims)
        yield state.input_name, np.zeros((*rows, *dims), _datatype(state.data_type).dtype)


def _control_array(control: ModelSequenceBatching.Control, shape: Shape) -> Array:
    if control.kind == _Control.CONTROL_SEQUENCE_CORRID:
        datatype = _datatype(control.data_type)
        array = np.ones(shape, datatype.dtype)
        if datatype is datatypes.BYTES:
            array[...] = b"1"
        return array
    is_set = control.kind != _Control.CONTROL_SEQUENCE_END
    if control.int32_false_true:
        return np.full(shape, control.int32_false_true[is_set], np.int32)
    if control.fp32_false_true:
        return np.full(shape, control.fp32_false_true[is_set], np.float32)
    return np.full(shape, control.bool_false_true[is_set], np.bool_)
