"""The class of a ``model.py`` with its weights: what ``runtime: "model.py"`` in a config asks for.

Source: pytorch_backend's ``src/model.py``.
"""

import importlib.util
import logging
import pickle
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import torch

from naiad.backends.pytorch.placement import CPU
from naiad.backends.pytorch.program import Program
from naiad.errors import InternalError

_LOGGER: Final = logging.getLogger(__name__)
RUNTIME: Final = "model.py"


def load_module_file(
    model_name: str,
    path: Path,
    device: torch.device | None,
    compile_parameters: Mapping[str, Any] | None,
) -> Program:
    """Run a ``model.py``, which is code, and load the state dict beside it, which is not.

    Args:
        model_name: for messages.
        path: of the Python file; the state dict has its name with the suffix ``.pt``.
        device: where the module goes; None leaves it where it put itself.
        compile_parameters: of ``torch.compile``; None doesn't compile.

    Raises:
        InternalError: the file fails, has no module class, or its weights don't fit.
    """
    module = _run(model_name, path)
    instance = _make(model_name, module)
    weights = path.with_suffix(".pt")
    if weights.is_file():
        _load_weights(model_name, instance, weights, device)
    else:
        _LOGGER.info("Model parameter file not found for '%s'", model_name)
    if device is not None:
        instance.to(device)
    instance.eval()
    call: Any = instance
    if compile_parameters is not None:
        call = torch.compile(instance, **compile_parameters)
    # Python code can do anything with its arguments.
    weight = next(instance.parameters(), None)
    return Program(
        format="a model.py",
        call=call,
        writes=True,
        device=None if weight is None else weight.device,
    )


def _run(model_name: str, path: Path) -> ModuleType:
    specification = importlib.util.spec_from_file_location(f"naiad_model_{id(path):x}", path)
    if specification is None or specification.loader is None:
        raise InternalError(f"failed to load model '{model_name}': {path} is no Python file")
    module = importlib.util.module_from_spec(specification)
    try:
        specification.loader.exec_module(module)
    except Exception as error:
        raise InternalError(
            f"failed to load model '{model_name}': {path.name}: {type(error).__name__}: {error}"
            f"{_advise(path, error)}"
        ) from error
    return module


def _advise(path: Path, error: Exception) -> str:
    """What to do about a module that lies beside the file, where Triton doesn't look either."""
    name = (getattr(error, "name", None) or "").partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or not name:
        return ""
    if not (path.with_name(f"{name}.py").exists() or path.with_name(name).is_dir()):
        return ""
    return (
        f". The version's folder is not on Python's path, in Triton neither: write what is in "
        f"'{name}' into {path.name}, install it as a package, or serve the model by the Python "
        "backend, which has its folder on the path"
    )


def _make(model_name: str, module: ModuleType) -> torch.nn.Module:
    found = [
        value
        for _, value in sorted(vars(module).items())
        if isinstance(value, type) and issubclass(value, torch.nn.Module)
    ]
    # Triton takes the first of all these by name, an imported torch.nn.Linear before a Net. A
    # class of an installed package is meant where there is none of the file's own.
    classes = [value for value in found if value.__module__ == module.__name__] or [
        value for value in found if value.__module__.partition(".")[0] != "torch"
    ]
    if not classes:
        raise InternalError(
            f"failed to load model '{model_name}': Cannot find a subclass of torch.nn.Module. "
            "Define one in model.py"
        )
    if len(classes) > 1:
        _LOGGER.warning(
            "model '%s': model.py has several module classes (%s); '%s' is served, the first by "
            "name",
            model_name,
            ", ".join(value.__name__ for value in classes),
            classes[0].__name__,
        )
    try:
        instance: torch.nn.Module = classes[0]()
    except Exception as error:
        raise InternalError(
            f"failed to load model '{model_name}': {classes[0].__name__}() failed: "
            f"{type(error).__name__}: {error}"
        ) from error
    return instance


def _load_weights(
    model_name: str, instance: torch.nn.Module, path: Path, device: torch.device | None
) -> None:
    try:
        state = torch.load(path, map_location=device or CPU, weights_only=True)
        instance.load_state_dict(state)
    except (pickle.UnpicklingError, RuntimeError, TypeError, ValueError, OSError) as error:
        raise InternalError(
            f"failed to load model '{model_name}': {path.name} must hold the state dict of the "
            f"class in model.py, written by torch.save(module.state_dict(), ...), and nothing "
            f"that runs code when it is read: {error}"
        ) from error
