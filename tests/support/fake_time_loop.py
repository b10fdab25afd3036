"""An event loop on which waiting takes no time: the clock is moved to whatever is due next."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any

from tests.support.fake_clock import FakeClock

# What a float of seconds rounds away, and the loop's own resolution.
ROUNDING_NS = 2_000


class _SkippingSelector(selectors.DefaultSelector):
    """Where the loop would wait for time to pass, time passes at once."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> Any:
        if timeout is not None and timeout > 0:
            ready = super().select(0)
            if not ready:
                self._clock.time_ns += int(timeout * 1e9) + 1
            return ready
        return super().select(timeout)


class _FakeTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self, clock: FakeClock) -> None:
        super().__init__(_SkippingSelector(clock))
        self._fake_clock = clock

    def time(self) -> float:
        return self._fake_clock.time_ns / 1e9


def run(scenario: Callable[[FakeClock], Coroutine[Any, Any, None]]) -> None:
    clock = FakeClock()
    with asyncio.Runner(loop_factory=lambda: _FakeTimeLoop(clock)) as runner:
        runner.run(scenario(clock))
