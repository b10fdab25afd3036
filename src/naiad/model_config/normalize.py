"""The parts of a model config that the server fills before a backend sees the model.

Source: Triton, ``model_config_utils.cc``: AutoCompleteBackendFields, NormalizeModelConfig and
NormalizeInstanceGroup.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from naiad.errors import InvalidArgumentError
from naiad.model_config.schema import ModelConfig, ModelInstanceGroup

ENSEMBLE_PLATFORM: Final = "ensemble"
_MAX_SEQUENCE_IDLE_US: Final = 1_000_000
# These gain from a second instance, which prepares a batch while the first computes; the others
# have too much overhead per instance.
_TWO_INSTANCE_BACKENDS: Final = frozenset({"onnxruntime", "tensorflow"})


@dataclass(frozen=True, slots=True)
class _ModelFormat:
    """A kind of model file, and how a config may refer to it."""

    filename: str
    backend: str
    platform: str = ""


# In the order in which Triton looks for them.
_FORMATS: Final = (
    _ModelFormat("model.savedmodel", "tensorflow", "tensorflow_savedmodel"),
    _ModelFormat("model.graphdef", "tensorflow", "tensorflow_graphdef"),
    _ModelFormat("model.plan", "tensorrt", "tensorrt_plan"),
    _ModelFormat("model.onnx", "onnxruntime", "onnxruntime_onnx"),
    _ModelFormat("model.xml", "openvino"),
    _ModelFormat("model.pt", "pytorch", "pytorch_libtorch"),
    _ModelFormat("model.pt2", "pytorch", "torch_aoti"),
    _ModelFormat("model.py", "python"),
    # Triton never knew these; whoever has one is told how to convert it.
    _ModelFormat("model.keras", "tensorflow", "tensorflow_savedmodel"),
    _ModelFormat("model.h5", "tensorflow", "tensorflow_savedmodel"),
)
# The platforms that tell a backend; a backend in here accepts no other.
PLATFORM_BACKENDS: Final = {known.platform: known.backend for known in _FORMATS if known.platform}
_PYTORCH_RUNTIME_FILE: Final = "model.py"


def normalize_config(
    config: ModelConfig,
    *,
    directory_name: str,
    artifact_names: Sequence[str],
    default_instance_count: int | None = None,
    gpu_ids: Sequence[int] = (),
) -> None:
    """Fill name, backend, platform, model file and every default, in place.

    Args:
        config: as read; empty where the model has no ``config.pbtxt``.
        directory_name: of the model folder.
        artifact_names: files and folders in one of its version folders; they tell the backend
            where the config names none.
        default_instance_count: of an instance group that gives none; None takes Triton's rule:
            two for onnxruntime on CPU, otherwise one.
        gpu_ids: the GPUs of this server.

    Raises:
        InvalidArgumentError: the config has another name than the folder, or nothing tells the
            backend.
    """
    if not config.name:
        config.name = directory_name
    _fill_backend(config, artifact_names)
    if config.name != directory_name:
        raise InvalidArgumentError(
            f"unexpected directory name '{directory_name}' for model '{config.name}', directory "
            "name must equal model name"
        )
    fill_defaults(config)
    if config.HasField("ensemble_scheduling"):
        # Always answered for an ensemble, whose steps decide about it when they are known.
        config.model_transaction_policy.SetInParent()
    elif config.platform != ENSEMBLE_PLATFORM:
        _fill_instance_groups(config, default_instance_count, gpu_ids)


def fill_defaults(config: ModelConfig) -> None:
    """Fill version policy, batcher and optimization defaults, in place.

    Needed again after auto-completion, which may set ``max_batch_size`` or add a batcher.
    """
    if not config.HasField("version_policy"):
        config.version_policy.latest.num_versions = 1
    preferred = [config.max_batch_size] if config.max_batch_size > 0 else []
    if config.HasField("dynamic_batching"):
        dynamic = config.dynamic_batching
        if not dynamic.preferred_batch_size:
            dynamic.preferred_batch_size.extend(preferred)
    if config.HasField("sequence_batching"):
        sequence = config.sequence_batching
        if sequence.max_sequence_idle_microseconds == 0:
            sequence.max_sequence_idle_microseconds = _MAX_SEQUENCE_IDLE_US
        if sequence.HasField("oldest") and not sequence.oldest.preferred_batch_size:
            sequence.oldest.preferred_batch_size.extend(preferred)
    if not config.HasField("ensemble_scheduling"):
        optimization = config.optimization
        if not optimization.HasField("input_pinned_memory"):
            optimization.input_pinned_memory.enable = True
        if not optimization.HasField("output_pinned_memory"):
            optimization.output_pinned_memory.enable = True


def _fill_backend(config: ModelConfig, artifact_names: Sequence[str]) -> None:
    if config.HasField("ensemble_scheduling") and not config.backend:
        config.platform = config.platform or ENSEMBLE_PLATFORM
        return
    found = _find_format(config, artifact_names)
    if found is not None:
        config.backend = config.backend or found.backend
        config.platform = config.platform or found.platform
        # A PyTorch model class in model.py brings its weights or not; Triton leaves the choice
        # of the file to the backend.
        if config.runtime != _PYTORCH_RUNTIME_FILE:
            config.default_model_filename = config.default_model_filename or found.filename
    elif not (config.backend or config.platform or config.default_model_filename):
        _fill_backend_from_name(config)


def _find_format(config: ModelConfig, artifact_names: Sequence[str]) -> _ModelFormat | None:
    """The file format that the config refers to, or that lies in the version folder."""
    candidates = [known for known in _FORMATS if config.backend in {"", known.backend}]
    if config.platform:
        return next((known for known in candidates if known.platform == config.platform), None)
    filename = config.default_model_filename
    names = [filename] if filename else artifact_names
    by_file = next((known for known in candidates if known.filename in names), None)
    if by_file is not None or not config.backend:
        return by_file
    # A file of another name still has the suffix of its format; otherwise the usual format.
    suffix = PurePosixPath(filename).suffix
    by_suffix = [known for known in candidates if PurePosixPath(known.filename).suffix == suffix]
    return next(iter(by_suffix or candidates), None)


def _fill_backend_from_name(config: ModelConfig) -> None:
    _, dot, backend = config.name.partition(".")
    if not dot or not backend:
        raise InvalidArgumentError(
            f"Invalid model name: Could not determine backend for model '{config.name}' with no "
            "backend in model configuration. Expected model name of the form "
            "'model.<backend_name>'. Name a backend in config.pbtxt, or put a model file such as "
            "model.onnx or model.pt into the version folder."
        )
    config.backend = backend
    config.default_model_filename = f"model.{backend}"


def _fill_instance_groups(
    config: ModelConfig, default_count: int | None, gpu_ids: Sequence[int]
) -> None:
    if not config.instance_group:
        config.instance_group.add(name=config.name)
    for index, group in enumerate(config.instance_group):
        if not group.name:
            group.name = f"{config.name}_{index}"
        if group.kind == ModelInstanceGroup.KIND_AUTO:
            has_gpus = bool(gpu_ids) and set(group.gpus) <= set(gpu_ids)
            group.kind = ModelInstanceGroup.KIND_GPU if has_gpus else ModelInstanceGroup.KIND_CPU
        if not group.count:
            on_cpu = group.kind == ModelInstanceGroup.KIND_CPU
            usual = 2 if on_cpu and config.backend in _TWO_INSTANCE_BACKENDS else 1
            group.count = usual if default_count is None else default_count
        if group.kind == ModelInstanceGroup.KIND_GPU and not group.gpus:
            group.gpus.extend(gpu_ids)
