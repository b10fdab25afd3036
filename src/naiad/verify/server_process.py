"""A server of our own for as long as it is needed: the real command, on ports that are free."""

import re
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

from naiad.errors import UnavailableError

_STARTED: Final = re.compile(r"Started (HTTPService|GRPCInferenceService) at (\S+):(\d+)")
_STOP_TIMEOUT_S: Final = 30.0
# Long enough to be read by a person, short enough for a terminal.
_TAIL_LINES: Final = 40


class ServerProcess:
    """``naiad serve`` on a model repository as a child process; a context manager.

    Attributes:
        address: ``HOST:PORT`` of its HTTP service, to connect to.
        grpc_address: the same of gRPC; empty where that is not served.
        command: that started it.
        pid: of the process; its children, where it has some, are below it.
    """

    def __init__(
        self, repository: Path, *, options: Sequence[str] = (), start_timeout_s: float = 600.0
    ) -> None:
        """Start the server and wait until its HTTP service listens.

        Args:
            repository: the model repository to serve.
            options: more flags of ``naiad serve``.
            start_timeout_s: loading the models is part of it.

        Raises:
            UnavailableError: it ended or stayed silent; the text has the end of its log.
        """
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._has_news = threading.Event()
        self._addresses: dict[str, str] = {}
        command = [
            *(sys.executable, "-m", "naiad", "serve", f"--model-repository={repository}"),
            *("--http-port=0", "--grpc-port=0", "--metrics-port=0", *options),
        ]
        self.command = command
        self._process = subprocess.Popen(  # noqa: S603  # our own interpreter and module
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            text=True, errors="replace",
        )  # fmt: skip
        assert self._process.stderr is not None  # noqa: S101  # PIPE was asked for above
        self._reader = threading.Thread(
            target=self._read_log, args=(self._process.stderr,), daemon=True
        )
        self._reader.start()
        self._wait_until_started(start_timeout_s)
        self.address = self._addresses["HTTPService"]
        # It is opened before HTTP, so it is known by now.
        self.grpc_address = self._addresses.get("GRPCInferenceService", "")
        self.pid = self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def log_tail(self) -> str:
        """The last lines that the server logged."""
        return "\n".join(self._tail)

    def stop(self) -> int:
        """Ask the server to drain and end, with SIGTERM; kill it when it takes too long.

        Returns:
            Its exit status; negative when it had to be killed.
        """
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        return self._process.returncode

    def _read_log(self, stream: IO[str]) -> None:
        # Read to the end, whatever happens: a full pipe would stop the server.
        with stream:
            for line in stream:
                self._tail.append(line.rstrip("\n"))
                started = _STARTED.search(line)
                if started:
                    service, host, port = started.groups()
                    self._addresses[service] = f"{_reachable(host)}:{port}"
                    if service == "HTTPService":
                        self._has_news.set()
        self._has_news.set()

    def _wait_until_started(self, timeout_s: float) -> None:
        arrived = self._has_news.wait(timeout_s)
        if "HTTPService" in self._addresses:
            return
        status = self.stop()
        how = f"ended with exit status {status}" if arrived else f"said nothing in {timeout_s} s"
        msg = f"'{' '.join(self.command)}' {how}. The end of its log:\n{self.log_tail()}"
        raise UnavailableError(msg)


def _reachable(host: str) -> str:
    """The address to connect to for one that a server listens on."""
    return {"0.0.0.0": "127.0.0.1", "[::]": "[::1]", "::": "[::1]"}.get(host, host)  # noqa: S104  # compared, not bound
