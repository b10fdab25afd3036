"""Which kind of file a model is, and reading it."""

from pathlib import Path
from typing import Final

import torch

from naiad.backends.base import ModelSource
from naiad.backends.model_file import find_model_file
from naiad.backends.operator_libraries import find_operator_libraries
from naiad.backends.pytorch.aot_package import is_aot_package, load_aot_package
from naiad.backends.pytorch.exported import load_exported
from naiad.backends.pytorch.module_file import RUNTIME, load_module_file
from naiad.backends.pytorch.options import TorchOptions
from naiad.backends.pytorch.program import Program
from naiad.backends.pytorch.torchscript import load_torchscript
from naiad.errors import InternalError

_SCRIPT: Final = "model.pt"
_EXPORTED_SUFFIX: Final = ".pt2"
_SOURCE_SUFFIX: Final = ".py"


def load_program(
    source: ModelSource,
    options: TorchOptions,
    device: torch.device | None = None,
    run_count: int = 1,
) -> Program:
    """Read a model file.

    Args:
        source: says where it is.
        options: from its config.
        device: where it runs; None leaves the choice to the model.
        run_count: how many threads may run it at once.

    Raises:
        InternalError: torch can't read it.
        UnsupportedError: it takes or gives something else than tensors of known datatypes, or
            was made for another kind of machine.
    """
    path = _find_file(source)
    _load_operators(source)
    try:
        if path.suffix == _SOURCE_SUFFIX:
            return load_module_file(source.name, path, device, options.compile_parameters)
        if path.suffix != _EXPORTED_SUFFIX:
            return load_torchscript(path, device)
        if is_aot_package(path):
            return load_aot_package(source.name, path, device, run_count)
        return load_exported(source.name, path, device)
    except (RuntimeError, ValueError, OSError, KeyError) as error:
        raise InternalError(f"failed to load model '{source.name}': {error}") from error


def _load_operators(source: ModelSource) -> None:
    """Load the libraries of custom operators that the config names; the process keeps them."""
    for library in find_operator_libraries(source):
        try:
            torch.ops.load_library(library)  # type: ignore[no-untyped-call]
        except OSError as error:
            raise InternalError(
                f"failed to load model '{source.name}': its library of custom operators can't be "
                f"loaded: {error}. It must be built for torch {torch.__version__}"
            ) from error


def _find_file(source: ModelSource) -> Path:
    if source.config.runtime == RUNTIME and not source.config.default_model_filename:
        # A TorchScript file may be served under this runtime, too: Triton looks in this order.
        path = source.version_directory / RUNTIME
        if path.is_file():
            return path
    return find_model_file(source, _SCRIPT)
