import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from naiad.server.capacity import core_count, gpu_ids, memory_limit_bytes, request_budget_bytes

V2 = "/sys/fs/cgroup/memory.max"
V1 = "/sys/fs/cgroup/memory/memory.limit_in_bytes"
MEMINFO = "/proc/meminfo"
CPU = "/sys/fs/cgroup/cpu.max"


def files(content: Mapping[str, str]) -> Callable[[str], str]:
    def read(path: str) -> str:
        if path not in content:
            raise FileNotFoundError(path)
        return content[path]

    return read


@pytest.mark.parametrize(
    ("content", "limit"),
    [
        ({MEMINFO: "MemTotal:  4 kB\nMemFree: 1 kB\n"}, 4096),
        ({MEMINFO: "MemTotal:  4 kB\n", V2: "1000\n"}, 1000),
        ({MEMINFO: "MemTotal:  4 kB\n", V2: "max\n"}, 4096),
        ({MEMINFO: "MemTotal:  4 kB\n", V1: "9223372036854771712\n"}, 4096),
        ({V1: "2000\n"}, 2000),
        ({}, 2 << 30),
        ({MEMINFO: "nonsense"}, 2 << 30),
    ],
)
def test_the_tightest_limit_counts(content: dict[str, str], limit: int) -> None:
    assert memory_limit_bytes(files(content)) == limit
    assert request_budget_bytes(files(content)) == limit // 4


GROUPS = "/proc/self/cgroup"


@pytest.mark.parametrize(
    "content",
    [
        pytest.param({CPU: "100000 100000\n"}, id="container"),
        pytest.param({CPU: "1000 100000\n"}, id="part of a core"),
        pytest.param(
            {
                GROUPS: "0::/system.slice/naiad.service\n",
                "/sys/fs/cgroup/system.slice/naiad.service/cpu.max": "max 100000\n",
                "/sys/fs/cgroup/system.slice/cpu.max": "100000 100000\n",
            },
            id="a group above",
        ),
        pytest.param(
            {
                GROUPS: "4:memory:/x\n3:cpu,cpuacct:/docker/1\n0::/\n",
                "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "50000\n",
                "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "50000\n",
            },
            id="v1",
        ),
    ],
)
def test_a_quota_takes_cores_away_and_leaves_one(content: dict[str, str]) -> None:
    assert core_count(files(content)) == 1


@pytest.mark.parametrize(
    "content",
    [
        {},
        {CPU: "max 100000\n"},
        {CPU: "nonsense"},
        {CPU: "100000 0\n"},
        {GROUPS: "nonsense"},
        {
            GROUPS: "1:cpu:/\n",
            "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
    ],
)
def test_without_a_quota_the_affinity_counts(content: dict[str, str]) -> None:
    assert core_count(files(content)) == len(os.sched_getaffinity(0))


def test_a_quota_above_the_affinity_takes_nothing_away() -> None:
    assert core_count(files({CPU: "100000000 100000\n"})) == len(os.sched_getaffinity(0))


def test_the_gpus_are_the_device_nodes_that_this_process_sees(tmp_path: Path) -> None:
    assert gpu_ids(tmp_path) == ()
    for name in ("nvidia0", "nvidia3", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert gpu_ids(tmp_path) == (0, 1)
