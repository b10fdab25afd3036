"""The installed command with a model repository, for tests that ask it over its ports."""

import json
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

# Starting many interpreters at once on a busy machine takes its time.
_TIMEOUT_S = 500
_SERVE = (sys.executable, "-m", "naiad", "serve")
_PORTS = ("--http-port=0", "--grpc-port=0", "--metrics-port=0")


def _source(path: Path) -> list[str]:
    """A repository is an option, an application file comes first."""
    return [str(path)] if path.suffix == ".py" else [f"--model-repository={path}"]


class Server:
    """A running ``naiad serve``; up when it is made."""

    def __init__(self, repository: Path) -> None:
        self._process = subprocess.Popen(
            [*_SERVE, *_source(repository), *_PORTS],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stderr is not None
        self.lines: list[str] = []
        self._found: dict[str, str] = {}
        self._is_up = threading.Event()
        self._stream: IO[str] = self._process.stderr
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        if not self._is_up.wait(_TIMEOUT_S) or "HTTPService" not in self._found:
            # Or its output would be read for ever.
            self.stop(signal.SIGKILL)
            raise AssertionError("".join(self.lines))

    @property
    def grpc_address(self) -> str:
        """``HOST:PORT``."""
        return self._found["GRPCInferenceService"]

    @property
    def pid(self) -> int:
        return self._process.pid

    def get(self, path: str, service: str = "HTTPService") -> str:
        """The body of a GET."""
        with urllib.request.urlopen(
            f"http://{self._found[service]}{path}", timeout=_TIMEOUT_S
        ) as answer:
            text: str = answer.read().decode()
            return text

    def post(self, path: str, body: dict[str, Any]) -> str:
        """The body of the answer to a JSON document."""
        request = urllib.request.Request(
            f"http://{self._found['HTTPService']}{path}", json.dumps(body).encode()
        )
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            text: str = answer.read().decode()
            return text

    def post_binary(self, path: str, body: bytes, *, header_length: int) -> str:
        """The body of the answer to a document with a binary tail."""
        request = urllib.request.Request(
            f"http://{self._found['HTTPService']}{path}",
            body,
            {"Inference-Header-Content-Length": str(header_length)},
        )
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            text: str = answer.read().decode()
            return text

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and wait; returns the exit code."""
        self._process.send_signal(number)
        code = self._process.wait(_TIMEOUT_S)
        self._reader.join()
        self._stream.close()
        return code

    def is_running(self) -> bool:
        return self._process.poll() is None

    def _read(self) -> None:
        for line in self._stream:
            self.lines.append(line)
            if found := re.search(r"Started (\w+|Metrics Service) at ([\d.:]+)", line):
                self._found[found[1]] = found[2]
                if found[1] == "Metrics Service":
                    self._is_up.set()
        self._is_up.set()


@contextmanager
def running_server(repository: Path) -> Iterator[Server]:
    """A server, killed at the end if the test has left it running."""
    server = Server(repository)
    try:
        yield server
    finally:
        if server.is_running():
            server.stop(signal.SIGKILL)
