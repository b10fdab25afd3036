"""Time as integer nanoseconds, from an object that tests replace."""

import time
from typing import Protocol


class Clock(Protocol):
    """Where everything that waits or measures gets its time."""

    def now_ns(self) -> int:
        """Monotonic time; only differences mean anything."""
        ...

    def wall_ns(self) -> int:
        """Nanoseconds since the Unix epoch, for what people and logs read."""
        ...


class SystemClock:
    """The machine's clocks."""

    now_ns = staticmethod(time.monotonic_ns)
    wall_ns = staticmethod(time.time_ns)
