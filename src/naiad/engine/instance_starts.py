"""Making the instances of a model version, all of them or none."""

import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeAlias

from naiad.backends.base import Instance, LoadedModel, ProcessModel, RequestInstance
from naiad.backends.cores import kept_to
from naiad.errors import NaiadError
from naiad.model_config.instances import InstancePlace

_log = logging.getLogger(__name__)

# Each imports the model's libraries; more at a time only take memory and cores from each other.
_MAX_STARTS: Final = 4


@dataclass(frozen=True, slots=True)
class KeptInstance:
    """An instance, and the cores that its thread is to run on."""

    instance: Instance | RequestInstance
    cores: frozenset[int]

    def close(self) -> None:
        """Free what the instance holds."""
        self.instance.close()


MadeInstance: TypeAlias = Instance | RequestInstance | KeptInstance


def takes_requests(made: MadeInstance) -> bool:
    """Whether it sees requests unmerged."""
    return isinstance(made.instance if isinstance(made, KeptInstance) else made, RequestInstance)


def make_instances(
    loaded: LoadedModel,
    places: Mapping[int, InstancePlace],
    policy_cores: Mapping[str, frozenset[int]],
) -> list[MadeInstance]:
    """The instances in the order of their places, which are by their index; blocks.

    Those that are processes start side by side, which takes the time of the slowest; the others
    come one after the other, as they share what a backend has read.

    Args:
        loaded: makes them.
        places: where each runs.
        policy_cores: the cores of each host policy. What an instance starts when it is made stays
            on those of its own.

    Raises:
        Exception: the first failure; the instances that were made are closed.
    """
    for place in places.values():
        _log.info(
            "TRITONBACKEND_ModelInstanceInitialize: %s (%s device %d)",
            place.name,
            "CPU" if place.gpu is None else "GPU",
            place.gpu or 0,
        )
    are_processes = isinstance(loaded, ProcessModel) and loaded.has_processes
    count = min(len(places), _MAX_STARTS) if are_processes else 1
    made: dict[int, MadeInstance] = {}

    def make(index: int) -> None:
        cores = policy_cores.get(places[index].host_policy)
        with kept_to(cores):
            instance = loaded.create_instance(index)
        made[index] = instance if cores is None else KeptInstance(instance, cores)

    try:
        if count == 1:
            for index in places:
                make(index)
        else:
            with ThreadPoolExecutor(count, "instance") as threads:
                # Raises the first failure, and what has not begun by then does not begin.
                list(threads.map(make, places))
    except BaseException:
        for instance in made.values():
            with suppress(NaiadError):
                instance.close()
        raise
    return [made[index] for index in places]
