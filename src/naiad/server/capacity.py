"""What the machine, or the container, gives this process: cores and memory."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

# Requests in flight may hold this share of memory; models, batches and answers need the rest.
REQUEST_SHARE: Final = 4
_FALLBACK_BYTES: Final = 2 << 30
_MEMINFO: Final = "/proc/meminfo"
# cgroup v2 and v1. A process sees its own group at the root of the mount inside a container.
_CGROUP_LIMITS: Final = (
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
)
_CGROUP_CPU: Final = "/sys/fs/cgroup/cpu.max"


def _read_file(path: str) -> str:
    return Path(path).read_text()


def core_count(read: Callable[[str], str] = _read_file) -> int:
    """Cores that this process may use: its affinity, cut down by the container's quota."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    try:
        quota, period = read(_CGROUP_CPU).split()
        if quota != "max":
            cores = min(cores, -(-int(quota) // int(period)))
    except (OSError, ValueError):
        # No cgroup v2, or none with a quota.
        pass
    return max(cores, 1)


def memory_limit_bytes(read: Callable[[str], str] = _read_file) -> int:
    """Memory that this process may use: the machine's, or the container's limit if it is less."""
    limits = [limit for path in _CGROUP_LIMITS if (limit := _read_limit(path, read)) is not None]
    machine = _read_machine(read)
    if machine is not None:
        limits.append(machine)
    return min(limits, default=_FALLBACK_BYTES)


def request_budget_bytes(read: Callable[[str], str] = _read_file) -> int:
    """How many bytes of requests the server holds at a time, where its user doesn't say."""
    return memory_limit_bytes(read) // REQUEST_SHARE


def _read_limit(path: str, read: Callable[[str], str]) -> int | None:
    try:
        return int(read(path))
    except (OSError, ValueError):
        # No such version of cgroups, or "max".
        return None


def _read_machine(read: Callable[[str], str]) -> int | None:
    try:
        for line in read(_MEMINFO).splitlines():
            if line.startswith("MemTotal:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None
