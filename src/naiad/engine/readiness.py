"""Which instances of a model can run: those in processes of their own may be lost and come back."""

import asyncio
from collections.abc import Callable, Iterable, Mapping

from naiad.backends.base import WatchedInstance
from naiad.engine.instances import InstanceThread
from naiad.engine.request_instances import RequestThread


class Readiness:
    """The instances of one model version that can be lost; belongs to the loop.

    Args:
        instances: by the thread that has each.
        on_change: called on the loop, which must be running, when one became ready or unready.
    """

    def __init__(
        self,
        instances: Mapping[InstanceThread | RequestThread, WatchedInstance],
        on_change: Callable[[], None],
    ) -> None:
        self._instances: dict[InstanceThread | RequestThread, WatchedInstance] = {}
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        for thread, instance in instances.items():
            self.add(thread, instance)

    def add(self, thread: InstanceThread | RequestThread, instance: WatchedInstance) -> None:
        """Reckon with one more."""
        self._instances[thread] = instance
        instance.watch(self._note_change)

    def keep(self, threads: Iterable[InstanceThread | RequestThread]) -> None:
        """Reckon with these alone."""
        self._instances = {thread: self._instances[thread] for thread in threads}

    def prefer_ready(self, idle: list[InstanceThread | RequestThread]) -> bool:
        """Put an idle instance that is ready last; False where none is."""
        for index in range(len(idle) - 1, -1, -1):
            if self._instances[idle[index]].is_ready:
                idle.append(idle.pop(index))
                return True
        return False

    def problem(self) -> str:
        """Why no instance can run, or says that it can; empty while any can."""
        failures = [instance.failure for instance in self._instances.values()]
        return failures[0] if all(failures) else ""

    def is_lost(self) -> bool:
        """Whether no instance will ever run again."""
        return all(instance.is_lost for instance in self._instances.values())

    # From any thread.

    def _note_change(self) -> None:
        self._loop.call_soon_threadsafe(self._on_change)
