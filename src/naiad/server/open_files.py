"""How many files this process may have open, connections among them."""

import logging
import resource
from collections.abc import Sequence
from typing import Final

_log = logging.getLogger(__name__)

# Models, libraries, processes of models, shared memory.
_OTHER_FILES: Final = 1024
# For any number of connections, where the system sets no limit: more than have ports.
_ANY_NUMBER: Final = 1 << 20


def allow_connections(limits: Sequence[int]) -> None:
    """Let the process have so many connections, as far as the system lets it.

    The limit that shells and containers set at first, often 1024, is for programs that use
    select(2). Beyond it the kernel resets connections, and nobody is told.

    Args:
        limits: connections of each front end; 0 for any number.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = sum(limits) + _OTHER_FILES if all(limits) else _ANY_NUMBER
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    except (OSError, ValueError):  # macOS has a limit beside the one that it tells
        allowed = soft
    most = max(limits, default=0)
    if allowed <= most:
        _log.warning(
            "%d connections are allowed, but this process may have %d open files, and the kernel "
            "resets connections beyond: raise 'ulimit -n', or lower --http-max-connections and "
            "--grpc-max-connections",
            most,
            allowed,
        )
