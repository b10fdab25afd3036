"""What an exported file holds, for experiments on it: its weights, and its layers in train mode.

A file tells by itself that it was exported in train mode: with its dropout and batch norm set to
evaluation it answers what the model should. That needs no source.
"""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from naiad.inference.comparison import Array
from naiad.verify.artifact import ARTIFACT_HOP, OnnxFileHop, TorchHop, is_compiled
from naiad.verify.hops import Hop

# What operators call the argument that says so: dropout, batch_norm, lstm.
_TRAINING: Final = frozenset({"train", "training"})
_KINDS: Final = ("Dropout", "AlphaDropout", "FeatureAlphaDropout", "BatchNorm", "SyncBatchNorm")


def open_in_eval_mode(
    path: Path, inputs: Mapping[str, str], output_names: Sequence[str]
) -> Hop | None:
    """The file with everything in it that is in train mode set to evaluation.

    Args:
        path: of a file that loads; it is not changed.
        inputs: name -> v2 datatype, in the order of the forward method's arguments.
        output_names: in the order the model returns them.

    Returns:
        None where nothing is in train mode, where machine code doesn't tell, or where the library
        that edits such a file is not installed.
    """
    # Each library raises its own errors of a graph that it can't edit, and then nothing is shown.
    with suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if path.suffix == ".onnx":
            return _mend_onnx(path)
        mend = _mend_torchscript if path.suffix == ".pt" else _mend_program
        mended = mend(path)
        return None if mended is None else TorchHop(ARTIFACT_HOP, mended, inputs, output_names)
    return None


def read_weights(path: Path) -> dict[str, Array]:
    """The weights and buffers of a file by their names there; empty where it doesn't tell."""
    with suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if path.suffix == ".onnx":
            import onnx  # noqa: PLC0415  # optional

            graph = onnx.load(path).graph
            return {held.name: onnx.numpy_helper.to_array(held) for held in graph.initializer}
        import torch  # noqa: PLC0415  # only where the file is torch's

        state: Mapping[str, Any]
        if path.suffix == ".pt":
            state = _load_script(path).state_dict()
        else:
            state = {} if is_compiled(path) else torch.export.load(path).state_dict
        return {name: _to_numpy(tensor) for name, tensor in state.items()}
    return {}


def _to_numpy(tensor: Any) -> Array:
    plain = tensor.detach()
    # numpy has no BF16, and FP32 holds all of its values.
    array: Array = (plain.float() if str(plain.dtype) == "torch.bfloat16" else plain).numpy()
    return array


def _mend_onnx(path: Path) -> Hop | None:
    import onnx  # noqa: PLC0415  # optional

    model = onnx.load(path)
    trained = [node for node in model.graph.node if _set_onnx_node(node)]
    return OnnxFileHop(model.SerializeToString()) if trained else None


def _set_onnx_node(node: Any) -> bool:
    """Set a node of an ONNX graph to evaluation; whether that changed it."""
    if node.op_type == "Dropout" and len(node.input) > 2:
        # Its third input is training_mode, which is false where it is left out.
        del node.input[2:]
        return True
    trained = [a for a in node.attribute if a.name == "training_mode" and a.i]
    for attribute in trained:
        attribute.i = 0
        # The statistics that it would have moved on.
        del node.output[1:]
    return bool(trained)


def _load_script(path: Path) -> Any:
    import torch  # noqa: PLC0415  # only where the file is torch's

    load: Any = torch.jit.load
    return load(str(path), map_location="cpu")


def _mend_torchscript(path: Path) -> Any:
    import torch  # noqa: PLC0415  # only where the file is torch's

    module = _load_script(path)
    has_flags = any(
        part.training and part.original_name.startswith(_KINDS) for part in module.modules()
    )
    freeze: Any = torch.jit.freeze
    frozen = freeze(module.eval(), optimize_numerics=False)
    # A trace has the flags of the time as constants.
    set_nodes = [node for node in list(_nodes(frozen.graph)) if _set_script_node(frozen, node)]
    return frozen if has_flags or set_nodes else None


def _nodes(block: Any) -> Iterable[Any]:
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _nodes(inner)


def _set_script_node(module: Any, node: Any) -> bool:
    schema = node.schema()
    if not schema.startswith("aten::"):
        return False
    import torch  # noqa: PLC0415  # only where the file is torch's

    names = [argument.name for argument in torch._C.parse_schema(schema).arguments]
    for index, name in enumerate(names):
        value = node.inputsAt(index) if name in _TRAINING else None
        if value is not None and value.toIValue() is True:
            module.graph.setInsertPoint(node)
            node.replaceInput(index, module.graph.insertConstant(False))  # noqa: FBT003
            return True
    return False


def _mend_program(path: Path) -> Any:
    import torch  # noqa: PLC0415  # only where the file is torch's

    if is_compiled(path):
        return None
    program = torch.export.load(path)
    set_nodes = [node for node in program.graph.nodes if _set_program_node(node)]
    program.graph_module.recompile()
    return program.module() if set_nodes else None


def _set_program_node(node: Any) -> bool:
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None:
        return False
    for index, argument in enumerate(schema.arguments):
        if argument.name in _TRAINING and index < len(node.args) and node.args[index] is True:
            node.update_arg(index, False)  # noqa: FBT003
            return True
    return False
