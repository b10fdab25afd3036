"""Tensors whose elements come in the typed fields of ``InferTensorContents``.

What does not fit is refused, where Triton lets 300 wrap around in INT8.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from naiad.errors import InvalidArgumentError
from naiad.inference.datatypes import BYTES, Datatype
from naiad.protocol.binary_data import arrange_elements
from naiad.protocol.pb.grpc_service import InferTensorContents

# Fields in the order in which Triton looks at them, with what their elements are.
_FIELDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "bool_contents": "BOOL",
        "int_contents": "INT32",
        "int64_contents": "INT64",
        "uint_contents": "UINT32",
        "uint64_contents": "UINT64",
        "fp32_contents": "FP32",
        "fp64_contents": "FP64",
        "bytes_contents": "BYTES",
    }
)
# Datatypes that have no field of their own and use a wider one.
_WIDENED: Final[Mapping[str, str]] = MappingProxyType(
    {"INT8": "INT32", "INT16": "INT32", "UINT8": "UINT32", "UINT16": "UINT32"}
)


def decode_contents(
    contents: InferTensorContents, datatype: Datatype, input_name: str, model_name: str
) -> npt.NDArray[Any]:
    """The elements as an array of one dimension.

    Args:
        contents: of the input; FP16 and BF16 have no field there.
        datatype: what the request says that the elements are.
        input_name: for the error.
        model_name: for the error.

    Raises:
        InvalidArgumentError: elements of another type, or that do not fit.
    """
    expected = _WIDENED.get(datatype.name, datatype.name)
    values: Any = ()
    for field, kind in _FIELDS.items():
        elements = getattr(contents, field)
        if not elements:
            continue
        if kind != expected:
            raise InvalidArgumentError(
                f"unexpected explicit tensor data for input tensor '{input_name}' for model "
                f"'{model_name}' of type '{kind}', expected datatype '{datatype.name}'"
            )
        values = elements
    if datatype is BYTES:
        return arrange_elements(list(values), (len(values),))
    if datatype.dtype.kind == "f" and values:
        return _packed(contents, datatype, len(values))
    if datatype.name not in _WIDENED:
        return np.fromiter(values, datatype.dtype, len(values))
    wide = np.fromiter(values, np.int64, len(values))
    narrow: npt.NDArray[Any] = wide.astype(datatype.dtype)
    lost = narrow != wide
    if lost.any():
        raise InvalidArgumentError(
            f"unexpected value {wide[lost][0]} in the contents of input tensor '{input_name}' for "
            f"model '{model_name}', which does not fit into datatype '{datatype.name}'"
        )
    return narrow


def _packed(contents: InferTensorContents, datatype: Datatype, count: int) -> npt.NDArray[Any]:
    """Elements of a fixed width, which protobuf packs as they lie in memory.

    They are the one field that is set, and the last bytes of its encoding: a million of them are
    there at once, while to ask protobuf for each holds the event loop for long.
    """
    contents.DiscardUnknownFields()  # or they would come last
    encoded = contents.SerializeToString()
    return np.frombuffer(encoded, datatype.dtype, count, len(encoded) - count * datatype.byte_size)
