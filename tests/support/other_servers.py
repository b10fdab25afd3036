"""Servers of other projects that speak KServe v2, each from PyPI in an environment of its own.

They are made once, below ``.cache/servers``; nothing of them is installed beside Naiad.
"""

import os
import shutil
import socket
import subprocess
import sys
import urllib.request
import venv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.wheels import CACHE, UnreachableError, unpack_wheel

FOLDER = CACHE.parent / "servers"
_TIMEOUT_S = 540
_START_S = 400


def require_environment(name: str, requirements: Sequence[str]) -> Path:
    """The folder of a virtual environment with packages; the test is skipped where PyPI has none.

    With NAIAD_REQUIRE_TOOLS=1 it fails instead.
    """
    folder = FOLDER / name
    done = folder / "installed"
    if done.is_file():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    result = subprocess.run(
        [folder / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check",
         *requirements],
        capture_output=True, text=True, check=False, timeout=_TIMEOUT_S,
    )  # fmt: skip
    if result.returncode:
        _give_up(f"{' '.join(requirements)}: {result.stderr.strip().rpartition(chr(10))[2]}")
    done.touch()
    return folder


def require_tritonserver() -> Path:
    """The folder of NVIDIA's own server, out of the wheel of PyTriton, with its Python backend."""
    try:
        folder = unpack_wheel("nvidia-pytriton==0.7.0")
    except UnreachableError as error:
        _give_up(f"nvidia-pytriton==0.7.0: {error}")
    server = folder / "pytriton" / "tritonserver"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = server / "python_backend_stubs" / version / "triton_python_backend_stub"
    if not stub.is_file():
        _give_up(f"nvidia-pytriton==0.7.0 has no Python backend for Python {version}")
    used = server / "backends" / "python" / stub.name
    shutil.copy(stub, used)
    for program in (used, server / "bin" / "tritonserver"):
        # A wheel is unpacked without its permissions.
        program.chmod(0o755)
    return server


def free_ports(count: int) -> list[int]:
    """Ports that nobody has now; these servers can't be told to take any and say which."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for bound in sockets:
            bound.bind(("127.0.0.1", 0))
        return [int(bound.getsockname()[1]) for bound in sockets]
    finally:
        for bound in sockets:
            bound.close()


@contextmanager
def running(
    command: Sequence[str | Path], port: int, log: Path, environment: Mapping[str, str]
) -> Iterator[None]:
    """A server process that is ready when the block begins and gone when it ends."""
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, cwd=log.parent,
            env={**os.environ, "PYTHONPATH": "", **environment},  # noqa: TID251
        )  # fmt: skip
        try:
            _wait_until_ready(process, port, log)
            yield
        finally:
            process.terminate()
            process.wait(timeout=300)


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    for _ in range(_START_S):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=5):
                return
        except OSError:
            try:
                process.wait(timeout=1)
            except subprocess.TimeoutExpired:
                continue
            break
    pytest.fail(f"the server isn't ready: {log.read_text(encoding='utf-8')[-3000:]}")


def _give_up(reason: str) -> None:
    if os.environ.get("NAIAD_REQUIRE_TOOLS") == "1":  # noqa: TID251  a setting of the tests
        pytest.fail(f"{reason}, and NAIAD_REQUIRE_TOOLS is 1")
    pytest.skip(reason)
