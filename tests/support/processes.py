"""What the system says of processes, for tests that start some."""

import os
import select
from pathlib import Path

# For what hangs.
_TIMEOUT_S = 300


def _stat(entry: Path) -> list[str]:
    """State and parent of a process, and more; empty where it is gone."""
    try:
        return (entry / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def children(pid: int) -> list[int]:
    """Processes that a process has started, whichever of its threads it was."""
    return [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and _stat(entry)[1:2] == [str(pid)]
    ]


def is_running(pid: int) -> bool:
    """Whether there is such a process, and more of it than its exit code."""
    return _stat(Path("/proc", str(pid)))[:1] not in ([], ["Z"], ["X"])


def wait_for_end(pid: int) -> bool:
    """Whether a process ends; true where it is gone."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return has_ended(descriptor)
    finally:
        os.close(descriptor)


def has_ended(descriptor: int) -> bool:
    """Whether the process of a descriptor ends."""
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(_TIMEOUT_S * 1000))
