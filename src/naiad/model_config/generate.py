"""Writes ``schema.binpb`` and ``schema.pyi`` from ``model_config.proto``, for developers.

Run ``python -m naiad.model_config.generate`` after a change to the proto file; it needs
grpcio-tools, which the extra ``dev`` installs.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

_FOLDER = Path(__file__).parent
_PROTO = "model_config.proto"
_STUB_HEADER = "# Generated from model_config.proto by generate.py; do not edit.\n"


def generate(folder: Path) -> None:
    """Write both generated files into ``folder``.

    Raises:
        subprocess.CalledProcessError: protoc refused the proto file or is not installed; its own
            message is on stderr.
    """
    with tempfile.TemporaryDirectory() as scratch:
        command = [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            f"--proto_path={_FOLDER}",
            f"--descriptor_set_out={folder / 'schema.binpb'}",
            f"--pyi_out={scratch}",
            _PROTO,
        ]
        subprocess.run(command, check=True)  # noqa: S603  (our own interpreter, fixed arguments)
        stub = (Path(scratch) / "model_config_pb2.pyi").read_text("utf-8")
    (folder / "schema.pyi").write_text(_STUB_HEADER + _make_strict(stub), "utf-8")


def _make_strict(stub: str) -> str:
    """Name the types that protoc leaves open, which ``mypy --strict`` refuses."""
    stub = stub.replace("from typing import ClassVar", "from typing import Any as _Any, ClassVar")
    stub = re.sub(r"\b_Mapping\](?!\w)", "_Mapping[str, _Any]]", stub)
    stub = stub.replace("**kwargs)", "**kwargs: _Any)")
    # schema.py has the values in their enum only, not as names of the module too.
    return re.sub(r"^[A-Z][A-Z0-9_]*: DataType\n", "", stub, flags=re.MULTILINE)


if __name__ == "__main__":
    generate(_FOLDER)
