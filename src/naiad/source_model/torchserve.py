"""Model archives of TorchServe (``.mar``): the model out of them, and what stays behind said.

Source: TorchServe's model-archiver and ``ts/torch_handler/base_handler.py``. An archive is a zip
file with ``MAR-INF/MANIFEST.json``; the base handler loads ``serializedFile`` into the one class of
``modelFile``, or as TorchScript where there is none, and asks the handler's methods around it.
"""

import ast
import importlib.util
import inspect
import json
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from torch import nn

from naiad.errors import InvalidArgumentError, UnsupportedError
from naiad.source_model.weights import is_torchscript, load_torchscript, load_weights

_MANIFEST: Final = "MAR-INF/MANIFEST.json"
_LABELS: Final = "index_to_name.json"
# Methods of a handler that build or run the model in ways of their own.
_MODEL_METHODS: Final = frozenset(
    {"initialize", "inference", "handle", "_load_pickled_model", "_load_torchscript_model"}
)
_AROUND_METHODS: Final = ("preprocess", "postprocess")
# What TorchServe's own handlers do around the model, which clients or another model do with Triton.
_BUILT_IN: Final[Mapping[str, str]] = {
    "image_classifier": "decodes, resizes to 256, crops to 224 and normalises images, and answers "
    "with the five best classes after a softmax",
    "image_segmenter": "decodes, resizes and normalises images, and answers with the class of "
    "each pixel",
    "object_detector": "decodes images, and answers with boxes above a score of 0.5",
    "text_classifier": "cleans and tokenises text with the archive's own vocabulary, and answers "
    "with a softmax",
    "base_handler": "turns JSON into tensors",
}


@dataclass(frozen=True, slots=True)
class ArchivedModel:
    """The model of an archive.

    Attributes:
        module: with its weights.
        labels: class names of ``index_to_name.json``, or none.
        notes: what TorchServe did around the model, and the file does not.
    """

    module: nn.Module
    labels: tuple[str, ...]
    notes: tuple[str, ...]


def load_archive(path: Path, folder: Path) -> ArchivedModel:
    """The model that TorchServe's base handler would load from an archive.

    The archive's ``modelFile`` is Python code, and is run.

    Args:
        path: of the ``.mar``.
        folder: empty; the archive's files go there, and have to stay while the model is used.

    Raises:
        InvalidArgumentError: it is no such archive, or lacks what its manifest names.
        UnsupportedError: its own handler builds or runs the model, or its model is no torch file.
    """
    manifest = _unpack(path, folder)
    handler = str(manifest.get("handler", ""))
    notes = _handler_notes(handler, folder)
    weights = _member(folder, manifest.get("serializedFile"), "serializedFile", path)
    if weights.suffix == ".onnx":
        raise UnsupportedError(
            f"the model of {path} is the ONNX file {weights.name} already, so there is nothing to "
            f"export: unzip it into a repository as NAME/1/model.onnx and run 'naiad check --fix'"
        )
    if manifest.get("modelFile"):
        module = _make_module(_member(folder, manifest["modelFile"], "modelFile", path), folder)
        notes += load_weights(module, weights)
    elif is_torchscript(weights):
        module = load_torchscript(weights)
    else:
        raise UnsupportedError(
            f"{path} has no modelFile, and its {weights.name} is no TorchScript: the class of the "
            f"model is not in the archive. Unzip it and name the class: naiad export "
            f"{weights.name} --class MODULE:CLASS"
        )
    return ArchivedModel(module, _read_labels(folder), tuple(notes))


