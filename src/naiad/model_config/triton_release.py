"""What each release of Triton runs models with, to check a repository before it moves there.

The table is ``triton_releases.json``; its member ``sources`` says where each column comes from.
"""

import json
from dataclasses import dataclass
from importlib import resources

from naiad.errors import InvalidArgumentError

_PREFIX = "triton:"


@dataclass(frozen=True, slots=True)
class TritonRelease:
    """One release, as its container on NGC brings it.

    Attributes:
        release: of the container, such as ``24.10``.
        version: of the server, such as ``2.51.0``.
        onnxruntime: its version.
        onnx_opset: the highest opset of the domain ``ai.onnx`` that it runs.
        onnx_ir: the highest ONNX IR version that it reads.
        python: of the Python backend; None where no source says it.
        pytorch: of libtorch; None where no source says it.
    """

    release: str
    version: str
    onnxruntime: str
    onnx_opset: int
    onnx_ir: int
    python: str | None
    pytorch: str | None


def read_releases() -> tuple[TritonRelease, ...]:
    """Every release of the table, the oldest first."""
    text = resources.files(__package__).joinpath("triton_releases.json").read_text("utf-8")
    return tuple(TritonRelease(**row) for row in json.loads(text)["releases"])


def find_release(target: str) -> TritonRelease:
    """The release that ``triton:24.10``, or ``triton:2.51.0``, names.

    Raises:
        InvalidArgumentError: it is no such name, or the table does not have that release.
    """
    releases = read_releases()
    name = target.removeprefix(_PREFIX)
    for release in releases:
        if target.startswith(_PREFIX) and name in {release.release, release.version}:
            return release
    raise InvalidArgumentError(
        f"unknown target '{target}': expected triton:<release>, with a release of the container "
        f"from {releases[0].release} to {releases[-1].release} or a version of the server from "
        f"{releases[0].version} to {releases[-1].version}"
    )
