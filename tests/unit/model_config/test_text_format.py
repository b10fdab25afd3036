import pytest

from naiad.errors import InvalidArgumentError
from naiad.model_config.schema import DataType, ModelConfig, ModelInstanceGroup
from naiad.model_config.text_format import ConfigSyntaxError, format_config, parse_config


def test_all_spellings_of_the_text_format_are_read() -> None:
    config = parse_config(
        """
        # a comment
        name: 'quo' "ted"
        input: [ { name: "a" data_type: TYPE_FP32, dims: [-1, 3] }, { name: "b"; dims: 1 dims: 2 } ]
        instance_group < kind: 2 count: 0x2 >
        output { dims: [ ] }
        parameters { key: "k" value { string_value: "v\\n\\x41" } }
        parameters: [ { key: "l" value: { } } ]
        dynamic_batching { }
        """,
        "config.pbtxt",
    )

    assert config.name == "quoted"
    assert [list(tensor.dims) for tensor in config.input] == [[-1, 3], [1, 2]]
    assert config.input[0].data_type == DataType.TYPE_FP32
    assert config.instance_group[0].kind == ModelInstanceGroup.KIND_CPU
    assert config.instance_group[0].count == 2
    assert config.parameters["k"].string_value == "v\nA"
    assert config.parameters["l"].string_value == ""
    assert config.HasField("dynamic_batching")


@pytest.mark.parametrize(
    ("text", "position", "detail"),
    [
        ("a: 1", (1, 1), 'no field named "a"'),
        ("max_batch_size: 8\ndynamic_batchin { }", (2, 1), "Did you mean 'dynamic_batching'?"),
        ("input {\n  dtype: 3\n}", (2, 3), "Did you mean 'data_type'?"),
        (
            "input { data_type: TYPE_FLOAT32 }",
            (1, 20),
            "no value named TYPE_FLOAT32. Did you mean 'TYPE_FP32'?",
        ),
        (
            "input { data_type: 'TYPE_FP32' }",
            (1, 20),
            "Write TYPE_FP32 without quotes.",
        ),
        (
            "instance_group { kind: GPU }",
            (1, 24),
            "no value named GPU. Did you mean 'KIND_GPU'?",
        ),
        (
            "input { format: XYZ }",
            (1, 17),
            "It is one of FORMAT_NONE, FORMAT_NHWC, FORMAT_NCHW.",
        ),
        (
            "\nmax_queue_delay_microseconds: 5",
            (2, 1),
            "'max_queue_delay_microseconds' is a field of ModelDynamicBatching.",
        ),
        ('name: "a" name: "b"', (1, 17), 'should not have multiple "name" fields'),
        ("dynamic_batching { }\nsequence_batching { }", (2, 1), "another member of oneof"),
        ("dynamic_batching {\n", (1, 18), 'Expected "}"'),
        ("max_batch_size: 99999999999", (1, 17), "Value out of range"),
        ('name: "a\n"', (1, 7), "String missing ending quote"),
    ],
)
def test_a_mistake_is_located_and_explained(
    text: str, position: tuple[int, int], detail: str
) -> None:
    with pytest.raises(ConfigSyntaxError) as caught:
        parse_config(text, "models/m/config.pbtxt")

    error = caught.value
    assert isinstance(error, InvalidArgumentError)
    assert (error.line, error.column) == position
    assert error.source == "models/m/config.pbtxt"
    assert error.message.startswith(
        f"failed to read text proto from models/m/config.pbtxt: {position[0]}:{position[1]}: "
    )
    assert detail in error.message


def test_text_is_laid_out_as_people_write_it() -> None:
    config = ModelConfig(name="net", backend="onnxruntime", max_batch_size=8)
    config.parameters["b"].string_value = 'two "words"\n'
    config.parameters["a"].string_value = "é"
    config.input.add(name="x", data_type=DataType.TYPE_FP32, dims=[-1, 3])
    config.output.add(name="y", data_type=DataType.TYPE_BF16, dims=[1]).reshape.SetInParent()
    config.output.add(name="z")
    config.instance_group.add(kind=ModelInstanceGroup.KIND_CPU, count=2)
    config.dynamic_batching.priority_queue_policy[2].max_queue_size = 4
    config.model_warmup.add(name="w").inputs["x"].zero_data = False

    assert format_config(config) == (
        """\
name: "net"
backend: "onnxruntime"
max_batch_size: 8
input [
  {
    name: "x"
    data_type: TYPE_FP32
    dims: [ -1, 3 ]
  }
]
output [
  {
    name: "y"
    data_type: TYPE_BF16
    dims: [ 1 ]
    reshape { }
  },
  { name: "z" }
]
dynamic_batching {
  priority_queue_policy { key: 2 value { max_queue_size: 4 } }
}
instance_group [
  { kind: KIND_CPU count: 2 }
]
model_warmup [
  { name: "w" inputs { key: "x" value { zero_data: false } } }
]
parameters { key: "a" value { string_value: "é" } }
parameters { key: "b" value { string_value: "two \\"words\\"\\n" } }
"""
    )


def test_numbers_are_written_short_and_exact() -> None:
    config = ModelConfig()
    config.sequence_batching.direct.minimum_slot_utilization = 0.1
    control = config.model_metrics.metric_control.add()
    control.histogram_options.buckets.extend([0.1, 1e300])

    text = format_config(config)

    assert "minimum_slot_utilization: 0.1\n" in text.replace(" }", "\n")
    assert "buckets: [ 0.1, 1e+300 ]" in text
    assert parse_config(text, "text") == config


def test_an_enum_number_that_nobody_knows_survives() -> None:
    config = parse_config("input { data_type: 77 }", "text")

    assert "data_type: 77" in format_config(config)
