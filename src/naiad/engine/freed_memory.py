"""Memory that loads and unloads have freed, given back to the system.

To read a model takes more than the model: the file, a session that tells what is in it, weights
before they are packed. glibc keeps much of that for later, 32 MiB of a server that has one model of
16.8 MB, and what an unloaded model leaves. Triton trims after its unloads, too.
"""

import ctypes
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress


class FreedMemory:
    """Gives back what the allocator keeps; belongs to the event loop.

    Args:
        threads: where it is done, as it takes milliseconds; the GIL isn't held.
        trim: gives back; by default the C library's, where it has one.
    """

    def __init__(self, threads: Executor, trim: Callable[[], None] | None = None) -> None:
        self._threads = threads
        self._trim = trim or _find_trim()
        self._is_due = False

    def give_back(self) -> None:
        """Give back soon; once for all that ask before it begins."""
        if self._trim is not None and not self._is_due:
            self._is_due = True
            # Threads that take nothing more belong to a server that ends.
            with suppress(RuntimeError):
                self._threads.submit(self._run, self._trim)

    def _run(self, trim: Callable[[], None]) -> None:
        # Before it begins: what is freed from now on may be missed, and asks again.
        self._is_due = False
        trim()


def _find_trim() -> Callable[[], None] | None:
    """The allocator's own; None where the C library isn't glibc."""
    try:
        function = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # musl or macOS, and Windows, which wants a name
        return None

    def trim() -> None:
        function(0)

    return trim
