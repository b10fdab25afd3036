"""What the doctor says of machines that are made up."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from naiad.check.doctor import LOWEST, LOWEST_PYTHON, DoctorFinding, Level, examine, to_json
from naiad.check.machine import Machine
from naiad.check.nvidia import BY_RELEASE, LOWEST_DRIVER, parse_version
from naiad.model_config.triton_release import find_release, read_releases

GOOD = Machine(
    python="3.12.3",
    packages={
        "numpy": "2.4.6", "onnxruntime": "1.22.0", "protobuf": "6.33.6", "torch": "2.6.0+cu124",
        "onnx": "1.23.2", "onnxscript": "0.7.2", "tritonclient": "2.60.0", "grpcio": "1.80.0",
    },
    docker="28.0.1",
    gpus=["NVIDIA H200"],
    driver="570.86.15",
    torch_cuda="12.4",
    shared_memory_bytes=8 << 30,
    shared_memory_free_bytes=7 << 30,
    open_files=65536,
    open_files_limit=1 << 20,
)  # fmt: skip


def find(machine: Machine, subject: str, target: str = "") -> DoctorFinding:
    release = find_release(target) if target else None
    (found,) = (f for f in examine(machine, release) if f.subject == subject)
    return found


def without(machine: Machine, *names: str) -> Machine:
    return replace(machine, packages={n: v for n, v in machine.packages.items() if n not in names})


def with_package(name: str, version: str) -> Machine:
    return replace(GOOD, packages={**GOOD.packages, name: version})


def test_nothing_is_wrong_with_a_good_machine() -> None:
    findings = examine(GOOD)
    assert {finding.level for finding in findings} == {Level.OK}
    assert all(finding.fix == "" for finding in findings)


@pytest.mark.parametrize(
    ("machine", "subject", "level", "fix"),
    [
        (replace(GOOD, python="3.10.12"), "Python", Level.ERROR, "Python 3.11"),
        (without(GOOD, "numpy"), "numpy", Level.ERROR, "pip install 'numpy>=1.26'"),
        (with_package("onnxruntime", "1.19.2"), "onnxruntime", Level.ERROR, "onnxruntime>=1.20"),
        (without(GOOD, "torch"), "torch", Level.NOTE, "pip install 'naiad[torch]'"),
        (with_package("torch", "2.5.1"), "torch", Level.WARNING, "torch>=2.6"),
        (with_package("protobuf", "7.1.0"), "tritonclient.grpc", Level.WARNING, "<7"),
        (without(GOOD, "grpcio"), "tritonclient.grpc", Level.NOTE, "tritonclient[grpc]"),
        (replace(GOOD, gpus=[], has_gpu_device=True), "GPU", Level.ERROR, "--gpus all"),
        (replace(GOOD, gpus=[]), "GPU", Level.NOTE, ""),
        (replace(GOOD, torch_cuda=""), "CUDA of torch", Level.WARNING, "pytorch.org"),
        (replace(GOOD, driver="470.57.02"), "CUDA of torch", Level.ERROR, "525.60.13"),
        (
            replace(GOOD, docker="", docker_error="permission denied while trying to connect"),
            "Docker", Level.NOTE, "usermod",
        ),
        (replace(GOOD, docker="", docker_error="'docker' is not installed"), "Docker", Level.NOTE,
         "install it"),
        (replace(GOOD, docker="", docker_error="Is the docker daemon running?"), "Docker",
         Level.NOTE, "systemctl start docker"),
        (replace(GOOD, taken_ports={8001: "Address already in use"}), "port 8001", Level.WARNING,
         "--grpc-port"),
        (replace(GOOD, shared_memory_bytes=64 << 20, shared_memory_free_bytes=64 << 20),
         "shared memory", Level.WARNING, "--shm-size"),
        (replace(GOOD, shared_memory_free_bytes=1 << 20), "shared memory", Level.WARNING,
         "ls -l /dev/shm"),
        (replace(GOOD, shared_memory_bytes=None), "shared memory", Level.WARNING, "mount it"),
        (replace(GOOD, open_files=1024), "open files", Level.WARNING, "ulimit -n 65536"),
        (replace(GOOD, open_files=1024, open_files_limit=1024), "open files", Level.WARNING,
         "limits.conf"),
    ],
)  # fmt: skip
def test_what_is_wrong_comes_with_its_fix(
    machine: Machine, subject: str, level: Level, fix: str
) -> None:
    found = find(machine, subject)
    assert found.level is level
    assert fix in found.fix


@pytest.mark.parametrize(
    ("target", "subject", "level"),
    [
        ("triton:24.10", "onnxruntime for Triton", Level.NOTE),
        ("triton:25.06", "onnxruntime for Triton", Level.OK),
        ("triton:24.10", "torch for Triton", Level.WARNING),
        ("triton:24.10", "CUDA of Triton 24.10", Level.OK),
        ("triton:25.06", "CUDA of Triton 25.06", Level.NOTE),
        ("triton:25.11", "CUDA of Triton 25.11", Level.ERROR),
    ],
)
def test_a_release_of_triton_is_compared_with(target: str, subject: str, level: Level) -> None:
    assert find(GOOD, subject, target).level is level


def test_newer_torch_than_libtorch_is_no_matter_the_other_way() -> None:
    subjects = {f.subject for f in examine(GOOD, find_release("triton:25.10"))}
    assert "torch for Triton" not in subjects


def test_the_tables_know_the_releases_from_24_04_on() -> None:
    known = [r.release for r in read_releases() if r.release >= "24.04"]
    assert list(BY_RELEASE) == known
    drivers = [parse_version(row.driver) for row in BY_RELEASE.values()]
    assert drivers == sorted(drivers)
    assert {parse_version(row.cuda)[0] for row in BY_RELEASE.values()} == set(LOWEST_DRIVER)


def test_the_lowest_versions_are_those_of_the_package() -> None:
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8")
    assert f'requires-python = ">={LOWEST_PYTHON}"' in text
    for name, lowest in LOWEST.items():
        assert re.search(rf'"{name}(\[[a-z,]+\])?>={re.escape(lowest)}["<,]', text), name


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("2.13.0+cpu", (2, 13, 0)), ("2.5.0a0+e000", (2, 5, 0)), ("", ()), ("x", ())],
)
def test_versions_are_read_as_far_as_they_are_numbers(text: str, numbers: tuple[int, ...]) -> None:
    assert parse_version(text) == numbers


def test_json_has_every_finding() -> None:
    document = json.loads(to_json(examine(GOOD)))
    assert {"subject", "level", "found", "fix"} == set(document[0])
