"""The two kinds of file, behind one shape: something to call, and what is known of its tensors."""

import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from naiad.backends.pytorch.naming import Argument
from naiad.backends.pytorch.tensors import DATATYPES
from naiad.errors import InternalError, UnsupportedError
from naiad.model_config.complete import ArtifactSignature, ArtifactTensor

EXPORTED_SUFFIX: Final = ".pt2"

# torch.export.load keeps its deserializer in a global of torch and asserts that there is one at a
# time, while a server loads its models side by side. So this belongs to the process, as torch does.
_ONE_EXPORTED_LOAD: Final = threading.Lock()


@dataclass(frozen=True, slots=True)
class Program:
    """A model file in memory.

    Attributes:
        call: the model; an exported program's takes its arguments by name.
        arguments: of ``call``, in order.
        signature: of its tensors, with the batch axis; None for TorchScript, which has none.
    """

    call: Callable[..., Any]
    arguments: Sequence[Argument]
    signature: ArtifactSignature | None


def load_program(model_name: str, path: Path) -> Program:
    """Read a model file.

    Raises:
        InternalError: torch can't read it.
        UnsupportedError: it takes or gives something else than tensors of known datatypes.
    """
    try:
        if path.suffix == EXPORTED_SUFFIX:
            return _load_exported(model_name, path)
        return _load_torchscript(path)
    except (RuntimeError, ValueError, OSError, KeyError) as error:
        raise InternalError(f"failed to load model '{model_name}': {error}") from error


def _load_torchscript(path: Path) -> Program:
    # TorchScript is how Triton's model repositories hold PyTorch models, so its deprecation is
    # no news to who serves one. The filter stays: undoing it would undo other threads' filters.
    warnings.filterwarnings("ignore", r"`torch\.jit\.load` is", DeprecationWarning)
    module = torch.jit.load(path, map_location="cpu")  # type: ignore[no-untyped-call]
    module.eval()
    arguments = [
        Argument(
            argument.name,
            is_required=not argument.has_default_value(),
            is_tensor_dict=str(argument.type) == "Dict[str, Tensor]",
        )
        for argument in module.forward.schema.arguments[1:]
    ]
    return Program(module, arguments, None)


def _load_exported(model_name: str, path: Path) -> Program:
    with _ONE_EXPORTED_LOAD:
        exported = torch.export.load(path)
        module = exported.module()
    values = {node.name: node.meta.get("val") for node in exported.graph.nodes}
    # Besides names of tensors, this holds the numbers and texts of the export, which are fixed.
    leaves = exported.graph_signature.user_inputs
    names = [leaf for leaf in leaves if isinstance(leaf, str) and leaf in values]
    signature = ArtifactSignature(
        inputs=[_describe(model_name, name, values[name]) for name in names],
        outputs=[
            _describe(model_name, str(name), values.get(str(name), name))
            for name in exported.graph_signature.user_outputs
        ],
    )
    arguments = [Argument(name, is_required=True, is_tensor_dict=False) for name in names]
    spec = exported.call_spec.in_spec

    def call(**tensors: torch.Tensor) -> Any:
        # It insists on being called as it was exported: positional stays positional, and what
        # was in a dict comes in a dict.
        args, kwargs = spec.unflatten([tensors.get(leaf, leaf) for leaf in leaves])
        return module(*args, **kwargs)

    return Program(call, arguments, signature)


def _describe(model_name: str, name: str, value: object) -> ArtifactTensor:
    if not isinstance(value, torch.Tensor):
        raise UnsupportedError(
            f"'{name}' of model '{model_name}' is of type {type(value).__name__}; only "
            "tensors can be served"
        )
    datatype = DATATYPES.get(value.dtype)
    if datatype is None:
        raise UnsupportedError(
            f"'{name}' of model '{model_name}' holds {value.dtype}, which the protocol has no "
            "datatype for"
        )
    # A dynamic dim is a symbol, not an int.
    shape = tuple(length if isinstance(length, int) else -1 for length in value.shape)
    return ArtifactTensor(name, datatype, shape)
