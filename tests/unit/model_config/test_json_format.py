import json

import pytest
from tests.support.configs import normalized

from naiad.errors import InvalidArgumentError
from naiad.model_config.json_format import config_to_json, parse_config_json
from naiad.model_config.schema import ModelConfig
from naiad.model_config.text_format import parse_config


def test_an_ordinary_model_is_answered_with_all_its_defaults() -> None:
    config = normalized(
        """
        backend: "onnxruntime" max_batch_size: 8
        input [ { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] } ]
        output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] reshape { shape: [ 2, 2 ] } } ]
        instance_group [ { count: 1 kind: KIND_CPU } ]
        """
    )

    answer = config_to_json(config)

    assert answer == {
        "name": "m",
        "platform": "onnxruntime_onnx",
        "backend": "onnxruntime",
        "runtime": "",
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": 8,
        "input": [
            {
                "name": "IN",
                "data_type": "TYPE_FP32",
                "format": "FORMAT_NONE",
                "dims": [-1],
                "is_shape_tensor": False,
                "allow_ragged_batch": False,
                "optional": False,
                "is_non_linear_format_io": False,
            }
        ],
        "output": [
            {
                "name": "OUT",
                "data_type": "TYPE_FP32",
                "dims": [4],
                "reshape": {"shape": [2, 2]},
                "label_filename": "",
                "is_shape_tensor": False,
                "is_non_linear_format_io": False,
            }
        ],
        "batch_input": [],
        "batch_output": [],
        "optimization": {
            "priority": "PRIORITY_DEFAULT",
            "input_pinned_memory": {"enable": True},
            "output_pinned_memory": {"enable": True},
            "gather_kernel_buffer_threshold": 0,
            "eager_batching": False,
        },
        "instance_group": [
            {
                "name": "m_0",
                "kind": "KIND_CPU",
                "count": 1,
                "gpus": [],
                "secondary_devices": [],
                "profile": [],
                "passive": False,
                "host_policy": "",
            }
        ],
        "default_model_filename": "model.onnx",
        "cc_model_filenames": {},
        "metric_tags": {},
        "parameters": {},
        "model_warmup": [],
    }
    assert list(answer)[:5] == ["name", "platform", "backend", "runtime", "version_policy"]


def test_most_64_bit_integers_are_numbers_and_some_are_strings() -> None:
    config = parse_config(
        """
        version_policy { specific { versions: [ 9007199254740993 ] } }
        sequence_batching {
          direct { max_queue_delay_microseconds: 7 }
          state { dims: [ 1 ] initial_state { dims: [ 2 ] zero_data: true } }
        }
        instance_group { secondary_devices { device_id: 5 } }
        optimization { cuda { graph_spec { input { key: "x" value { dim: [ 3 ] } } } } }
        """,
        "text",
    )

    answer = config_to_json(config)

    state = answer["sequence_batching"]["state"][0]
    assert answer["version_policy"]["specific"]["versions"] == [9007199254740993]
    assert answer["sequence_batching"]["direct"]["max_queue_delay_microseconds"] == 7
    assert state["dims"] == [1]
    assert state["initial_state"][0]["dims"] == ["2"]
    assert answer["instance_group"][0]["secondary_devices"][0]["device_id"] == "5"
    assert answer["optimization"]["cuda"]["graph_spec"][0]["input"] == {"x": {"dim": ["3"]}}


def test_map_keys_are_strings_and_oneofs_appear_only_where_set() -> None:
    config = parse_config(
        "dynamic_batching { priority_queue_policy { key: 1 value { max_queue_size: 4 } } }", "text"
    )

    answer = config_to_json(config)

    assert answer["dynamic_batching"]["priority_queue_policy"] == {
        "1": {
            "timeout_action": "REJECT",
            "default_timeout_microseconds": 0,
            "allow_timeout_override": False,
            "max_queue_size": 4,
        }
    }
    assert "default_queue_policy" not in answer["dynamic_batching"]
    for member in ("sequence_batching", "ensemble_scheduling", "response_cache", "version_policy"):
        assert member not in answer


