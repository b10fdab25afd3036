"""What there is on this machine, as facts for the doctor; nothing is changed and nothing judged."""

import importlib.metadata
import os
import platform
import resource
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

PACKAGES: Final = (
    "naiad", "numpy", "onnxruntime", "protobuf", "torch", "onnx", "onnxscript", "tritonclient",
    "grpcio", "uvloop",
)  # fmt: skip
_SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108  # where Linux has it; it is only measured
_TIMEOUT_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class Machine:
    """Facts.

    Attributes:
        python: version.
        packages: name -> version of those of ``PACKAGES`` that are installed.
        docker: version of the daemon; "" where there is none.
        docker_error: why there is none, as docker says.
        gpus: names; empty where there is no GPU or no driver.
        driver: version of NVIDIA's driver; "" where there is none.
        has_gpu_device: the kernel knows an NVIDIA GPU.
        torch_cuda: version of CUDA that torch was built with; "" for a CPU build or no torch.
        taken_ports: port -> why it can't be listened on.
        shared_memory_bytes: size of /dev/shm; None where there is none.
        shared_memory_free_bytes: what is free of it.
        open_files: how many files this process may open; None for no limit.
        open_files_limit: to what it may raise that by itself; None for no limit.
    """

    python: str
    packages: Mapping[str, str]
    docker: str = ""
    docker_error: str = ""
    gpus: Sequence[str] = ()
    driver: str = ""
    has_gpu_device: bool = False
    torch_cuda: str = ""
    taken_ports: Mapping[int, str] = field(default_factory=dict)
    shared_memory_bytes: int | None = None
    shared_memory_free_bytes: int | None = None
    open_files: int | None = None
    open_files_limit: int | None = None


def look_at_machine(ports: Sequence[int]) -> Machine:
    """Collect the facts; takes a second or two where docker or a driver have to be asked.

    Args:
        ports: that a server would listen on.
    """
    docker, docker_error = _ask("docker", "version", "--format", "{{.Server.Version}}")
    names, _ = _ask("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    gpus = [line.split(", ") for line in names.splitlines() if ", " in line]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    packages = _packages()
    total, free = _shared_memory()
    return Machine(
        python=platform.python_version(),
        packages=packages,
        docker=docker,
        docker_error=docker_error,
        gpus=[gpu[0] for gpu in gpus],
        driver=gpus[0][1] if gpus else "",
        has_gpu_device=Path("/proc/driver/nvidia").exists() or Path("/dev/nvidia0").exists(),
        torch_cuda=_torch_cuda(packages.get("torch", "")),
        taken_ports={port: why for port in ports if (why := _why_taken(port))},
        shared_memory_bytes=total,
        shared_memory_free_bytes=free,
        open_files=None if soft == resource.RLIM_INFINITY else soft,
        open_files_limit=None if hard == resource.RLIM_INFINITY else hard,
    )


def _packages() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _ask(*command: str) -> tuple[str, str]:
    """What a program prints, and "" or why it printed nothing."""
    program = shutil.which(command[0])
    if program is None:
        return "", f"'{command[0]}' is not installed"
    try:
        done = subprocess.run(  # noqa: S603  # a program of the user's own path, fixed arguments
            [program, *command[1:]], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", str(error)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()
        return "", said[-1] if said else f"'{command[0]}' ended with status {done.returncode}"
    return done.stdout.strip(), ""


def _torch_cuda(version: str) -> str:
    """By the build's label, such as 2.6.0+cu124: asking torch itself takes three seconds."""
    _, _, label = version.partition("+")
    digits = label.removeprefix("cu")
    if label.startswith("cu") and digits.isdecimal() and len(digits) >= 3:
        return f"{digits[:-1]}.{digits[-1]}"
    if label or not version:
        return ""
    return _cuda_package()


def _cuda_package() -> str:
    """CUDA's version by the runtime that torch's wheel of PyPI depends on; "" without it."""
    for name in ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu13", "nvidia-cuda-runtime-cu12"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


def _why_taken(port: int) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        # As a server does: what a finished one leaves behind is no obstacle.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", port))
        except OSError as error:
            return error.strerror or str(error)
    return ""


def _shared_memory() -> tuple[int | None, int | None]:
    try:
        found = os.statvfs(_SHARED_MEMORY)
    except OSError:
        return None, None
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
