"""Model repositories for tests, with tiny ONNX models that the test can compute by hand."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from naiad.inference.datatypes import BF16, BYTES, FP32, Datatype

# The versions that the oldest supported onnxruntime reads.
_OPSET = 17
_IR_VERSION = 8
_CPU_GROUP = "instance_group [ { count: 1 kind: KIND_CPU } ]\n"

Dim = int | str
Array = npt.NDArray[Any]


class RepositoryBuilder:
    """Writes a model repository below a folder.

    Every ``add_*`` method returns the model folder; a second call for the same model adds to it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)

    def add_model(
        self,
        name: str,
        config: str | None = None,
        files: Mapping[str, bytes | str] | None = None,
        versions: Sequence[int] = (1,),
    ) -> Path:
        """A model of any kind.

        Args:
            name: of its folder.
            config: text of ``config.pbtxt``; None writes no config.
            files: content by path in the model folder. In a path, ``{version}`` stands for every
                version in turn.
            versions: folders to make.
        """
        folder = self.path / name
        folder.mkdir(exist_ok=True)
        if config is not None:
            (folder / "config.pbtxt").write_text(config, "utf-8")
        for version in versions:
            (folder / str(version)).mkdir(exist_ok=True)
            for path, content in (files or {}).items():
                file = folder / path.format(version=version)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content.encode() if isinstance(content, str) else content)
        return folder

    def add_identity(
        self,
        name: str,
        datatype: Datatype = FP32,
        dims: Sequence[int] = (-1,),
        max_batch_size: int = 8,
        extra: str = "",
    ) -> Path:
        """An ONNX model that answers ``IN`` with ``OUT``; ``extra`` is more text for its config."""
        return self.add_onnx(
            name,
            identity_model(datatype, _open_shape(dims, max_batch_size)),
            _config(name, datatype, dims, max_batch_size) + extra,
        )

    def add_sum(
        self, name: str, amount: float = 1.0, versions: Sequence[int] = (1,), extra: str = ""
    ) -> Path:
        """An ONNX model of ``OUT = IN + amount``, FP32, any length, max_batch_size 8."""
        return self.add_onnx(
            name, add_model(amount), _config(name, FP32, (-1,), 8) + extra, versions=versions
        )

    def add_mlp(self, name: str, weights: Sequence[Array], extra: str = "") -> Path:
        """An ONNX multi-layer perceptron; see ``mlp_model``. max_batch_size is 64."""
        config = (
            f'name: "{name}"\nbackend: "onnxruntime"\nmax_batch_size: 64\n'
            f'input [ {{ name: "IN" data_type: TYPE_FP32 dims: [ {weights[0].shape[0]} ] }} ]\n'
            f'output [ {{ name: "OUT" data_type: TYPE_FP32 dims: [ {weights[-1].shape[1]} ] }} ]\n'
        )
        return self.add_onnx(name, mlp_model(weights), config + _CPU_GROUP + extra)

    def add_onnx(
        self,
        name: str,
        model: bytes,
        config: str | None = None,
        versions: Sequence[int] = (1,),
        filename: str = "model.onnx",
    ) -> Path:
        """Any ONNX model; without a config, the server completes one."""
        return self.add_model(name, config, {"{version}/" + filename: model}, versions)


def identity_model(datatype: Datatype = FP32, shape: Sequence[Dim] = ("batch", "n")) -> bytes:
    """``OUT = IN``. A string in ``shape`` is an open dim of that name."""
    kind = _onnx_type(datatype)
    return _serialize(
        [helper.make_node("Identity", ["IN"], ["OUT"])],
        [helper.make_tensor_value_info("IN", kind, list(shape))],
        [helper.make_tensor_value_info("OUT", kind, list(shape))],
    )


def add_model(
    amount: float | Sequence[float] = 1.0, shape: Sequence[Dim] = ("batch", "n")
) -> bytes:
    """``OUT = IN + amount``, FP32; with several amounts it fails on rows of another length."""
    return _serialize(
        [helper.make_node("Add", ["IN", "amount"], ["OUT"])],
        [helper.make_tensor_value_info("IN", TensorProto.FLOAT, list(shape))],
        [helper.make_tensor_value_info("OUT", TensorProto.FLOAT, list(shape))],
        {"amount": np.array(amount, np.float32)},
    )


def mlp_model(weights: Sequence[Array]) -> bytes:
    """``OUT = relu(... relu(IN @ w0) ...) @ wn``, FP32, with an open batch axis."""
    nodes = []
    value = "IN"
    for index in range(len(weights)):
        is_last = index == len(weights) - 1
        product = "OUT" if is_last else f"product{index}"
        nodes.append(helper.make_node("MatMul", [value, f"w{index}"], [product]))
        if not is_last:
            value = f"hidden{index}"
            nodes.append(helper.make_node("Relu", [product], [value]))
    return _serialize(
        nodes,
        [_open_batch("IN", weights[0].shape[0])],
        [_open_batch("OUT", weights[-1].shape[1])],
        {f"w{index}": weight.astype(np.float32) for index, weight in enumerate(weights)},
    )


def _open_batch(name: str, width: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", width])


def _open_shape(dims: Sequence[int], max_batch_size: int) -> list[Dim]:
    shape: list[Dim] = ["batch"] if max_batch_size else []
    return shape + [f"d{axis}" if dim == -1 else dim for axis, dim in enumerate(dims)]


def _config(name: str, datatype: Datatype, dims: Sequence[int], max_batch_size: int) -> str:
    tensor = f"data_type: {datatype.config_name} dims: [ {', '.join(map(str, dims))} ]"
    return (
        f'name: "{name}"\nbackend: "onnxruntime"\nmax_batch_size: {max_batch_size}\n'
        f'input [ {{ name: "IN" {tensor} }} ]\noutput [ {{ name: "OUT" {tensor} }} ]\n{_CPU_GROUP}'
    )


def _onnx_type(datatype: Datatype) -> int:
    if datatype is BYTES:
        return TensorProto.STRING
    if datatype is BF16:
        return TensorProto.BFLOAT16
    return helper.np_dtype_to_tensor_dtype(datatype.dtype)


def _serialize(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    initializers: Mapping[str, Array] | None = None,
) -> bytes:
    constants = [
        numpy_helper.from_array(array, name) for name, array in (initializers or {}).items()
    ]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, constants)
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION
    )
    onnx.checker.check_model(model)
    content: bytes = model.SerializeToString()
    return content
