"""Whether this machine can export, serve and verify, and what to do where it can't."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Final

from naiad.check.machine import Machine
from naiad.check.nvidia import BY_RELEASE, LOWEST_DRIVER, Cuda, parse_version
from naiad.model_config.triton_release import TritonRelease

_MIB: Final = 1 << 20
# What the package's metadata asks for; a test holds the two together.
LOWEST_PYTHON: Final = "3.11"
LOWEST: Final = {
    "numpy": "1.26",
    "onnxruntime": "1.20",
    "protobuf": "6.33.5",
    "torch": "2.6",
    "onnx": "1.18",
    "onnxscript": "0.5",
    "tritonclient": "2.51",
}
_WITHOUT: Final = {
    "torch": "PyTorch models can't be exported, and TorchScript and .pt2 not served",
    "onnx": "nothing can be exported as ONNX",
    "onnxscript": "nothing can be exported as ONNX",
    "tritonclient": "verify asks servers by its own encoder and not by NVIDIA's client",
}
_EXTRA: Final = {"torch": "torch", "onnx": "torch", "onnxscript": "torch", "tritonclient": "client"}
# Docker gives a container this much unless --shm-size says more.
_DOCKER_SHARED_MEMORY: Final = 64 * _MIB
_FEW_OPEN_FILES: Final = 4096


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """One thing that was looked at.

    Attributes:
        subject: such as ``torch`` or ``port 8000``.
        level: how bad it is.
        found: what is there.
        fix: what to do; "" where nothing needs to be done.
    """

    subject: str
    level: Level
    found: str
    fix: str = ""


def examine(machine: Machine, release: TritonRelease | None = None) -> list[DoctorFinding]:
    """Judge the facts of a machine.

    Args:
        machine: its facts.
        release: of Triton that models are to move to, where that is asked.

    Returns:
        A finding for everything that was looked at, also where all is well.
    """
    return [
        *_python(machine),
        *_packages(machine),
        *_triton(machine, release),
        *_gpu(machine, release),
        *_docker(machine),
        *_ports(machine),
        *_shared_memory(machine),
        *_open_files(machine),
    ]


def to_json(findings: Sequence[DoctorFinding]) -> str:
    """All findings for machines."""
    return json.dumps([asdict(finding) for finding in findings], indent=2) + "\n"


def _python(machine: Machine) -> Iterator[DoctorFinding]:
    if parse_version(machine.python) < parse_version(LOWEST_PYTHON):
        yield DoctorFinding(
            "Python", Level.ERROR, machine.python, f"install Python {LOWEST_PYTHON} or newer"
        )
    else:
        yield DoctorFinding("Python", Level.OK, machine.python)


def _packages(machine: Machine) -> Iterator[DoctorFinding]:
    for name, lowest in LOWEST.items():
        version = machine.packages.get(name)
        install = f"pip install '{name}>={lowest}'"
        if version is None:
            extra = _EXTRA.get(name)
            if extra is None:
                yield DoctorFinding(name, Level.ERROR, "not installed", install)
            else:
                yield DoctorFinding(
                    name, Level.NOTE, f"not installed: {_WITHOUT[name]}",
                    f"pip install 'naiad[{extra}]'",
                )  # fmt: skip
        elif parse_version(version) < parse_version(lowest):
            level = Level.ERROR if name not in _EXTRA else Level.WARNING
            yield DoctorFinding(name, level, f"{version}, older than {lowest}", install)
        else:
            yield DoctorFinding(name, Level.OK, version)
    yield from _protobuf(machine)


def _protobuf(machine: Machine) -> Iterator[DoctorFinding]:
    version = machine.packages.get("protobuf", "")
    if "tritonclient" in machine.packages and "grpcio" in machine.packages:
        if parse_version(version) >= (7,):
            yield DoctorFinding(
                "tritonclient.grpc", Level.WARNING,
                f"protobuf {version} is too new for the gRPC half of tritonclient",
                "pip install 'protobuf>=6.33.5,<7'",
            )  # fmt: skip
    elif "tritonclient" in machine.packages:
        yield DoctorFinding(
            "tritonclient.grpc", Level.NOTE,
            "grpcio is not installed: verify asks by gRPC with its own encoder",
            "pip install 'tritonclient[grpc]'",
        )  # fmt: skip


def _triton(machine: Machine, release: TritonRelease | None) -> Iterator[DoctorFinding]:
    if release is None:
        return
    own = machine.packages.get("onnxruntime", "")
    there = f"Triton {release.release} has onnxruntime {release.onnxruntime}"
    if own and parse_version(own)[:2] > parse_version(release.onnxruntime)[:2]:
        yield DoctorFinding(
            "onnxruntime for Triton", Level.NOTE,
            f"{there}, here it is {own}: what runs here may be too new there "
            f"(opset up to {release.onnx_opset}, IR up to {release.onnx_ir})",
            f"export with --opset {release.onnx_opset} or less, and run "
            f"naiad check DIR --target triton:{release.release}",
        )  # fmt: skip
    elif own:
        yield DoctorFinding("onnxruntime for Triton", Level.OK, f"{there}, here it is {own}")
    torch = machine.packages.get("torch", "")
    if torch and release.pytorch and parse_version(torch) > parse_version(release.pytorch):
        yield DoctorFinding(
            "torch for Triton", Level.WARNING,
            f"Triton {release.release} has libtorch {release.pytorch}, here it is {torch}: a "
            "TorchScript file of a newer torch may not load in an older one",
            f"export ONNX, or TorchScript with torch {release.pytorch.split('a')[0]} or older",
        )  # fmt: skip


def _gpu(machine: Machine, release: TritonRelease | None) -> Iterator[DoctorFinding]:
    if not machine.gpus:
        if machine.has_gpu_device:
            yield DoctorFinding(
                "GPU", Level.ERROR, "there is an NVIDIA device, and nvidia-smi does not answer",
                "install the NVIDIA driver, or start the container with --gpus all",
            )  # fmt: skip
        else:
            yield DoctorFinding("GPU", Level.NOTE, "none: models run on the CPU")
        return
    yield DoctorFinding("GPU", Level.OK, f"{', '.join(machine.gpus)}; driver {machine.driver}")
    if machine.torch_cuda:
        yield _driver("CUDA of torch", machine.torch_cuda, machine.driver, "")
    elif "torch" in machine.packages:
        yield DoctorFinding(
            "CUDA of torch", Level.WARNING,
            f"torch {machine.packages['torch']} is a CPU build and can't use the GPU",
            "install torch from https://pytorch.org/get-started/locally with CUDA",
        )  # fmt: skip
    cuda: Cuda | None = BY_RELEASE.get(release.release) if release is not None else None
    if release is not None and cuda is not None:
        yield _driver(f"CUDA of Triton {release.release}", cuda.cuda, machine.driver, cuda.driver)


def _driver(subject: str, cuda: str, driver: str, own_driver: str) -> DoctorFinding:
    """Whether a driver runs a version of CUDA, whose own driver is named where it is known."""
    found = f"CUDA {cuda}, driver {driver}"
    lowest = LOWEST_DRIVER.get(parse_version(cuda)[0], "")
    if lowest and parse_version(driver) < parse_version(lowest):
        return DoctorFinding(
            subject, Level.ERROR, f"{found}: too old",
            f"update the NVIDIA driver to {own_driver or lowest} or newer; on a data center GPU "
            "the container's CUDA forward compatibility may do instead",
        )  # fmt: skip
    if own_driver and parse_version(driver) < parse_version(own_driver):
        return DoctorFinding(
            subject, Level.NOTE,
            f"{found}: older than its own, {own_driver}; works by CUDA's minor version "
            "compatibility, without what needs a new compilation of kernels",
            f"update the driver to {own_driver} if a kernel fails to load",
        )  # fmt: skip
    return DoctorFinding(subject, Level.OK, found)


def _docker(machine: Machine) -> Iterator[DoctorFinding]:
    if machine.docker:
        yield DoctorFinding("Docker", Level.OK, machine.docker)
        return
    fix = "install it from https://docs.docker.com/engine/install if you deploy by images"
    if "permission denied" in machine.docker_error.lower():
        fix = "add yourself to the group docker (sudo usermod -aG docker $USER) and log in again"
    elif "daemon" in machine.docker_error.lower():
        fix = "start the daemon: sudo systemctl start docker"
    yield DoctorFinding("Docker", Level.NOTE, machine.docker_error, fix)


def _ports(machine: Machine) -> Iterator[DoctorFinding]:
    options = {8000: "--http-port", 8001: "--grpc-port", 8002: "--metrics-port"}
    for port, why in machine.taken_ports.items():
        yield DoctorFinding(
            f"port {port}", Level.WARNING, why,
            f"stop what listens there (ss -ltnp 'sport = :{port}'), or serve with "
            f"{options.get(port, '--http-port')} and another number",
        )  # fmt: skip
    if not machine.taken_ports:
        yield DoctorFinding("ports", Level.OK, "free")


def _shared_memory(machine: Machine) -> Iterator[DoctorFinding]:
    total, free = machine.shared_memory_bytes, machine.shared_memory_free_bytes
    if total is None or free is None:
        yield DoctorFinding(
            "shared memory", Level.WARNING, "there is no /dev/shm",
            "mount it: clients that share memory with the server need it",
        )  # fmt: skip
        return
    found = f"{free // _MIB} of {total // _MIB} MiB free in /dev/shm"
    if total <= _DOCKER_SHARED_MEMORY:
        yield DoctorFinding(
            "shared memory", Level.WARNING, f"{found}, which is little",
            "start the container with --shm-size=1g (in Kubernetes, an emptyDir of medium Memory)",
        )  # fmt: skip
    elif free < total // 10:
        yield DoctorFinding(
            "shared memory", Level.WARNING, f"{found}: nearly full",
            "remove what ended processes left there: ls -l /dev/shm",
        )  # fmt: skip
    else:
        yield DoctorFinding("shared memory", Level.OK, found)


def _open_files(machine: Machine) -> Iterator[DoctorFinding]:
    limit = machine.open_files
    if limit is not None and limit < _FEW_OPEN_FILES:
        highest = machine.open_files_limit
        asked = min(65536, highest) if highest is not None else 65536
        fix = f"ulimit -n {asked} before the start (LimitNOFILE= in systemd, --ulimit in docker)"
        if asked < _FEW_OPEN_FILES:
            fix = "raise the hard limit too: 'nofile' in /etc/security/limits.conf, as root"
        yield DoctorFinding(
            "open files", Level.WARNING, f"at most {limit}: each client's connection takes one", fix
        )
    else:
        yield DoctorFinding("open files", Level.OK, "no limit" if limit is None else str(limit))
