"""Making the instances of a model version, all of them or none."""

import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from naiad.backends.base import Instance, LoadedModel, ProcessModel, RequestInstance
from naiad.errors import NaiadError
from naiad.model_config.instances import InstancePlace

_log = logging.getLogger(__name__)

# Each imports the model's libraries; more at a time only take memory and cores from each other.
_MAX_STARTS: Final = 4


def make_instances(
    loaded: LoadedModel, places: Mapping[int, InstancePlace]
) -> list[Instance | RequestInstance]:
    """The instances in the order of their places, which are by their index; blocks.

    Those that are processes start side by side, which takes the time of the slowest; the others
    come one after the other, as they share what a backend has read.

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
    made: dict[int, Instance | RequestInstance] = {}

    def make(index: int) -> None:
        made[index] = loaded.create_instance(index)

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
