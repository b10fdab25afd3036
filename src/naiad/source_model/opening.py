"""A model from wherever it lies: Python code, a file of weights, an archive or a directory."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from naiad.errors import InvalidArgumentError, NotFoundError
from naiad.source_model.description import ARCHIVE_SUFFIX, SourceDescription, is_path
from naiad.source_model.example import draw_example
from naiad.source_model.huggingface import is_model_directory, load_pretrained
from naiad.source_model.model import SourceModel
from naiad.source_model.reference import (
    Call,
    call_by_names,
    call_reference,
    load_call,
    load_source,
    resolve,
)
from naiad.source_model.torchserve import load_archive
from naiad.source_model.weights import (
    is_torchscript,
    load_torchscript,
    load_weights,
    read_checkpoint,
)


def _empty() -> Mapping[str, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedSource:
    """A model with its example, and what its file says besides.

    Attributes:
        model: the module and its example.
        dynamic: names of axes that vary, where the source knows them.
        ranges: of values, where the source knows them.
        labels: class names, where the source has them.
        notes: what was decided and the user should know.
    """

    model: SourceModel
    dynamic: Mapping[str, Mapping[int, str]] = field(default_factory=_empty)
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=_empty)
    labels: Sequence[str] = ()
    notes: Sequence[str] = ()


def open_source(
    description: SourceDescription,
    scratch: Path,
    example: Mapping[str, torch.Tensor] | None = None,
) -> OpenedSource:
    """Load a model and its example.

    Args:
        description: of the model.
        scratch: an empty folder for files that have to stay while the model is used.
        example: forward's tensors in its order, for a source that neither has nor is given an
            example; their names are used where forward has them all.

    Raises:
        NotFoundError: the file, Python module or attribute is not there.
        InvalidArgumentError: it is not what the description says, or something is missing.
        UnsupportedError: a model of such a kind cannot be loaded.
    """
    if description.examples is not None and description.inputs:
        raise InvalidArgumentError(
            "example inputs are given twice: by --args and by --input. Leave one out"
        )
    if not is_path(description.source):
        return _open_reference(description, example)
    path = Path(description.source)
    if not path.exists():
        raise NotFoundError(f"there is no file {path}")
    if path.is_dir():
        return _open_directory(description, path)
    if path.suffix == ARCHIVE_SUFFIX:
        archived = load_archive(path, scratch)
        model = _with_example(description, archived.module, example)
        return OpenedSource(model=model, labels=archived.labels, notes=archived.notes)
    module, notes = _open_file(description, path)
    return OpenedSource(model=_with_example(description, module, example), notes=notes)


def _open_reference(
    description: SourceDescription, example: Mapping[str, torch.Tensor] | None
) -> OpenedSource:
    if description.model_class is not None:
        raise InvalidArgumentError(
            f"--class says what a file of weights belongs to, and '{description.source}' is no "
            "file; a MODULE:CALLABLE loads its own weights"
        )
    if description.inputs:
        drawn = draw_example(description.inputs, description.ranges)
        return OpenedSource(model=load_source(description.source, example=((), drawn)))
    return OpenedSource(
        model=load_source(description.source, description.examples, fallback=example)
    )


def _open_directory(description: SourceDescription, path: Path) -> OpenedSource:
    if not is_model_directory(path):
        raise InvalidArgumentError(
            f"{path} is a folder without a config.json, so it is no model directory of "
            "transformers. Name the file with the weights and its class: naiad export FILE "
            "--class MODULE:CLASS"
        )
    loaded = load_pretrained(path)
    call = _described_call(description)
    if call is not None:
        model = SourceModel(loaded.module, *call, origin=description.source)
        return OpenedSource(model=model, labels=loaded.labels, notes=loaded.notes)
    return OpenedSource(
        model=SourceModel(loaded.module, (), loaded.example, origin=description.source),
        dynamic=loaded.dynamic,
        ranges=loaded.ranges,
        labels=loaded.labels,
        notes=loaded.notes,
    )


def _open_file(description: SourceDescription, path: Path) -> tuple[nn.Module, tuple[str, ...]]:
    if path.suffix in {".onnx", ".pt2"}:
        raise InvalidArgumentError(
            f"{path} is exported already: put it into a model repository as NAME/1/model"
            f"{path.suffix} and run 'naiad check --fix' on the repository"
        )
    if path.suffix == ".py":
        raise InvalidArgumentError(
            f"{path} is Python code: name the function in it that returns the module and its "
            f"example inputs, such as {path.stem}:build"
        )
    if is_torchscript(path):
        if description.model_class is not None:
            raise InvalidArgumentError(
                f"{path} is TorchScript, which brings its own code: leave --class out"
            )
        return load_torchscript(path), (f"{path.name} is TorchScript",)
    if description.model_class is None:
        # Says what else may be wrong with the file.
        read_checkpoint(path)
        raise InvalidArgumentError(
            f"{path} holds weights, and not the code that uses them: name the class that they "
            "belong to with --class MODULE:CLASS"
        )
    module = _make_module(description.model_class)
    return module, load_weights(module, path)


def _make_module(reference: str) -> nn.Module:
    target = resolve(reference)
    if inspect.isclass(target) and not issubclass(target, nn.Module):
        raise InvalidArgumentError(f"--class: '{reference}' is no torch.nn.Module")
    module = call_reference(reference)
    if not isinstance(module, nn.Module):
        raise InvalidArgumentError(
            f"--class: '{reference}' returned a {type(module).__name__}, not a torch.nn.Module"
        )
    return module


def _with_example(
    description: SourceDescription,
    module: nn.Module,
    example: Mapping[str, torch.Tensor] | None,
) -> SourceModel:
    call = _described_call(description)
    if call is None and example is not None:
        call = call_by_names(module, example)
    if call is None:
        raise InvalidArgumentError(
            f"{description.source} holds no example inputs, which an export needs. Describe them: "
            "--input NAME:DATATYPE:SHAPE (such as image:FP32:1,3,224,224), or name a callable that "
            "returns some: --args MODULE:CALLABLE"
        )
    return SourceModel(module, *call, origin=description.source)


def _described_call(description: SourceDescription) -> Call | None:
    if description.examples is not None:
        return load_call(description.examples)
    if description.inputs:
        return (), draw_example(description.inputs, description.ranges)
    return None
