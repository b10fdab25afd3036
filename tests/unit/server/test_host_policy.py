import pytest

from naiad.errors import InvalidArgumentError
from naiad.server.command_line import parse_arguments
from naiad.server.host_policy import HostPolicySetting, resolve_policies
from naiad.server.settings import BadOptionError

NODES = {"/sys/devices/system/node/node1/cpulist": "4-7,12\n"}


def settings_of(*texts: str) -> tuple[HostPolicySetting, ...]:
    return parse_arguments(["models", *(f"--host-policy={text}" for text in texts)], {}).host_policy


def resolve(*texts: str, allowed: set[int] | None = None) -> dict[str, frozenset[int]]:
    def read(path: str) -> str:
        try:
            return NODES[path]
        except KeyError:
            raise FileNotFoundError(path) from None

    return resolve_policies(settings_of(*texts), allowed or set(range(16)), read)


def test_policies_have_the_cores_that_they_name() -> None:
    assert resolve() == {}
    assert resolve("gpu_0,cpu-cores=0-2,8", "mine,cpu-cores=15-15") == {
        "gpu_0": {0, 1, 2, 8},
        "mine": {15},
    }


def test_a_node_stands_for_those_of_its_cores_that_the_process_may_use() -> None:
    assert resolve("cpu,numa-node=1") == {"cpu": {4, 5, 6, 7, 12}}
    assert resolve("cpu,numa-node=1", allowed={0, 5, 12}) == {"cpu": {5, 12}}


def test_named_cores_come_before_those_of_the_node_and_the_last_setting_counts() -> None:
    assert resolve("cpu,cpu-cores=0-1", "cpu,numa-node=1") == {"cpu": {0, 1}}
    assert resolve("cpu,cpu-cores=0-1", "cpu,cpu-cores=3") == {"cpu": {3}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cpu,cpu-cores=14-4000000000", "there is no core 16, or this .* it may use 0-15"),
        ("cpu,numa-node=3", "there is no NUMA node 3 with cores on this machine"),
    ],
)
def test_what_the_machine_has_not_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"--host-policy={text}: .*{message}"):
        resolve(text)


def test_a_node_outside_of_the_process_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"no core of NUMA node 1; it may use 0-1,3"):
        resolve("cpu,numa-node=1", allowed={0, 1, 3})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cpu:cpu-cores=0-1", "option format is '<policy_name>,<setting>=<value>', got"),
        ("cpu,cpu-cores", "option format is"),
        (",cpu-cores=0", "option format is"),
        ("cpu,cores=0-1", "supported settings are 'numa-node', 'cpu-cores'"),
        ("cpu,numa-node=first", "'numa-node' is the number of a NUMA node, got 'first'"),
        ("cpu,cpu-cores=0:1", "format is '<lower_cpu_core_id>-<upper_cpu_core_id>'.*Got 0:1"),
        ("cpu,cpu-cores=3-1", "Got 3-1"),
        ("cpu,cpu-cores=0-1,", "Got 0-1,"),
        ("cpu,cpu-cores=-1", "Got -1"),
    ],
)
def test_what_is_no_setting_is_refused(text: str, message: str) -> None:
    with pytest.raises(BadOptionError, match=message):
        settings_of(text)
