"""Every finding of ``naiad check``: at the right line, with the block that puts it right."""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnx.helper import make_node as node
from tests.support.repository_builder import (
    Dim,
    RepositoryBuilder,
    add_model,
    identity_model,
    mlp_model,
)

from naiad.backends.registry import BackendRegistry
from naiad.check.report import ExitCode, ModelReport, ReportedFinding
from naiad.check.repository import CheckOptions, check_repository
from naiad.engine.loader import Loader, LoaderOptions, Override
from naiad.inference.datatypes import INT64
from naiad.repository.model_id import ModelId

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning"),
]

MLP = mlp_model([np.eye(16, 4), np.eye(4, 5)])


def config(
    *lines: str,
    name: str = "m",
    backend: str = "onnxruntime",
    batch: str = "max_batch_size: 8",
    dims: tuple[str, str] = ("[ 16 ]", "[ 5 ]"),
    names: tuple[str, str] = ("IN", "OUT"),
    types: tuple[str, str] = ("TYPE_FP32", "TYPE_FP32"),
) -> str:
    """A config with a comment, one field a line, so that a line tells the field."""
    head = [f'name: "{name}"', f'backend: "{backend}"', batch]
    sides = []
    for role, tensor, datatype, shape in zip(("input", "output"), names, types, dims, strict=True):
        sides += [
            f"{role} [",
            "  {",
            f'    name: "{tensor}"',
            f"    data_type: {datatype}",
            f"    dims: {shape}",
            "  }",
            "]",
        ]
    return "\n".join(["# keep this comment", *filter(None, head), *sides, *lines]) + "\n"


def with_item(text: str, name: str, datatype: str, dims: str, *, role: str = "input") -> str:
    """The config with one more input or output behind the others."""
    item = f'{{\n    name: "{name}"\n    data_type: {datatype}\n    dims: {dims}\n  }}'
    before, head, rest = text.partition(f"{role} [\n")
    items, _, behind = rest.partition("  }\n]")
    return f"{before}{head}{items}  }},\n  {item}\n]{behind}"


def graph(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[tuple[str, Sequence[Dim]]],
    outputs: Sequence[tuple[str, Sequence[Dim]]],
    constants: dict[str, Any] | None = None,
    *,
    opset: int = 17,
    ir_version: int = 8,
) -> bytes:
    """An ONNX model of FP32 tensors."""
    made = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, list(s)) for n, s in inputs],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, list(s)) for n, s in outputs],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in (constants or {}).items()],
    )
    model = helper.make_model(
        made, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version
    )
    content: bytes = model.SerializeToString()
    return content


def scaled(input_name: str, output_name: str, shape: Sequence[Dim], **options: int) -> bytes:
    return graph(
        [node("Mul", [input_name, "two"], [output_name])],
        [(input_name, shape)],
        [(output_name, shape)],
        {"two": np.float32(2)},
        **options,
    )


def reshaped(batch: int) -> bytes:
    """Declares an open batch axis and reshapes to a fixed one."""
    return graph(
        [node("Reshape", ["IN", "shape"], ["OUT"])],
        [("IN", ["batch", 16])],
        [("OUT", ["rows", "n"])],
        {"shape": np.array([batch, -1], np.int64)},
    )


def hidden_reshape() -> bytes:
    """Declares an open batch axis everywhere, and fails on any batch but 1."""
    return graph(
        [
            node("Cast", ["sizes"], ["shape"], to=TensorProto.INT64),
            node("Reshape", ["IN", "shape"], ["OUT"]),
        ],
        [("IN", ["batch", 16])],
        [("OUT", ["batch", 16])],
        {"sizes": np.array([1, 16], np.float32)},
    )


def mean_over_batch() -> bytes:
    return graph(
        [node("ReduceMean", ["IN"], ["MEAN"]), node("Identity", ["IN"], ["OUT"])],
        [("IN", ["batch", 4])],
        [("OUT", ["batch", 4]), ("MEAN", [1, 1])],
    )


def stateful() -> bytes:
    return graph(
        [node("Add", ["IN", "START"], ["sum"]), node("Add", ["sum", "READY"], ["OUT"])],
        [("IN", ["batch", 1]), ("START", ["batch", 1]), ("READY", ["batch", 1])],
        [("OUT", ["batch", 1])],
    )


