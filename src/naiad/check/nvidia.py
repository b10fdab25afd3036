"""CUDA and the driver that each release of Triton's container was built with.

Source: triton-inference-server/server, docs/introduction/compatibility.md, container
vllm-python-py3; it starts with 24.04. The lowest driver of a CUDA major version is NVIDIA's "CUDA
minor version compatibility".
"""

from dataclasses import dataclass
from typing import Final

Version = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cuda:
    """What a container brings and wants.

    Attributes:
        cuda: its version of CUDA.
        driver: the one that CUDA version came with.
    """

    cuda: str
    driver: str


BY_RELEASE: Final = {
    "24.04": Cuda("12.4.1", "550.54.15"), "24.05": Cuda("12.4.1", "550.54.15"),
    "24.06": Cuda("12.5.0", "555.42.02"), "24.07": Cuda("12.5.1", "555.42.06"),
    "24.08": Cuda("12.6.0", "560.35.03"), "24.09": Cuda("12.6.1", "560.35.03"),
    "24.10": Cuda("12.6.2", "560.35.03"), "24.11": Cuda("12.6.3", "560.35.05"),
    "24.12": Cuda("12.6.3", "560.35.05"), "25.01": Cuda("12.8.0", "570.86.10"),
    "25.02": Cuda("12.8.0", "570.86.10"), "25.03": Cuda("12.8.1", "570.124.06"),
    "25.04": Cuda("12.9.0", "575.51.02"), "25.05": Cuda("12.9.0", "575.51.03"),
    "25.06": Cuda("12.9.0", "575.51.03"), "25.07": Cuda("12.9.0", "575.51.03"),
    "25.08": Cuda("13.0.1", "580.82.07"), "25.09": Cuda("13.0.1", "580.82.07"),
    "25.10": Cuda("13.0.2", "580.95.05"), "25.11": Cuda("13.0.2", "580.95.05"),
    "25.12": Cuda("13.1.0", "590.44.01"), "26.01": Cuda("13.1.1", "590.48.01"),
    "26.02": Cuda("13.1.1", "590.48.01"), "26.03": Cuda("13.2.0", "595.45.04"),
    "26.04": Cuda("13.2.1", "595.58.03"), "26.05": Cuda("13.2.1", "595.58.03"),
    "26.06": Cuda("13.3.0", "610.43.02"), "26.07": Cuda("13.3.0", "610.43.02"),
}  # fmt: skip

LOWEST_DRIVER: Final = {12: "525.60.13", 13: "580.65.06"}
"""Major version of CUDA -> the oldest driver that runs every minor version of it."""


def parse_version(text: str) -> Version:
    """The leading numbers of a version: ``2.13.0+cpu`` gives (2, 13, 0)."""
    numbers = []
    for part in text.split("+", maxsplit=1)[0].split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
        if digits != part:
            break
    return tuple(numbers)
