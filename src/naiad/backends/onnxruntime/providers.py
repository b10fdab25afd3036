"""Execution providers: what ``optimization.execution_accelerators`` means to onnxruntime.

Source: onnxruntime_backend's README, "Execution accelerators"; the options of a provider are those
of onnxruntime, and of TensorRT also the names that Triton gave them.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeAlias

from naiad.backends.parameters import read_integer, read_text
from naiad.errors import InvalidArgumentError, UnsupportedError
from naiad.model_config.instances import list_instances
from naiad.model_config.schema import ModelConfig, ModelOptimizationPolicy

Provider: TypeAlias = tuple[str, dict[str, str]]
_Accelerator = ModelOptimizationPolicy.ExecutionAccelerators.Accelerator

_CPU: Final = "CPUExecutionProvider"
CPU_ONLY: Final[Sequence[Provider]] = ((_CPU, {}),)
_CUDA: Final = "CUDAExecutionProvider"
_TENSORRT: Final = "TensorrtExecutionProvider"
_OPENVINO: Final = "OpenVINOExecutionProvider"

_CPU_ACCELERATORS: Final[Mapping[str, str]] = MappingProxyType({"openvino": _OPENVINO})
_GPU_ACCELERATORS: Final[Mapping[str, str]] = MappingProxyType(
    {"cuda": _CUDA, "tensorrt": _TENSORRT}
)
_PACKAGES: Final[Mapping[str, str]] = MappingProxyType(
    {_OPENVINO: "onnxruntime-openvino", _CUDA: "onnxruntime-gpu", _TENSORRT: "onnxruntime-gpu"}
)
# Triton's names of TensorRT's options, where they are not onnxruntime's.
_TENSORRT_OPTIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "max_workspace_size_bytes": "trt_max_workspace_size",
        "int8_calibration_table_name": "trt_int8_calibration_table_name",
        "int8_use_native_calibration_table": "trt_int8_use_native_calibration_table",
    }
)
_TENSORRT_PRECISIONS: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "FP32": MappingProxyType({}),
        "FP16": MappingProxyType({"trt_fp16_enable": "True"}),
        "INT8": MappingProxyType({"trt_int8_enable": "True"}),
    }
)
# Triton says 1 or true; the Python API of onnxruntime takes these words and no others.
_TENSORRT_FLAGS: Final = frozenset(
    f"trt_{flag}"
    for flag in (
        "build_heuristics_enable",
        "context_memory_sharing_enable",
        "cuda_graph_enable",
        "detailed_build_log",
        "dla_enable",
        "dump_ep_context_model",
        "dump_subgraphs",
        "engine_cache_enable",
        "force_sequential_engine_build",
        "force_timing_cache",
        "fp16_enable",
        "int8_enable",
        "int8_use_native_calibration_table",
        "layer_norm_fp32_fallback",
        "sparsity_enable",
        "timing_cache_enable",
    )
)
_FLAGS: Final = MappingProxyType({"1": "True", "true": "True", "0": "False", "false": "False"})
# The older way to say options of CUDA, as parameters of the model, and its numbers.
_CUDA_PARAMETERS: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "arena_extend_strategy": {"0": "kNextPowerOfTwo", "1": "kSameAsRequested"},
        "cudnn_conv_algo_search": {"0": "EXHAUSTIVE", "1": "HEURISTIC", "2": "DEFAULT"},
        "do_copy_in_default_stream": {"0": "0", "1": "1"},
    }
)
_CUDA_LIMIT: Final = "gpu_mem_limit"


def find_gpu(config: ModelConfig, index: int) -> int | None:
    """The GPU of instance number ``index``; None for the CPU."""
    places = list_instances(config)
    return places[index].gpu if index < len(places) else None


def select_providers(
    config: ModelConfig, gpu: int | None, available: Sequence[str]
) -> list[Provider]:
    """The providers of one instance, in the order in which they are offered the graph.

    Accelerators for GPUs say nothing to an instance on the CPU, and the other way round.

    Args:
        config: of the model.
        gpu: that the instance runs on; None for the CPU.
        available: the providers that the installed onnxruntime was built with.

    Raises:
        InvalidArgumentError: an accelerator, or a value of it, that there is not.
        UnsupportedError: the installed onnxruntime is without a provider; says which one has it.
    """
    accelerators = config.optimization.execution_accelerators
    if gpu is None:
        wanted = [
            _make_provider(config.name, accelerator, _CPU_ACCELERATORS)
            for accelerator in accelerators.cpu_execution_accelerator
        ]
    else:
        wanted = [
            _make_provider(config.name, accelerator, _GPU_ACCELERATORS)
            for accelerator in accelerators.gpu_execution_accelerator
        ]
        if _CUDA not in [name for name, _ in wanted]:
            wanted.append((_CUDA, {}))
        older = _read_cuda_parameters(config)
        wanted = [
            (name, {**(older if name == _CUDA else {}), **options, "device_id": str(gpu)})
            for name, options in wanted
        ]
    for name, _ in wanted:
        # onnxruntime itself goes on without it, and its user wonders where the speed is.
        if name not in available:
            raise UnsupportedError(
                f"model '{config.name}' asks for onnxruntime's {name}, which the installed "
                f"onnxruntime does not have (it has {', '.join(available)}). Install "
                f"{_PACKAGES[name]} in place of onnxruntime, or {_without(gpu)}"
            )
    return [*wanted, *CPU_ONLY]


def check_providers(model_name: str, wanted: Sequence[Provider], given: Sequence[str]) -> None:
    """Refuse a session that onnxruntime has opened without a provider that was asked for.

    A build may have a provider whose libraries or whose driver the machine lacks. onnxruntime
    then says so in its log, which is off, and runs everything on the CPU.

    Args:
        model_name: for the message.
        wanted: what `select_providers` gave.
        given: what the session has.

    Raises:
        UnsupportedError: one is missing.
    """
    for name, _ in wanted:
        if name not in given:
            raise UnsupportedError(
                f"model '{model_name}' asks for onnxruntime's {name}, which could not be started "
                "on this machine. Check its driver and its libraries (for CUDA: nvidia-smi, and "
                "the versions of CUDA and cuDNN that this onnxruntime was built for), or take it "
                "out of the config: instance_group with kind: KIND_CPU, no execution_accelerators"
            )


def _without(gpu: int | None) -> str:
    if gpu is None:
        return "take the accelerator out of the config"
    return "set the kind of the instance_group to KIND_CPU"


def _make_provider(
    model_name: str, accelerator: _Accelerator, known: Mapping[str, str]
) -> Provider:
    provider = known.get(accelerator.name)
    if provider is None:
        raise InvalidArgumentError(
            f"unknown Execution Accelerator '{accelerator.name}' is requested by model "
            f"'{model_name}'; known here: {', '.join(known)}"
        )
    options = dict(accelerator.parameters)
    if provider == _TENSORRT:
        options = _translate_tensorrt(options)
    return provider, options


def _read_cuda_parameters(config: ModelConfig) -> dict[str, str]:
    options: dict[str, str] = {}
    limit = read_integer(config, _CUDA_LIMIT)
    if limit is not None:
        options[_CUDA_LIMIT] = str(limit)
    for key, words in _CUDA_PARAMETERS.items():
        text = read_text(config, key)
        if text is None:
            continue
        if text not in words:
            raise InvalidArgumentError(
                f"parameter '{key}' of model '{config.name}' must be one of {', '.join(words)}, "
                f"got '{text}'"
            )
        options[key] = words[text]
    return options


def _translate_tensorrt(parameters: Mapping[str, str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for key, value in parameters.items():
        if key != "precision_mode":
            name = _TENSORRT_OPTIONS.get(key, key)
            options[name] = _FLAGS.get(value.lower(), value) if name in _TENSORRT_FLAGS else value
            continue
        precision = _TENSORRT_PRECISIONS.get(value)
        if precision is None:
            raise InvalidArgumentError(
                f"unsupported precision mode '{value}' is requested; TensorRT takes "
                f"{', '.join(_TENSORRT_PRECISIONS)}"
            )
        options |= precision
    return options
