from naiad.model_config.instances import (
    InstanceChange,
    InstancePlace,
    compare_instances,
    list_instances,
    list_traits,
)
from naiad.model_config.schema import ModelInstanceGroup
from naiad.model_config.text_format import parse_config

CONFIG = """
instance_group [
  { name: "m_0" kind: KIND_CPU count: 2 },
  { name: "m_1" kind: KIND_GPU count: 1 gpus: [ 0, 3 ] },
  { name: "m_2" kind: KIND_CPU passive: true }
]
"""


def test_a_group_for_gpus_has_its_count_on_each_and_a_passive_one_has_none() -> None:
    cpu, gpu = ModelInstanceGroup.KIND_CPU, ModelInstanceGroup.KIND_GPU
    assert list_instances(parse_config(CONFIG, "config.pbtxt")) == [
        InstancePlace("m_0_0", cpu, None),
        InstancePlace("m_0_1", cpu, None),
        InstancePlace("m_1_0_gpu0", gpu, 0, "gpu_0"),
        InstancePlace("m_1_0_gpu3", gpu, 3, "gpu_3"),
    ]


def traits_of(text: str) -> list[bytes]:
    return list_traits(parse_config(text, "config.pbtxt"))


def test_names_and_counts_tell_no_instances_apart() -> None:
    flat = traits_of(
        'instance_group { name: "a" count: 1 kind: KIND_CPU }'
        'instance_group { name: "b" count: 2 kind: KIND_CPU }'
    )
    assert flat == traits_of('instance_group { name: "c" count: 3 kind: KIND_CPU }')
    assert len(set(flat)) == 1


def test_places_limits_and_policies_do() -> None:
    groups = (
        "count: 1 kind: KIND_CPU",
        "count: 1 kind: KIND_MODEL",
        'count: 1 kind: KIND_CPU host_policy: "h"',
        'count: 1 kind: KIND_CPU rate_limiter { resources { name: "R" count: 2 } }',
        "count: 1 kind: KIND_GPU gpus: [ 0, 1 ]",
    )
    config = "".join(f"instance_group {{ {group} }}" for group in groups)
    assert len(traits_of(config)) == len(set(traits_of(config))) == 6
    assert len(list_instances(parse_config(config, "config.pbtxt"))) == 6


def test_as_many_instances_as_possible_are_kept() -> None:
    present = {0: b"cpu", 1: b"cpu", 4: b"gpu"}
    assert compare_instances(present, [b"cpu", b"cpu", b"gpu"]) == InstanceChange(
        {0: b"cpu", 1: b"cpu", 4: b"gpu"}, (), ()
    )
    assert compare_instances(present, [b"gpu", b"gpu", b"cpu"]) == InstanceChange(
        {4: b"gpu", 0: b"cpu"}, (1,), (1,)
    )
    assert compare_instances(present, [b"other"]) == InstanceChange({}, (0,), (0, 1, 4))
