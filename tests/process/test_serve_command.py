"""The installed command: what it prints, when it is ready, how it ends."""

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

pytestmark = pytest.mark.slow

IDENTITY = """
name: "{name}"
backend: "identity"
max_batch_size: 8
input [ {{ name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }} ]
output [ {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }} ]
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
parameters {{ key: "execute_delay_ms" value {{ string_value: "{delay_ms}" }} }}
"""
PORTS = ("--http-port=0", "--grpc-port=0", "--metrics-port=0")
TIMEOUT_S = 300
NAIAD_SERVE = (sys.executable, "-m", "naiad", "serve")


def add_model(repository: Path, name: str, delay_ms: int = 0, backend: str = "identity") -> None:
    (repository / name / "1").mkdir(parents=True)
    text = IDENTITY.format(name=name, delay_ms=delay_ms).replace('"identity"', f'"{backend}"')
    (repository / name / "config.pbtxt").write_text(text)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    add_model(folder, "same")
    return folder


class ServeProcess:
    """``naiad serve`` on free ports, and its log as it comes."""

    def __init__(self, arguments: Sequence[str], command: Sequence[str] = NAIAD_SERVE) -> None:
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._process = subprocess.Popen(
            [*command, *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stderr is not None
        self._reader = threading.Thread(target=self._read, args=(self._process.stderr,))
        self._reader.start()

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            with self._news:
                self.lines.append(line)
                self._news.notify_all()
        with self._news:
            self.lines.append("")
            self._news.notify_all()

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Wait for a line of the log; fails when the process ends first."""
        expression = re.compile(pattern)
        seen = 0
        with self._news:
            while True:
                for line in self.lines[seen:]:
                    if match := expression.search(line):
                        return match
                    assert line, f"ended before {pattern!r}: {''.join(self.lines)}"
                seen = len(self.lines)
                assert self._news.wait(TIMEOUT_S), f"no {pattern!r}: {''.join(self.lines)}"

    @property
    def http(self) -> str:
        return "http://" + self.wait_for(r"Started HTTPService at ([\d.:]+)")[1]

    @property
    def metrics(self) -> str:
        return "http://" + self.wait_for(r"Started Metrics Service at ([\d.:]+)")[1]

    @property
    def pid(self) -> int:
        return self._process.pid

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self) -> int:
        return self._process.wait(TIMEOUT_S)

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stderr is not None
        self._process.stderr.close()


@pytest.fixture
def started() -> Iterator[list[ServeProcess]]:
    processes: list[ServeProcess] = []
    yield processes
    for process in processes:
        process.close()


def start(started: list[ServeProcess], *arguments: str) -> ServeProcess:
    process = ServeProcess([*PORTS, *arguments])
    started.append(process)
    return process


def run(*arguments: str, command: Sequence[str] = NAIAD_SERVE) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def get(url: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def make_body(value: float) -> bytes:
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [value]}
    return json.dumps({"inputs": [tensor]}).encode()


def infer(base: str, model: str, value: float) -> dict[str, Any]:
    request = urllib.request.Request(f"{base}/v2/models/{model}/infer", make_body(value))
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
        answer: dict[str, Any] = json.load(response)
        return answer


def test_serves_and_stops_on_a_signal(repository: Path, started: list[ServeProcess]) -> None:
    server = start(started, str(repository))
    assert get(f"{server.http}/v2/health/ready")[0] == 200
    assert infer(server.http, "same", 3.0)["outputs"][0]["data"] == [3.0]
    status, metrics = get(f"{server.metrics}/metrics")
    assert status == 200
    assert b'nv_inference_count{model="same",version="1"} 1\n' in metrics
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
    server.wait_for(r"Signal \(15\) received\.")
    server.wait_for(r"successfully unloaded 'same' version 1")


@contextmanager
def request_in_flight(server: ServeProcess, model: str) -> Iterator[http.client.HTTPConnection]:
    """A connection whose request the server has read and not answered."""
    client = http.client.HTTPConnection(server.http.removeprefix("http://"), timeout=TIMEOUT_S)
    try:
        client.request("POST", f"/v2/models/{model}/infer", make_body(5.0))
        # It was sent before this one's connection was made, so it was read before this answer.
        infer(server.http, "same", 1.0)
        yield client
    finally:
        client.close()


def test_requests_in_flight_finish_after_the_signal(
    repository: Path, started: list[ServeProcess]
) -> None:
    add_model(repository, "slow", delay_ms=700)
    server = start(started, str(repository))
    with request_in_flight(server, "slow") as client:
        server.signal(signal.SIGINT)
        answer = json.load(client.getresponse())
    assert answer["outputs"][0]["data"] == [5.0]
    assert server.wait() == 0


def test_a_request_that_outlasts_the_timeout_ends_the_server_with_1(
    repository: Path, started: list[ServeProcess]
) -> None:
    add_model(repository, "stuck", delay_ms=3_600_000)
    server = start(started, str(repository), "--exit-timeout-secs=0")
    with request_in_flight(server, "stuck"):
        server.signal(signal.SIGTERM)
        assert server.wait() == 1
    server.wait_for(
        r"^failed to stop server: Internal - Exit timeout expired\. Exiting immediately\.$"
    )


@pytest.mark.slow
def test_a_client_that_does_not_send_the_rest_does_not_cost_the_orderly_end(
    repository: Path, started: list[ServeProcess]
) -> None:
    server = start(started, str(repository), "--exit-timeout-secs=10")
    host, port = server.http.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), TIMEOUT_S) as client:
        client.sendall(b"POST /v2/models/same/infer HTTP/1.1\r\nContent-Length: 9\r\n\r\n{")
        infer(server.http, "same", 1.0)
        server.signal(signal.SIGTERM)
        server.wait_for("Timeout 10: Found 1 HTTP service connections")
        assert server.wait() == 0


@pytest.mark.parametrize(("most", "limit", "warns"), [(1000, 3024, False), (8000, 4000, True)])
def test_the_limit_of_open_files_lets_connections_in(
    repository: Path, started: list[ServeProcess], most: int, limit: int, *, warns: bool
) -> None:
    script = 'ulimit -Sn 200 && ulimit -Hn 4000 && exec "$0" "$@"'
    server = ServeProcess(
        [
            *(f"--model-repository={repository}", *PORTS),
            *(f"--http-max-connections={most}", f"--grpc-max-connections={most}"),
        ],
        ("bash", "-c", script, *NAIAD_SERVE),
    )
    started.append(server)
    server.wait_for("Started HTTPService")
    found = re.search(r"Max open files +(\d+)", Path(f"/proc/{server.pid}/limits").read_text())
    assert found is not None
    assert int(found[1]) == limit
    assert any("raise 'ulimit -n'" in line for line in server.lines) == warns


def test_a_second_signal_does_not_wait(repository: Path, started: list[ServeProcess]) -> None:
    add_model(repository, "stuck", delay_ms=3_600_000)
    server = start(started, str(repository))
    with request_in_flight(server, "stuck"):
        server.signal(signal.SIGINT)
        server.wait_for("Waiting for in-flight requests to complete")
        server.signal(signal.SIGINT)
        assert server.wait() == 1
    server.wait_for("stopped by a second signal, with requests unanswered")


def test_the_start_is_reported_in_tables(repository: Path, started: list[ServeProcess]) -> None:
    add_model(repository, "broken", backend="nonesuch")
    add_model(repository, "typo")
    (repository / "typo" / "config.pbtxt").write_text("max_batch_sise: 1")
    add_model(repository, "empty")
    (repository / "empty" / "1").rmdir()
    server = start(
        started, str(repository), "--exit-on-error=false", "--id=mine", "--http-thread-count=2"
    )
    server.wait_for(r"accepted, without effect in this version: --http-thread-count")
    server.wait_for(r"^\| Repository Agent \| Path \|")
    server.wait_for(r"^\| Backend +\| Path +\| Config")
    server.wait_for(
        r'^\| identity \| naiad\.backends\.\S+ \| {"cmdline":{"auto-complete-config":"true"}} +\|'
    )
    server.wait_for(r"^\| Model +\| Version \| Status")
    server.wait_for(r"^\| typo +\| - +\| UNAVAILABLE: Internal: failed to load 'typo', failed to ")
    server.wait_for(r"^\| empty +\| - +\| Not loaded: No model version was found +\|")
    server.wait_for(r"^\| broken +\| 1 +\| UNAVAILABLE: Invalid argument: unable to find backend")
    server.wait_for(r"^\| same +\| 1 +\| READY")
    server.wait_for(r"^\| server_id +\| mine ")
    server.wait_for(r"^\| model_control_mode +\| MODE_NONE ")
    server.wait_for(r"^\| strict_readiness +\| 1 ")
    server.wait_for(r"^\| cache_enabled +\| 0 ")
    server.wait_for(r'^I\d{4} [\d:.]+ \d+ \S+\.py:\d+\] "loading: same:1"$')
    server.wait_for(r'"TRITONBACKEND_ModelInitialize: same \(version 1\)"$')
    server.wait_for(r'"TRITONBACKEND_ModelInstanceInitialize: same_0_0 \(CPU device 0\)"$')
    server.wait_for(r'"successfully loaded \'same\'"$')
    server.wait_for(r'^E.*"failed to load \'broken\' version 1: Invalid argument: unable to find')
    server.wait_for(r'^I.*"failed to load \'broken\'"$')
    assert get(f"{server.http}/v2/health/live")[0] == 200
    assert get(f"{server.http}/v2/health/ready")[0] == 400


def test_explicit_control_loads_what_it_is_told(
    repository: Path, started: list[ServeProcess]
) -> None:
    add_model(repository, "other")
    server = start(
        started, str(repository), "--model-control-mode=explicit", "--load-model", "other"
    )
    assert get(f"{server.http}/v2/models/other/ready")[0] == 200
    assert get(f"{server.http}/v2/models/same/ready")[0] != 200


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "error: creating server: Internal - failed to load all models"),
        (
            ["--model-control-mode=explicit", "--load-model=nope"],
            "error: creating server: Internal - failed to load all models",
        ),
        (
            ["--model-control-mode=explicit", "--load-model=broken"],
            "error: creating server: Invalid argument - load failed for model 'broken': "
            "version 1 is at UNAVAILABLE state: ",
        ),
        (
            ["--model-control-mode=explicit", "--load-model=*", "--load-model=same"],
            "error: creating server: Invalid argument - Wildcard model name '*' must be the ONLY "
            "startup model if specified at all.",
        ),
    ],
)
def test_a_model_that_fails_ends_the_start(
    repository: Path, arguments: list[str], text: str
) -> None:
    add_model(repository, "broken", backend="nonesuch")
    result = run(str(repository), *PORTS, *arguments)
    assert result.returncode == 1
    assert text in result.stderr
    assert result.stdout == ""


def test_a_missing_repository_is_named(tmp_path: Path) -> None:
    result = run(str(tmp_path / "nothing"), *PORTS)
    assert result.returncode == 1
    assert result.stderr.endswith(
        f"error: creating server: Internal - failed to stat file {tmp_path / 'nothing'}\n"
    )


@pytest.mark.parametrize(
    ("flag", "name"),
    [("--http-port", "HTTP"), ("--grpc-port", "GRPC"), ("--metrics-port", "Metrics")],
)
def test_a_taken_port_names_its_option(repository: Path, flag: str, name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run(str(repository), *PORTS, f"{flag}={port}")
    assert result.returncode == 1
    last = result.stderr.splitlines()[-1]
    assert last.startswith(
        f"failed to start {name} service: Unavailable - Socket '127.0.0.1:{port}'"
    )
    assert last.endswith(f"; choose another port with {flag}")


def test_a_bad_option_shows_the_usage() -> None:
    result = run("--exit-timeout-secs=abc", "models")
    assert result.returncode == 1
    assert result.stderr.startswith("Usage: naiad serve [OPTIONS] DIR...\n")
    assert "naiad serve FILE.py" in result.stderr
    assert 'Bad option: "--exit-timeout-secs".' in result.stderr


def test_help_needs_no_repository() -> None:
    result = run("--help")
    assert result.returncode == 0
    assert "--http-port PORT" in result.stdout


def test_an_empty_repository_is_served(tmp_path: Path, started: list[ServeProcess]) -> None:
    server = start(started, str(tmp_path))
    assert get(f"{server.http}/v2/health/ready")[0] == 200


HELP_SCRIPT = """
import sys
from naiad.cli.main import main
main(["--help"], standalone_mode=False)
heavy = {"torch", "onnxruntime", "onnx", "numpy", "google.protobuf"} & set(sys.modules)
assert not heavy, heavy
"""


def test_the_overview_loads_no_framework() -> None:
    result = subprocess.run(
        [sys.executable, "-c", HELP_SCRIPT], capture_output=True, text=True, check=True
    )
    assert "serve" in result.stdout
