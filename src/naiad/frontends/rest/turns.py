"""Long work on the event loop, a millisecond at a time."""

import asyncio
from collections.abc import Generator, Iterator
from typing import TypeVar

T = TypeVar("T")


class Turns:
    """Runs generators so that between any two of their steps everything else gets its turn.

    All of them together do one step for each pass of the loop, in the order of their coming, so
    that many large requests hold it no longer than one.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def run(self, steps: Generator[None, None, T]) -> T:
        """Iterate ``steps`` to its end; returns what it returns."""
        while True:
            async with self._turn:
                try:
                    next(steps)
                except StopIteration as end:
                    result: T = end.value
                    return result
                await asyncio.sleep(0)

    async def collect(self, steps: Iterator[T]) -> list[T]:
        """Iterate ``steps`` to its end; returns what it yielded."""
        items: list[T] = []
        done = object()
        while True:
            async with self._turn:
                item = next(steps, done)
                if item is done:
                    return items
                items.append(item)  # type: ignore[arg-type]
                await asyncio.sleep(0)
