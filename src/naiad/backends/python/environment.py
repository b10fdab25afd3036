"""Interpreters of other environments: a virtual environment's folder, or a conda-pack archive."""

import hashlib
import logging
import shutil
import subprocess
import tarfile
import tempfile
import threading
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from naiad.backends.python.options import own_interpreter
from naiad.errors import InternalError, InvalidArgumentError

_log = logging.getLogger(__name__)

_UNPACK_TIMEOUT_S = 300
# Where packages of conda leave what must be set before their libraries are used.
_CONDA_SCRIPTS: Final = "etc/conda/activate.d/*.sh"
_ACTIVATE: Final = (
    'export CONDA_PREFIX="$0" PATH="$0/bin:$PATH"; '
    f'for script in "$0"/{_CONDA_SCRIPTS}; do . "$script"; done; exec "$@"'
)


@dataclass(frozen=True, slots=True)
class Environment:
    """What runs a model.

    Attributes:
        interpreter: an executable.
        folder: of the environment; None for the server's own.
    """

    interpreter: Path
    folder: Path | None

    def command(self) -> list[str]:
        """What starts the interpreter; the arguments of the interpreter follow.

        As in a shell in which the environment is active, which Triton starts its processes from.
        """
        if self.folder is None or not any(self.folder.glob(_CONDA_SCRIPTS)):
            return [str(self.interpreter)]
        shell = shutil.which("bash") or "/bin/sh"
        return [shell, "-c", _ACTIVATE, str(self.folder), str(self.interpreter)]


class Environments:
    """The environments of one server; each archive is unpacked once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._unpacked: dict[str, Path] = {}

    def find(self, path: Path | None) -> Environment:
        """The environment at a path; unpacking one takes seconds.

        Raises:
            InvalidArgumentError: there is none, or no interpreter in it.
            InternalError: the archive can't be unpacked.
        """
        if path is None:
            return Environment(own_interpreter(), None)
        folder = path if path.is_dir() else self._unpack(path)
        interpreter = folder / "bin" / "python"
        if not interpreter.exists():
            raise InvalidArgumentError(
                f"environment '{path}' has no interpreter: it should hold 'bin/python', as a "
                "virtual environment and an archive of conda-pack do"
            )
        return Environment(interpreter, folder)

    def _unpack(self, archive: Path) -> Path:
        stamp = archive.stat()
        text = f"{archive.resolve()}:{stamp.st_size}:{stamp.st_mtime_ns}"
        key = hashlib.sha256(text.encode()).hexdigest()
        # One at a time: several instances of a model ask for the same.
        with self._lock:
            if key not in self._unpacked:
                folder = Path(tempfile.mkdtemp(prefix="naiad-environment-"))
                # With this object, or when the server ends.
                weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
                _unpack(archive, folder)
                self._unpacked[key] = folder
            return self._unpacked[key]


def _unpack(archive: Path, folder: Path) -> None:
    _log.info("unpacking environment %s", archive)
    try:
        with tarfile.open(archive) as opened:
            # Links may lead out, as those of a virtual environment to its interpreter do.
            opened.extractall(folder, filter="tar")
        unpack = folder / "bin" / "conda-unpack"
        if unpack.exists():
            interpreter = folder / "bin" / "python"
            subprocess.run(  # noqa: S603 - of the environment that the config names
                [str(interpreter), str(unpack)],
                check=True,
                capture_output=True,
                timeout=_UNPACK_TIMEOUT_S,
            )
    except tarfile.ReadError as error:
        raise InternalError(
            f"environment '{archive}' can't be unpacked: it is no archive that tar can read, plain "
            "or by gzip, bzip2 or xz; conda-pack makes one with '--format tar.gz'"
        ) from error
    except (OSError, tarfile.TarError, subprocess.SubprocessError) as error:
        raise InternalError(f"environment '{archive}' can't be unpacked: {error}") from error
