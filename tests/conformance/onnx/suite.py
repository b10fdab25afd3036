"""The ONNX project's backend tests, as the wheel of onnx 1.21.0 has them on disk.

Each case is a model, and sets of inputs with the outputs that any runtime must give for them.
Later wheels build the cases in memory, with opsets that no released onnxruntime knows.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from naiad.inference import datatypes
from naiad.inference.datatypes import Datatype

REQUIREMENT = "onnx==1.21.0"
PATTERN = "onnx/backend/test/data/*"
# "light" has its own test among the real models; "real" are addresses of models to download.
GROUPS = ("node", "pytorch-converted", "pytorch-operator", "simple")
# Of onnx.backend.test.loader, for a case that says nothing else.
RTOL = 1e-3
ATOL = 1e-7

Array = npt.NDArray[Any]

_ONNX_DATATYPES: Mapping[int, Datatype] = {
    onnx.TensorProto.BOOL: datatypes.BOOL,
    onnx.TensorProto.UINT8: datatypes.UINT8,
    onnx.TensorProto.UINT16: datatypes.UINT16,
    onnx.TensorProto.UINT32: datatypes.UINT32,
    onnx.TensorProto.UINT64: datatypes.UINT64,
    onnx.TensorProto.INT8: datatypes.INT8,
    onnx.TensorProto.INT16: datatypes.INT16,
    onnx.TensorProto.INT32: datatypes.INT32,
    onnx.TensorProto.INT64: datatypes.INT64,
    onnx.TensorProto.FLOAT16: datatypes.FP16,
    onnx.TensorProto.FLOAT: datatypes.FP32,
    onnx.TensorProto.DOUBLE: datatypes.FP64,
    onnx.TensorProto.STRING: datatypes.BYTES,
    onnx.TensorProto.BFLOAT16: datatypes.BF16,
}


@dataclass(frozen=True, slots=True)
class Case:
    """A model and its folder of data sets.

    Attributes:
        name: of the folder; unique over all groups.
        folder: with ``model.onnx`` and ``test_data_set_*``.
        rtol, atol: how near an output must be.
    """

    name: str
    folder: Path
    rtol: float
    atol: float

    @property
    def model(self) -> Path:
        return self.folder / "model.onnx"


@dataclass(frozen=True, slots=True)
class Value:
    """One tensor of a data set; BF16 as its bit patterns, text as bytes."""

    datatype: Datatype
    array: Array


@dataclass(frozen=True, slots=True)
class DataSet:
    """Inputs by name, and what the outputs must be, by name."""

    inputs: dict[str, Value]
    outputs: dict[str, Value]


def list_cases(root: Path) -> list[Case]:
    """All cases below the unpacked wheel, by name."""
    data = root / "onnx" / "backend" / "test" / "data"
    folders = [path.parent for group in GROUPS for path in (data / group).glob("*/model.onnx")]
    return sorted((_make_case(folder) for folder in folders), key=lambda case: case.name)


def unservable_values(case: Case) -> list[str]:
    """Inputs and outputs that no tensor of the protocol can hold, as ``name: TYPE``."""
    graph = onnx.load(case.model, load_external_data=False).graph
    constants = {tensor.name for tensor in graph.initializer}
    values = [v for v in (*graph.input, *graph.output) if v.name not in constants]
    return [f"{value.name}: {_describe(value)}" for value in values if not _is_servable(value)]


def read_data_sets(case: Case) -> Iterator[DataSet]:
    """What the case feeds and expects; only for one whose values the protocol can hold."""
    graph = onnx.load(case.model, load_external_data=False).graph
    constants = {tensor.name for tensor in graph.initializer}
    inputs = [value.name for value in graph.input if value.name not in constants]
    outputs = [value.name for value in graph.output]
    for folder in sorted(case.folder.glob("test_data_set_*")):
        yield DataSet(_read(folder, "input", inputs), _read(folder, "output", outputs))


def explain_difference(case: Case, wanted: Value, got: Value) -> str:
    """Why ``got`` is not what the case expects; empty if it is."""
    if got.datatype is not wanted.datatype:
        return f"{got.datatype} instead of {wanted.datatype}"
    if got.array.shape != wanted.array.shape:
        return f"shape {list(got.array.shape)} instead of {list(wanted.array.shape)}"
    if wanted.datatype is datatypes.BYTES:
        return "" if got.array.tolist() == wanted.array.tolist() else "other text"
    given, expected = _as_numbers(got), _as_numbers(wanted)
    if np.allclose(given, expected, case.rtol, case.atol, equal_nan=True):
        return ""
    return "other values"


def _make_case(folder: Path) -> Case:
    limits: dict[str, float] = {}
    description = folder / "data.json"
    if description.exists():
        limits = json.loads(description.read_text(encoding="utf-8"))
    return Case(folder.name, folder, limits.get("rtol", RTOL), limits.get("atol", ATOL))


def _is_servable(value: onnx.ValueInfoProto) -> bool:
    kind = value.type
    return kind.WhichOneof("value") == "tensor_type" and (
        kind.tensor_type.elem_type in _ONNX_DATATYPES
    )


def _describe(value: onnx.ValueInfoProto) -> str:
    kind = str(value.type.WhichOneof("value"))
    if kind != "tensor_type":
        return kind
    name: str = onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type)
    return f"tensor of {name}"


def _read(folder: Path, role: str, names: Sequence[str]) -> dict[str, Value]:
    values = {}
    for index, name in enumerate(names):
        path = folder / f"{role}_{index}.pb"
        if not path.exists():
            # An optional input that this case leaves out.
            continue
        tensor = onnx.TensorProto.FromString(path.read_bytes())
        values[name] = _to_value(tensor)
    return values


def _to_value(tensor: onnx.TensorProto) -> Value:
    datatype = _ONNX_DATATYPES[tensor.data_type]
    if datatype is datatypes.BYTES:
        elements = np.empty(len(tensor.string_data), np.object_)
        elements[:] = list(tensor.string_data)
        return Value(datatype, elements.reshape(tuple(tensor.dims)))
    array = numpy_helper.to_array(tensor)
    return Value(datatype, array.view(np.uint16) if datatype is datatypes.BF16 else array)


def _as_numbers(value: Value) -> Array:
    if value.datatype is datatypes.BF16:
        return datatypes.widen_bf16(value.array)
    return value.array