def _unpack(path: Path, folder: Path) -> Mapping[str, Any]:
    try:
        with zipfile.ZipFile(path) as archive:
            archive.extractall(folder)
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))["model"]
    except (zipfile.BadZipFile, OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidArgumentError(
            f"{path} is no model archive of TorchServe: it has to be a zip file with {_MANIFEST} "
            f"({type(error).__name__}: {error})"
        ) from error
    if not isinstance(manifest, dict):
        raise InvalidArgumentError(f"{path}: 'model' in {_MANIFEST} is no table")
    return manifest


def _member(folder: Path, name: object, field: str, path: Path) -> Path:
    member = folder / str(name)
    inside = member.resolve().is_relative_to(folder.resolve())
    if not (isinstance(name, str) and inside and member.is_file()):
        raise InvalidArgumentError(
            f"{path} lacks its model: {field} in {_MANIFEST} is {name!r}, and no such file is in "
            "the archive"
        )
    return member


def _handler_notes(handler: str, folder: Path) -> list[str]:
    """What the handler does around the model.

    Raises:
        UnsupportedError: it makes the model, or what the model answers, itself.
    """
    name = handler.partition(":")[0]
    if name in _BUILT_IN:
        return [
            f"TorchServe's handler {name} {_BUILT_IN[name]}; the exported model takes and returns "
            "the tensors in between"
        ]
    source = folder / name
    if not source.is_file():
        source = folder / f"{name}.py"
    if not source.is_file():
        raise UnsupportedError(
            f"the archive's handler '{handler}' is neither in the archive nor one of "
            f"{', '.join(_BUILT_IN)}: what it does with the model can't be known. Write a "
            "function that returns (module, example) and export MODULE:CALLABLE"
        )
    return _custom_handler_notes(source)


def _custom_handler_notes(source: Path) -> list[str]:
    lines = _defined_functions(source)
    own = [f"{name}() in line {lines[name]}" for name in lines if name in _MODEL_METHODS]
    if own:
        raise UnsupportedError(
            f"the archive's handler {source.name} has its own {', '.join(own)}: what is served is "
            "what that code builds and answers, not the archive's model file alone. Write a "
            "function that builds the model the same way and returns (module, example), and "
            "export MODULE:CALLABLE; what happens before and after the model belongs into the "
            "client or into a model of the Python backend"
        )
    return [
        f"{name}() of the archive's handler ({source.name}, line {lines[name]}) is not part of "
        "the exported model: its clients, or a model of the Python backend in an ensemble, have "
        "to do it"
        for name in _AROUND_METHODS
        if name in lines
    ]


def _defined_functions(source: Path) -> dict[str, int]:
    try:
        tree = ast.parse(source.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError) as error:
        raise InvalidArgumentError(f"the archive's handler {source.name}: {error}") from error
    return {
        node.name: node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def _make_module(source: Path, folder: Path) -> nn.Module:
    classes = _module_classes(source, folder)
    if len(classes) != 1:
        found = ", ".join(c.__name__ for c in classes) or "none"
        # TorchServe's own rule; it fails on such an archive, too.
        raise InvalidArgumentError(
            f"the archive's {source.name} has to define one class of a torch.nn.Module, and "
            f"defines {found}"
        )
    try:
        module: nn.Module = classes[0]()
    except Exception as error:
        raise InvalidArgumentError(
            f"{classes[0].__name__}() of the archive's {source.name} raised "
            f"{type(error).__name__}: {error}"
        ) from error
    return module


def _module_classes(source: Path, folder: Path) -> Sequence[type[nn.Module]]:
    spec = importlib.util.spec_from_file_location(source.stem, source)
    if spec is None or spec.loader is None:
        raise InvalidArgumentError(f"the archive's modelFile {source.name} is no Python file")
    code = importlib.util.module_from_spec(spec)
    # Other Python files of the archive are imported by name, as in TorchServe.
    sys.path.insert(0, str(folder))
    try:
        spec.loader.exec_module(code)
    except Exception as error:
        raise InvalidArgumentError(
            f"the archive's {source.name} raised {type(error).__name__}: {error}"
        ) from error
    finally:
        sys.path.remove(str(folder))
    return [
        value
        for value in vars(code).values()
        if inspect.isclass(value)
        and issubclass(value, nn.Module)
        and value.__module__ == code.__name__
    ]


def _read_labels(folder: Path) -> tuple[str, ...]:
    path = folder / _LABELS
    if not path.is_file():
        return ()
    try:
        names = json.loads(path.read_text(encoding="utf-8"))
        ordered = [names[str(index)] for index in range(len(names))]
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidArgumentError(
            f"the archive's {_LABELS} does not name the classes 0, 1, 2 and so on: {error}"
        ) from error
    # ImageNet's have an identifier before the name.
    return tuple(str(name[-1] if isinstance(name, list) else name) for name in ordered)
