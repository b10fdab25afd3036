"""CPU time of a process and everything it started, from /proc (Linux)."""

import os
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def parse_stat(text: str) -> tuple[int, int]:
    """Parent and CPU ticks out of one ``/proc/PID/stat`` (proc(5)).

    The ticks are user and system time, its own and that of children it has waited for, so a
    process that ends between two readings goes on counting in its parent.
    """
    # The command's name stands in parentheses and may hold spaces and parentheses itself.
    fields = text[text.rindex(")") + 2 :].split()
    return int(fields[1]), sum(int(ticks) for ticks in fields[11:15])


def tree_cpu_s(root_pid: int) -> float:
    """CPU seconds that ``root_pid`` and its descendants have used so far.

    Raises:
        ProcessLookupError: there is no such process.
    """
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            stat = (entry / "stat").read_text(encoding="utf-8", errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue  # It ended while the folder was read.
        parents[int(entry.name)], ticks[int(entry.name)] = parse_stat(stat)
    if root_pid not in ticks:
        raise ProcessLookupError(root_pid)
    total = 0
    for pid, own in ticks.items():
        ancestor = pid
        while ancestor not in (0, root_pid):
            ancestor = parents.get(ancestor, 0)
        if ancestor == root_pid:
            total += own
    return total / _TICKS_PER_S
