"""Traces, log settings and restrictions of the installed command, by its options."""

import json
import os
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.process.test_serve_command import TIMEOUT_S, ServeProcess, add_model, get, infer, run

pytestmark = pytest.mark.slow


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    add_model(folder, "same")
    return folder


@pytest.fixture
def started() -> Iterator[list[ServeProcess]]:
    processes: list[ServeProcess] = []
    yield processes
    for process in processes:
        process.close()


def start(started: list[ServeProcess], repository: Path, *arguments: str) -> ServeProcess:
    server = ServeProcess(
        ["--http-port=0", "--grpc-port=0", "--metrics-port=0", str(repository), *arguments]
    )
    started.append(server)
    return server


def post(url: str, body: Any) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
        return json.load(response)


def test_the_trace_file_is_whole_when_the_server_has_stopped(
    repository: Path, started: list[ServeProcess], tmp_path: Path
) -> None:
    file = tmp_path / "trace.json"
    server = start(
        started,
        repository,
        "--trace-config=level=TIMESTAMPS",
        "--trace-config=rate=1",
        f"--trace-config=triton,file={file}",
    )
    for _ in range(3):
        infer(server.http, "same", 1.0)
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
    records = json.loads(file.read_text())
    assert [r["id"] for r in records if "model_name" in r] == [1, 2, 3]
    stamps = {
        r["timestamps"][0]["name"]: r["timestamps"][0]["ns"]
        for r in records
        if r["id"] == 3 and "timestamps" in r
    }
    order = [
        "HTTP_RECV_START",
        "HTTP_RECV_END",
        "REQUEST_START",
        "QUEUE_START",
        "COMPUTE_START",
        "COMPUTE_INPUT_END",
        "COMPUTE_OUTPUT_START",
        "COMPUTE_END",
        "INFER_RESPONSE_COMPLETE",
        "HTTP_SEND_START",
        "HTTP_SEND_END",
    ]
    assert set(order) <= stamps.keys()
    assert sorted(order, key=stamps.__getitem__) == order


def test_log_settings_change_while_it_runs(repository: Path, started: list[ServeProcess]) -> None:
    server = start(started, repository)
    post(f"{server.http}/v2/logging", {"log_format": "ISO8601"})
    server.signal(signal.SIGTERM)
    server.wait_for(r'^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ I \d+ run.py:\d+\] "Signal \(15\) received')


def test_what_is_switched_off_is_not_logged(repository: Path, started: list[ServeProcess]) -> None:
    server = start(started, repository, "--log-verbose=1")
    assert json.loads(get(f"{server.http}/v2/logging")[1])["log_verbose_level"] == 1
    assert not post(f"{server.http}/v2/logging", {"log_info": False})["log_info"]
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
    server.close()
    assert not any("Signal" in line for line in server.lines)


def test_a_restricted_server(repository: Path, started: list[ServeProcess]) -> None:
    server = start(started, repository, "--http-restricted-api=metadata,logging:admin-key=sesame")
    assert get(f"{server.http}/v2") == (
        403,
        b'{"error":"This API is restricted, expecting header \'admin-key\'"}',
    )
    request = urllib.request.Request(f"{server.http}/v2", headers={"Admin-Key": "sesame"})
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
        assert json.load(response)["name"] == "triton"
    assert infer(server.http, "same", 2.0)["outputs"][0]["data"] == [2.0]


def test_restrictions_that_contradict_each_other_end_the_start(repository: Path) -> None:
    result = run(
        str(repository),
        "--http-restricted-api=model-repository,health:k1=v1",
        "--http-restricted-api=metadata,health:k2=v2",
    )
    assert result.returncode == 1
    assert "api 'health' can not be specified in multiple config groups" in result.stderr


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core is like the other")
def test_instances_run_on_the_cores_of_their_host_policy(
    repository: Path, started: list[ServeProcess]
) -> None:
    cores = os.sched_getaffinity(0)
    server = start(started, repository, f"--host-policy=cpu,cpu-cores={max(cores)}")
    infer(server.http, "same", 1.0)
    found = []
    for name in os.listdir(f"/proc/{server.pid}/task"):
        with suppress(ProcessLookupError):  # it has ended since
            found.append(os.sched_getaffinity(int(name)))
    assert found.count({max(cores)}) == 1
    assert os.sched_getaffinity(server.pid) == cores


def test_a_host_policy_of_cores_that_are_not_there_ends_the_start(repository: Path) -> None:
    core = max(os.sched_getaffinity(0)) + 1000
    result = run(str(repository), f"--host-policy=cpu,cpu-cores={core}-{core}")
    assert result.returncode == 1
    assert (
        f"error: creating server: Invalid argument - --host-policy=cpu,cpu-cores={core}-{core}: "
        f"there is no core {core}, or this process may not use it; it may use"
    ) in result.stderr
