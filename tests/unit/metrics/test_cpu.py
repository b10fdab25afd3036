import pytest

from naiad.metrics.cpu import CpuTimes, MachineMonitor, Memory, parse_cpu_times, parse_memory

MEMINFO = "MemTotal:  100 kB\nMemFree:  1 kB\nMemAvailable:  40 kB\n"


class FakeMachine:
    """A clock and the files of /proc, moved by the test."""

    def __init__(self) -> None:
        self.ns = 0
        self.busy = 0
        self.idle = 0

    def now_ns(self) -> int:
        return self.ns

    def wall_ns(self) -> int:
        return self.ns

    def read(self, name: str) -> str:
        return MEMINFO if name == "meminfo" else f"cpu  {self.busy} 0 0 {self.idle} 0 0 0 0 9 9\n"


@pytest.fixture
def machine() -> FakeMachine:
    return FakeMachine()


def test_utilization_is_that_of_the_last_whole_interval(machine: FakeMachine) -> None:
    monitor = MachineMonitor(machine, 1000, machine.read)
    assert monitor.read().utilization == 0.0
    machine.ns, machine.busy, machine.idle = 999, 90, 10
    assert monitor.read().utilization == 0.0
    machine.ns = 1000
    assert monitor.read().utilization == 0.9
    machine.ns, machine.idle = 1500, 1000
    assert monitor.read().utilization == 0.9
    machine.ns, machine.busy, machine.idle = 2000, 140, 160
    assert monitor.read().utilization == 0.25


def test_time_that_stood_still_keeps_the_last_value(machine: FakeMachine) -> None:
    monitor = MachineMonitor(machine, 10, machine.read)
    machine.ns, machine.busy, machine.idle = 10, 1, 1
    assert monitor.read().utilization == 0.5
    machine.ns = 20
    assert monitor.read().utilization == 0.5


def test_waiting_for_a_disk_is_idle_and_guests_count_once() -> None:
    text = "cpu  1 2 3 40 50 6 7 8 100 100\ncpu0 0 0 0 0 0 0 0 0 0 0\n"
    assert parse_cpu_times(text) == CpuTimes(busy=27, total=117)


@pytest.mark.parametrize("text", ["", "cpu0 1 2 3 4\n", "cpu 1 2\n", "cpu a b c d\n"])
def test_what_is_no_cpu_line_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"no cpu line|invalid literal"):
        parse_cpu_times(text)


def test_memory() -> None:
    assert parse_memory(MEMINFO) == Memory(total_bytes=100 * 1024, used_bytes=60 * 1024)
    with pytest.raises(ValueError, match="no MemTotal and MemAvailable"):
        parse_memory("MemTotal: 5 kB\n")
