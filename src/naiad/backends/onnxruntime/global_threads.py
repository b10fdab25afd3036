"""The thread pools that all sessions of the process share, where the server's settings ask so.

Source: onnxruntime_backend's README, ``--backend-config=onnxruntime,enable-global-threadpool=1``.
Their threads spin when there is nothing to do and onnxruntime's Python API has no switch for that,
so they are off unless asked for: a model that is asked every 20 ms costs nine times the CPU
with them. Once there are such pools, onnxruntime opens no session that does not share them.
"""

import logging
import threading

import onnxruntime

from naiad.backends.base import ModelSource
from naiad.backends.onnxruntime.failure import ORT_FAILURES
from naiad.backends.settings import read_boolean_setting, read_integer_setting

_log = logging.getLogger(__name__)


class GlobalThreads:
    """Makes the pools when the first model asks; belongs to one backend."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_made = False

    def is_asked_for(self, source: ModelSource) -> bool:
        """Whether the sessions of this model share the pools, which exist from then on.

        Raises:
            InvalidArgumentError: a setting that is not what it should be.
        """
        if not read_boolean_setting(source, "enable-global-threadpool", default=False):
            return False
        sizes = (
            read_integer_setting(source, "intra_op_thread_count", default=0),
            read_integer_setting(source, "inter_op_thread_count", default=0),
        )
        with self._lock:
            if not self._is_made:
                self._is_made = True
                _make_pools(*sizes)
        return True


def _make_pools(intra_op_count: int, inter_op_count: int) -> None:
    try:
        onnxruntime.set_global_thread_pool_sizes(intra_op_count, inter_op_count)
    except ORT_FAILURES as error:
        # Another server of this process made them; there is one pair in a process.
        _log.warning("the global thread pools stay as they are: %s", error)
