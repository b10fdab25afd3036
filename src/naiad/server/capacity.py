"""What the machine, or the container, gives this process: cores and memory."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Final

# A quarter of memory for requests in flight, and of it for those that wait for models; models,
# batches and answers need the rest.
_REQUEST_SHARE: Final = 4
_FALLBACK_BYTES: Final = 2 << 30
_MEMINFO: Final = "/proc/meminfo"
# cgroup v2 and v1. A process sees its own group at the root of the mount inside a container.
_CGROUP_LIMITS: Final = (
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
)
_CGROUPS: Final = "/proc/self/cgroup"
_V2_CONTROLLERS: Final = ""


def _read_file(path: str) -> str:
    return Path(path).read_text()


def core_count(read: Callable[[str], str] = _read_file) -> int:
    """Cores that this process may use: its affinity, cut down by the container's quota."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    for quota, period in _quotas(read):
        # Half a core more than two is worth a third thread.
        cores = min(cores, -(-quota // period))
    return max(cores, 1)


def gpu_ids(devices: Path = Path("/dev")) -> tuple[int, ...]:
    """The GPUs that this process, or its container, was given, as CUDA counts them."""
    nodes = [path for path in devices.glob("nvidia*") if path.name[len("nvidia") :].isdigit()]
    return tuple(range(len(nodes)))


def memory_limit_bytes(read: Callable[[str], str] = _read_file) -> int:
    """Memory that this process may use: the machine's, or the container's limit if it is less."""
    limits = [limit for path in _CGROUP_LIMITS if (limit := _read_limit(path, read)) is not None]
    machine = _read_machine(read)
    if machine is not None:
        limits.append(machine)
    return min(limits, default=_FALLBACK_BYTES)


def request_budget_bytes(read: Callable[[str], str] = _read_file) -> int:
    """Bytes of requests that may be in flight, or wait for models, where the settings don't say."""
    return memory_limit_bytes(read) // _REQUEST_SHARE


def _quotas(read: Callable[[str], str]) -> Iterator[tuple[int, int]]:
    """Microseconds of CPU per microseconds of time: of the process's group and those above it.

    A container sees its own group as the root; a service of systemd sees where it is.
    """
    for folder in _cpu_folders(read):
        try:
            quota, period = read(f"{folder}/cpu.max").split()
        except (OSError, ValueError):
            try:
                quota = read(f"{folder}/cpu.cfs_quota_us").strip()
                period = read(f"{folder}/cpu.cfs_period_us").strip()
            except OSError:
                continue
        # "max" in v2 and -1 in v1 are no quota.
        if quota.isdecimal() and period.isdecimal() and int(period):
            yield int(quota), int(period)


def _cpu_folders(read: Callable[[str], str]) -> Iterator[str]:
    """Where the quotas may be, in cgroup v2 and v1."""
    groups = {_V2_CONTROLLERS: "/"}
    try:
        for line in read(_CGROUPS).splitlines():
            _, controllers, path = line.split(":", 2)
            groups[controllers] = path
    except (OSError, ValueError):
        # Not Linux, or not that format; the root may still be ours.
        pass
    for controllers, path in groups.items():
        if controllers == _V2_CONTROLLERS:
            mount = "/sys/fs/cgroup"
        elif "cpu" in controllers.split(","):
            mount = f"/sys/fs/cgroup/{controllers}"
        else:
            continue
        for above in (PurePosixPath(path), *PurePosixPath(path).parents):
            yield f"{mount}{above}".rstrip("/")


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
