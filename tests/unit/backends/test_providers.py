"""Which execution providers a config asks for, on machines that have them and those that don't."""

import pytest

from naiad.backends.onnxruntime.providers import (
    Provider,
    check_providers,
    find_gpu,
    select_providers,
)
from naiad.errors import InvalidArgumentError, NaiadError, UnsupportedError
from naiad.model_config.schema import ModelConfig
from naiad.model_config.text_format import parse_config

CPU: Provider = ("CPUExecutionProvider", {})
CPU_BUILD = ["AzureExecutionProvider", "CPUExecutionProvider"]
OPENVINO_BUILD = ["OpenVINOExecutionProvider", "CPUExecutionProvider"]
GPU_BUILD = ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]
ON_CPU = None
ON_GPU_1 = 1


def config(accelerators: str = "", groups: str = "") -> ModelConfig:
    return parse_config(
        f'name: "m" optimization {{ execution_accelerators {{ {accelerators} }} }} {groups}', "text"
    )


def test_the_cpu_needs_no_words() -> None:
    assert select_providers(config(), ON_CPU, CPU_BUILD) == [CPU]


def test_openvino_comes_before_the_cpu_and_keeps_its_parameters() -> None:
    asked = config(
        'cpu_execution_accelerator { name: "openvino" parameters { key: "num_of_threads" '
        'value: "2" } }'
    )
    assert select_providers(asked, ON_CPU, OPENVINO_BUILD) == [
        ("OpenVINOExecutionProvider", {"num_of_threads": "2"}),
        CPU,
    ]


def test_accelerators_for_gpus_say_nothing_to_the_cpu() -> None:
    asked = config('gpu_execution_accelerator { name: "tensorrt" }')
    assert select_providers(asked, ON_CPU, CPU_BUILD) == [CPU]


def test_an_instance_on_a_gpu_has_cuda_on_that_gpu() -> None:
    assert select_providers(config(), ON_GPU_1, GPU_BUILD) == [
        ("CUDAExecutionProvider", {"device_id": "1"}),
        CPU,
    ]


def test_cuda_keeps_its_parameters() -> None:
    asked = config(
        'gpu_execution_accelerator { name: "cuda" parameters { key: "gpu_mem_limit" '
        'value: "1000" } }'
    )
    assert select_providers(asked, ON_GPU_1, GPU_BUILD) == [
        ("CUDAExecutionProvider", {"gpu_mem_limit": "1000", "device_id": "1"}),
        CPU,
    ]


def test_tensorrt_has_tritons_names_and_cuda_behind_it() -> None:
    asked = config(
        'gpu_execution_accelerator { name: "tensorrt" '
        'parameters { key: "precision_mode" value: "FP16" } '
        'parameters { key: "max_workspace_size_bytes" value: "1024" } '
        'parameters { key: "trt_engine_cache_enable" value: "1" } }'
    )
    names = ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]
    providers = select_providers(asked, ON_GPU_1, GPU_BUILD)
    assert [name for name, _ in providers] == names
    assert providers[0][1] == {
        "trt_fp16_enable": "True",
        "trt_max_workspace_size": "1024",
        "trt_engine_cache_enable": "True",
        "device_id": "1",
    }


@pytest.mark.parametrize(
    ("key", "value", "option"),
    [
        ("cudnn_conv_algo_search", "0", "EXHAUSTIVE"),
        ("cudnn_conv_algo_search", "1", "HEURISTIC"),
        ("cudnn_conv_algo_search", "2", "DEFAULT"),
        ("arena_extend_strategy", "0", "kNextPowerOfTwo"),
        ("arena_extend_strategy", "1", "kSameAsRequested"),
        ("do_copy_in_default_stream", "0", "0"),
        ("gpu_mem_limit", "4294967200", "4294967200"),
    ],
)
def test_the_older_parameters_of_cuda_are_its_options(key: str, value: str, option: str) -> None:
    asked = config()
    asked.parameters[key].string_value = value
    assert select_providers(asked, ON_GPU_1, GPU_BUILD)[0] == (
        "CUDAExecutionProvider",
        {key: option, "device_id": "1"},
    )
    assert select_providers(asked, ON_CPU, CPU_BUILD) == [CPU]


@pytest.mark.parametrize("key", ["cudnn_conv_algo_search", "gpu_mem_limit"])
def test_older_parameters_of_cuda_that_can_not_be_are_refused(key: str) -> None:
    asked = config()
    asked.parameters[key].string_value = "fast"
    with pytest.raises(InvalidArgumentError, match=f"parameter '{key}' of model 'm' must be"):
        select_providers(asked, ON_GPU_1, GPU_BUILD)


@pytest.mark.parametrize(
    ("value", "word"), [("1", "True"), ("true", "True"), ("0", "False"), ("False", "False")]
)
def test_flags_of_tensorrt_are_the_words_that_onnxruntime_takes(value: str, word: str) -> None:
    asked = config(
        'gpu_execution_accelerator { name: "tensorrt" '
        f'parameters {{ key: "trt_cuda_graph_enable" value: "{value}" }} '
        f'parameters {{ key: "int8_use_native_calibration_table" value: "{value}" }} '
        'parameters { key: "trt_builder_optimization_level" value: "1" } }'
    )
    _, options = select_providers(asked, ON_GPU_1, GPU_BUILD)[0]
    assert options == {
        "trt_cuda_graph_enable": word,
        "trt_int8_use_native_calibration_table": word,
        "trt_builder_optimization_level": "1",
        "device_id": "1",
    }


@pytest.mark.parametrize(
    ("accelerators", "gpu", "kind", "text"),
    [
        (
            'cpu_execution_accelerator { name: "openvino" }',
            ON_CPU,
            UnsupportedError,
            "Install onnxruntime-openvino in place of onnxruntime, or take the accelerator out",
        ),
        ("", ON_GPU_1, UnsupportedError, "Install onnxruntime-gpu in place of onnxruntime, or set"),
        (
            'cpu_execution_accelerator { name: "warp" }',
            ON_CPU,
            InvalidArgumentError,
            "unknown Execution Accelerator 'warp' is requested by model 'm'; known here: openvino",
        ),
        (
            'gpu_execution_accelerator { name: "tensorrt" parameters { key: "precision_mode" '
            'value: "FP4" } }',
            ON_GPU_1,
            InvalidArgumentError,
            "unsupported precision mode 'FP4' is requested",
        ),
    ],
)
def test_what_can_not_be_had_is_refused(
    accelerators: str, gpu: int | None, kind: type[NaiadError], text: str
) -> None:
    with pytest.raises(kind) as failure:
        select_providers(config(accelerators), gpu, CPU_BUILD)
    assert text in failure.value.message


def test_instances_are_counted_over_groups_and_gpus() -> None:
    groups = (
        "instance_group [ { count: 2 kind: KIND_GPU gpus: [ 0, 3 ] }, "
        "{ count: 5 kind: KIND_CPU passive: true }, { count: 1 kind: KIND_CPU } ]"
    )
    places = [find_gpu(config(groups=groups), index) for index in range(5)]
    assert places == [0, 0, 3, 3, None]


def test_a_provider_that_did_not_start_is_not_passed_over() -> None:
    wanted = select_providers(config(), ON_GPU_1, GPU_BUILD)
    check_providers("m", wanted, ["CUDAExecutionProvider", "CPUExecutionProvider"])
    with pytest.raises(UnsupportedError, match="CUDAExecutionProvider, which could not be"):
        check_providers("m", wanted, ["CPUExecutionProvider"])
