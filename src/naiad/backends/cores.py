"""Keeping threads and processes to some of the machine's cores."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from naiad.errors import InternalError


@contextmanager
def kept_to(cores: frozenset[int] | None) -> Iterator[None]:
    """Let the calling thread run on these cores alone meanwhile; None changes nothing.

    Linux hands the cores of a thread down: the threads and processes that it starts meanwhile stay
    on them, and so does all that those start.

    Raises:
        InternalError: they were taken from this process since it started.
    """
    if cores is None:
        yield
        return
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, cores)
    except OSError as error:
        raise InternalError(
            f"can't run on the cores {', '.join(map(str, sorted(cores)))} of its host policy: "
            f"{error.strerror}"
        ) from error
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
