"""A server as a child process for the length of one benchmark."""

import collections
import contextlib
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 40.0
_STARTED = re.compile(r"Started HTTPService at (\S+:\d+)")


@dataclass(frozen=True, slots=True)
class RunningServer:
    """Where a server listens and which process it is."""

    url: str
    pid: int


def naiad_command(repository: Path, options: Sequence[str] = ()) -> list[str]:
    return [
        *(sys.executable, "-m", "naiad", "serve", f"--model-repository={repository}"),
        *("--http-port=0", "--grpc-port=0", "--metrics-port=0", *options),
    ]


class _Log:
    """Reads what the server writes, to the end: a full pipe would stop it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.tail: collections.deque[str] = collections.deque(maxlen=40)
        self.address = ""
        self.has_news = threading.Event()
        self.thread = threading.Thread(target=self._read, args=(process,), daemon=True)
        self.thread.start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.tail.append(line)
            if started := _STARTED.search(line):
                self.address = started[1].replace("0.0.0.0", "127.0.0.1")
                self.has_news.set()
        self.has_news.set()


@contextlib.contextmanager
def running(command: Sequence[str]) -> Iterator[RunningServer]:
    """Start ``command``, wait until its HTTP service listens, and end it afterwards.

    Raises:
        RuntimeError: it ended or stayed silent; the message has the end of its log.
    """
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        log = _Log(process)
        try:
            log.has_news.wait(START_TIMEOUT_S)
            if not log.address:
                raise RuntimeError(f"{' '.join(command)} did not start:\n{''.join(log.tail)}")
            yield RunningServer(f"http://{log.address}", process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
            log.thread.join()
