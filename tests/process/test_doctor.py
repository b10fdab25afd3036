"""``naiad doctor`` on the machine that the tests run on."""

import json
import socket
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow


def doctor(*arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "naiad", "doctor", *arguments],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_a_taken_port_is_found_and_told_with_its_fix() -> None:
    with socket.create_server(("", 0)) as listener:
        port = listener.getsockname()[1]
        status, text = doctor("--port", str(port), "--json")
    findings = {finding["subject"]: finding for finding in json.loads(text)}
    assert findings[f"port {port}"]["level"] == "warning"
    assert f":{port}" in findings[f"port {port}"]["fix"]
    assert findings["Python"]["found"] == sys.version.split()[0]
    assert findings["onnxruntime"]["level"] == "ok"
    errors = [f for f in findings.values() if f["level"] == "error"]
    assert status == (1 if errors else 0)


def test_the_table_shows_what_a_release_of_triton_asks_for() -> None:
    _, text = doctor("--target", "triton:24.10")
    assert "onnxruntime for Triton" in text
    assert "open files" in text


def test_an_unknown_release_can_not_be_compared_with() -> None:
    status, text = doctor("--target", "triton:1.0")
    assert status == 2
    assert "unknown target 'triton:1.0'" in text
