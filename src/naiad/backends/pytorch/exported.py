"""Exported programs: ``.pt2`` of ``torch.export.save``."""

import threading
from pathlib import Path
from typing import Any, Final

import torch
from torch.export.passes import move_to_device_pass
from torch.utils import _pytree as pytree

from naiad.backends.pytorch.call_spec import input_aliases, output_aliases
from naiad.backends.pytorch.mutation import program_writes
from naiad.backends.pytorch.program import Leaves, Program
from naiad.backends.pytorch.tensors import DATATYPES
from naiad.errors import UnsupportedError
from naiad.model_config.complete import ArtifactSignature, ArtifactTensor

# torch.export.load keeps its deserializer in a global of torch and asserts that there is one at a
# time, while a server loads its models side by side. So this belongs to the process, as torch does.
_ONE_LOAD: Final = threading.Lock()


def load_exported(model_name: str, path: Path, device: torch.device | None) -> Program:
    """Read an exported program, which is code.

    Args:
        model_name: for messages.
        path: of the file.
        device: where its tensors go; None leaves them where they were saved.

    Raises:
        RuntimeError, ValueError, KeyError: torch can't read it.
        UnsupportedError: it takes or gives something else than tensors of known datatypes.
    """
    with _ONE_LOAD:
        exported = torch.export.load(path)
        if device is not None and device.type != "cpu":
            exported = move_to_device_pass(exported, device)
        module = exported.module()
    values = {node.name: node.meta.get("val") for node in exported.graph.nodes}
    # Besides names of tensors, this holds the numbers and texts of the export, which are fixed.
    leaves = exported.graph_signature.user_inputs
    names = [leaf for leaf in leaves if isinstance(leaf, str) and leaf in values]
    results = exported.graph_signature.user_outputs
    signature = ArtifactSignature(
        inputs=[_describe(model_name, name, values[name]) for name in names],
        outputs=[_describe(model_name, str(name), values.get(str(name), name)) for name in results],
    )
    spec = exported.call_spec.in_spec

    def call(**tensors: torch.Tensor) -> Any:
        # It insists on being called as it was exported: positional stays positional, and what
        # was in a dict comes in a dict.
        args, kwargs = spec.unflatten([tensors.get(leaf, leaf) for leaf in leaves])
        return module(*args, **kwargs)

    return Program(
        format="an exported program",
        call=call,
        writes=program_writes(exported),
        leaves=_name_leaves(exported, names),
        signature=signature,
    )


def _name_leaves(exported: torch.export.ExportedProgram, names: list[str]) -> Leaves:
    user_inputs = exported.graph_signature.user_inputs
    inputs = input_aliases(pytree.treespec_dumps(exported.call_spec.in_spec))
    # A number among the arguments has a place in the call and is no input.
    paths = {
        leaf: aliases[1]
        for leaf, aliases in zip(user_inputs, inputs, strict=True)
        if isinstance(leaf, str)
    }
    outputs = output_aliases(pytree.treespec_dumps(exported.call_spec.out_spec))
    return Leaves(
        inputs=[(name, f"INPUT__{index}", paths[name]) for index, name in enumerate(names)],
        outputs=[
            (str(name), *aliases)
            for name, aliases in zip(exported.graph_signature.user_outputs, outputs, strict=True)
        ],
        by_name=True,
    )


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
