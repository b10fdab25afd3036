"""What a model config's ``parameters`` and ``--backend-config=python,...`` say."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from naiad.backends.base import ModelSource
from naiad.backends.parameters import IN_PROCESS, read_boolean, read_integer, read_text
from naiad.backends.settings import read_integer_setting
from naiad.errors import InvalidArgumentError

# Triton's own default of stub-timeout-seconds.
_START_TIMEOUT_S: Final = 30
_REGION_BYTES: Final = 64 << 30
_RESTART_LIMIT: Final = 5
# What can't be done within the server's process.
PROCESS_ONLY: Final = ("EXECUTION_ENV_PATH", "EXECUTE_TIMEOUT_MS", "INITIALIZE_TIMEOUT_MS")


@dataclass(frozen=True, slots=True)
class PythonOptions:
    """How the instances of a model run.

    Attributes:
        environment: folder or archive of the interpreter's environment; None for the server's.
        start_timeout_s: until a process speaks, and until it has ended when it is told to.
        initialize_timeout_s: until a model is initialized; None waits as long as it takes.
        execute_timeout_s: until ``execute`` returns; None waits as long as it takes.
        restart_limit: starts in a row that may fail before an instance is given up.
        region_bytes: that the tensors of one direction may take at a time.
        is_in_process: the model runs in threads of the server's process.
    """

    environment: Path | None
    start_timeout_s: float = _START_TIMEOUT_S
    initialize_timeout_s: float | None = None
    execute_timeout_s: float | None = None
    restart_limit: int = _RESTART_LIMIT
    region_bytes: int = _REGION_BYTES
    is_in_process: bool = False


def read_options(source: ModelSource) -> PythonOptions:
    """Read them.

    Raises:
        InvalidArgumentError: one is not what it should be; the text names it.
    """
    config = source.config
    is_in_process = bool(read_boolean(config, IN_PROCESS))
    if is_in_process:
        for key in PROCESS_ONLY:
            if read_text(config, key):
                raise InvalidArgumentError(
                    f"model '{source.name}': parameter '{key}' needs a process of its own; remove "
                    f"it or '{IN_PROCESS}'"
                )
    restart_limit = read_integer(config, "RESTART_LIMIT")
    return PythonOptions(
        environment=_environment(source),
        start_timeout_s=read_integer_setting(
            source, "stub-timeout-seconds", default=_START_TIMEOUT_S, minimum=1
        ),
        initialize_timeout_s=_seconds(read_integer(config, "INITIALIZE_TIMEOUT_MS")),
        execute_timeout_s=_seconds(read_integer(config, "EXECUTE_TIMEOUT_MS")),
        restart_limit=_RESTART_LIMIT if restart_limit is None else restart_limit,
        region_bytes=read_integer_setting(
            source, "shm-region-max-byte-size", default=_REGION_BYTES, minimum=1
        ),
        is_in_process=is_in_process,
    )


def _environment(source: ModelSource) -> Path | None:
    text = read_text(source.config, "EXECUTION_ENV_PATH")
    if not text:
        return None
    if "://" in text:
        raise InvalidArgumentError(
            f"parameter 'EXECUTION_ENV_PATH' of model '{source.name}' must be a path on this "
            f"machine, got '{text}'"
        )
    folder = source.version_directory.parent
    path = Path(text.replace("$$TRITON_MODEL_DIRECTORY", str(folder)))
    if not path.exists():
        raise InvalidArgumentError(
            f"parameter 'EXECUTION_ENV_PATH' of model '{source.name}': there is no '{path}'"
        )
    return path


def _seconds(milliseconds: int | None) -> float | None:
    return None if not milliseconds else milliseconds / 1000


def own_interpreter() -> Path:
    """The interpreter that runs the server."""
    return Path(sys.executable)
