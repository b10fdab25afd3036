"""Arrays as OpenVINO's tensors, and back."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import openvino

from naiad.backends.borrowed import borrow_array
from naiad.inference import datatypes
from naiad.inference.datatypes import Datatype

# No strings: OpenVINO 2026.4 frees the memory of a string tensor that a model passes on twice, and
# the process ends.
DATATYPES: Final[Mapping[str, Datatype]] = MappingProxyType(
    {
        "boolean": datatypes.BOOL,
        "u8": datatypes.UINT8,
        "u16": datatypes.UINT16,
        "u32": datatypes.UINT32,
        "u64": datatypes.UINT64,
        "i8": datatypes.INT8,
        "i16": datatypes.INT16,
        "i32": datatypes.INT32,
        "i64": datatypes.INT64,
        "f16": datatypes.FP16,
        "f32": datatypes.FP32,
        "f64": datatypes.FP64,
        "bf16": datatypes.BF16,
    }
)


def to_openvino(array: npt.NDArray[Any], datatype: Datatype) -> openvino.Tensor:
    """A tensor over the memory of ``array``, which must live as long; copied if it isn't dense."""
    dense = np.require(array, requirements="C")
    if not dense.flags.writeable:
        # OpenVINO's Python API shares no memory that it may not write, though it does not write
        # to inputs.
        dense = borrow_array(dense.ctypes.data, dense.shape, dense.dtype, dense)
    if datatype is datatypes.BF16:
        return openvino.Tensor(dense, list(dense.shape), openvino.Type.bf16)
    return openvino.Tensor(dense, shared_memory=True)


def from_openvino(tensor: openvino.Tensor, datatype: Datatype) -> npt.NDArray[Any]:
    """A copy: the memory is the request's, which writes to it again, or that of an input."""
    data = tensor.data
    if datatype is datatypes.BF16:
        # Shown as float16, which has the right size and the wrong meaning.
        data = data.view(datatype.dtype)
    return np.array(data, order="C")