class Classifier(torch.nn.Module):
    """The tutorial's kind of model: tokens in, five scores out."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(64, 8)
        self.head = torch.nn.Linear(8, 5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.embedding(tokens).mean(-2))
        return scores


class Recurrent(torch.nn.Module):
    """Takes [batch, time, 4] and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = torch.nn.Conv1d(4, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.cell(x.transpose(1, 2)).mean(2)
        return result


class OneRow(torch.nn.Module):
    """Gives one row, however many it takes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(1, -1)


class Difference(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a - 2 * b


def torchscript(module: torch.nn.Module) -> bytes:
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(module.eval()), buffer)
    return buffer.getvalue()


def tokens_config(dims: tuple[str, str], *lines: str, types: tuple[str, str] | None = None) -> str:
    return config(
        *lines,
        backend="pytorch",
        dims=dims,
        names=("tokens__0", "scores__0"),
        types=types or ("TYPE_INT64", "TYPE_FP32"),
    )


Build = Callable[[RepositoryBuilder], object]


@dataclass(frozen=True)
class Case:
    """A broken repository.

    Attributes:
        id: of the test.
        build: writes it; the model is ``m``.
        found: code of each finding, and text of the line that it points at, or the path that it
            names inside the repository.
        blocks: text that the blocks hold.
        mend: does by hand what the blocks say, where ``--fix`` can't.
        examples: as on the command line.
        target: as on the command line.
        is_costly: takes seconds, for a process or an export.
    """

    id: str
    build: Build
    found: Sequence[tuple[str, str]]
    blocks: Sequence[str]
    mend: Build | None = None
    examples: Sequence[str] = ()
    target: str = ""
    is_costly: bool = False


def onnx_case(text: str, model: bytes = MLP, filename: str = "model.onnx") -> Build:
    return lambda builder: builder.add_onnx("m", model, text, filename=filename)


def torch_case(text: str, module: Callable[[], torch.nn.Module]) -> Build:
    return lambda builder: builder.add_model(
        "m", text, {"{version}/model.pt": torchscript(module())}
    )


def with_labels(
    count: int, name: str = "labels.txt", extra: str = 'label_filename: "labels.txt"'
) -> Build:
    def build(builder: RepositoryBuilder) -> None:
        text = config().replace("dims: [ 5 ]\n", f"dims: [ 5 ]\n    {extra}\n")
        builder.add_onnx("m", MLP, text)
        (builder.path / "m" / name).write_text("\n".join(f"label {i}" for i in range(count)) + "\n")

    return build


def external(data_name: str) -> Build:
    def build(builder: RepositoryBuilder) -> None:
        folder = builder.add_model("m", config(), {})
        onnx.save(
            onnx.load_from_string(MLP),
            folder / "1" / "model.onnx",
            save_as_external_data=True,
            location="model.onnx.data",
            size_threshold=0,
        )
        (folder / "1" / "model.onnx.data").rename(folder / data_name)

    return build


def linked_elsewhere(builder: RepositoryBuilder) -> None:
    builder.add_onnx("m", MLP, config())
    outside = builder.path.parent / "elsewhere.onnx"
    (builder.path / "m" / "1" / "model.onnx").rename(outside)
    (builder.path / "m" / "1" / "model.onnx").symlink_to(outside)


def copied(builder: RepositoryBuilder) -> None:
    (builder.path / "m" / "1" / "model.onnx").unlink()
    builder.add_onnx("m", MLP, config())


def ensemble(
    *,
    maps: tuple[str, str] = ("IN", "OUT"),
    tensors: tuple[str, str] = ("X", "Y"),
    model: str = "step",
    batch: int = 8,
    dims: tuple[str, str] = ("[ 16 ]", "[ 5 ]"),
    versions: Sequence[int] = (1,),
    types: tuple[str, str] = ("TYPE_FP32", "TYPE_FP32"),
    extra: str = "",
) -> Build:
    def build(builder: RepositoryBuilder) -> None:
        builder.add_onnx("step", MLP, config(name="step"))
        steps = "\n".join(
            [
                "ensemble_scheduling {",
                "  step [",
                "    {",
                f'      model_name: "{model}"',
                "      model_version: -1",
                f'      input_map {{ key: "{maps[0]}" value: "{tensors[0]}" }}',
                f'      output_map {{ key: "{maps[1]}" value: "{tensors[1]}" }}',
                "    }",
                "  ]",
                "}",
            ]
        )
        text = config(
            steps, extra, batch=f"max_batch_size: {batch}", names=("X", "Y"), dims=dims, types=types
        )
        text = text.replace('backend: "onnxruntime"', 'platform: "ensemble"')
        builder.add_model("m", text, versions=versions)

    return build


PYTHON = """\
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            value = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            output = pb_utils.Tensor("Y", value.astype(np.float32) * 2)
            responses.append(pb_utils.InferenceResponse([output]))
        return responses
"""


def python_case(
    text: str = "",
    *,
    names: tuple[str, str] = ("X", "Y"),
    dims: tuple[str, str] = ("[ 4 ]", "[ 4 ]"),
    filename: str = "model.py",
    code: str = PYTHON,
) -> Build:
    whole = config(text, backend="python", names=names, dims=dims)
    return lambda builder: builder.add_model("m", whole, {f"{{version}}/{filename}": code})


def exported(builder: RepositoryBuilder) -> None:
    """A .pt2 with all of its config wrong, in a text that few would write."""
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length")
    program = torch.export.export(
        Classifier().eval(),
        (torch.zeros(2, 7, dtype=torch.int64),),
        dynamic_shapes=({0: batch, 1: length},),
    )
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    text = (
        "# keep this comment\r\n"
        "name:'m',backend:'pytorch';max_batch_size:8\r\n"
        "input<name:'token' # {\r\n"
        "  data_type:TYPE_INT32,\r\n"
        "  dims:[-1,\r\n -1]>\r\n"
        'output{name:"lin" "er"\r\n'
        "  dims:-1 dims:5\r\n"
        "  data_type:TYPE_FP16}\r\n"
        "dynamic_batching{preferred_batch_size:[4,\r\n 9]}"
    )
    folder = builder.add_model("m", None, {"{version}/model.pt2": buffer.getvalue()})
    (folder / "config.pbtxt").write_bytes(text.encode())


CASES = [
    Case(
        "all of an exported program's config",
        exported,
        [
            ("unknown-input", "name:'token'"),
            ("datatype-differs", "TYPE_INT32"),
            ("batch-axis-in-dims", "dims:[-1,"),
            ("unknown-output", '"lin" "er"'),
            ("batch-axis-in-dims", "dims:-1"),
            ("datatype-differs", "TYPE_FP16"),
            ("preferred-size", "preferred_batch_size"),
        ],
        ['name: "tokens"', "data_type: TYPE_INT64", 'name: "linear"', "dims: [ 5 ]"],
        is_costly=True,
    ),
    Case(
        "a Python model's names",
        python_case(names=("INPUT", "OUTPUT")),
        [("unknown-input", '"INPUT"'), ("unknown-output", '"OUTPUT"')],
        ['name: "X"', 'name: "Y"'],
    ),
    Case(
        "a Python model's output dims",
        python_case(dims=("[ 4 ]", "[ 5 ]")),
        [("dims-differ", "dims: [ 5 ]")],
        ["dims: [ 4 ]"],
        is_costly=True,
    ),
    Case(
        "a Python model's file",
        python_case(filename="net.py"),
        [("model-file", "# keep this comment")],
        ['default_model_filename: "net.py"'],
        is_costly=True,
    ),
    Case(
        "a Python model that is no Python",
        python_case(code="import numpy\n\ndef execute(:\n"),
        [("python-syntax", "m/1/model.py:3:13")],
        [],
        mend=python_case(),
        is_costly=True,
    ),
    Case(
        "a negative number of instances",
        onnx_case(config("instance_group [", "  {", "    count: -1", "  }", "]")),
        [("instance-count", "count: -1")],
        ["instance_group [", "{ }"],
    ),
    Case(
        "batch axis in the dims of an ONNX model",
        onnx_case(config(dims=("[ -1, 16 ]", "[ -1, 5 ]"))),
        [("batch-axis-in-dims", "dims: [ -1, 16 ]"), ("batch-axis-in-dims", "dims: [ -1, 5 ]")],
        ["dims: [ 16 ]", "dims: [ 5 ]"],
    ),
    Case(
        "batch axis in open dims",
        onnx_case(
            config(dims=("[ -1, -1 ]", "[ -1, -1 ]"), types=("TYPE_INT64", "TYPE_INT64")),
            identity_model(INT64, ["batch", "tokens"]),
        ),
        [("batch-axis-in-dims", "dims: [ -1, -1 ]"), ("batch-axis-in-dims", "dims: [ -1, -1 ]")],
        ["dims: [ -1 ]"],
    ),
    Case(
        "batch axis shown by an example",
        torch_case(tokens_config(("[ -1, -1 ]", "[ -1, 5 ]")), Classifier),
        [("batch-axis-in-dims", "dims: [ -1, -1 ]"), ("batch-axis-in-dims", "dims: [ -1, 5 ]")],
        ["dims: [ -1 ]", "dims: [ 5 ]"],
        examples=["tokens__0:2,16"],
    ),
    Case(
        "batch axis written twice, says the model",
        torch_case(
            config(
                backend="pytorch",
                names=("x__0", "y__0"),
                dims=("[ -1, -1, 4 ]", "[ -1, 3 ]"),
            ),
            Recurrent,
        ),
        [("batch-axis-in-dims", "dims: [ -1, -1, 4 ]"), ("batch-axis-in-dims", "dims: [ -1, 3 ]")],
        ["dims: [ -1, 4 ]", "dims: [ 3 ]"],
    ),
    Case(
        "batch axis probably written twice",
        torch_case(tokens_config(("[ -1, -1 ]", "[ -1, 5 ]")), Classifier),
        [("batch-axis-twice", "dims: [ -1, -1 ]")],
        ["dims: [ -1 ]", "dims: [ -1, -1 ]", "naiad.check.ignore"],
        mend=torch_case(tokens_config(("[ -1 ]", "[ 5 ]")), Classifier),
    ),
    Case(
        "batch axis missing where max_batch_size is 0",
        onnx_case(config(batch="max_batch_size: 0")),
        [("batch-axis-missing", "dims: [ 16 ]"), ("batch-axis-missing", "dims: [ 5 ]")],
        ["dims: [ -1, 16 ]", "dims: [ -1, 5 ]"],
    ),
    Case(
        "no max_batch_size at all",
        onnx_case(config(batch="")),
        [("batch-axis-missing", "# keep this comment")],
        ["max_batch_size: 4"],
    ),
    Case(
        "datatype of an ONNX model",
        onnx_case(config(types=("TYPE_INT32", "TYPE_FP64"))),
        [("datatype-differs", "TYPE_INT32"), ("datatype-differs", "TYPE_FP64")],
        ["data_type: TYPE_FP32"],
    ),
    Case(
        "no data_type",
        onnx_case(config().replace("    data_type: TYPE_FP32\n", "", 1)),
        [("datatype-differs", "{")],
        ["data_type: TYPE_FP32"],
    ),
    Case(
        "datatypes of a TorchScript model",
        torch_case(
            tokens_config(("[ 16 ]", "[ 5 ]"), types=("TYPE_FP32", "TYPE_FP64")), Classifier
        ),
        [("datatype-differs", "TYPE_FP32"), ("datatype-differs", "TYPE_FP64")],
        ["data_type: TYPE_INT64", "data_type: TYPE_FP32"],
    ),
    Case(
        "misspelled names",
        onnx_case(config(names=("INN", "OUTPUT"))),
        [("unknown-input", '"INN"'), ("unknown-output", '"OUTPUT"')],
        ['name: "IN"', 'name: "OUT"'],
    ),
    Case(
        "an input too many",
        onnx_case(with_item(config(), "MASK", "TYPE_INT64", "[ 16 ]")),
        [("unknown-input", 'name: "MASK"')],
        ["take this input out"],
    ),
    Case(
        "a missing input",
        onnx_case(
            config(names=("A", "OUT"), dims=("[ 4 ]", "[ 4 ]")),
            graph(
                [node("Add", ["A", "B"], ["OUT"])],
                [("A", ["batch", 4]), ("B", ["batch", 4])],
                [("OUT", ["batch", 4])],
            ),
        ),
        [("missing-input", "input [")],
        ['name: "B"', "dims: [ 4 ]"],
    ),
    Case(
        "TorchScript names without an index",
        torch_case(
            with_item(
                config(backend="pytorch", names=("FIRST", "y__0"), dims=("[ 4 ]", "[ 4 ]")),
                "SECOND",
                "TYPE_FP32",
                "[ 4 ]",
            ),
            Difference,
        ),
        [("torchscript-name", '"FIRST"'), ("torchscript-name", '"SECOND"')],
        ['name: "FIRST__0"', 'name: "SECOND__1"'],
    ),
    Case(
        "a TorchScript output that there is not",
        torch_case(
            tokens_config(("[ 16 ]", "[ 5 ]")).replace("scores__0", "scores__1"), Classifier
        ),
        [("unknown-output", "scores__1")],
        ['name: "scores__0"'],
    ),
    Case(
        "a TorchScript input too many",
        torch_case(
            with_item(tokens_config(("[ 16 ]", "[ 5 ]")), "mask__1", "TYPE_INT64", "[ 16 ]"),
            Classifier,
        ),
        [("unknown-input", "{")],
        ["take this input out"],
    ),
    Case(
        "a TorchScript file without a config",
        lambda builder: builder.add_model(
            "m", None, {"{version}/model.pt": torchscript(Difference())}
        ),
        [("missing-input", "m/config.pbtxt"), ("missing-output", "m/config.pbtxt")],
        ['{ name: "a__0"', '{ name: "b__1"', '{ name: "OUTPUT__0"'],
        mend=torch_case(
            with_item(
                config(backend="pytorch", names=("a__0", "OUTPUT__0"), dims=("[ 4 ]", "[ 4 ]")),
                "b__1",
                "TYPE_FP32",
                "[ 4 ]",
            ),
            Difference,
        ),
    ),
    Case(
        "rank",
        onnx_case(config(dims=("[ 4, 2, 2 ]", "[ 5 ]"))),
        [("rank-differs", "dims: [ 4, 2, 2 ]")],
        ["dims: [ 16 ]"],
    ),
    Case(
        "rank of a TorchScript output",
        torch_case(tokens_config(("[ 16 ]", "[ 5, 1, 1 ]")), Classifier),
        [("rank-differs", "dims: [ 5, 1, 1 ]")],
        ["dims: [ 5 ]"],
    ),
    Case(
        "a fixed dim where the model is dynamic",
        onnx_case(config(dims=("[ 16 ]", "[ 16 ]")), add_model()),
        [("fixed-dim", "dims: [ 16 ]"), ("fixed-dim", "dims: [ 16 ]")],
        ["dims: [ -1 ]"],
    ),
    Case(
        "a dynamic dim where the model is fixed",
        onnx_case(config(dims=("[ -1 ]", "[ 5 ]"))),
        [("dynamic-dim", "dims: [ -1 ]")],
        ["dims: [ 16 ]"],
    ),
    Case(
        "another fixed dim",
        onnx_case(config(dims=("[ 17 ]", "[ 5 ]"))),
        [("dims-differ", "dims: [ 17 ]")],
        ["dims: [ 16 ]"],
    ),
    Case(
        "batch fixed to 1",
        onnx_case(
            config("dynamic_batching { }", dims=("[ 4 ]", "[ 4 ]")), scaled("IN", "OUT", [1, 4])
        ),
        [
            ("cannot-batch", "max_batch_size: 8"),
            ("batch-axis-missing", "dims: [ 4 ]"),
            ("batch-axis-missing", "dims: [ 4 ]"),
        ],
        ["max_batch_size: 0", "dims: [ 1, 4 ]"],
    ),
    Case(
        "an output without batch axis",
        onnx_case(
            with_item(config(dims=("[ 4 ]", "[ 4 ]")), "MEAN", "TYPE_FP32", "[ 1 ]", role="output"),
            mean_over_batch(),
        ),
        [
            ("cannot-batch", "max_batch_size: 8"),
            ("batch-axis-missing", "dims: [ 4 ]"),
            ("batch-axis-missing", "dims: [ 4 ]"),
            ("batch-axis-missing", "dims: [ 1 ]"),
        ],
        ["max_batch_size: 0", "dims: [ 1, 1 ]", "dims: [ -1, 4 ]"],
    ),
    Case(
        "a batch of 1 baked into an ONNX Reshape",
        onnx_case(config(dims=("[ 16 ]", "[ -1 ]")), reshaped(1)),
        [
            ("cannot-batch", "max_batch_size: 8"),
            ("batch-axis-missing", "dims: [ 16 ]"),
            ("batch-axis-missing", "dims: [ -1 ]"),
        ],
        ["max_batch_size: 0", "dims: [ 1, -1 ]"],
    ),
    Case(
        "a batch of 1 baked into an ONNX Reshape that hides it",
        onnx_case(config(dims=("[ 16 ]", "[ 16 ]")), hidden_reshape()),
        [
            ("cannot-batch", "max_batch_size: 8"),
            ("batch-axis-missing", "dims: [ 16 ]"),
            ("batch-axis-missing", "dims: [ 16 ]"),
        ],
        ["max_batch_size: 0", "dims: [ -1, 16 ]", "dims: [ 1, 16 ]"],
    ),
    Case(
        "a batch of 1 baked into TorchScript",
        torch_case(
            config(backend="pytorch", names=("x__0", "y__0"), dims=("[ 16 ]", "[ 16 ]")), OneRow
        ),
        [
            ("output-without-batch", "max_batch_size: 8"),
            ("batch-axis-missing", "dims: [ 16 ]"),
            ("batch-axis-missing", "dims: [ 16 ]"),
        ],
        ["max_batch_size: 0", "dims: [ 1, 16 ]"],
    ),
    Case(
        "KIND_GPU without a GPU",
        onnx_case(
            config(
                "instance_group [", "  {", "    kind: KIND_GPU", "    gpus: [ 0, 1 ]", "  }", "]"
            )
        ),
        [("no-gpu", "kind: KIND_GPU")],
        ["kind: KIND_CPU"],
    ),
    Case(
        "KIND_CPU with GPUs",
        onnx_case(
            config("instance_group [", "  {", "    kind: KIND_CPU", "    gpus: [ 0 ]", "  }", "]")
        ),
        [("gpus-without-kind", "gpus: [ 0 ]")],
        ["kind: KIND_CPU"],
    ),
    Case(
        "preferred sizes above the maximum",
        onnx_case(config("dynamic_batching {", "  preferred_batch_size: [ 4, 16 ]", "}")),
        [("preferred-size", "preferred_batch_size")],
        ["preferred_batch_size: [ 4 ]"],
    ),
    Case(
        "a negative max_batch_size",
        onnx_case(config(batch="max_batch_size: -1", dims=("[ -1, 16 ]", "[ -1, 5 ]"))),
        [("max-batch-size-negative", "max_batch_size: -1")],
        ["max_batch_size: 0"],
    ),
    Case(
        "no version folder",
        lambda builder: (
            builder.add_model("m", config(), {"model.onnx": MLP}, versions=())
            and (builder.path / "m" / "model.onnx").write_bytes(MLP)
        ),
        [("version-folder", "m/config.pbtxt")],
        ["mv m/model.onnx m/1/model.onnx"],
    ),
    Case(
        "a version folder of another name",
        lambda builder: (
            builder.add_onnx("m", MLP, config())
            and (builder.path / "m" / "1").rename(builder.path / "m" / "v1")
        ),
        [("version-folder", "m/config.pbtxt")],
        ["mv m/v1 m/1"],
    ),
    Case(
        "an empty model folder",
        lambda builder: builder.add_model("m", config(), versions=()),
        [("version-folder", "m/config.pbtxt")],
        ["mkdir m/1"],
        mend=onnx_case(config()),
    ),
    Case(
        "a version policy that picks nothing",
        onnx_case(config("version_policy: { specific: { versions: [ 3 ] } }")),
        [("version-policy", "version_policy")],
        ["versions: [ 1 ]"],
    ),
    Case(
        "a model file of another name",
        onnx_case(config(), filename="net.onnx"),
        [("model-file", "# keep this comment")],
        ['default_model_filename: "net.onnx"'],
    ),
    Case(
        "no config and a model file of another name",
        lambda builder: builder.add_onnx("m", MLP, None, filename="net.onnx"),
        [("backend-unknown", "m/config.pbtxt"), ("model-file", "m/config.pbtxt")],
        ['backend: "onnxruntime"', 'default_model_filename: "net.onnx"'],
    ),
    Case(
        "no model file",
        lambda builder: builder.add_model("m", config()),
        [("model-file", "m/1/model.onnx")],
        [],
        mend=onnx_case(config()),
    ),
    Case(
        "a model file that is cut off",
        onnx_case(config(), MLP[:100]),
        [("model-file", "m/1/model.onnx")],
        [],
        mend=onnx_case(config()),
    ),
    Case(
        "ONNX IR newer than the runtime",
        onnx_case(config(dims=("[ 4 ]", "[ 4 ]")), scaled("IN", "OUT", ["b", 4], ir_version=99)),
        [("onnx-ir", "m/1/model.onnx")],
        ["model.ir_version = "],
        mend=onnx_case(config(dims=("[ 4 ]", "[ 4 ]")), scaled("IN", "OUT", ["b", 4])),
    ),
    Case(
        "opset newer than the runtime",
        onnx_case(config(dims=("[ 4 ]", "[ 4 ]")), scaled("IN", "OUT", ["b", 4], opset=99)),
        [("onnx-opset", "m/1/model.onnx")],
        ["convert_version(model, "],
        mend=onnx_case(config(dims=("[ 4 ]", "[ 4 ]")), scaled("IN", "OUT", ["b", 4])),
    ),
    Case(
        "opset and IR newer than the target",
        onnx_case(
            config(dims=("[ 4 ]", "[ 4 ]")), scaled("IN", "OUT", ["b", 4], opset=22, ir_version=10)
        ),
        [("onnx-ir", "m/1/model.onnx"), ("onnx-opset", "m/1/model.onnx")],
        ["model.ir_version = 9", "convert_version(model, 20)"],
        mend=onnx_case(config(dims=("[ 4 ]", "[ 4 ]")), scaled("IN", "OUT", ["b", 4])),
        target="triton:24.04",
    ),
    Case(
        "external data of another name",
        external("1/weights.data"),
        [("external-data", "m/1/model.onnx")],
        ["model.onnx.data"],
    ),
    Case(
        "external data that was not copied",
        external("../model.onnx.data"),
        [("external-data", "m/1/model.onnx")],
        ["model.onnx.data"],
        mend=onnx_case(config()),
    ),
    Case(
        "a link that leads out of the repository",
        linked_elsewhere,
        [("outside-repository", "m/config.pbtxt")],
        [],
        mend=copied,
    ),
    Case(
        "the tutorial's ResNet",
        onnx_case(
            config(
                batch="max_batch_size: 32",
                names=("input__0", "output__0"),
                dims=("[ 3, 8, 8 ]", "[ 3, 8, 8 ]"),
            ),
            scaled("input.1", "495", [1, 3, 8, 8]),
            "resnet18.onnx",
        ),
        [
            ("model-file", "# keep this comment"),
            ("cannot-batch", "max_batch_size: 32"),
            ("unknown-input", '"input__0"'),
            ("batch-axis-missing", "dims: [ 3, 8, 8 ]"),
            ("unknown-output", '"output__0"'),
            ("batch-axis-missing", "dims: [ 3, 8, 8 ]"),
        ],
        [
            'default_model_filename: "resnet18.onnx"',
            'name: "input.1"',
            'name: "495"',
            "max_batch_size: 0",
            "dims: [ 1, 3, 8, 8 ]",
        ],
    ),
    Case(
        "a label file that is not there",
        with_labels(
            5, "names/labels.txt".replace("names/", "classes_"), 'label_filename: "class.txt"'
        ),
        [("label-file", 'label_filename: "class.txt"')],
        ['label_filename: "classes_labels.txt"'],
    ),
    Case(
        "a label file of another length",
        with_labels(4),
        [("label-count", 'label_filename: "labels.txt"')],
        ["dims: [ 5 ]"],
        mend=with_labels(5),
    ),
    Case(
        "a config of another model",
        onnx_case(config(name="other")),
        [("name-differs", 'name: "other"')],
        ['name: "m"'],
    ),
    Case(
        "a misspelled backend",
        onnx_case(config(backend="onnxruntme")),
        [("backend-missing", 'backend: "onnxruntme"')],
        ['backend: "onnxruntime"'],
    ),
    Case(
        "a backend that isn't installed",
        onnx_case(config(backend="tensorrt"), filename="model.plan"),
        [("backend-missing", 'backend: "tensorrt"')],
        [],
        mend=onnx_case(config()),
    ),
    Case(
        "a platform of another backend",
        onnx_case(config('platform: "pytorch_libtorch"')),
        [("platform-differs", "platform:")],
        ["take platform out"],
    ),
    Case(
        "an unknown field",
        onnx_case(config("dynamic_batchin { }")),
        [("config-syntax", "dynamic_batchin {")],
        ["dynamic_batching { }"],
    ),
    Case(
        "an unknown datatype",
        onnx_case(config(types=("FP32", "TYPE_FP32"))),
        [("config-syntax", "data_type: FP32")],
        ["data_type: TYPE_FP32"],
    ),
    Case(
        "a missing comma",
        onnx_case(
            config(dims=("[ 16 ]", "[ 5 ]")).replace("dims: [ 16 ]", "dims: [ 4 4 ]"),
            graph(
                [node("Identity", ["IN"], ["OUT"])], [("IN", ["b", 4, 4])], [("OUT", ["b", 4, 4])]
            ),
        ),
        [("config-syntax", "dims: [ 4 4 ]"), ("rank-differs", "dims: [ 5 ]")],
        ["dims: [ 4, 4 ]"],
    ),
    Case(
        "a missing bracket",
        onnx_case(config(dims=("[ 16", "[ 5 ]"))),
        [("config-syntax", "dims: [ 16")],
        ["dims: [ 16 ]"],
    ),
    Case(
        "a variable in place of a number",
        onnx_case(config(batch="max_batch_size: ${max_batch_size}")),
        [("batch-axis-missing", "# keep this comment"), ("template-variable", "${max_batch_size}")],
        ["max_batch_size: 4"],
    ),
    Case(
        "a variable in place of a name",
        onnx_case(config(name="${model}")),
        [("template-variable", "${model}")],
        ['name: "m"'],
    ),
    Case(
        "sequence controls missing",
        onnx_case(config("sequence_batching { }", dims=("[ 1 ]", "[ 1 ]")), stateful()),
        [
            ("sequence-control", "sequence_batching { }"),
            ("sequence-control", "sequence_batching { }"),
        ],
        [
            'name: "START"',
            "kind: CONTROL_SEQUENCE_READY",
            "fp32_false_true: [ 0.0, 1.0 ]",
        ],
    ),
    Case(
        "an ensemble's map with another input",
        ensemble(maps=("INPUT", "OUT")),
        [("ensemble-map", "input_map")],
        ['input_map { key: "IN" value: "X" }'],
    ),
    Case(
        "an ensemble's map to another tensor",
        ensemble(tensors=("XX", "YY")),
        [("ensemble-map", "input_map"), ("ensemble-map", "output_map")],
        ['value: "X"', 'value: "Y"'],
    ),
    Case(
        "an ensemble's step that is not there",
        ensemble(model="stepp"),
        [("ensemble-step", 'model_name: "stepp"')],
        ['model_name: "step"'],
    ),
    Case(
        "an ensemble with other dims and datatypes than its steps",
        ensemble(batch=16, dims=("[ 17 ]", "[ 5, 1 ]"), types=("TYPE_FP32", "TYPE_INT8")),
        [
            ("ensemble-batch-size", "max_batch_size: 16"),
            ("dims-differ", "dims: [ 17 ]"),
            ("datatype-differs", "TYPE_INT8"),
            ("dims-differ", "dims: [ 5, 1 ]"),
        ],
        ["max_batch_size: 8", "dims: [ 16 ]", "dims: [ 5 ]", "data_type: TYPE_FP32"],
    ),
    Case(
        "an ensemble with instances",
        ensemble(extra="instance_group [ { kind: KIND_GPU gpus: [ 0 ] } ]"),
        [("ensemble", "instance_group")],
        ["take instance_group out"],
    ),
    Case(
        "an ensemble of another platform",
        lambda builder: (
            ensemble()(builder),
            (builder.path / "m" / "config.pbtxt").write_text(
                config_text(builder.path).replace('"ensemble"', '"onnxruntime_onnx"')
            ),
        ),
        [("platform-differs", '"onnxruntime_onnx"')],
        ['platform: "ensemble"'],
    ),
    Case(
        "an ensemble without a version folder",
        ensemble(versions=()),
        [("version-folder", "m/config.pbtxt")],
        ["mkdir m/1"],
    ),
]


PARAMETERS = [
    pytest.param(case, id=case.id, marks=[pytest.mark.full] if case.is_costly else [])
    for case in CASES
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of a repository that has something beside it."""
    return tmp_path / "models"


@pytest.mark.parametrize("case", PARAMETERS)
def test_finding_has_its_place_and_its_block(case: Case, path: Path) -> None:
    case.build(RepositoryBuilder(path))
    before = snapshot(path)

    report = check(path, case)

    assert [finding.code for finding in report.findings] == [code for code, _ in case.found]
    for finding, (_, where) in zip(report.findings, case.found, strict=True):
        assert_place(finding, where, path)
    assert_lines_differ(report, path)
    blocks = "\n".join(finding.block for finding in report.findings)
    for block in case.blocks:
        assert block in blocks
    assert snapshot(path) == before


@pytest.mark.parametrize("case", PARAMETERS)
def test_corrected_repository_loads_and_runs(case: Case, path: Path) -> None:
    builder = RepositoryBuilder(path)
    case.build(builder)
    had_comment = "# keep this comment" in config_text(path)

    fixed = check(path, case, fix=True)

    assert bool(fixed.open_findings()) == (case.mend is not None)
    if case.mend is not None:
        case.mend(builder)
    again = check(path, case)
    assert not again.findings
    assert "# keep this comment" in config_text(path) or not had_comment
    if "ensemble" not in config_text(path):
        assert again.runs
        assert not any(run.error for run in again.runs)
        load(path)


def test_every_finding_is_explained_in_the_reference() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "check.md").read_text("utf-8")

    codes = {code for case in CASES for code, _ in case.found}
    assert not [code for code in sorted(codes) if f"`{code}`" not in page]


