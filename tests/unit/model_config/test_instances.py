from naiad.model_config.instances import InstancePlace, list_instances
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
        InstancePlace("m_1_0_gpu0", gpu, 0),
        InstancePlace("m_1_0_gpu3", gpu, 3),
    ]
