"""How busy the machine is, from Linux's ``/proc``."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from naiad.clock import Clock

_PROC: Final = Path("/proc")
# Fields of the "cpu" line of /proc/stat, proc(5): user nice system idle iowait irq softirq steal.
# The guest times after them are part of user and nice already.
_TIME_FIELDS: Final = 8
_IDLE: Final = slice(3, 5)


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Clock ticks of all cores since boot."""

    busy: int
    total: int


@dataclass(frozen=True, slots=True)
class Memory:
    """RAM of the machine; used is what could not be given to a new process."""

    total_bytes: int
    used_bytes: int


@dataclass(frozen=True, slots=True)
class MachineUsage:
    """One reading.

    Attributes:
        utilization: 0.0 to 1.0, over the last interval; 0.0 before the first is over.
        memory: now.
    """

    utilization: float
    memory: Memory


def parse_cpu_times(stat: str) -> CpuTimes:
    """Read the first line of ``/proc/stat``.

    Raises:
        ValueError: it isn't one.
    """
    fields = stat.partition("\n")[0].split()
    times = [int(field) for field in fields[1 : _TIME_FIELDS + 1]]
    if len(times) < 4 or fields[0] != "cpu":
        raise ValueError(f"no cpu line: {stat[:80]!r}")
    total = sum(times)
    return CpuTimes(total - sum(times[_IDLE]), total)


def parse_memory(meminfo: str) -> Memory:
    """Read ``/proc/meminfo``.

    Raises:
        ValueError: it has no MemTotal or no MemAvailable.
    """
    kib: dict[str, int] = {}
    for line in meminfo.splitlines():
        key, _, value = line.partition(":")
        if key in ("MemTotal", "MemAvailable"):
            kib[key] = int(value.split()[0])
    if len(kib) < 2:
        raise ValueError("no MemTotal and MemAvailable")
    total = kib["MemTotal"] * 1024
    return Memory(total, total - kib["MemAvailable"] * 1024)


def _read_proc(name: str) -> str:
    return (_PROC / name).read_text()


class MachineMonitor:
    """Reads the machine when asked, and not more often than the interval.

    Args:
        clock: tells when the interval is over.
        interval_ns: over which utilization is taken, at least.
        read: content of a file of ``/proc`` by name.

    Raises:
        OSError, ValueError: this machine has no such files, or of another form.
    """

    def __init__(
        self, clock: Clock, interval_ns: int, read: Callable[[str], str] = _read_proc
    ) -> None:
        self._clock = clock
        self._interval_ns = interval_ns
        self._read = read
        self._sampled_ns = clock.now_ns()
        self._times = parse_cpu_times(read("stat"))
        self._utilization = 0.0

    def read(self) -> MachineUsage:
        """Utilization of the last whole interval, and memory now."""
        now_ns = self._clock.now_ns()
        if now_ns - self._sampled_ns >= self._interval_ns:
            times = parse_cpu_times(self._read("stat"))
            elapsed = times.total - self._times.total
            if elapsed > 0:
                busy = times.busy - self._times.busy
                # iowait may step back on its own, so a share can leave its range a little.
                self._utilization = min(max(busy / elapsed, 0.0), 1.0)
            self._times = times
            self._sampled_ns = now_ns
        return MachineUsage(self._utilization, parse_memory(self._read("meminfo")))
