"""What the installed onnxruntime itself makes of a case: the server must not do worse."""

import ctypes
from dataclasses import dataclass
from enum import StrEnum
from math import prod

import numpy as np
import onnxruntime
from tests.conformance.onnx.suite import (
    Array,
    Case,
    DataSet,
    Value,
    explain_difference,
    read_data_sets,
    unservable_values,
)

from naiad.inference import datatypes

_BFLOAT16 = 16  # TensorProto.DataType
_ONLY_FATAL = 4


class Kind(StrEnum):
    """What can be asked of the server.

    SERVABLE must pass; UNSERVABLE must be refused at load; with the others onnxruntime fails to
    run the model, or does not give what the suite expects.
    """

    SERVABLE = "servable"
    UNSERVABLE = "unservable"
    FAILS = "fails"
    DIFFERS = "differs"


@dataclass(frozen=True, slots=True)
class Judgement:
    """The kind of a case, and why it is of that kind."""

    kind: Kind
    why: str = ""


def judge(case: Case) -> Judgement:
    """Run a case with onnxruntime alone."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _ONLY_FATAL
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(
            case.model, options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # noqa: BLE001 - whatever it is, the case can't be asked of a server
        return Judgement(Kind.FAILS, _first_line(case, error))
    unservable = unservable_values(case)
    if unservable:
        return Judgement(Kind.UNSERVABLE, ", ".join(unservable))
    try:
        for data_set in read_data_sets(case):
            difference = _difference(case, session, data_set)
            if difference:
                return Judgement(Kind.DIFFERS, difference)
    except Exception as error:  # noqa: BLE001 - as above
        return Judgement(Kind.FAILS, _first_line(case, error))
    return Judgement(Kind.SERVABLE)


def _difference(case: Case, session: onnxruntime.InferenceSession, data_set: DataSet) -> str:
    for name, given in zip(data_set.outputs, _run(session, data_set), strict=True):
        wanted = data_set.outputs[name]
        difference = explain_difference(case, wanted, Value(wanted.datatype, given))
        if difference:
            return f"output '{name}': {difference}"
    return ""


def _run(session: onnxruntime.InferenceSession, data_set: DataSet) -> list[Array]:
    names = list(data_set.outputs)
    values = (*data_set.inputs.values(), *data_set.outputs.values())
    if any(value.datatype is datatypes.BF16 for value in values):
        # numpy has no BF16, and values of their own class hold no text.
        feed = {name: _to_ort(value) for name, value in data_set.inputs.items()}
        return [_from_ort(given) for given in session.run_with_ort_values(names, feed)]
    feed = {name: _decode_text(value) for name, value in data_set.inputs.items()}
    return [_encode_text(given) for given in session.run(names, feed)]


def _decode_text(value: Value) -> Array:
    if value.datatype is not datatypes.BYTES:
        return value.array
    decoded = np.empty(value.array.size, np.object_)
    decoded[:] = [element.decode() for element in value.array.ravel()]
    return decoded.reshape(value.array.shape)


def _encode_text(array: Array) -> Array:
    if array.dtype.kind not in "OU":
        return array
    encoded = np.empty(array.size, np.object_)
    encoded[:] = [str(element).encode() for element in array.ravel()]
    return encoded.reshape(array.shape)


def _to_ort(value: Value) -> onnxruntime.OrtValue:
    array = np.ascontiguousarray(value.array).reshape(value.array.shape)
    if value.datatype is datatypes.BF16:
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array, _BFLOAT16)
    return onnxruntime.OrtValue.ortvalue_from_numpy(array)


def _from_ort(value: onnxruntime.OrtValue) -> Array:
    if value.data_type() == "tensor(bfloat16)":
        shape = tuple(value.shape())
        raw = ctypes.string_at(value.data_ptr(), 2 * prod(shape))
        return np.frombuffer(raw, np.uint16).reshape(shape)
    array: Array = value.numpy()
    return array


def _first_line(case: Case, error: Exception) -> str:
    # The results are kept, and where the suite lay is nobody's business.
    text = f"{type(error).__name__}: {error}".replace(f"{case.folder}/", "")
    return text.partition("\n")[0][:200]
