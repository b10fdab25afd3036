"""The process that parses large JSON: light, and gone when its server is, however that ends."""

import json
import os
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.process.test_serve_command import PORTS, TIMEOUT_S, ServeProcess, add_model
from tests.support.processes import children, has_ended

pytestmark = pytest.mark.slow

COUNT = 30_000


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServeProcess]:
    add_model(tmp_path, "same")
    process = ServeProcess((f"--model-repository={tmp_path}", "--allow-grpc=false", *PORTS))
    try:
        yield process
    finally:
        process.close()


def ask_large(server: ServeProcess) -> None:
    entry = {"name": "INPUT0", "datatype": "FP32", "shape": [1, COUNT], "data": [0.5] * COUNT}
    body = json.dumps({"inputs": [entry]}).encode()
    with urllib.request.urlopen(
        f"{server.http}/v2/models/same/infer", body, timeout=TIMEOUT_S
    ) as answer:
        assert json.load(answer)["outputs"][0]["data"] == [0.5] * COUNT


def json_process_of(server: ServeProcess) -> int:
    (found,) = [
        pid
        for pid in children(server.pid)
        if b"json_process" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    return found


def test_it_loads_no_framework(server: ServeProcess) -> None:
    ask_large(server)
    mapped = Path(f"/proc/{json_process_of(server)}/maps").read_text()
    assert "numpy" in mapped
    assert "onnxruntime" not in mapped
    assert "torch" not in mapped


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_with_its_server(server: ServeProcess, number: signal.Signals) -> None:
    ask_large(server)
    descriptor = os.pidfd_open(json_process_of(server))
    try:
        server.signal(number)
        server.wait()
        assert has_ended(descriptor)
    finally:
        os.close(descriptor)


def test_an_interrupt_from_the_terminal_is_the_servers_affair(server: ServeProcess) -> None:
    ask_large(server)
    os.kill(json_process_of(server), signal.SIGINT)
    ask_large(server)
