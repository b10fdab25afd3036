from collections.abc import Callable, Mapping

import pytest

from naiad.server.capacity import core_count, memory_limit_bytes, request_budget_bytes

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


def test_a_quota_takes_cores_away_and_leaves_one() -> None:
    unlimited = core_count(files({}))
    assert unlimited >= 1
    assert core_count(files({CPU: "max 100000\n"})) == unlimited
    assert core_count(files({CPU: "100000 100000\n"})) == 1
    assert core_count(files({CPU: "1000 100000\n"})) == 1
    assert core_count(files({CPU: "nonsense"})) == unlimited
