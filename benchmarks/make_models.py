"""Writes the benchmarks' model repository: tiny graphs, so that the server is what is measured.

    python benchmarks/make_models.py FOLDER

``mlp``: 64-256-64-5, FP32 [-1,64] -> [-1,5]; the work of a small classifier on tabular data.
``image``: FP32 [-1,3,224,224] -> [-1,5], five pixels of it; 602 KB in, next to nothing to compute.
"""

import argparse
import itertools
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
IR_VERSION = 8  # The oldest that OPSET 17 goes with, so every onnxruntime of these years reads it.
MLP_WIDTHS = (64, 256, 64, 5)
IMAGE_SHAPE = (3, 224, 224)

CONFIG = """\
name: "{name}"
backend: "onnxruntime"
max_batch_size: {max_batch_size}
input [ {{ name: "INPUT" data_type: TYPE_FP32 dims: [ {input_dims} ] }} ]
output [ {{ name: "OUTPUT" data_type: TYPE_FP32 dims: [ {output_width} ] }} ]
dynamic_batching {{ }}
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
{extra}"""


def mlp(name: str = "mlp", widths: tuple[int, ...] = MLP_WIDTHS) -> onnx.ModelProto:
    """Linear layers with ReLU between them, FP32 ``[-1, widths[0]]`` -> ``[-1, widths[-1]]``."""
    generator = np.random.default_rng(0)
    nodes, weights = [], []
    source = "INPUT"
    last = len(widths) - 2
    for layer, (width_in, width_out) in enumerate(itertools.pairwise(widths)):
        matrix = generator.standard_normal((width_in, width_out), np.float32) * 0.1
        weights.append(numpy_helper.from_array(matrix, f"weight{layer}"))
        weights.append(numpy_helper.from_array(np.zeros(width_out, np.float32), f"bias{layer}"))
        target = "OUTPUT" if layer == last else f"linear{layer}"
        nodes.append(helper.make_node("Gemm", [source, f"weight{layer}", f"bias{layer}"], [target]))
        if layer != last:
            nodes.append(helper.make_node("Relu", [target], [f"hidden{layer}"]))
        source = f"hidden{layer}"
    return _model(name, nodes, weights, widths[:1], widths[-1])


def image() -> onnx.ModelProto:
    bounds = [
        numpy_helper.from_array(np.array([value], np.int64), name)
        for name, value in (("start", 0), ("end", 5), ("axis", 1))
    ]
    nodes = [
        helper.make_node("Flatten", ["INPUT"], ["pixels"]),
        helper.make_node("Slice", ["pixels", "start", "end", "axis"], ["OUTPUT"]),
    ]
    return _model("image", nodes, bounds, IMAGE_SHAPE, 5)


def convolutions(layers: int = 8, channels: int = 64, side: int = 56) -> onnx.ModelProto:
    """3 x 3 convolutions with ReLU, FP32 ``[-1, channels, side, side]`` -> ``[-1, channels]``."""
    generator = np.random.default_rng(0)
    nodes, weights = [], []
    source = "INPUT"
    for layer in range(layers):
        kernel = generator.standard_normal((channels, channels, 3, 3), np.float32) * 0.05
        weights.append(numpy_helper.from_array(kernel, f"kernel{layer}"))
        nodes.append(
            helper.make_node("Conv", [source, f"kernel{layer}"], [f"conv{layer}"], pads=[1] * 4)
        )
        nodes.append(helper.make_node("Relu", [f"conv{layer}"], [f"hidden{layer}"]))
        source = f"hidden{layer}"
    nodes.append(helper.make_node("GlobalAveragePool", [source], ["pooled"]))
    nodes.append(helper.make_node("Flatten", ["pooled"], ["OUTPUT"]))
    return _model("convolutions", nodes, weights, (channels, side, side), channels)


