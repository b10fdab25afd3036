"""The instances of a model version that serves, as they come and go."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from naiad.engine.instances import InstanceThread
from naiad.engine.request_instances import RequestThread
from naiad.scheduling.scheduler import Scheduler

AnyThread = InstanceThread | RequestThread


class InstancePool:
    """Which instances get batches, and which leave; belongs to the event loop.

    An instance that was taken away first runs what only it can (sequences stay where they began),
    then finishes the batch that it has and the requests that it has not answered to the end, and
    is closed.

    Args:
        threads: of the instances, by number.
        scheduler: is told who is there.
        is_free: whether no request is left that an instance has not answered to the end.

    Attributes:
        threads: those that may get a batch, by number.
        idle: of these, the ones that have none.
        leaving: those that were taken away and are not closed, by number.
    """

    def __init__(
        self,
        threads: Mapping[int, AnyThread],
        scheduler: Scheduler,
        is_free: Callable[[AnyThread], bool],
    ) -> None:
        self.threads: Final = dict(threads)
        self.idle: Final = list(threads.values())
        self.leaving: Final[dict[int, AnyThread]] = {}
        self._joining: dict[int, AnyThread] = {}
        self._scheduler = scheduler
        self._is_free = is_free
        self._closing: set[asyncio.Task[None]] = set()
        self._has_closed = asyncio.Event()

    def add(self, threads: Mapping[int, AnyThread]) -> None:
        """Keep further instances ready for the next `set_instances`."""
        self._joining.update(threads)

    def set_instances(self, numbers: Collection[int], now_ns: int) -> list[AnyThread]:
        """Let the instances of these numbers take batches, and no others.

        Returns:
            Those that are new.
        """
        joined = []
        for number, thread in self._joining.items():
            if number in numbers:
                self.threads[number] = thread
                self.idle.append(thread)
                joined.append(thread)
            else:
                self._start_closing(thread)
        self._joining.clear()
        for number, thread in self.threads.items():
            if number not in numbers:
                self.leaving[number] = thread
        self._scheduler.set_instances(numbers, now_ns)
        self.let_go()
        return joined

    def let_go(self) -> None:
        """Close the instances that leave and have nothing left to do."""
        for number, thread in list(self.leaving.items()):
            if not self._scheduler.release(number):
                continue
            if thread in self.idle:
                self.idle.remove(thread)
                del self.threads[number]
            if number not in self.threads and self._is_free(thread):
                del self.leaving[number]
                self._start_closing(thread)

    async def settle(self) -> None:
        """Return when those that leave are closed, but for those that a sequence keeps."""
        while self._closing or any(map(self._scheduler.release, self.leaving)):
            self._has_closed.clear()
            await self._has_closed.wait()

    async def close(self) -> None:
        """Close all of them; no request is left."""
        # One that is busy no more may be among those that leave, and in `threads` too.
        threads = {*self.threads.values(), *self.leaving.values(), *self._joining.values()}
        await close_threads(threads)
        self.leaving.clear()
        while self._closing:
            await asyncio.gather(*self._closing)

    def _start_closing(self, thread: AnyThread) -> None:
        task = asyncio.get_running_loop().create_task(close_threads([thread]))
        self._closing.add(task)
        task.add_done_callback(self._note_closed)

    def _note_closed(self, task: asyncio.Task[None]) -> None:
        self._closing.discard(task)
        self._has_closed.set()


async def close_threads(threads: Iterable[AnyThread]) -> None:
    """End threads, each of which closes its instance."""
    for thread in threads:
        await asyncio.to_thread(thread.close)