def test_floats_are_short_and_special_ones_are_words() -> None:
    config = parse_config(
        """
        sequence_batching { direct { minimum_slot_utilization: 0.1 } }
        model_metrics { metric_control { histogram_options { buckets: [ 1, 2.5, inf, nan ] } } }
        """,
        "text",
    )

    answer = config_to_json(config)

    assert answer["sequence_batching"]["direct"]["minimum_slot_utilization"] == 0.1
    control = answer["model_metrics"]["metric_control"][0]
    assert control["histogram_options"]["buckets"] == [1, 2.5, "Infinity", "NaN"]


def test_a_field_that_clients_of_2_51_do_not_know_appears_only_where_set() -> None:
    without = config_to_json(parse_config("ensemble_scheduling { }", "text"))
    with_it = config_to_json(parse_config("ensemble_scheduling { max_inflight_requests: 3 }", "t"))

    assert "max_inflight_requests" not in without["ensemble_scheduling"]
    assert with_it["ensemble_scheduling"]["max_inflight_requests"] == 3


def test_names_may_stand_without_quotes() -> None:
    config = parse_config_json(
        '{name: "a: b, c: d", sequence_batching : { direct: { }, "iterative_sequence": true }}'
    )
    assert config.name == "a: b, c: d"
    assert config.sequence_batching.HasField("direct")
    assert config.sequence_batching.iterative_sequence


def test_an_override_is_read_in_every_spelling() -> None:
    config = parse_config_json(
        json.dumps(
            {
                "backend": "onnxruntime",
                "maxBatchSize": 8,
                "input": [{"name": "IN", "data_type": "type_fp32", "dims": ["-1", 3]}],
                "instance_group": [{"kind": "kind_cpu", "count": 2}],
                "parameters": {"k": {"string_value": "v"}},
                "dynamic_batching": {"priority_queue_policy": {"2": {"timeout_action": "delay"}}},
            }
        )
    )

    assert config == parse_config(
        """
        backend: "onnxruntime" max_batch_size: 8
        input { name: "IN" data_type: TYPE_FP32 dims: [ -1, 3 ] }
        instance_group { kind: KIND_CPU count: 2 }
        parameters { key: "k" value { string_value: "v" } }
        dynamic_batching { priority_queue_policy { key: 2 value { timeout_action: DELAY } } }
        """,
        "text",
    )
    assert parse_config_json(b"{}") == ModelConfig()


def test_one_that_stands_alone_is_a_list_of_one() -> None:
    config = parse_config_json(
        '{"instance_group": {"count": 5, "kind": "kind_cpu"},'
        ' "input": {"name": "IN", "dims": 3, "data_type": "TYPE_FP32"}}'
    )
    assert [(group.count, group.kind) for group in config.instance_group] == [(5, 2)]
    assert list(config.input[0].dims) == [3]


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        ("", "Invalid config override: "),
        ("[" * 100_000, "Invalid config override: "),
        ("[]", "expected a JSON object"),
        ('{"max_batch": 3}', "max_batch: Cannot find field. Did you mean 'max_batch_size'?"),
        (
            '{"input": [{"name": "x"}, {"dim": [1]}]}',
            "(input[1]) dim: Cannot find field. Did you mean 'dims'?",
        ),
        (
            '{"input": [{"data_type": "FLOAT"}]}',
            '(input[0].data_type): invalid value "FLOAT" for type inference.DataType.',
        ),
        (
            '{"parameters": {"k": {"value": "v"}}}',
            "(parameters.k) value: Cannot find field. Did you mean 'string_value'?",
        ),
        ('{"max_batch_size": "many"}', "max_batch_size"),
        ('{"max_batch_size": 1e99}', "max_batch_size"),
        ('{"input": "x"}', "input"),
        ('{"parameters": [1]}', "parameters"),
        ('{"dynamic_batching": {}, "sequence_batching": {}}', "scheduling_choice"),
    ],
)
def test_a_wrong_override_is_refused_with_its_place(text: str, detail: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        parse_config_json(text)

    assert caught.value.message.startswith("Invalid config override: ")
    assert detail in caught.value.message
