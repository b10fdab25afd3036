"""Weights out of a checkpoint, into the module that they belong to."""

import pickle
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from naiad.errors import InvalidArgumentError, NotFoundError
from naiad.source_model.description import SAFETENSORS_SUFFIX

# What trainers write in front of every key: DataParallel, torch.compile, Lightning and others.
_WRAPPERS: Final = ("module.", "_orig_mod.", "model.", "net.", "network.")
# Where they put the state dict; the usual names first, since a checkpoint may hold several.
_USUAL_KEYS: Final = ("state_dict", "model_state_dict", "model_state", "model", "ema", "net")
_SHOWN: Final = 4

StateDict = Mapping[str, torch.Tensor]


def is_torchscript(path: Path) -> bool:
    """Whether torch.jit.save wrote the file; its archive holds code, other checkpoints' none."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any("/code/" in name or name.endswith("/constants.pkl") for name in
                   archive.namelist())  # fmt: skip


def load_torchscript(path: Path) -> nn.Module:
    """The module of a file that torch.jit.save wrote.

    Raises:
        InvalidArgumentError: torch cannot read it.
    """
    try:
        with warnings.catch_warnings():
            # torch calls its own format deprecated at each use; the user has such a file.
            warnings.simplefilter("ignore", DeprecationWarning)
            module: nn.Module = torch.jit.load(path, map_location="cpu")  # type: ignore[no-untyped-call]
    except (RuntimeError, ValueError, OSError) as error:
        raise InvalidArgumentError(
            f"{path} is no TorchScript file that torch {torch.__version__} reads: {_brief(error)}"
        ) from error
    return module


def load_weights(module: nn.Module, path: Path) -> tuple[str, ...]:
    """Put the weights of a checkpoint into a module, every one of which must be there.

    A state dict below a key of the checkpoint is found, and prefixes that trainers put before
    every key are dropped.

    Args:
        module: changed in place.
        path: what ``torch.save`` wrote, which is read without running code, or safetensors.

    Returns:
        What was decided and the user should know.

    Raises:
        NotFoundError: there is no such file.
        InvalidArgumentError: it holds no state dict, or that of another module.
    """
    checkpoint = read_checkpoint(path)
    key, state = _find_state(checkpoint, set(module.state_dict()), path)
    prefix, state = _unwrap(state, set(module.state_dict()))
    unknown = _require_fit(module, state, path)
    try:
        module.load_state_dict(state, strict=not unknown)
    except RuntimeError as error:
        raise InvalidArgumentError(f"the weights of {path} do not fit: {_brief(error)}") from error
    notes = []
    if key:
        notes.append(f"the weights are those below the key '{key}' of {path.name}")
    if prefix:
        notes.append(f"'{prefix}' was dropped from the names of the weights of {path.name}")
    if unknown:
        # A trainer's loss may have weights of its own; the module itself is complete.
        notes.append(
            f"{path.name} has weights that {type(module).__name__} has not, and that are left "
            f"out: {_some(unknown)}"
        )
    return tuple(notes)


def read_checkpoint(path: Path) -> Any:
    """What a checkpoint holds, on the CPU and read without running code from it.

    Raises:
        NotFoundError: there is no such file.
        InvalidArgumentError: it is damaged, or holds pickled objects of other kinds.
    """
    if not path.is_file():
        raise NotFoundError(f"there is no file {path}")
    if path.suffix == SAFETENSORS_SUFFIX:
        try:
            return load_file(path)
        except (SafetensorError, OSError, ValueError) as error:
            raise InvalidArgumentError(f"{path} is no safetensors file: {error}") from error
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise InvalidArgumentError(
            f"{path} holds pickled Python objects and not weights alone, and reading these runs "
            "whatever code the file brings. Save the weights where you trained the model: "
            "torch.save(model.state_dict(), ...), and give the class with --class; or write a "
            "function that loads it and name that as MODULE:CALLABLE"
        ) from error
    except (RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        raise InvalidArgumentError(f"{path} is no checkpoint of torch: {_brief(error)}") from error


def _find_state(checkpoint: Any, wanted: set[str], path: Path) -> tuple[str, StateDict]:
    """The state dict of a checkpoint and the key that it lies below, or ""."""
    found = dict(_state_dicts(checkpoint))
    if not found:
        raise InvalidArgumentError(
            f"{path} holds a {type(checkpoint).__name__} without a state dict in it"
            f"{_keys_of(checkpoint)}"
        )
    order = ["", *_USUAL_KEYS, *sorted(found)]
    candidates = sorted(found, key=order.index)
    best = max(candidates, key=lambda key: len(wanted & set(_unwrap(found[key], wanted)[1])))
    return best, found[best]


def _state_dicts(checkpoint: Any) -> list[tuple[str, StateDict]]:
    if not isinstance(checkpoint, Mapping):
        return []
    if _is_state(checkpoint):
        return [("", checkpoint)]
    return [(str(key), value) for key, value in checkpoint.items() if _is_state(value)]


def _is_state(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and bool(value)
        and all(isinstance(key, str) for key in value)
        and all(isinstance(part, torch.Tensor) for part in value.values())
    )


def _unwrap(state: StateDict, wanted: set[str]) -> tuple[str, StateDict]:
    """Without the prefixes that every key has and the module's do not."""
    dropped = ""
    while not wanted & set(state):
        prefix = next((p for p in _WRAPPERS if all(key.startswith(p) for key in state)), None)
        if prefix is None:
            break
        state = {key.removeprefix(prefix): value for key, value in state.items()}
        dropped += prefix
    return dropped, state


def _require_fit(module: nn.Module, state: StateDict, path: Path) -> list[str]:
    """Refuse weights that leave a part of the module without; returns those it has no use for."""
    own = module.state_dict()
    lacking = [key for key in own if key not in state]
    unknown = [key for key in state if key not in own]
    shapes = [
        f"{key} {list(state[key].shape)} instead of {list(own[key].shape)}"
        for key in own
        if key in state and state[key].shape != own[key].shape
    ]
    problems = [
        f"{what}: {_some(names)}"
        for what, names in (
            ("lacks", lacking), ("has besides", unknown if lacking else []),
            ("has other shapes", shapes),
        )
        if names
    ]  # fmt: skip
    if problems:
        raise InvalidArgumentError(
            f"the weights of {path} are not those of {type(module).__name__}: the file "
            f"{'; '.join(problems)}. Give the class, with the same sizes, that they were trained "
            "with"
        )
    return unknown


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"


def _keys_of(checkpoint: Any) -> str:
    if not isinstance(checkpoint, Mapping):
        return ""
    return f"; its keys are {_some([str(key) for key in checkpoint])}"


def _brief(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
