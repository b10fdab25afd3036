import pytest
from tests.support.configs import normalized

from naiad.errors import InvalidArgumentError
from naiad.model_config.normalize import normalize_config
from naiad.model_config.schema import ModelConfig, ModelInstanceGroup
from naiad.model_config.text_format import parse_config


@pytest.mark.parametrize(
    ("text", "artifacts", "expected"),
    [
        ("", ["model.onnx"], ("onnxruntime", "onnxruntime_onnx", "model.onnx")),
        ("", ["model.pt"], ("pytorch", "pytorch_libtorch", "model.pt")),
        ("", ["model.pt2", "naiad.json"], ("pytorch", "torch_aoti", "model.pt2")),
        ("", ["model.py"], ("python", "", "model.py")),
        ("", ["model.plan"], ("tensorrt", "tensorrt_plan", "model.plan")),
        ("", ["model.xml", "model.bin"], ("openvino", "", "model.xml")),
        ("", ["model.savedmodel"], ("tensorflow", "tensorflow_savedmodel", "model.savedmodel")),
        ("", ["model.keras"], ("tensorflow", "tensorflow_savedmodel", "model.keras")),
        ("", ["model.h5"], ("tensorflow", "tensorflow_savedmodel", "model.h5")),
        ('backend: "onnxruntime"', [], ("onnxruntime", "onnxruntime_onnx", "model.onnx")),
        ('platform: "onnxruntime_onnx"', [], ("onnxruntime", "onnxruntime_onnx", "model.onnx")),
        ('platform: "pytorch_libtorch"', [], ("pytorch", "pytorch_libtorch", "model.pt")),
        ('platform: "torch_aoti"', [], ("pytorch", "torch_aoti", "model.pt2")),
        ('backend: "pytorch"', ["model.pt2"], ("pytorch", "torch_aoti", "model.pt2")),
        ('backend: "pytorch"', ["weights"], ("pytorch", "pytorch_libtorch", "model.pt")),
        ('backend: "python"', ["model.onnx"], ("python", "", "model.py")),
        ('backend: "identity"', ["model.onnx"], ("identity", "", "")),
        ('platform: "graph"', ["model.onnx"], ("", "graph", "")),
        (
            'backend: "onnxruntime" default_model_filename: "net.onnx"',
            ["net.onnx"],
            ("onnxruntime", "onnxruntime_onnx", "net.onnx"),
        ),
        (
            'backend: "pytorch" default_model_filename: "net.pt2"',
            ["net.pt2"],
            ("pytorch", "torch_aoti", "net.pt2"),
        ),
        (
            'backend: "pytorch" runtime: "model.py"',
            ["model.py"],
            ("pytorch", "pytorch_libtorch", ""),
        ),
        (
            'default_model_filename: "model.pt"',
            ["model.onnx", "model.pt"],
            ("pytorch", "pytorch_libtorch", "model.pt"),
        ),
    ],
)
def test_backend_platform_and_file_complete_each_other(
    text: str, artifacts: list[str], expected: tuple[str, str, str]
) -> None:
    config = normalized(text, artifacts=artifacts)

    assert (config.backend, config.platform, config.default_model_filename) == expected


def test_the_backend_may_be_in_the_model_name() -> None:
    config = normalized("", name="net.mine", artifacts=["weights"])

    assert (config.backend, config.default_model_filename) == ("mine", "model.mine")


def test_nothing_that_tells_the_backend_is_an_error() -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        normalized("", artifacts=["weights.bin"])

    assert caught.value.message.startswith(
        "Invalid model name: Could not determine backend for model 'm' with no backend in model "
        "configuration. Expected model name of the form 'model.<backend_name>'."
    )


def test_the_folder_gives_the_name_and_no_other_name_is_taken() -> None:
    assert normalized("", name="net").name == "net"

    with pytest.raises(
        InvalidArgumentError,
        match=r"unexpected directory name 'm' for model 'n', directory name must equal model name",
    ):
        normalized('name: "n"')