def doubling(width: int) -> onnx.ModelProto:
    """The input added to itself, FP32 ``[-1, width]``: an output as large as one likes."""
    node = helper.make_node("Add", ["INPUT", "INPUT"], ["OUTPUT"])
    return _model("doubling", [node], [], (width,), width)


class _Layers:
    """Convolutions with ReLU and random weights, one after another."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._generator = np.random.default_rng(0)

    def weight(self, *shape: int) -> str:
        """Random numbers of about unit gain."""
        name = f"weight{len(self.weights)}"
        scale = np.float32((2 / np.prod(shape[1:])) ** 0.5)
        values = self._generator.standard_normal(shape, np.float32) * scale
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def add(self, kind: str, inputs: list[str], **attributes: object) -> str:
        """One node; its output."""
        output = f"{kind.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def convolve(self, source: str, channels: tuple[int, int], size: int, stride: int) -> str:
        """From so many channels to so many; what comes out is that much smaller."""
        kernel = self.weight(channels[1], channels[0], size, size)
        pads, strides = [size // 2] * 4, [stride] * 2
        return self.add("Conv", [source, kernel], pads=pads, strides=strides)

    def block(self, source: str, channels: tuple[int, int], stride: int) -> str:
        """Two convolutions beside a short cut."""
        inner = self.add("Relu", [self.convolve(source, channels, 3, stride)])
        outer = self.convolve(inner, (channels[1], channels[1]), 3, 1)
        if channels[0] != channels[1]:
            source = self.convolve(source, channels, 1, stride)
        return self.add("Relu", [self.add("Add", [outer, source])])


def resnet18() -> onnx.ModelProto:
    """The layers of ResNet-18 as they are once batch normalization is folded into convolutions."""
    layers = _Layers()
    source = layers.add("Relu", [layers.convolve("INPUT", (3, 64), 7, 2)])
    source = layers.add("MaxPool", [source], kernel_shape=[3, 3], pads=[1] * 4, strides=[2] * 2)
    for width_in, width_out in ((64, 64), (64, 128), (128, 256), (256, 512)):
        source = layers.block(source, (width_in, width_out), 1 if width_in == width_out else 2)
        source = layers.block(source, (width_out, width_out), 1)
    source = layers.add("Flatten", [layers.add("GlobalAveragePool", [source])])
    layers.nodes.append(
        helper.make_node("Gemm", [source, layers.weight(1000, 512)], ["OUTPUT"], transB=1)
    )
    return _model("resnet18", layers.nodes, layers.weights, IMAGE_SHAPE, 1000)


def _model(
    name: str,
    nodes: list[onnx.NodeProto],
    weights: list[onnx.TensorProto],
    input_dims: tuple[int, ...],
    output_width: int,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info("INPUT", TensorProto.FLOAT, ["batch", *input_dims])],
        [helper.make_tensor_value_info("OUTPUT", TensorProto.FLOAT, ["batch", output_width])],
        weights,
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def write_model(  # a model and its whole config
    folder: Path,
    model: onnx.ModelProto,
    max_batch_size: int,
    input_dims: tuple[int, ...],
    output_width: int,
    extra: str = "",
) -> None:
    """Add one model with one instance to a repository; ``extra`` ends its config."""
    name = model.graph.name
    version = folder / name / "1"
    version.mkdir(parents=True, exist_ok=True)
    onnx.save(model, version / "model.onnx")
    config = CONFIG.format(
        name=name,
        max_batch_size=max_batch_size,
        input_dims=", ".join(map(str, input_dims)),
        output_width=output_width,
        extra=extra,
    )
    (folder / name / "config.pbtxt").write_text(config)


def write_repository(folder: Path) -> None:
    """``folder`` as a model repository with both models."""
    for model, max_batch_size, dims in ((mlp(), 64, MLP_WIDTHS[:1]), (image(), 8, IMAGE_SHAPE)):
        write_model(folder, model, max_batch_size, dims, 5)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    write_repository(parser.parse_args().folder)
