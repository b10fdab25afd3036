"""Writes ``services.binpb`` and the stubs from the proto files, for developers.

Run ``python -m naiad.protocol.pb.generate`` after a change to a proto file; it needs grpcio-tools,
which the extra ``dev`` installs.
"""

import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

import naiad.model_config

_PROTOS: Final = Path(__file__).parent.parent
_CONFIG_PROTOS: Final = Path(naiad.model_config.__file__).parent
# The modules of this package, by the proto file whose messages they hold.
_MODULES: Final[Mapping[str, str]] = MappingProxyType(
    {"grpc_service": "grpc_service", "health": "health", "reflection": "reflection"}
)
# Its messages are those of reflection.proto on the wire, so only its descriptor is used.
_DESCRIPTORS_ONLY: Final = ("reflection_v1alpha",)


def generate(folder: Path) -> None:
    """Write the generated files into ``folder``.

    Raises:
        subprocess.CalledProcessError: protoc refused a proto file or is not installed; its own
            message is on stderr.
    """
    with tempfile.TemporaryDirectory() as scratch:
        command = [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            f"--proto_path={_PROTOS}",
            f"--proto_path={_CONFIG_PROTOS}",
            f"--descriptor_set_out={folder / 'services.binpb'}",
            f"--pyi_out={scratch}",
            *(f"{name}.proto" for name in (*_MODULES, *_DESCRIPTORS_ONLY)),
        ]
        subprocess.run(command, check=True)  # noqa: S603  (our own interpreter, fixed arguments)
        for proto, module in _MODULES.items():
            stub = (Path(scratch) / f"{proto}_pb2.pyi").read_text("utf-8")
            header = f"# Generated from {proto}.proto by generate.py; do not edit.\n"
            text = header + "# ruff: noqa\n# fmt: off\n" + _make_strict(stub)
            (folder / f"{module}.pyi").write_text(text, "utf-8")


def _make_strict(stub: str) -> str:
    """Name the types that protoc leaves open, which ``mypy --strict`` refuses."""
    stub = stub.replace("import model_config_pb2", "from naiad.model_config import schema")
    stub = stub.replace("schema as _model_config_pb2", "schema as _schema")
    stub = stub.replace("_model_config_pb2.", "_schema.")
    stub = stub.replace("from typing import ClassVar", "from typing import Any as _Any, ClassVar")
    stub = re.sub(r"\b_Mapping\](?!\w)", "_Mapping[str, _Any]]", stub)
    return stub.replace("**kwargs)", "**kwargs: _Any)")


if __name__ == "__main__":
    generate(Path(__file__).parent)