def test_defaults_are_written_into_the_config() -> None:
    config = normalized("max_batch_size: 8 dynamic_batching { }")

    assert config.version_policy.latest.num_versions == 1
    assert list(config.dynamic_batching.preferred_batch_size) == [8]
    assert config.optimization.input_pinned_memory.enable
    assert config.optimization.output_pinned_memory.enable


def test_defaults_leave_what_is_there() -> None:
    config = normalized(
        """
        version_policy { all { } }
        max_batch_size: 8
        dynamic_batching { preferred_batch_size: [ 2 ] }
        optimization { input_pinned_memory { enable: false } }
        instance_group [ { name: "two" count: 3 kind: KIND_MODEL } ]
        """
    )

    assert config.version_policy.HasField("all")
    assert list(config.dynamic_batching.preferred_batch_size) == [2]
    assert not config.optimization.input_pinned_memory.enable
    group = config.instance_group[0]
    assert (group.name, group.count, group.kind) == ("two", 3, ModelInstanceGroup.KIND_MODEL)


def test_without_a_batch_axis_no_batch_size_is_preferred() -> None:
    assert not normalized("dynamic_batching { }").dynamic_batching.preferred_batch_size


def test_sequences_have_an_idle_limit_and_preferred_sizes() -> None:
    batching = normalized("max_batch_size: 4 sequence_batching { oldest { } }").sequence_batching

    assert batching.max_sequence_idle_microseconds == 1_000_000
    assert list(batching.oldest.preferred_batch_size) == [4]


@pytest.mark.parametrize(("backend", "count"), [("onnxruntime", 2), ("pytorch", 1), ("mine", 1)])
def test_a_model_without_instance_group_gets_the_backends_usual_count(
    backend: str, count: int
) -> None:
    groups = normalized(f'backend: "{backend}"').instance_group

    assert [(group.name, group.kind, group.count) for group in groups] == [
        ("m", ModelInstanceGroup.KIND_CPU, count)
    ]


def test_groups_without_a_name_are_numbered() -> None:
    groups = normalized('instance_group [ { count: 1 }, { name: "x" }, { } ]').instance_group

    assert [(group.name, group.count) for group in groups] == [("m_0", 1), ("x", 2), ("m_2", 2)]


@pytest.mark.parametrize(
    ("group", "kind", "gpus"),
    [
        ("{ }", ModelInstanceGroup.KIND_GPU, [0, 1]),
        ("{ gpus: [ 1 ] }", ModelInstanceGroup.KIND_GPU, [1]),
        ("{ gpus: [ 7 ] }", ModelInstanceGroup.KIND_CPU, [7]),
        ("{ kind: KIND_GPU }", ModelInstanceGroup.KIND_GPU, [0, 1]),
        ("{ kind: KIND_CPU }", ModelInstanceGroup.KIND_CPU, []),
    ],
)
def test_a_server_with_gpus_uses_them_unless_told_otherwise(
    group: str, kind: int, gpus: list[int]
) -> None:
    config = parse_config(f'backend: "onnxruntime" instance_group {group}', "config.pbtxt")

    normalize_config(config, directory_name="m", artifact_names=[], gpu_ids=[0, 1])

    assert (config.instance_group[0].kind, list(config.instance_group[0].gpus)) == (kind, gpus)


def test_the_servers_own_instance_count_replaces_the_usual_one() -> None:
    config = ModelConfig(backend="onnxruntime")

    normalize_config(config, directory_name="m", artifact_names=[], default_instance_count=5)

    assert config.instance_group[0].count == 5


def test_an_ensemble_has_no_instances_and_no_optimization() -> None:
    config = normalized("ensemble_scheduling { }", artifacts=[])

    assert (config.platform, config.backend) == ("ensemble", "")
    assert not config.instance_group
    assert not config.HasField("optimization")
    assert config.HasField("model_transaction_policy")