def check(path: Path, case: Case, *, fix: bool = False) -> ModelReport:
    report = check_repository(
        CheckOptions(path, ["m"], fix=fix, examples=case.examples, target=case.target),
        lambda _: None,
    )
    is_clean = not report.models[0].open_findings()
    assert report.exit_code() == (ExitCode.CLEAN if is_clean else ExitCode.FINDINGS)
    return report.models[0]


def config_text(path: Path) -> str:
    file = path / "m" / "config.pbtxt"
    return file.read_text() if file.exists() else ""


def assert_place(finding: ReportedFinding, where: str, path: Path) -> None:
    if "/" in where:
        place = where if ":" in where else f"{where}:1:1"
        assert finding.place() == f"{path / place}"
        return
    assert finding.file == str(path / "m" / "config.pbtxt")
    line = config_text(path).splitlines()[finding.line - 1]
    assert where in line
    assert not line[finding.column - 1].isspace()


def assert_lines_differ(report: ModelReport, path: Path) -> None:
    """Where the config says the same twice, each finding has a line of its own."""
    lines = config_text(path).splitlines()
    for finding in report.findings:
        if finding.file.endswith("config.pbtxt") and lines:
            text = lines[finding.line - 1]
            same = [f for f in report.findings if f.file == finding.file]
            numbers = [f.line for f in same if lines[f.line - 1] == text]
            assert len(set(numbers)) == min(len(numbers), lines.count(text))


def snapshot(path: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def load(path: Path) -> None:
    """As the server does, apart from what it does not run yet."""
    loader = Loader(LoaderOptions((path,)), BackendRegistry())
    plan = loader.plan(ModelId("m"), Override())
    if plan.config.HasField("sequence_batching"):
        return
    loader.complete(plan)
    loaded = loader.load(plan, plan.versions[-1])
    for instance in loaded.instances:
        instance.close()
    loaded.loaded.close()
