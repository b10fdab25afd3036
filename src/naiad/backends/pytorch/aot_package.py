"""AOTInductor packages: ``.pt2`` of ``torch._inductor.aoti_compile_and_package``.

A package is a shared library that was compiled for one kind of machine. Its metadata hold the
structure of the call and neither datatypes nor shapes, so the config has to give these.
"""

import json
import platform
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch

from naiad.backends.pytorch.aot_source import read_expectations
from naiad.backends.pytorch.call_spec import input_aliases, output_aliases
from naiad.backends.pytorch.program import Leaves, Program
from naiad.errors import UnsupportedError

_FOLDER: Final = "data/aotinductor/"
# torch's names for what a package was compiled for, and those of torch.cpu.get_capabilities().
_CPU_FEATURES: Final = {
    "AVX2": "avx2",
    "AVX512": "avx512_f",
    "AVX512_VNNI": "avx512_vnni",
    "AMX_TILE": "amx_tile",
}


def is_aot_package(path: Path) -> bool:
    """Whether a ``.pt2`` holds compiled code, and not a program for torch to run.

    Raises:
        OSError: it can't be read.
        ValueError: it is no ``.pt2``.
    """
    return bool(_model_names(path))


def load_aot_package(
    model_name: str, path: Path, device: torch.device | None, run_count: int
) -> Program:
    """Load the shared library of a package into this process: it is code.

    Args:
        model_name: for messages.
        path: of the package.
        device: where it runs; None for the device that it was compiled for.
        run_count: how many threads may run it at once.

    Raises:
        RuntimeError, OSError, ValueError: it can't be loaded.
        UnsupportedError: it was compiled for another kind of machine or device.
    """
    inner_name = _model_names(path)[0]
    metadata = _read_metadata(path, inner_name)
    _check_machine(model_name, metadata)
    device_type = metadata.get("AOTI_DEVICE_KEY", "cpu")
    if device is not None and device.type != device_type:
        raise UnsupportedError(
            f"model '{model_name}' was compiled for the device '{device_type}' and its instance "
            f"group asks for '{device.type}'; change the kind of the instance group, or export "
            "and compile the model for that device"
        )
    index = -1 if device is None or device.index is None else device.index
    loader = _open(path, inner_name, run_count, index)
    structure = loader.get_call_spec()

    def call(*tensors: torch.Tensor) -> Any:
        return loader.run(list(tensors))

    return Program(
        format="an AOTInductor package",
        call=call,
        # Nothing in the package says whether it does.
        writes=True,
        leaves=Leaves(input_aliases(structure[0]), output_aliases(structure[1]), by_name=False),
        expectations=read_expectations(_read_source(path, inner_name)),
    )


def _open(path: Path, inner_name: str, run_count: int, device_index: int) -> Any:
    # The documented way, aoti_load_package, is this class in a wrapper that imports the whole
    # compiler: 4 s and 85 MiB more, for nothing that running needs. It is the fallback for a
    # release of torch that has the class elsewhere or makes it otherwise.
    try:
        loader = torch._C._aoti.AOTIModelPackageLoader
        return loader(str(path), inner_name, False, run_count, device_index)  # noqa: FBT003
    except (AttributeError, TypeError):
        return torch._inductor.aoti_load_package(str(path), device_index=device_index).loader


def _model_names(path: Path) -> list[str]:
    found = set()
    for name in _list_files(path):
        _, folder, rest = name.partition(_FOLDER)
        if folder and "/" in rest:
            found.add(rest.partition("/")[0])
    return sorted(found)


def _read_metadata(path: Path, inner_name: str) -> Mapping[str, str]:
    metadata: dict[str, str] = {}
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if f"{_FOLDER}{inner_name}/" in name and name.endswith("_metadata.json"):
                metadata.update(json.loads(archive.read(name)))
    return metadata


def _read_source(path: Path, inner_name: str) -> str:
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if f"{_FOLDER}{inner_name}/" in name and name.endswith(".wrapper.cpp"):
                return archive.read(name).decode(errors="replace")
    return ""


def _list_files(path: Path) -> list[str]:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except zipfile.BadZipFile as error:
        raise ValueError(f"it is no .pt2 archive: {error}") from error


def _check_machine(model_name: str, metadata: Mapping[str, str]) -> None:
    machine = metadata.get("AOTI_MACHINE", platform.machine())
    system = metadata.get("AOTI_PLATFORM", sys.platform)
    if (machine, system) != (platform.machine(), sys.platform):
        raise UnsupportedError(
            f"model '{model_name}' was compiled for {system} on {machine}, and this is "
            f"{sys.platform} on {platform.machine()}; compile the package on a machine like this"
        )
    if not hasattr(torch.cpu, "get_capabilities"):  # a release of torch that can't tell
        return
    capabilities = torch.cpu.get_capabilities()
    lacking = [
        word
        for word in metadata.get("AOTI_CPU_ISA", "").upper().split()
        if not capabilities.get(_CPU_FEATURES.get(word, ""), word not in _CPU_FEATURES)
    ]
    if lacking:
        raise UnsupportedError(
            f"model '{model_name}' was compiled for a CPU with {metadata['AOTI_CPU_ISA']}, and "
            f"this one lacks {', '.join(lacking)}; compile the package on a machine like this, or "
            "serve an ONNX file or an exported program instead, which run on any"
        )
