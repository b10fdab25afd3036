"""Corrections of a config leave the rest of its text alone."""

from collections.abc import Callable, Sequence

import pytest

from naiad.model_config.schema import DataType, ModelConfig, ModelInstanceGroup
from naiad.model_config.text_edit import rewrite_config
from naiad.model_config.text_format import parse_config

TEXT = """\
# The team's model.
name: "m"
backend: "onnxruntime"   # fast
max_batch_size: 8
input [
  {
    name: "A"  # tokens
    data_type: TYPE_INT64
    dims: [ -1, -1 ]
  },
  { name: "B" dims: [ 3 ] }
]
output { name: "C" dims: 4 dims: 5 }
instance_group [ { kind: KIND_GPU gpus: [ 0, 1 ] } ]
dynamic_batching { }
# end
"""

Change = Callable[[ModelConfig], object]


def rewrite(change: Change, removed: Sequence[tuple[str, int]] = (), text: str = TEXT) -> str:
    wanted = parse_config(text, "config.pbtxt")
    change(wanted)
    return rewrite_config(text, wanted, removed)


def nothing(config: ModelConfig) -> None:
    """No change."""


def replace_dims(config: ModelConfig) -> None:
    del config.input[0].dims[:]
    config.input[0].dims.append(-1)


def replace_repeated_dims(config: ModelConfig) -> None:
    del config.output[0].dims[:]
    config.output[0].dims.extend([7, 8])


def put_on_cpu(config: ModelConfig) -> None:
    config.instance_group[0].kind = ModelInstanceGroup.KIND_CPU
    del config.instance_group[0].gpus[:]


def add_input(config: ModelConfig) -> None:
    config.input.add(name="D", data_type=DataType.TYPE_FP32, dims=[2])


def add_output(config: ModelConfig) -> None:
    config.output.add(name="D", dims=[2])


def add_type(config: ModelConfig) -> None:
    config.input[1].data_type = DataType.TYPE_FP16


def set_map(config: ModelConfig) -> None:
    config.parameters["k"].string_value = "v"


@pytest.mark.parametrize(
    ("change", "old", "new"),
    [
        (nothing, "", ""),
        (replace_dims, "dims: [ -1, -1 ]", "dims: [ -1 ]"),
        (replace_repeated_dims, "dims: 4 dims: 5", "dims: [ 7, 8 ] "),
        (lambda c: setattr(c, "max_batch_size", 4), "max_batch_size: 8", "max_batch_size: 4"),
        (lambda c: setattr(c, "max_batch_size", 0), "max_batch_size: 8", "max_batch_size: 0"),
        (lambda c: setattr(c.input[0], "name", 'A"'), 'name: "A"', 'name: "A\\""'),
        (put_on_cpu, "kind: KIND_GPU gpus: [ 0, 1 ]", "kind: KIND_CPU "),
        (lambda c: c.ClearField("dynamic_batching"), "dynamic_batching { }\n", ""),
        (add_type, "dims: [ 3 ] }", "dims: [ 3 ] data_type: TYPE_FP16 }"),
        (
            lambda c: setattr(c, "default_model_filename", "x.onnx"),
            "max_batch_size: 8\n",
            'max_batch_size: 8\ndefault_model_filename: "x.onnx"\n',
        ),
        (
            add_input,
            '{ name: "B" dims: [ 3 ] }\n',
            '{ name: "B" dims: [ 3 ] },\n  {\n    name: "D"\n    data_type: TYPE_FP32\n'
            "    dims: [ 2 ]\n  }\n",
        ),
        (
            add_output,
            "dims: 4 dims: 5 }\n",
            'dims: 4 dims: 5 }\noutput {\n  name: "D"\n  dims: [ 2 ]\n}\n',
        ),
        (
            set_map,
            "# end\n",
            '# end\nparameters {\n  key: "k"\n  value { string_value: "v" }\n}\n',
        ),
        (
            lambda c: c.dynamic_batching.preferred_batch_size.append(4),
            "dynamic_batching { }",
            "dynamic_batching { preferred_batch_size: [ 4 ] }",
        ),
        (
            lambda c: c.dynamic_batching.priority_queue_policy[1].SetInParent(),
            "dynamic_batching { }",
            "dynamic_batching {\n  priority_queue_policy {\n    key: 1\n    value { }\n  }\n}",
        ),
    ],
)
def test_change(change: Change, old: str, new: str) -> None:
    changed = rewrite(change)

    wanted = parse_config(TEXT, "config.pbtxt")
    change(wanted)
    assert parse_config(changed, "config.pbtxt") == wanted
    if "key" not in new:
        assert changed == TEXT.replace(old, new)
    assert "# The team's model." in changed


@pytest.mark.parametrize(
    ("removed", "old", "new"),
    [
        ([("input", 1)], ',\n  { name: "B" dims: [ 3 ] }\n', "\n"),
        ([("output", 0)], 'output { name: "C" dims: 4 dims: 5 }\n', ""),
        ([("instance_group", 0)], "instance_group [ { kind: KIND_GPU gpus: [ 0, 1 ] } ]\n", ""),
    ],
)
def test_removal(removed: Sequence[tuple[str, int]], old: str, new: str) -> None:
    assert rewrite(nothing, removed) == TEXT.replace(old, new)


def test_removal_of_the_first_in_a_list() -> None:
    changed = rewrite(nothing, [("input", 0)])

    assert "# The team's model." in changed
    assert [t.name for t in parse_config(changed, "c").input] == ["B"]


def test_empty_text_becomes_a_config() -> None:
    changed = rewrite(lambda c: setattr(c, "max_batch_size", 4), text="")

    assert changed == "max_batch_size: 4\n"


def test_field_of_a_message_on_several_lines() -> None:
    text = 'input {\n    name: "A"\n    dims: 1  # one\n}\n'

    changed = rewrite(lambda c: setattr(c.input[0], "data_type", DataType.TYPE_FP32), text=text)

    assert changed == 'input {\n    name: "A"\n    dims: 1  # one\n    data_type: TYPE_FP32\n}\n'


def test_what_cannot_be_edited_is_written_anew() -> None:
    # Two texts of one message: which of them to change is not clear.
    text = '# lost\nversion_policy { }\nname: "m"\ninput { name: "A" }\ninput [ ]\n'

    changed = rewrite(lambda c: c.input[0].dims.append(1), [("input", 0)], text)

    wanted = parse_config(text, "c")
    del wanted.input[:]
    assert parse_config(changed, "c") == wanted
